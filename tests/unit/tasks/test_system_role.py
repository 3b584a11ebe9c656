"""One prompt for models with and without a system role, through chat templates as tokenizers carry them."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateError

from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec
from tepo_lab.tasks.prompts import BOXED_SYSTEM, encode_prompts, prompt_text

PROBLEM = Problem("p", "What is 1 + 1?", "2")
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
    shown = prompt_text(PROBLEM, BOXED, tokenizer(ROLES))
    assert shown == f"<s>system\n{BOXED_SYSTEM}</s>\n<s>user\nWhat is 1 + 1?</s>\n<s>assistant\n"


def test_its_text_begins_the_users_where_the_template_refuses_it() -> None:
    turns = tokenizer(TURNS)
    with pytest.raises(TemplateError, match="roles must alternate"):
        prompt_text(PROBLEM, BOXED, turns)
    shown = prompt_text(PROBLEM, BOXED, turns, system_role=False)
    assert shown == f"<s>[INST] {BOXED_SYSTEM}\n\nWhat is 1 + 1? [/INST]"
    (ids,) = encode_prompts([PROBLEM], BOXED, turns, max_tokens=200, system_role=False)
    assert turns.decode(ids) == shown


@pytest.mark.parametrize("template", [TURNS, ROLES])
def test_without_a_system_message_the_role_makes_no_difference(template: str) -> None:
    made = tokenizer(template)
    for spec in (PromptSpec(template="dapo_answer"), PromptSpec(template="boxed_chat", system="")):
        assert prompt_text(PROBLEM, spec, made) == prompt_text(PROBLEM, spec, made, system_role=False)
