"""Formulas are read as math-verify's parser reads them: numbers without it, others with less of its look-ahead."""

from __future__ import annotations

import pytest
from antlr4.atn.ParserATNSimulator import ParserATNSimulator
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from sympy import srepr

from tepo_lab.tasks.symbolic import _decisions, _let_prediction_be_chosen, _number, _prediction

NUMBERS = (
    *("29", "-29", "0", "1", "007", "-0", "1000000000000000000000000"),
    *("0.2", "0.50", "-3.5", "12.0", "00.25", "0.001", "1.2345678901234567890123", "-0.0"),
    *(r"\frac{1}{2}", r"-\frac{3}{4}", r"\frac{4}{2}", r"\dfrac{3}{9}", r"\tfrac{0}{5}", "1/2", "-7/3", "$29$", "2/1"),
)


@pytest.mark.parametrize("text", NUMBERS)
def test_plain_numbers_are_what_the_parser_makes_of_them(text: str) -> None:
    from math_verify import LatexExtractionConfig, parse

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


#: Formulas that the grammar tells apart by tokens far from their beginning, and some that it refuses.
FORMULAS = (
    *(
        r"2\sqrt{2}+1",
        r"\frac{1}{2},3",
        "x=5",
        r"n^2+n",
        "1;2",
        "3,1,2",
        r"\sin x",
        "-x",
        "(x+1)(x-2)",
        "(5)",
        "(5)^2,3",
        "(-1)^{n}",
    ),
    *(r"10 \pm 2\sqrt{17}", r"\pm 3", r"1\pm\sqrt{2},3", "x,y=1,2", "(a,b)=(1,2)", r"x\in(1,2]", r"a\in\mathbb{N}"),
    *("(1,2]", "(1,2)", "((1,2))", r"(\{1,2\})", "{1,2}", r"\{1,2\}", "[1,2),(3,4]", r"\emptyset", r"\mathbb{R}"),
    *(r"\{1,2\}\cup\{3\}", r"\mathbb{R}\setminus\{0\}", r"A\cap B", r"x\notin\{1\}", r"(1,2)\subset(1,3)"),
    *("", "{", "1,", "=", "(1,2", "1 2 )", "(1,2)3", "(1+2))3", "((1)", "(1,2](3,4)", r"x\in", r"\pm"),
)


def read(text: str) -> str:
    try:
        return str(srepr(latex2sympy2.latex2sympy(text)))
    except Exception as error:  # noqa: BLE001 - the parser raises nothing more particular
        return f"refused: {type(error).__name__}"


@pytest.fixture
def plain_parser(monkeypatch):
    """The library's own parser, given back afterwards."""
    (library,) = [each for each in latex2sympy2.PSParser.__mro__ if "gen" in each.__module__ and "PS" in each.__name__]
    monkeypatch.setattr(latex2sympy2, "PSParser", library)
    return library


@pytest.mark.parametrize("text", FORMULAS)
def test_sparing_look_ahead_changes_no_reading(text: str, plain_parser) -> None:
    plain = read(text)
    _let_prediction_be_chosen()
    _prediction[0] = PredictionMode.LL
    assert read(text) == plain


def test_a_plain_formula_takes_no_look_ahead_to_its_end(plain_parser, monkeypatch) -> None:
    _let_prediction_be_chosen()
    _prediction[0] = PredictionMode.SLL
    asked = []
    predict = ParserATNSimulator.adaptivePredict
    monkeypatch.setattr(
        ParserATNSimulator, "adaptivePredict", lambda self, *args: asked.append(args[1]) or predict(self, *args)
    )
    spared = _decisions(plain_parser)
    read(r"\frac{\sqrt{3}+1}{2}, 3x^2, (x+1)(x-2)")
    assert len(spared) == 3
    assert asked
    assert not set(spared) & set(asked)
    read(r"1 \pm \sqrt{2}")
    assert set(spared) & set(asked)
