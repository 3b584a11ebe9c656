"""A run: arm x profile x seed, resolved to the last value."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tepo_lab.schema.arm import ArmInfo
from tepo_lab.schema.base import Strict
from tepo_lab.schema.objective import Objective
from tepo_lab.schema.profile import (
    Data,
    ModelSpec,
    OrNone,
    ProfileInfo,
    PromptSpec,
    Resources,
    Rollout,
    Suite,
    Trainer,
)

#: Settings that say how far or how carefully a run goes, not what it is: they are no part of its identity.
EXTENT = frozenset({"steps", "evaluate_at", "checkpoint_every", "keep_checkpoints", "gradient_ratio_every"})


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
    seed: OrNone = Field(default=0)

    @property
    def steps(self) -> int:
        """Training steps the run is asked for: 0 when the arm is not trained."""
        return self.trainer.steps if self.arm.trained else 0

    @property
    def evaluation_steps(self) -> tuple[int, ...]:
        """Steps after which the suite is sampled, the last always among them."""
        return tuple(sorted({*(step for step in self.trainer.evaluate_at if step < self.steps), self.steps}))

    def science(self) -> dict[str, Any]:
        """What the run's identity is a hash of, the seed left out.

        Resources, names, labels, sources and the extent (steps and cadences) are no part of it.
        """
        values = self.model_dump(mode="json")
        kept = {"model": values["model"], "suite": values["suite"], "prompt": values["prompt"]}
        kept["model"] = _model_science(values["model"])
        for benchmark in kept["suite"]["benchmarks"].values():
            benchmark.pop("label")
        if self.arm.trained:
            kept |= {key: values[key] for key in ("objective", "data", "rollout")}
            kept["rollout"].pop("sequences_per_batch")
            kept["trainer"] = {key: value for key, value in values["trainer"].items() if key not in EXTENT}
        return kept


def _model_science(model: dict[str, Any]) -> dict[str, Any]:
    # Known weights are known by their hash, wherever they lie; how memory is saved changes no number that matters.
    kept = {key: value for key, value in model.items() if key not in {"name", "gradient_checkpointing"}}
    if kept["sha256"] is not None:
        del kept["path"], kept["revision"]
    return kept
