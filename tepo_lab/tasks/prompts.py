"""From a problem to the token ids a model continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tepo_lab.errors import DataError
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec

#: Qwen2.5-Math's system prompt for boxed answers, as used by the entropy-mechanism code base.
BOXED_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."

#: The prompt of DAPO (README of the released code).
DAPO_ANSWER = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def prompt_text(problem: Problem, spec: PromptSpec, tokenizer: Any) -> str:
    """The text that the model continues, chat template included."""
    if spec.template == "plain":
        return problem.prompt
    if spec.template == "boxed_chat":
        messages = [{"role": "system", "content": BOXED_SYSTEM}, {"role": "user", "content": problem.prompt}]
    else:
        messages = [{"role": "user", "content": DAPO_ANSWER.replace("{problem}", problem.prompt)}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode_prompts(
    problems: Sequence[Problem], spec: PromptSpec, tokenizer: Any, *, max_tokens: int
) -> list[list[int]]:
    """Token ids of each problem's prompt. Raises `DataError` for one longer than `max_tokens`."""
    texts = [prompt_text(problem, spec, tokenizer) for problem in problems]
    # A chat template writes its own special tokens; a plain prompt gets those its tokenizer adds.
    encoded = tokenizer(texts, add_special_tokens=spec.template == "plain")["input_ids"]
    for problem, ids in zip(problems, encoded, strict=True):
        if len(ids) > max_tokens:
            raise DataError(
                f"problem {problem.id}: its prompt has {len(ids)} tokens, more than rollout.max_prompt_tokens "
                f"({max_tokens}); raise the limit or remove the problem."
            )
    return [list(ids) for ids in encoded]
