"""What a grading worker makes of formulas."""

from __future__ import annotations

import pytest
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

from tepo_lab.tasks import symbolic
from tepo_lab.tasks.symbolic import _equal, _parsed


@pytest.fixture
def look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Latex2Sympy, "create_parser", _Latex2Sympy.create_parser)
    symbolic._use_look_ahead()


@pytest.mark.parametrize(
    ("formula", "mode", "is_read"),
    [
        (r"\frac{\sqrt{3}+1}{2}", "SLL", True),
        ("5r^5", "LL", True),
        (r"\left[\frac{\pi^2}{8}, 3\right]", "LL", True),
        (r"\frac{", "LL", False),
    ],
)
def test_what_the_short_look_ahead_fails_on_is_read_with_the_full_one(
    formula: str, mode: str, is_read: bool, look_ahead: None
) -> None:
    _parsed.cache_clear()
    # The expression and its text, or its text alone.
    assert len(_parsed(formula)) == 1 + is_read
    assert symbolic._look_ahead[0].name == mode


@pytest.mark.parametrize(
    ("gold", "given", "equal"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac{5}{10}", "1/2", True),
        (r"-\frac{1}{3}", "-0.333333", True),
        (r"-\frac{1}{3}", "-0.33333", False),
        ("5/0", "5/0.0", False),
    ],
)
def test_plain_fractions_are_compared_as_such(gold: str, given: str, equal: bool, look_ahead: None) -> None:
    assert _equal(gold, given) is equal
