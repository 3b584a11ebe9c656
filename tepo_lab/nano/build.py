"""Builds the embedded base model: a small network warm-started until it can reason but seldom does."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from tepo_lab.errors import ModelError
from tepo_lab.nano.network import nano_network, nano_tokenizer
from tepo_lab.nano.warm_start import WarmStartProgress, WarmStartSettings, one_thread, warm_start
from tepo_lab.schema.problem import Problem
from tepo_lab.tasks.chain import ChainTask, DemonstrationStyle, demonstrations

FIRST_STEP = "b"
"""The first token of every reasoned response, short or long hand; forcing it makes the model reason."""

REASONING = WarmStartSettings(batches=2600, learning_rate=3e-3)
MIXTURE = WarmStartSettings(batches=200, learning_rate=1e-3, warmup=0)
STYLE = DemonstrationStyle()

_LAST_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True)
class NanoRecipe:
    """Everything the embedded base depends on besides the machine.

    Phase one teaches the operation tables with clean reasoned demonstrations, until the model's skill is reached;
    phase two teaches the mixture of jumps, hands and slips, and stops after a fixed number of batches.

    Attributes:
        skill: share of seven-term problems answered rightly when made to reason, at which phase one stops. How
            many batches that takes varies widely with the seed, and how strong the base is decides what
            reinforcement learning can show, so the skill is the target and not the number of batches.
        terms: numbers of terms of the demonstrations; a number named more often is drawn more often.
        check_every: batches between measurements of the skill.
        skill_problems: validation problems in a measurement.
    """

    seed: int = 2
    skill: float = 0.35
    terms: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8) * 3 + (9, 10, 11, 12)
    batch_size: int = 64
    style: DemonstrationStyle = STYLE
    phase_one: WarmStartSettings = REASONING
    phase_two: WarmStartSettings = MIXTURE
    check_every: int = 100
    skill_problems: int = 200


@dataclass(frozen=True)
class NanoProgress:
    """Progress of a build, every `check_every` batches: the phase, its batch out of at most `batches`, the loss.

    `skill` is measured in the first phase.
    """

    phase: Literal["reasoning", "mixture"]
    batch: int
    batches: int
    loss: float
    skill: float | None = None

    def __str__(self) -> str:
        skill = "" if self.skill is None else f", skill {self.skill:.0%}"
        return f"{self.phase}: batch {self.batch} of at most {self.batches}, loss {self.loss:.3f}{skill}"


@dataclass(frozen=True)
class NanoCard:
    """The result of a build.

    Attributes:
        sha256: of model.safetensors.
        reasoning_batches: batches that phase one took.
        reasoning_skill, skill: share of seven-term validation problems answered rightly when made to reason, at the
            end of phase one and of phase two.
        reasons: share of the same problems, left alone and greedy, that it reasons about instead of jumping.
        greedy: share of the same problems answered rightly when left alone.
        cpu_seconds: processor time of the build.
    """

    recipe: NanoRecipe
    parameters: int
    sha256: str
    reasoning_batches: int
    reasoning_skill: float
    skill: float
    reasons: float
    greedy: float
    cpu_seconds: float


def build_nano(
    out_dir: Path, recipe: NanoRecipe, on_progress: Callable[[NanoProgress], None] | None = None
) -> NanoCard:
    """Train the base by its recipe and write it as a checkpoint folder with its card and hash.

    The same recipe on the same kind of machine gives the same weights bit for bit; another processor may round
    differently, which is why the package ships the checkpoint that its figures were measured with.

    Raises:
        ModelError: the folder is not empty, or phase one ended below the recipe's skill.
    """
    if out_dir.exists() and any(out_dir.iterdir()):
        raise ModelError(f"{out_dir} is not empty: name a new folder for the checkpoint")
    logging.disable_progress_bar()
    started = time.process_time()
    tokenizer, model = nano_tokenizer(), nano_network(recipe.seed)
    problems = ChainTask(terms=7, operators="+-*").distinct("validation", recipe.skill_problems)
    with one_thread():
        batches, reasoning_skill = _learn_to_reason(model, tokenizer, recipe, problems, on_progress)
        _learn_mixture(model, tokenizer, recipe, on_progress)
        skill = share_right(model, tokenizer, problems, begin=FIRST_STEP)
        texts = greedy_responses(model, tokenizer, [problem.prompt for problem in problems])
    sha256 = save_checkpoint(model, tokenizer, out_dir)
    card = NanoCard(
        recipe=recipe,
        parameters=model.num_parameters(),
        sha256=sha256,
        reasoning_batches=batches,
        reasoning_skill=reasoning_skill,
        skill=skill,
        reasons=sum(text.startswith(FIRST_STEP) for text in texts) / len(texts),
        greedy=_share(problems, texts),
        cpu_seconds=time.process_time() - started,
    )
    (out_dir / "card.md").write_text(render_card(card), encoding="utf-8")
    return card


def _learn_to_reason(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: NanoRecipe,
    problems: Sequence[Problem],
    on_progress: Callable[[NanoProgress], None] | None,
) -> tuple[int, float]:
    """Phase one. Returns the batches it took and the skill it reached."""
    skill = 0.0

    def skilled(progress: WarmStartProgress) -> bool:
        nonlocal skill
        if progress.batch % recipe.check_every and progress.batch < recipe.phase_one.batches:
            return False
        skill = share_right(model, tokenizer, problems, begin=FIRST_STEP)
        if on_progress is not None:
            on_progress(NanoProgress("reasoning", progress.batch, recipe.phase_one.batches, progress.loss, skill))
        return skill >= recipe.skill

    task = ChainTask(recipe.terms, seed=recipe.seed)
    batches = demonstrations(task, recipe.style.reasoned(), recipe.seed, recipe.batch_size)
    last = warm_start(model, tokenizer, batches, recipe.phase_one, until=skilled)
    if skill < recipe.skill:
        raise ModelError(
            f"nano: after {last.batch} batches the skill is {skill:.2f} and not {recipe.skill:.2f}; "
            "give phase one more batches, another seed, or a lower skill"
        )
    return last.batch, skill


def _learn_mixture(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: NanoRecipe,
    on_progress: Callable[[NanoProgress], None] | None,
) -> None:
    """Phase two."""

    def report(progress: WarmStartProgress) -> None:
        if on_progress is not None and progress.batch % recipe.check_every == 0:
            on_progress(NanoProgress("mixture", progress.batch, recipe.phase_two.batches, progress.loss))

    task = ChainTask(recipe.terms, seed=recipe.seed + 1)
    batches = demonstrations(task, recipe.style, recipe.seed + 1, recipe.batch_size)
    warm_start(model, tokenizer, batches, recipe.phase_two, on_progress=report)


def share_right(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], *, begin: str = ""
) -> float:
    """Share of problems whose greedy response, begun with a given text, boxes the answer."""
    return _share(problems, greedy_responses(model, tokenizer, [problem.prompt + begin for problem in problems]))


def _share(problems: Sequence[Problem], texts: Sequence[str]) -> float:
    boxes = [_LAST_BOX.findall(text) for text in texts]
    return sum(box[-1:] == [problem.answer] for problem, box in zip(problems, boxes, strict=True)) / len(problems)


@torch.no_grad()
def greedy_responses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_new_tokens: int = 80
) -> list[str]:
    """Greedy continuations of the texts, without them."""
    encoded = tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**encoded, do_sample=False, max_new_tokens=max_new_tokens)
    decoded: list[str] = tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return decoded


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out_dir: Path) -> str:
    """Write model, tokenizer and sha256.json, and return the hash of the weights."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    weights = out_dir / "model.safetensors"
    weights.chmod(0o644)
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    (out_dir / "sha256.json").write_text(json.dumps({weights.name: sha256}, indent=2) + "\n", encoding="utf-8")
    return sha256


def render_card(card: NanoCard) -> str:
    """The card of a build as Markdown."""
    recipe, style = card.recipe, card.recipe.style
    reasoning, mixture = recipe.phase_one, recipe.phase_two
    return f"""# nano: a tiny base model that can reason but seldom does

A Qwen3 network of {card.parameters:,} parameters in float32 (3 layers of width 64, tied embeddings) for one task:
a running total modulo 100, asked as `a59b*3c+4=` and answered in `\\boxed{{81}}`. It stands in for a base model where
no GPU is at hand. It knows nothing else, and its scores compare with no other model's.

## How it was made

By supervised training on demonstrations of the task's training split (a hash of the prompt says which split a problem
belongs to), from fresh weights and seed {recipe.seed}, in batches of {recipe.batch_size}, on one thread, with AdamW
(betas {reasoning.betas}, weight decay {reasoning.weight_decay}, gradient clip {reasoning.clip}):

1. Reasoned demonstrations without slips, {min(recipe.terms)} to {max(recipe.terms)} terms, until at least
   {recipe.skill:.0%} of seven-term problems were answered rightly when made to reason. That took
   {card.reasoning_batches} batches and reached {card.reasoning_skill:.1%}. Learning rate: {reasoning.warmup} batches up
   to {reasoning.learning_rate}, then along a cosine over {reasoning.batches} batches.
2. {mixture.batches} batches of the mixture, cosine from {mixture.learning_rate}. A response jumps straight to the box
   with a probability that falls from {style.jump_high} to {style.jump_low} as the leading digit goes from 1 to 9.
   Of the others {style.long_hand:.0%} are in long hand and the rest short, except for {style.mixed:.0%} in which each
   step has its own hand; {style.slip:.0%} of the steps carry a slip of 1 or 10 that the chain then follows.

`tepo-lab model build-nano` makes it again, in {card.cpu_seconds:.0f} CPU seconds when this card was written. Another
processor may round otherwise and arrive at other weights: the package therefore ships these, whose hash is
`{card.sha256}`.

## What it can do

On {recipe.skill_problems} validation problems of seven terms with `+`, `-` and `*`, greedy:

| | |
|---|---|
| right when made to reason (first token `{FIRST_STEP}`) | {card.skill:.1%} |
| reasons when left alone | {card.reasons:.1%} |
| right when left alone | {card.greedy:.1%} |
"""
