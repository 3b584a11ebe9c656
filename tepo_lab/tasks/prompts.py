"""From a problem to the token ids a model continues."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from tepo_lab.errors import DataError, ModelError
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec
from tepo_lab.tasks.answers import Form

#: CPU seconds that a chat template may take for one prompt; real ones take a millisecond.
TEMPLATE_SECONDS = 20.0

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
    them, as templates that do so of their own accord have it. Raises `DataError` when the tokenizer has no template,
    and `ModelError` for one that fails or comes to no end.
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
    try:
        with _cpu_deadline(TEMPLATE_SECONDS):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except (TemplateError, OverflowError, TimeoutError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"the chat template of the model's tokenizer cannot be used ({reason}); restore the model's own files, or "
            "set model.system_role=false if it takes no system message."
        ) from None


@contextmanager
def _cpu_deadline(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` after so many seconds of this process's own CPU time.

    Signals are the main thread's: in another one there is no deadline.
    """

    def expire(number: int, frame: object) -> None:
        raise TimeoutError(f"it has not ended after {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


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
