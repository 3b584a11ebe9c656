"""Sweeps that faults strike, and the same runs left undisturbed; a module may have a `bench` of its own."""

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
def undisturbed(bench):
    """A home whose runs were made in this process, without Ray or MLflow."""
    return bench.run_undisturbed(bench.root / "undisturbed")


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """Six runs, for faults that are each of one run."""
    return new_bench(tmp_path_factory.mktemp("wide"), seeds=(1, 2, 3))


@pytest.fixture(scope="session")
def wide_undisturbed(wide):
    return wide.run_undisturbed(wide.root / "undisturbed")


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """One run, for faults that are of the home."""
    return new_bench(tmp_path_factory.mktemp("narrow"), arms=("tepo",))


@pytest.fixture(scope="session")
def narrow_undisturbed(narrow):
    return narrow.run_undisturbed(narrow.root / "undisturbed")
