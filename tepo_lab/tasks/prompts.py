"""From a problem to the token ids a model continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tepo_lab.errors import DataError
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec
from tepo_lab.tasks.answers import Form

#: Qwen2.5-Math's system prompt for boxed answers, as used by the entropy-mechanism code base.
BOXED_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."

#: The prompt of DAPO (README of the released code).
DAPO_ANSWER = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


@dataclass(frozen=True)
class Template:
    """The parts of a prompt; `user` holds {problem}."""

    user: str
    system: str = ""
    is_chat: bool = True
    answer: Form = "boxed"


TEMPLATES = {
    "plain": Template("{problem}", is_chat=False),
    "boxed_chat": Template("{problem}", system=BOXED_SYSTEM),
    "dapo_answer": Template(DAPO_ANSWER, answer="answer_line"),
}


def prompt_text(problem: Problem, spec: PromptSpec, tokenizer: Any, *, system_role: bool = True) -> str:
    """The text that the model continues, chat template included.

    Where the template takes no system message (`system_role` False) its text begins the user's, an empty line between
    them, as templates that do so of their own accord have it. Raises `DataError` when the tokenizer has no template.
    """
    template = TEMPLATES[spec.template]
    user = (spec.user or template.user).replace("{problem}", problem.prompt)
    if not template.is_chat:
        return user
    if getattr(tokenizer, "chat_template", None) is None:
        raise DataError(
            f"prompt.template {spec.template} speaks through the model's chat template, and this model's tokenizer has "
            "none; use an instruction-tuned model, or prompt=plain."
        )
    system = template.system if spec.system is None else spec.system
    messages = [{"role": "user", "content": user}]
    if system and system_role:
        messages.insert(0, {"role": "system", "content": system})
    elif system:
        messages[0]["content"] = f"{system}\n\n{user}"
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def answer_form(spec: PromptSpec) -> Form:
    """The form in which a prompt asks for the answer."""
    return spec.answer or TEMPLATES[spec.template].answer


def encode_prompts(
    problems: Sequence[Problem], spec: PromptSpec, tokenizer: Any, *, max_tokens: int, system_role: bool = True
) -> list[list[int]]:
    """Token ids of each problem's prompt. Raises `DataError` for one longer than `max_tokens`."""
    texts = [prompt_text(problem, spec, tokenizer, system_role=system_role) for problem in problems]
    # A chat template writes its own special tokens; a plain prompt gets those its tokenizer adds.
    encoded = tokenizer(texts, add_special_tokens=not TEMPLATES[spec.template].is_chat)["input_ids"]
    for problem, ids in zip(problems, encoded, strict=True):
        if len(ids) > max_tokens:
            raise DataError(
                f"problem {problem.id}: its prompt has {len(ids)} tokens, more than rollout.max_prompt_tokens "
                f"({max_tokens}); raise the limit or remove the problem."
            )
    return [list(ids) for ids in encoded]
