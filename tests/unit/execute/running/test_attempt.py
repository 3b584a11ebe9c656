"""With what an attempt opens its trial."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tepo_lab.errors import TepoLabError, is_machine_failure
from tepo_lab.execute.planning import hub_commits as hub
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.provenance import hardware
from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import DatasetData
from tepo_lab.tasks.hub_data import HubUnreachableError
from tepo_lab.train import trial
from tests.trial_config import trial_config


def test_the_trial_is_opened_at_the_commits_recorded_and_is_told_the_nodes_hardware(tmp_path, monkeypatch):
    opened = []

    def open_trial(spec, folder, **given):
        opened.append((spec, given["hardware"]))
        return SimpleNamespace(advance=lambda: "went on", done=False, close=lambda: None)

    monkeypatch.setattr(trial, "Trial", open_trial)
    spec = compose_run("tepo", "nano", seed=1)
    spec = spec.model_copy(update={"data": DatasetData(kind="dataset", hub="some/problems")})
    found = entry(tmp_path, planned(spec))
    monkeypatch.setattr(hub, "_COMMITS", {("data set", "some/problems", None, None): "c" * 40})
    attempt = Attempt(trial_config(spec, found.folder))
    assert attempt.advance() == "went on"
    attempt.close()
    ((used, node),) = opened
    assert (used.data.revision, used.model, node) == ("c" * 40, spec.model, hardware())
    # What is asked for, and with it the run's identity, is as it was.
    recorded = found.folder.run()
    assert (recorded["spec"]["data"]["revision"], recorded["id"]) == (None, planned(spec).run_id)


@pytest.mark.parametrize(("error", "is_machine"), [(HubUnreachableError("x"), True), (TepoLabError("x"), False)])
def test_data_that_the_hub_does_not_give_just_now_are_tried_again(error, is_machine):
    assert is_machine_failure(error) is is_machine
