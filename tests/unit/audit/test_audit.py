"""The audit of the paper's tables, and of small tables with known errors."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tepo_lab.audit.audit import Audit, audit
from tepo_lab.audit.checks import reachable
from tepo_lab.audit.printed import read_printed, read_published
from tepo_lab.errors import ConfigError, DataError

PUBLISHED = Path(__file__).resolve().parents[3] / "reports" / "published"
COUNTS = {"benchmarks": {"hard": {"problems": 30, "samples": 4}, "easy": {"problems": 200}}}
HEADER = "table,panel,model,row,label,benchmark,percent\n"

#: Three rows without an error; the rule is the generation-weighted mean.
ROWS = {"one": "20.83 75.00 54.68", "two": "25.00 70.00 53.12", "three": "5.00 50.00 33.12"}


@pytest.fixture(scope="module")
def paper() -> Audit:
    return audit(read_published(PUBLISHED))


def table(folder: Path, rows: dict[str, str], counts: dict[str, Any] | None = None) -> Audit:
    """An audit of one table: rows give hard, easy and avg as printed; a row's name may begin with its panel, as a/x."""
    lines = []
    for name, cells in rows.items():
        panel, _, row = name.rpartition("/")
        for benchmark, percent in zip(("hard", "easy", "avg"), cells.split(), strict=True):
            lines.append(f"t,{panel},m,{row},{row},{benchmark},{percent}\n")
    (folder / "mine.csv").write_text(HEADER + "".join(lines))
    (folder / "mine.yaml").write_text(yaml.safe_dump(COUNTS | (counts or {})))
    return audit(read_printed(folder / "mine.csv"))


def findings(result: Audit, kind: str) -> list[tuple[str, str, float | None, float | None]]:
    return [(each.row, each.column, each.printed, each.recomputed) for each in result.findings if each.kind == kind]


def test_the_papers_averages(paper: Audit) -> None:
    rules = paper.to_dict()["rules"]
    assert rules["average"] | {"mean_off": None} == {
        "rule": "generation_weighted",
        "dash": "zero",
        "rows": 53,
        "explained": 41,
        "to_the_digit": 23,
        "mean_off": None,
        "tolerance": 0.05,
    }
    explained = {each["rule"]: each["explained"] for each in rules["candidates"]}
    assert (explained["plain"], explained["problem_weighted"]) == (1, 4)
    seven = "qwen2.5-7b"
    assert {
        (each.table, each.model, each.row): round((each.printed or 0) - (each.recomputed or 0), 2)
        for each in paper.findings
        if each.kind == "average"
    } == {
        ("table1", "qwen3-14b", "gpg"): 0.36,
        ("table1", "qwen3-14b", "tepo"): -0.06,
        ("table2", "deepseek-r1-distill-llama-8b", "grpo_dapo"): -0.28,
        ("table2", "deepseek-r1-distill-llama-8b", "tepo"): 0.34,
        ("table2", "deepseek-r1-distill-qwen-7b", "grpo_dapo"): -1.99,
        ("table2", "deepseek-r1-distill-qwen-7b", "tepo"): -0.22,
        ("table3", seven, "tepo_kl_0.1"): -2.52,
        ("table3", seven, "tepo_kl_0.01"): 0.06,
        ("table3", seven, "max_entropy"): -0.23,
        ("table3", seven, "tepo_kl_negative_rising"): 0.22,
        ("table4", seven, "grpo_dapo@72:seed1"): -0.19,
        ("table4", seven, "tepo@72:seed1"): -0.41,
    }


def test_the_papers_cells_differences_duplicates_and_means(paper: Audit) -> None:
    assert [each[:3] for each in findings(paper, "cell")] == [
        ("gpg", "omni_math", 32.22),
        ("grpo_dapo", "amc", 66.10),
        ("tepo_kl_0.001", "olympiadbench", 40.11),
        ("prefix_is", "aime24", 11.08),
        ("prefix_is", "amc", 42.44),
    ]
    ways = paper.to_dict()["rules"]["cells"]
    assert (ways["checked"], ways["neither"]) == (365, 5)
    assert ways["truncated"] > 4 * ways["rounded"]
    assert findings(paper, "delta") == [
        ("delta_tepo_vs_grpo_dapo", "amc", 5.68, 0.68),
        ("delta_tepo_vs_grpo_dapo", "aime24", 5.21, 2.29),
    ]
    # The second difference was taken from another row.
    assert any("tepo minus base is 24.37 - 19.16 = 5.21" in each.detail for each in paper.findings)
    assert findings(paper, "duplicate") == findings(paper, "mean") == []


def test_the_papers_orders(paper: Audit) -> None:
    orders = [each for each in paper.findings if each.kind == "ordering"]
    places = {(each.table, each.model, each.row, each.column): (each.printed, each.recomputed) for each in orders[::-1]}
    assert places["table2", "deepseek-r1-distill-llama-8b", "tepo", "avg"] == (1, 2)
    assert places["table1", "qwen2.5-7b", "tepo", "minerva"] == (3, 4)
    assert places["table1", "qwen3-14b", "gpg", "avg"] == (0.31, -0.014)
    assert findings(paper, "ordering")[-7:-4] == [
        ("tepo_kl_0.01", "avg", 0.03, -0.0213),
        ("tepo_kl_0.01", "avg", 0.04, -0.0113),
        ("tepo_kl_0.01", "avg", 0.02, -0.0327),
    ]
    assert paper.to_dict()["rules"]["claims"] == {"checked": 57, "held": 49, "tied": 4}


@pytest.mark.parametrize(
    ("average", "weights", "dash"),
    # Row one has 25/120 and 150/200 right: 175/320 = 54.6875. Row two has a dash.
    [
        ("54.68 37.50", "generation_weighted", "zero"),
        ("54.68 60.00", "generation_weighted", "left_out"),
        ("47.91 60.00", "plain", "left_out"),
        ("47.91 30.00", "plain", "zero"),
        ("67.93 60.00", "problem_weighted", "left_out"),
        ("67.93 52.17", "problem_weighted", "zero"),
    ],
)
def test_the_rule_of_the_averages(tmp_path: Path, average: str, weights: str, dash: str) -> None:
    first, second = average.split()
    result = table(tmp_path, {"one": f"20.83 75.00 {first}", "two": f"- 60.00 {second}"})
    assert result.findings == ()
    assert result.rule is not None
    assert (result.rule.rule.weights, result.rule.rule.dash, result.rule.exact) == (weights, dash, 2)


@pytest.mark.parametrize("cell", ["20.86", "100.83"])
def test_a_cell_that_no_count_gives(tmp_path: Path, cell: str) -> None:
    ((row, column, printed, _),) = findings(table(tmp_path, {"one": f"{cell} 75.00 54.68"}), "cell")
    assert (row, column, printed) == ("one", "hard", float(cell))


def test_one_decimal_in_a_table_of_two_is_read_as_two(tmp_path: Path) -> None:
    result = table(tmp_path, {"one": "20.83 75 54.68", "two": "20.8 75.00 54.68"})
    assert findings(result, "cell") == [("two", "hard", 20.8, 20.8333)]


@given(st.integers(1, 3000), st.data(), st.sampled_from([1, 2, 3]))
def test_every_count_prints_something_reachable(graded: int, data: st.DataObject, decimals: int) -> None:
    k = data.draw(st.integers(0, graded))
    unit = Decimal(1).scaleb(-decimals)
    scaled = 100 * k * 10**decimals
    assert reachable(scaled // graded * unit, unit, graded)[0]
    assert reachable((2 * scaled + graded) // (2 * graded) * unit, unit, graded)[1]


def test_differences_and_means(tmp_path: Path) -> None:
    rows = {
        "x:seed1": "20.83 75.00 54.68",
        "x:seed2": "25.00 70.00 53.12",
        "x:mean": "22.92 75.00 53.90",
        "y:mean": "1.00 2.00 3.00",
        "delta_a_vs_b": "1.00 2.00 3.00",
        "delta_x:seed1_vs_x:seed2": "-4.17 5.00 1.65",
    }
    result = table(tmp_path, rows)
    assert findings(result, "delta") == [("delta_x:seed1_vs_x:seed2", "avg", 1.65, 1.56)]
    assert findings(result, "mean") == [("x:mean", "easy", 75.0, 72.5)]
    assert len(result.findings) == 2
    assert [line.partition(":")[0] for line in result.unchecked] == ["t m y", "t m delta_a_vs_b"]


def test_one_run_in_two_panels(tmp_path: Path) -> None:
    rows = {"a/one": "20.83 75.00 54.68", "b/one": "20.83 76.00 55.31", "b/other": "20.83 75.00 54.69"}
    expected = [("one", "easy", 76.0, 75.0), ("one", "avg", 55.31, 54.68)]
    assert findings(table(tmp_path, rows), "duplicate") == expected
    assert findings(table(tmp_path, rows, {"same_name_same_run": False}), "duplicate") == []
    aliased = table(tmp_path, rows, {"same_runs": {"other": "one"}})
    assert findings(aliased, "duplicate") == [*expected, ("other", "avg", 54.69, 54.68)]


@pytest.mark.parametrize("panels", [("", ""), ("a/", "b/")])
@pytest.mark.parametrize("other_panel", [False, True])
def test_averages_in_the_opposite_order_when_recomputed(
    tmp_path: Path, panels: tuple[str, str], other_panel: bool
) -> None:
    rows = {f"{panels[0]}one": "20.83 75.00 54.68", f"{panels[1]}two": "25.00 75.00 54.60", "three": ROWS["three"]}
    if other_panel:
        # The same two rows, in order, elsewhere.
        rows = {"c/one": "25.00 75.00 56.25", "c/two": "20.83 75.00 54.68"} | rows
    result = table(tmp_path, rows)
    assert ("one", "avg", 0.08, -1.5637) in findings(result, "ordering")
    if not other_panel:
        assert len(findings(result, "ordering")) == 1


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"rank": 1}, []),
        ({"rank": 1, "columns": ["hard"]}, [("one", "hard", 1.0, 2.0)]),
        ({"over": ["two"]}, []),
        ({"over": ["two"], "by": 1.56}, []),
        ({"over": ["two"], "by": 3.1}, [("one", "avg", 3.1, 1.5613)]),
        ({"over": ["two"], "by": -1.56}, [("one", "avg", -1.56, 1.5613)]),
        ({"over": ["two"], "columns": ["hard"]}, [("one", "hard", -4.17, -4.17)]),
    ],
)
def test_claims(tmp_path: Path, claim: dict[str, Any], expected: list[Any]) -> None:
    values = {"table": "t", "model": "m", "row": "one", "where": "Sec. 1", "says": "best"} | claim
    result = table(tmp_path, ROWS, {"claims": [values]})
    assert findings(result, "ordering") == expected
    assert result.to_dict()["rules"]["claims"] == {"checked": 1, "held": int(not expected), "tied": 0}


@pytest.mark.parametrize(
    ("claim", "error", "message"),
    [
        ({"row": "on", "rank": 1}, DataError, "'on'.*one"),
        ({"over": ["tow"]}, DataError, "'tow'.*two"),
        ({}, ConfigError, "rank or over"),
        ({"rank": 1, "by": 2}, ConfigError, "over"),
    ],
)
def test_bad_claims(tmp_path: Path, claim: dict[str, Any], error: type[Exception], message: str) -> None:
    values = {"table": "t", "model": "m", "row": "one", "where": "Sec. 1", "says": "best"} | claim
    with pytest.raises(error, match=message):
        table(tmp_path, ROWS, {"claims": [values]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("table,model,row\n", "'benchmark'"),
        (HEADER, "no printed number"),
        (HEADER + "t,,m,one,one,easy,7o\n", r"mine.csv:2: percent '7o'"),
        (HEADER + "t,,m,one,one,easy,1e99\n", r"mine.csv:2: percent '1e99'"),
        (HEADER + "t,,m,one,one,eazy,70.00\n", r"mine.csv:2: .*'eazy'.*'easy'"),
        (HEADER + "t,,m,one\n", "mine.csv:2"),
        (HEADER + "t,,m,one,one,easy,1,2\n", "mine.csv:2"),
        (HEADER + "t,,m,one,one,easy,75.00\nt,,m,one,one,easy,75.50\n", "mine.csv:3: easy of row 'one'"),
        ('"a', "not a CSV file"),
        ("\x00", "mine.csv"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "mine.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(COUNTS))
    with pytest.raises(DataError, match=message):
        read_printed(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        (None, DataError, "cannot be read"),
        ("benchmarks: [", DataError, r"counts.yaml:1 is not YAML"),
        ("- 1", DataError, "mapping"),
        ("benchmarks: {easy: {problem: 200}}", ConfigError, r"'benchmarks.easy.problem'.*'problems'"),
    ],
)
def test_bad_counts(tmp_path: Path, counts: str | None, error: type[Exception], message: str) -> None:
    csv = tmp_path / "mine.csv"
    with pytest.raises(DataError, match="not a file"):
        read_printed(csv)
    csv.write_text(HEADER + "t,,m,one,one,easy,70.00\n")
    with pytest.raises(DataError, match=r"mine.yaml .*--counts"):
        read_printed(csv)
    if counts is not None:
        (tmp_path / "counts.yaml").write_text(counts)
    with pytest.raises(error, match=message):
        read_printed(csv, tmp_path / "counts.yaml")
