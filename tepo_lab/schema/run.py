"""A run: arm x profile x seed, resolved to the last value."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from pydantic import Field

from tepo_lab.schema.arm import ArmInfo
from tepo_lab.schema.base import Strict
from tepo_lab.schema.objective import Objective
from tepo_lab.schema.profile import (
    Benchmark,
    ChainData,
    Data,
    ModelSpec,
    ProfileInfo,
    PromptSpec,
    Resources,
    Rollout,
    Seed,
    Suite,
    Trainer,
    usual_grader,
)

#: Settings that say how far or how carefully a run goes, not what it is: they are no part of its identity.
EXTENT = frozenset(
    {
        "steps",
        "evaluate_at",
        "checkpoint_every",
        "keep_checkpoints",
        "gradient_ratio_every",
        "tokens_every",
        "micro_batch_tokens",
    }
)

MODEL_EXTENT = frozenset({"name", "gradient_checkpointing", "origin", "sizes"})
ROLLOUT_EXTENT = frozenset({"sequences_per_batch", "max_sampler_mismatch"})


class RunSpec(Strict):
    """Everything one trial needs to know."""

    arm: ArmInfo
    profile: ProfileInfo
    objective: Objective
    model: ModelSpec
    data: Data
    prompt: PromptSpec = PromptSpec()
    suite: Suite
    rollout: Rollout
    trainer: Trainer
    resources: Resources = Resources()
    seed: Seed = Field(default=0)

    @property
    def steps(self) -> int:
        """Training steps the run is asked for: 0 when the arm is not trained."""
        return self.trainer.steps if self.arm.trained else 0

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """Steps after which the suite is sampled, the last always among them."""
        return tuple(sorted({*(step for step in self.trainer.evaluate_at if step < self.steps), self.steps}))

    def with_absolute_paths(self) -> RunSpec:
        """The same run, which finds its local model and data from any working folder."""
        model, suite = self.model, self.suite
        if model.folder.is_dir() and not model.is_packaged:
            model = model.model_copy(update={"path": _absolute(model.path)})
        benchmarks = {
            name: each.model_copy(update={"data": _with_absolute_path(each.data)})
            for name, each in suite.benchmarks.items()
        }
        suite = suite.model_copy(update={"benchmarks": benchmarks})
        return self.model_copy(update={"model": model, "data": _with_absolute_path(self.data), "suite": suite})

    def science(self) -> dict[str, Any]:
        """What the run's identity is a hash of, the seed left out.

        Resources, names, labels, sources, places on disk and the extent (steps and cadences) are no part of it. A value
        equal to its default is left out, so that a new optional key leaves the identity of earlier runs alone.
        """
        sections = {"model", "prompt", "suite"} | (
            {"objective", "data", "rollout", "trainer"} if self.arm.trained else set()
        )
        kept = self.model_dump(mode="json", include=sections, exclude_defaults=True)
        kept["model"] = _model_science(kept["model"])
        kept["suite"].pop("name")
        for name, benchmark in self.suite.benchmarks.items():
            _reduce_to_science(kept["suite"]["benchmarks"][name], benchmark, self.prompt)
        if self.arm.trained:
            kept["data"] = _data_science(kept["data"])
            kept["rollout"] = {key: value for key, value in kept["rollout"].items() if key not in ROLLOUT_EXTENT}
            kept["trainer"] = {key: value for key, value in kept["trainer"].items() if key not in EXTENT}
        return kept


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _with_absolute_path(data: Data) -> Data:
    if isinstance(data, ChainData) or data.path is None:
        return data
    return data.model_copy(update={"path": _absolute(data.path)})


def _model_science(model: dict[str, Any]) -> dict[str, Any]:
    # Known weights are known by their hash, wherever they lie; how memory is saved changes no number that matters.
    kept = {key: value for key, value in model.items() if key not in MODEL_EXTENT}
    if "sha256" in kept:
        return {key: value for key, value in kept.items() if key not in {"path", "revision"}}
    if PurePath(kept["path"]).is_absolute() or kept["path"].startswith((".", "~")):
        kept["path"] = PurePath(kept["path"]).name
    return kept


def _reduce_to_science(kept: dict[str, Any], benchmark: Benchmark, prompt: PromptSpec) -> None:
    """Take from a benchmark's dumped values what changes none of its numbers."""
    kept.pop("label")
    kept["data"] = _data_science(kept["data"])
    # Stated or not: the same questions, graded alike.
    if benchmark.prompt == prompt:
        kept.pop("prompt", None)
    if benchmark.grader == usual_grader(benchmark.data):
        kept.pop("grader", None)


def _data_science(data: dict[str, Any]) -> dict[str, Any]:
    # A local copy of a data set of the hub is that data set; a file of one's own is known by its name.
    if "path" not in data:
        return data
    kept = {key: value for key, value in data.items() if key != "path"}
    return kept if "hub" in data else kept | {"path": PurePath(data["path"]).name}
