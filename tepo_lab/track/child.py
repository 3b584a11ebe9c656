"""One trial's run in MLflow: what it holds, compared with what the records say."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag

from tepo_lab.track.state import RunState, Values

METRICS_PER_BATCH = 1000

#: Tag with the digest of the state that an ended run was last brought to, in full.
_DIGEST = "records"
_CONFIG_DIGEST = "run_json"
#: Tags that a run loses again when it goes on.
_PASSING_TAGS = frozenset({"outcome", "rule", "failure", "error"})


@dataclass
class Child:
    """What MLflow holds of one trial.

    `scores` are those of its evaluations, None until it was brought in step: what it holds of the steps need not be
    kept, since it is what was read of the records before. `params` are None of a run that rests.
    """

    run_id: str
    params: dict[str, str] | None
    tags: dict[str, str]
    status: str
    ended: int | None
    metrics: list[str] = field(default_factory=list)
    scores: Values | None = None

    @classmethod
    def of(cls, run: Run) -> Child:
        """A run as MLflow gives it."""
        return cls(
            run_id=run.info.run_id,
            params=dict(run.data.params),
            tags=dict(run.data.tags),
            status=run.info.status,
            ended=run.info.end_time,
            metrics=sorted(run.data.metrics),
        )

    def in_step(self, state: RunState) -> bool:
        """Whether the run has ended and was brought to just this state before."""
        return state.ended is not None and self.tags.get(_DIGEST) == state.digest and self._same_status(state)

    def held(self, client: MlflowClient, state: RunState) -> Values:
        """The values that MLflow holds, as far as `state` tells of them."""
        return self._ask(client) if state.is_whole or self.scores is None else self.scores

    def contradicts(self, client: MlflowClient, state: RunState, held: Values) -> bool:
        """Whether MLflow holds a value or a param that the records do not have: neither can be taken back."""
        recorded, params = state.values, self._held_params(client)
        return any(recorded.get(key) != value for key, value in held.items()) or any(
            state.params.get(key) != value for key, value in params.items()
        )

    def rest(self) -> None:
        """Forget what MLflow can be asked for again."""
        self.params = self.scores = None

    def log_missing(self, client: MlflowClient, state: RunState, held: Values) -> None:
        """Log what the records say and MLflow does not hold. The run must not contradict the state."""
        if self.tags.get(_DIGEST, state.digest) != state.digest:
            self._drop_tag(client, _DIGEST)
        self._log_config_and_tags(client, state)
        recorded = state.values
        missing = sorted((step, name) for name, step in recorded.keys() - held.keys())
        for start in range(0, len(missing), METRICS_PER_BATCH):
            batch = missing[start : start + METRICS_PER_BATCH]
            metrics = [Metric(name, *recorded[name, step], step) for step, name in batch]
            client.log_batch(self.run_id, metrics=metrics)
        if not self._same_status(state):
            if state.ended is None:
                client.update_run(self.run_id, status=state.status)
            else:
                client.set_terminated(self.run_id, state.status, state.ended)
        self.status, self.ended = state.status, state.ended
        self.metrics = sorted({*self.metrics, *(name for name, _ in recorded)})
        self.scores = state.scores
        if state.ended is not None and _DIGEST not in self.tags:
            client.set_tag(self.run_id, _DIGEST, state.digest)
            self.tags[_DIGEST] = state.digest

    def _log_config_and_tags(self, client: MlflowClient, state: RunState) -> None:
        wanted = state.tags | {_CONFIG_DIGEST: hashlib.sha256(state.config.encode()).hexdigest()[:12]}
        if self.tags.get(_CONFIG_DIGEST) != wanted[_CONFIG_DIGEST]:
            client.log_text(self.run_id, state.config, "run.json")
        held = self._held_params(client)
        params = [Param(key, value) for key, value in state.params.items() if key not in held]
        tags = [RunTag(key, value) for key, value in wanted.items() if self.tags.get(key) != value]
        client.log_batch(self.run_id, params=params, tags=tags)
        for key in sorted((self.tags.keys() & _PASSING_TAGS) - wanted.keys()):
            self._drop_tag(client, key)
        self.params, self.tags = state.params, self.tags | wanted

    def _drop_tag(self, client: MlflowClient, key: str) -> None:
        client.delete_tag(self.run_id, key)
        del self.tags[key]

    def _same_status(self, state: RunState) -> bool:
        # MLflow keeps the end time of a run that was resumed until it ends again.
        return self.status == state.status and (state.ended is None or self.ended == state.ended)

    def _held_params(self, client: MlflowClient) -> dict[str, str]:
        if self.params is None:
            self.params = dict(client.get_run(self.run_id).data.params)
        return self.params

    def _ask(self, client: MlflowClient) -> Values:
        values: Values = {}
        for name in self.metrics:
            for metric in client.get_metric_history(self.run_id, name):
                key = (name, metric.step)
                # Two values for one step cannot both be the record's, and nan is equal to neither.
                values[key] = (math.nan, 0) if key in values else (metric.value, metric.timestamp)
        return values
