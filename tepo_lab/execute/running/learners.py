"""A trial of several learners: Ray Train's worker group inside a trial of Tune.

The worker group's placement group is the trial's only claim on the cluster: one bundle per learner, for its updates
and the engine beside it, all or none. The process that Tune starts only waits, and takes nothing, so two trials cannot
each claim half of what both need.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.execute.running.failures import log_error, record_user_failure
from tepo_lab.records.files import RunFolder
from tepo_lab.schema.profile import Resources


def bundle(resources: Resources) -> dict[str, float]:
    """What one learner of a run takes, by Ray's names of resources."""
    share = {"CPU": resources.cpus / resources.learners, "GPU": resources.gpus / resources.learners}
    return {name: amount for name, amount in share.items() if amount}


def run_with_learners(config: dict[str, Any]) -> None:
    """Carry out the run of `config["folder"]` with `config["resources"]`, as Tune's trial function.

    A failure of the user's making is recorded and ends the run; one of the machine's is raised, so that Tune tries
    again from the run's newest checkpoint.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    resources = Resources.model_validate(config["resources"])
    folder = RunFolder(Path(config["folder"]))
    share = bundle(resources)
    trainer = TorchTrainer(
        learn,
        train_loop_config=config,
        torch_config=TorchConfig(backend="nccl" if resources.is_on_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.learners, resources_per_worker=share, use_gpu="GPU" in share
        ),
        run_config=RunConfig(
            name=f"{folder.name}-{uuid.uuid4().hex[:8]}",
            storage_path=config["storage"],
            # Tune counts the retries.
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),
            # A search decides by validation scores; all else is in the run's records.
            callbacks=[TuneReportCallback()] if config["search"] else [],
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        by_rank = error.worker_failures if isinstance(error, WorkerGroupError) else {}
        failures = [failure for _, failure in sorted(by_rank.items()) if not is_lost_peer(failure)]
        if not record_user_failure(folder, failures):
            raise


def learn(config: dict[str, Any]) -> None:
    """What each worker does: the run from its newest checkpoint to its end, in step with the others."""
    from ray import train

    from tepo_lab.train.distributed.process_group import TorchProcessGroup

    attempt = Attempt(config, TorchProcessGroup())
    try:
        while (progress := attempt.advance()) is not None:
            if config["search"]:
                scores = progress.metrics if progress.phase == "validated" else {}
                train.report({"step": progress.step, **scores})
            if attempt.is_over:
                return
    except Exception as error:
        if not is_lost_peer(error):
            log_error(attempt.folder, error)
        raise
    finally:
        attempt.close()


def is_lost_peer(error: BaseException) -> bool:
    """Whether a worker failed because another one died: Ray's error for the dead one, torch's for the waiting ones."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"RayError", "RayTrainError", "DistError"}:
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)
