"""Building the embedded base: a short version, bit for bit, and what the shipped one can do."""

import json
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tepo_lab.errors import ModelError
from tepo_lab.nano.build import FIRST_STEP, NanoCard, NanoProgress, NanoRecipe, build_nano, share_right
from tepo_lab.nano.warm_start import WarmStartSettings
from tepo_lab.tasks.chain import ChainTask

SHORT = NanoRecipe(
    seed=5,
    skill=0.0,
    terms=(2, 3),
    batch_size=4,
    phase_one=WarmStartSettings(batches=4, learning_rate=3e-3, warmup=2),
    phase_two=WarmStartSettings(batches=3, learning_rate=1e-3, warmup=0),
    check_every=3,
    skill_problems=4,
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NanoCard, list[NanoProgress]]:
    folder = tmp_path_factory.mktemp("nano")
    seen: list[NanoProgress] = []
    return folder, build_nano(folder, SHORT, seen.append), seen


def test_a_short_build_comes_again_bit_for_bit(build, tmp_path: Path) -> None:
    folder, card, _ = build
    again = build_nano(tmp_path, SHORT)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    assert replace(card, cpu_seconds=0.0) == replace(again, cpu_seconds=0.0)


def test_a_build_tells_where_it_stands(build) -> None:
    _, card, seen = build
    stages = [(progress.phase, progress.batch, progress.skill is not None) for progress in seen]
    assert stages == [("reasoning", 3, True), ("mixture", 3, False)]
    assert str(seen[0]).startswith("reasoning: batch 3 of at most 4, loss ")
    assert card.reasoning_batches == 3


def test_a_build_is_an_ordinary_checkpoint_with_card_and_hash(build) -> None:
    folder, card, _ = build
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() == card.parameters == 162_528
    assert share_right(model, tokenizer, ChainTask(7, "+-*").distinct("validation", 4), begin=FIRST_STEP) == card.skill
    assert json.loads((folder / "sha256.json").read_text()) == {"model.safetensors": card.sha256}
    assert card.sha256 in (folder / "card.md").read_text()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ModelError, match="not empty"):
        build_nano(tmp_path, SHORT)


@pytest.mark.integration
def test_a_skill_that_is_not_reached_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="after 4 batches the skill is"):
        build_nano(tmp_path / "out", replace(SHORT, skill=0.9))
    assert not (tmp_path / "out").exists()


@pytest.mark.integration
def test_the_shipped_base_can_reason_but_seldom_does() -> None:
    with as_file(files("tepo_lab") / "assets" / "nano") as folder:
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = ChainTask(terms=5, operators="+-*").distinct("validation", 40)
    made_to = share_right(model, tokenizer, problems, begin=FIRST_STEP)
    left_alone = share_right(model, tokenizer, problems)
    assert made_to > 0.6
    assert left_alone < made_to - 0.2
