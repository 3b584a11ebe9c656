"""Numbers are read as math-verify reads them, without its parser."""

from __future__ import annotations

import pytest

from tepo_lab.tasks.symbolic import _number

NUMBERS = (
    *("29", "-29", "0", "1", "007", "-0", "1000000000000000000000000"),
    *("0.2", "0.50", "-3.5", "12.0", "00.25", "0.001", "1.2345678901234567890123", "-0.0"),
    *(r"\frac{1}{2}", r"-\frac{3}{4}", r"\frac{4}{2}", r"\dfrac{3}{9}", r"\tfrac{0}{5}", "1/2", "-7/3", "$29$", "2/1"),
)


@pytest.mark.parametrize("text", NUMBERS)
def test_plain_numbers_are_what_the_parser_makes_of_them(text: str) -> None:
    from math_verify import LatexExtractionConfig, parse
    from sympy import srepr

    found = parse(
        f"\\boxed{{{text}}}", extraction_config=[LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=None
    )
    value, shown = _number(text)
    assert (srepr(value), shown) == (srepr(found[0]), found[1])


@pytest.mark.parametrize(
    "text", ["0.5", "-0.5", ".5", r"\frac12", r"\frac{5}{0}", "5/0", "3.0/2", "x", "1,2", "1e5", "", "--1", "٣"]
)
def test_anything_else_is_left_to_the_parser(text: str) -> None:
    assert _number(text) == []
