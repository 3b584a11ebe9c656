"""Sweeps that faults strike, and the same runs left in peace; a module may have a `bench` of its own."""

from __future__ import annotations

import pytest


def new_bench(folder, **choices):
    from tests.integration.fault_points import STEPS
    from tests.integration.faults import Bench

    return Bench(folder, STEPS, **choices)


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """Two runs, for faults that are of a command."""
    return new_bench(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def peaceful(bench):
    """A home whose runs were made in this process, without Ray or MLflow."""
    return bench.leave_in_peace(bench.root / "peaceful")


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """Six runs, for faults that are each of one run."""
    return new_bench(tmp_path_factory.mktemp("wide"), seeds=(1, 2, 3))


@pytest.fixture(scope="session")
def wide_peaceful(wide):
    return wide.leave_in_peace(wide.root / "peaceful")


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """One run, for faults that are of the home."""
    return new_bench(tmp_path_factory.mktemp("narrow"), arms=("tepo",))


@pytest.fixture(scope="session")
def narrow_peaceful(narrow):
    return narrow.leave_in_peace(narrow.root / "peaceful")
