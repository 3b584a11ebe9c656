"""Final answers as text: where one stands in a response, and when two of them are plainly the same."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal

#: How a prompt asks for the answer: in a box, on a last line "Answer: ...", or either, the box going before.
Form = Literal["boxed", "answer_line", "either"]

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
_ANSWER_LINE = re.compile(r"answer\**\s*:\**\s*([^\n]+)", re.IGNORECASE)

_INTEGER = re.compile(r"[+-]?[0-9]{1,3999}")
_NUMBER = re.compile(r"([+-]?)([0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")
_POWER_OF_TEN = re.compile(r"(.+?)(?:[eE]\+?|(?:\\times|\\cdot|\*|×)10\^)(?:\{(-?[0-9]{1,4})\}|(-?[0-9]{1,4}))")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?:,|\\[,;: ]|~)[0-9]{3})+(?:\.[0-9]+)?")
_SEPARATOR = re.compile(r",|\\[,;: ]|~")
_DECIMAL_COMMA = re.compile(r"([+-]?0),([0-9]{1,400})")
_TOLERANCE = re.compile(r"([^±]{1,400})±\s*([0-9.]{1,40}(?:[eE]-?[0-9]{1,3})?)")

#: An answer longer than this is no formula: its text alone decides.
MAX_FORMULA = 2000

#: What changes how an answer looks and not what it says, in the order it is replaced.
_LOOKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\sqrt\s*(\[[^\[\]]{1,9}\])\s*([0-9a-zA-Z])"), r"\\sqrt\1{\2}"),
    (re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])"), ""),
    (re.compile(r"\\!|\\?\$"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree|°"), ""),
    (re.compile(r"\\?%"), ""),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{([^{}]{0,200})\}"), r"\1"),
)

#: Spaces separate digits and nothing else. They are replaced after thousands separators, which a list has no space for.
_SPACES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\[,;: ]|~|\\q?quad(?![a-zA-Z])"), " "),
    (re.compile(r"(?<=[0-9])\s+(?=[0-9])"), " "),
    (re.compile(r"(?<![0-9])\s+|\s+(?![0-9])"), ""),
)

#: What the parser of formulas does not read as it is meant: roots without braces, spaces between digits, a comma at the
#: end, and a list that begins with 0 and looks like a number with thousands separators.
_FOR_PARSER: tuple[tuple[re.Pattern[str], str], ...] = (
    _LOOKS[1],
    (re.compile(r"(?<=[0-9])(?:\\[,;: ]|~)+(?=[0-9])"), " "),
    (re.compile(r"(?<!\\),\s*(\$?)\s*\Z"), r"\1"),
    (re.compile(r"\A\s*(\$?[+-]?0),(?=[0-9])"), r"\1, "),
)
_UNIT_WORDS = (
    "km/h|m/s|mph|km|cm|mm|m|miles?|feet|foot|ft|inch(?:es)?|kg|g|grams?|hours?|minutes?|min|seconds?|s|days?|weeks?|"
    "years?|degrees?|dollars?|cents?|units?|percent"
)
_UNIT = re.compile(
    r"(?<=[0-9})])\s*(?:\\(?:text|textrm|mathrm|mbox)\s*\{\s*[A-Za-z][^{}0-9]{0,40}\}|(?:\\[,; ]|\s)\s*(?:"
    + _UNIT_WORDS
    + r"))(?:\s*(?:\^\s*\{?[0-9]\}?|[²³]))?\s*$"
)


def find_answer(response: str, form: Form = "boxed") -> str | None:
    """The final answer of a response, None when it gives none in the form it was asked for."""
    if form != "answer_line":
        answer = last_boxed(response)
        if answer is not None or form == "boxed":
            return answer
    lines = _ANSWER_LINE.findall(response)
    if not lines:
        return None
    line = str(lines[-1]).strip().strip("*").strip()
    return last_boxed(line) or line


def last_boxed(text: str) -> str | None:
    r"""The contents of the last closed ``\boxed{...}``, braces balanced; None when there is none.

    One pass, whatever the text: a hundred kilobytes of open braces take no longer than as much prose.
    """
    if "box" not in text:
        return None
    open_at: list[int | None] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        token = brace.group()
        if token == "}":
            start = open_at.pop() if open_at else None
            if start is not None and (last is None or start > last[0]):
                last = (start, brace.start())
        elif token[-1] == "{" and token != r"\{":
            open_at.append(None if token == "{" else brace.end())
    return text[last[0] : last[1]] if last else None


def normalised(answer: str) -> str:
    """An answer without what only changes its looks: dollar signs, spaces, sizes of brackets and fractions, degree and
    percent signs, thousands separators, punctuation at its end; whole numbers in plain decimal form."""
    text = _trimmed(answer)
    if _INTEGER.fullmatch(text):
        return str(int(text))
    text = _replaced(text, _LOOKS)
    text = _SEPARATOR.sub("", text) if _THOUSANDS.fullmatch(text) else _trimmed(_replaced(text, _SPACES))
    return str(int(text)) if _INTEGER.fullmatch(text) else text


def for_parser(answer: str) -> str:
    """An answer as the parser of formulas reads it right."""
    return _replaced(answer, _FOR_PARSER)


def _replaced(text: str, replacements: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    for pattern, replacement in replacements:
        text = pattern.sub(replacement, text)
    return text


def _trimmed(answer: str) -> str:
    """An answer without dollar signs and spaces around it and punctuation at its end."""
    text = answer.strip().strip("$").strip()
    end = len(text.rstrip(".,; $"))
    # A comma behind a backslash is a space.
    return text[: end + 1] if text[:end].endswith("\\") else text[:end]


def same_text(extracted: str, answer: str) -> bool:
    """Whether an answer is the gold one but for its looks. An empty answer never is, whatever the gold one."""
    given = normalised(extracted)
    return given != "" and given == normalised(answer)


def without_unit(answer: str) -> str:
    """An answer without the unit that follows its number."""
    return _UNIT.sub("", answer.strip().strip("$").rstrip(". "))


def number(text: str) -> Decimal | None:
    r"""The number that a normalised answer is: 72, -0.5, 4.5e33, 4.5\times10^{33}; None for anything else."""
    power = _POWER_OF_TEN.fullmatch(text) if len(text) < 1000 else None
    mantissa = _NUMBER.fullmatch(power.group(1) if power else text)
    if mantissa is None:
        return None
    return Decimal("".join(mantissa.groups()) + (f"e{power.group(2) or power.group(3)}" if power else ""))


def split_tolerance(answer: str) -> tuple[str, Decimal | None]:
    """A gold answer and how far a number may be from it: "4.2±0.1" is 4.2 and 0.1. "2±3" has no tolerance: it is 5 and
    -1, since no tolerance is as large as its number."""
    match = _TOLERANCE.fullmatch(answer.strip())
    value, tolerance = (number(normalised(part)) for part in match.groups()) if match else (None, None)
    if match is None or value is None or tolerance is None or (value and tolerance >= abs(value)):
        return answer, None
    return match.group(1).strip(), tolerance


def comparable(extracted: str, answer: str) -> tuple[str, str]:
    """An answer and the gold one, without the unit that only one of them has, and both as lists where one of them is:
    "144,121" is a list of two beside "121, 144", and a number beside others."""
    bare, bare_gold = without_unit(extracted), without_unit(answer)
    has_unit, gold_has_unit = normalised(bare) != normalised(extracted), normalised(bare_gold) != normalised(answer)
    given, gold = (bare, bare_gold) if has_unit != gold_has_unit else (extracted, answer)
    if "," in given and "," in gold and _is_thousands(given) != _is_thousands(gold):
        return given.replace(",", ", "), gold.replace(",", ", ")
    return given, gold


def _is_thousands(answer: str) -> bool:
    return _THOUSANDS.fullmatch(_replaced(_trimmed(answer), _LOOKS)) is not None


def plainly_equal(extracted: str, answer: str) -> bool | None:
    """Whether an answer is the gold one as far as text and numbers decide; None when that takes mathematics.

    An empty answer never is. A percent sign is no more than looks: 50% is 50 and not 0.5, as math-verify has it. Whole
    numbers are compared exactly; others to six decimals, or six digits where they are below 1. "0,5" is the number 0.5
    where that is the gold one, else a list.
    """
    gold, tolerance = split_tolerance(answer)
    given, wanted = normalised(extracted), normalised(gold)
    if not given or given == wanted:
        return given != ""
    if max(len(extracted), len(gold)) > MAX_FORMULA:
        return False
    if not (_INTEGER.fullmatch(given) and _INTEGER.fullmatch(wanted)):
        given, wanted = map(normalised, comparable(extracted, gold))
    if given == wanted:
        return True
    if "." in wanted:
        given = _DECIMAL_COMMA.sub(r"\1.\2", given)
    left, right = number(given), number(wanted)
    if left is None or right is None:
        # Whole numbers too long to be read as numbers differ when their digits do.
        return False if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(wanted) else None
    if tolerance is not None:
        return abs(left - right) <= tolerance
    if left == left.to_integral_value() and right == right.to_integral_value():
        return left == right
    return abs(left - right) <= min(Decimal(1), max(abs(left), abs(right))) * Decimal("1e-6")
