"""Which runs of a home a command is about."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.named_runs import chosen_folders
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned


@pytest.fixture
def home(tmp_path):
    for arm, seed in (("tepo", 7), ("gspo", 7)):
        prepare_folder(entry(tmp_path, planned(compose_run(arm, "nano", seed=seed))))
    return tmp_path


def seeds(folders):
    return {folder.name.rpartition("-")[0] for folder in folders}


def test_runs_of_other_seeds_are_a_sweeps_too(home):
    asked = ["panel-e", "arms=[tepo]", "base=false"]
    assert seeds(chosen_folders(home, asked, any_seed=True)) == {f"tepo-nano-s{seed}" for seed in (1, 2, 3, 7)}
    assert seeds(chosen_folders(home, asked)) == {f"tepo-nano-s{seed}" for seed in (1, 2, 3)}
    assert seeds(chosen_folders(home, [*asked, "seeds=[1]"], any_seed=True)) == {"tepo-nano-s1"}


def test_a_run_by_the_beginning_of_its_name(home):
    assert seeds(chosen_folders(home, ["gspo-nano"])) == {"gspo-nano-s7"}
    with pytest.raises(ConfigError, match="no sweep and no run"):
        chosen_folders(home, ["x" * 5000])
