"""Prompts: the text of each template, what a profile may change, and models without a system role."""

from __future__ import annotations

from typing import Any

import pytest

from tepo_lab.errors import ConfigError, DataError, ModelError
from tepo_lab.schema.base import validate
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec
from tepo_lab.tasks.prompts import BOXED_SYSTEM, answer_form, encode_prompts, prompt_text

PROBLEM = Problem("p", "What is {1}+1?", "2")


class ChatTokenizer:
    """Shows messages as role:content lines; a token a character."""

    chat_template: str | None = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return "\n".join(f"{each['role']}:{each['content']}" for each in messages)

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * add_special_tokens + list(text.encode()) for text in texts]}


def text(**spec: Any) -> str:
    return prompt_text(PROBLEM, PromptSpec(**spec), ChatTokenizer())


def test_templates_say_what_they_say() -> None:
    assert text(template="plain") == "What is {1}+1?"
    assert text(template="boxed_chat") == f"system:{BOXED_SYSTEM}\nuser:What is {{1}}+1?"
    dapo = text(template="dapo_answer")
    assert dapo.startswith("user:Solve the following math problem step by step. The last line")
    assert dapo.endswith('\n\nWhat is {1}+1?\n\nRemember to put your answer on its own line after "Answer:".')


def test_a_profile_can_say_it_otherwise() -> None:
    assert text(template="boxed_chat", system="", user="Solve: {problem}") == "user:Solve: What is {1}+1?"
    assert text(template="plain", user="Q: {problem} A:") == "Q: What is {1}+1? A:"


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ({"template": "plain"}, "boxed"),
        ({"template": "boxed_chat"}, "boxed"),
        ({"template": "dapo_answer"}, "answer_line"),
        ({"template": "boxed_chat", "answer": "answer_line"}, "answer_line"),
    ],
)
def test_the_answer_is_looked_for_as_it_was_asked_for(spec: dict, form: str) -> None:
    assert answer_form(PromptSpec(**spec)) == form


def test_a_prompt_without_the_problem_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must hold \{problem\}"):
        validate(PromptSpec, {"user": "Solve this."}, where="test")


def test_a_chat_prompt_for_a_base_model_is_refused() -> None:
    tokenizer = ChatTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="this model's tokenizer has none"):
        prompt_text(PROBLEM, PromptSpec(template="boxed_chat"), tokenizer)


def test_only_plain_prompts_get_special_tokens_and_long_ones_are_refused() -> None:
    plain = encode_prompts([PROBLEM], PromptSpec(), ChatTokenizer(), max_tokens=15)
    chat = encode_prompts([PROBLEM], PromptSpec(template="boxed_chat"), ChatTokenizer(), max_tokens=500)
    assert plain == [[0, *b"What is {1}+1?"]]
    assert chat[0][0] == ord("s")
    with pytest.raises(DataError, match="problem p: its prompt has 15 tokens"):
        encode_prompts([PROBLEM], PromptSpec(), ChatTokenizer(), max_tokens=14)


SUM = Problem("p", "What is 1 + 1?", "2")
BOXED = PromptSpec(template="boxed_chat")

#: Like that of Mistral-7B-Instruct-v0.2: user and assistant in turn, and nobody else.
TURNS = """{{ bos_token }}{% for message in messages %}
{%- if message.role != ('user' if loop.index0 is even else 'assistant') %}{{ raise_exception('roles must alternate') }}
{%- endif %}
{%- if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %}{{ message.content }}{{ eos_token }}
{%- endif %}{% endfor %}"""

#: Like that of Qwen2.5: any role.
ROLES = """{% for message in messages %}<s>{{ message.role }}
{{ message.content }}</s>
{% endfor %}{% if add_generation_prompt %}<s>assistant
{% endif %}"""


def tokenizer(template: str) -> Any:
    """A tokenizer of bytes, as transformers loads them, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", chat_template=template)


def test_a_system_message_is_one_where_the_template_takes_it() -> None:
    shown = prompt_text(SUM, BOXED, tokenizer(ROLES))
    assert shown == f"<s>system\n{BOXED_SYSTEM}</s>\n<s>user\nWhat is 1 + 1?</s>\n<s>assistant\n"


def test_its_text_begins_the_users_where_the_template_refuses_it() -> None:
    turns = tokenizer(TURNS)
    with pytest.raises(ModelError, match=r"roles must alternate.*model\.system_role"):
        prompt_text(SUM, BOXED, turns)
    shown = prompt_text(SUM, BOXED, turns, system_role=False)
    assert shown == f"<s>[INST] {BOXED_SYSTEM}\n\nWhat is 1 + 1? [/INST]"
    (ids,) = encode_prompts([SUM], BOXED, turns, max_tokens=200, system_role=False)
    assert turns.decode(ids) == shown


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(10 ** 12) %}{% endfor %}",
        "{{ messages[0].nothing.more }}",
        "{% if %}",
    ],
)
def test_a_template_that_fails_or_comes_to_no_end_is_the_models_fault(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tepo_lab.tasks.prompts.TEMPLATE_SECONDS", 0.2)
    with pytest.raises(ModelError, match="chat template"):
        prompt_text(SUM, BOXED, tokenizer(template))


@pytest.mark.parametrize("template", [TURNS, ROLES])
def test_without_a_system_message_the_role_makes_no_difference(template: str) -> None:
    made = tokenizer(template)
    for spec in (PromptSpec(template="dapo_answer"), PromptSpec(template="boxed_chat", system="")):
        assert prompt_text(SUM, spec, made) == prompt_text(SUM, spec, made, system_role=False)
