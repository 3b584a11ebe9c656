"""Fixtures shared by all tests: the embedded model, and runs of it that take a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# One thread: two test processes share two cores, and results are compared bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for name in ("TEPO_LAB_HOME", "TEPO_LAB_REGISTRY", "MLFLOW_TRACKING_URI"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/integration."""
    for item in items:
        if Path(__file__).parent / "integration" in item.path.parents:
            item.add_marker(pytest.mark.integration)


#: Overrides that make a nano run take about a second: every part of it, less of each.
SMALL = (
    "trainer.prompts_per_step=16",
    "trainer.mini_batch_prompts=4",
    "trainer.checkpoint_every=2",
    "rollout.max_new_tokens=40",
    "suite.max_new_tokens=40",
    *(f"suite.benchmarks.{name}.problems=2" for name in ("sum6", "mix8", "times8")),
    *(f"suite.benchmarks.{name}.samples=4" for name in ("sum6", "mix8", "times8")),
    *(f"suite.benchmarks.{name}.problems=6" for name in ("sum3", "mix4", "mix6", "mix7")),
)


@pytest.fixture(scope="session")
def nano():
    """The embedded model, loaded; a test that changes its weights loads its own."""
    return load_nano()


def load_nano():
    import torch

    from tepo_lab.schema.profile import ModelSpec
    from tepo_lab.train.model import load_model

    torch.set_num_threads(1)
    return load_model(ModelSpec(name="nano", path="package:nano"), torch.device("cpu"))


@pytest.fixture
def small_run(tmp_path: Path) -> Callable:
    """Makes (spec, folder) of a small nano run: small_run("tepo", "trainer.steps=3", seed=1)."""
    from tepo_lab.execute.planning.actions import entry
    from tepo_lab.execute.running.prepare import prepare_folder
    from tepo_lab.registry.compose import compose_run
    from tepo_lab.registry.expand import planned

    def make(arm: str, *overrides: str, seed: int = 1, home: Path = tmp_path):
        run = planned(compose_run(arm, "nano", (*SMALL, *overrides), seed=seed))
        found = entry(home, run)
        prepare_folder(found)
        return run.spec, found.folder

    return make
