"""A run: arm x profile x seed, resolved to the last value."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from pydantic import Field

from tepo_lab.schema.arm import ArmInfo
from tepo_lab.schema.base import Strict
from tepo_lab.schema.objective import Objective
from tepo_lab.schema.profile import (
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
TRAINER_EXTENT = frozenset(
    {
        *("steps", "evaluate_at", "checkpoint_every", "keep_checkpoints"),
        *("gradient_ratio_every", "tokens_every", "micro_batch_tokens"),
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
            name: benchmark.model_copy(update={"data": _with_absolute_path(benchmark.data)})
            for name, benchmark in suite.benchmarks.items()
        }
        suite = suite.model_copy(update={"benchmarks": benchmarks})
        return self.model_copy(update={"model": model, "data": _with_absolute_path(self.data), "suite": suite})

    def identity_fields(self) -> dict[str, Any]:
        """What the run's identity is a hash of, the seed left out.

        Resources, names, labels, sources, places on disk and the extent (steps and intervals) are no part of it. A
        value equal to its default is left out, so that a new optional key leaves the identity of earlier runs alone.
        """
        sections = {"model", "prompt", "suite"}
        if self.arm.trained:
            sections |= {"objective", "data", "rollout", "trainer"}
        fields = self.model_dump(mode="json", include=sections, exclude_defaults=True)
        fields["model"] = _model_identity(fields["model"])
        fields["suite"].pop("name")
        for name, benchmark in self.suite.benchmarks.items():
            dumped = fields["suite"]["benchmarks"][name]
            dumped.pop("label")
            dumped["data"] = _data_identity(dumped["data"])
            # Given or left out: the same prompts, graded alike.
            if benchmark.prompt == self.prompt:
                dumped.pop("prompt", None)
            if benchmark.grader == usual_grader(benchmark.data):
                dumped.pop("grader", None)
        if self.arm.trained:
            fields["data"] = _data_identity(fields["data"])
            fields["rollout"] = {key: value for key, value in fields["rollout"].items() if key not in ROLLOUT_EXTENT}
            fields["trainer"] = {key: value for key, value in fields["trainer"].items() if key not in TRAINER_EXTENT}
        return fields


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _with_absolute_path(data: Data) -> Data:
    if isinstance(data, ChainData) or data.path is None:
        return data
    return data.model_copy(update={"path": _absolute(data.path)})


def _model_identity(model: dict[str, Any]) -> dict[str, Any]:
    # Known weights are known by their hash, wherever they are.
    fields = {key: value for key, value in model.items() if key not in MODEL_EXTENT}
    if "sha256" in fields:
        return {key: value for key, value in fields.items() if key not in {"path", "revision"}}
    if PurePath(fields["path"]).is_absolute() or fields["path"].startswith((".", "~")):
        fields["path"] = PurePath(fields["path"]).name
    return fields


def _data_identity(data: dict[str, Any]) -> dict[str, Any]:
    # A local copy of a data set of the hub is that data set; a user's own file is known by its name.
    if "path" not in data:
        return data
    fields = {key: value for key, value in data.items() if key != "path"}
    return fields if "hub" in data else fields | {"path": PurePath(data["path"]).name}
