"""The auditor on the paper's tables, and on small ones whose slips are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tepo_lab.audit.inputs import read_printed, read_published
from tepo_lab.audit.rules import reachable
from tepo_lab.audit.run import Audit, audit
from tepo_lab.errors import ConfigError, DataError

PUBLISHED = Path(__file__).resolve().parents[3] / "reports" / "published"
COUNTS = {"benchmarks": {"hard": {"problems": 30, "samples": 4}, "easy": {"problems": 200}}}
HEADER = "table,panel,model,row,label,benchmark,percent\n"


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


def places(found: Audit, kind: str) -> list[tuple[str, str, str, str]]:
    return [(each.table, each.model, each.row, each.column) for each in found.findings if each.kind == kind]


def test_the_papers_average_is_generation_weighted_with_dashes_as_zero(paper: Audit) -> None:
    rule = paper.to_dict()["rules"]["average"]
    assert (rule["rule"], rule["dash"]) == ("generation_weighted", "zero")
    assert (rule["rows"], rule["explained"], rule["tolerance"]) == (53, 41, 0.05)
    explained = {each["rule"]: each["explained"] for each in paper.to_dict()["rules"]["candidates"]}
    assert explained["plain"] == 1
    assert explained["problem_weighted"] == 4


def test_the_papers_averages_that_the_rule_does_not_give(paper: Audit) -> None:
    off = {
        (each.table, each.model, each.row): round(each.printed - each.recomputed, 2)
        for each in paper.findings
        if each.kind == "average"
    }
    seven = "qwen2.5-7b"
    assert off == {
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


def test_the_papers_differences(paper: Audit) -> None:
    found = {(each.model, each.column): each for each in paper.findings if each.kind == "delta"}
    assert set(found) == {("qwen2.5-7b", "amc"), ("qwen3-14b", "aime24")}
    amc = found["qwen2.5-7b", "amc"]
    assert (amc.row, amc.printed, amc.recomputed) == ("delta_tepo_vs_grpo_dapo", 5.68, 0.68)
    assert "43.48 - 42.80 = 0.68; printed 5.68, +5.00" in amc.detail
    assert "tepo minus base is 24.37 - 19.16 = 5.21" in found["qwen3-14b", "aime24"].detail


def test_the_papers_cells_that_no_count_gives(paper: Audit) -> None:
    assert [(each.row, each.column, each.printed) for each in paper.findings if each.kind == "cell"] == [
        ("gpg", "omni_math", 32.22),
        ("grpo_dapo", "amc", 66.10),
        ("tepo_kl_0.001", "olympiadbench", 40.11),
        ("prefix_is", "aime24", 11.08),
        ("prefix_is", "amc", 42.44),
    ]
    ways = paper.to_dict()["rules"]["cells"]
    assert (ways["checked"], ways["neither"]) == (365, 5)
    assert ways["truncated"] > 4 * ways["rounded"]


def test_the_papers_runs_that_stand_twice_are_equal_and_its_means_right(paper: Audit) -> None:
    kinds = Counter(each.kind for each in paper.findings)
    assert kinds["duplicate"] == kinds["mean"] == 0


def test_the_papers_orders_that_turn_round(paper: Audit) -> None:
    found = {(each.table, each.model, each.row, each.column) for each in paper.findings if each.kind == "ordering"}
    llama = ("table2", "deepseek-r1-distill-llama-8b", "tepo", "avg")
    assert llama in found
    assert ("table1", "qwen2.5-7b", "tepo", "minerva") in found
    assert ("table1", "qwen3-14b", "gpg", "avg") in found
    rows = [each for each in paper.findings if each.kind == "ordering" and each.table == "table2"]
    best = next(each for each in rows if (each.table, each.model, each.row, each.column) == llama)
    assert (best.printed, best.recomputed) == (1, 2)
    assert "grpo_dapo 42.23 (recomputed 42.5112)" in best.detail
    assert paper.to_dict()["rules"]["claims"] == {"checked": 57, "held": 49, "tied": 4}


def test_orders_that_turn_round_across_panels_name_the_other_panel(paper: Audit) -> None:
    details = [each.detail for each in paper.findings if each.kind == "ordering" and each.row == "tepo_kl_0.01"]
    assert details == [
        "panel a: inconsistent: printed tepo_kl_0.01 31.64 above tepo_kl_0.0001 31.61; "
        "recomputed 31.5789 below 31.6002",
        "panel a: inconsistent: printed tepo_kl_0.01 31.64 above kl_cov 31.60 of panel b; "
        "recomputed 31.5789 below 31.5902",
        "panel a: inconsistent: printed tepo_kl_0.01 31.64 above entropy_term 31.62 of panel b; "
        "recomputed 31.5789 below 31.6117",
    ]


def test_orders_across_panels_are_held_against_each_other(tmp_path: Path) -> None:
    rows = {"a/one": "20.83 75.00 54.68", "b/two": "25.00 75.00 54.60", "three": "5.00 50.00 33.12"}
    found = [each for each in table(tmp_path, rows).findings if each.kind == "ordering"]
    assert [each.detail.partition("; ")[0] for each in found] == [
        "panel a: inconsistent: printed one 54.68 above two 54.60 of panel b"
    ]
    # The same two rows in order elsewhere do not hide it.
    before = {"c/one": "25.00 75.00 56.25", "c/two": "20.83 75.00 54.68"}
    again = [each for each in table(tmp_path, before | rows).findings if each.kind == "ordering"]
    assert "panel a: inconsistent: printed one 54.68 above two 54.60 of panel b" in [
        each.detail.partition("; ")[0] for each in again
    ]
    alone = replace(table(tmp_path, rows), findings=tuple(found))
    assert alone.text().endswith("\n1 finding.\n")
    assert replace(alone, findings=()).text().endswith("\nNo findings.\n")


def test_the_papers_audit_as_text_shows_the_arithmetic(paper: Audit) -> None:
    text = paper.text()
    assert "generation-weighted mean, dash as zero, explains 41 of 53 within 0.05 points" in text
    assert "57.34 x 2656" in text
    assert "no k of 2811 gives 32.22, truncated or rounded; the nearest are 905/2811 = 32.1949" in text


def test_findings_have_the_documented_keys(paper: Audit) -> None:
    keys = {"table", "model", "row", "column", "kind", "printed", "recomputed", "detail"}
    assert all(set(each) == keys for each in paper.to_dict()["findings"])


def test_a_table_without_slips_has_no_findings(tmp_path: Path) -> None:
    # 25/120 and 150/200 right: 175/320 = 54.6875.
    found = table(tmp_path, {"one": "20.83 75.00 54.68", "two": "- 60.00 37.50"})
    assert found.findings == ()
    assert found.rule is not None
    assert (found.rule.rule.weights, found.rule.rule.dash, found.rule.exact) == ("generation_weighted", "zero", 2)
    assert "No findings." in found.text()


@pytest.mark.parametrize(
    ("average", "rule"),
    [("47.91", ("plain", "left_out")), ("67.93", ("problem_weighted", "left_out"))],
)
def test_the_rule_is_found(tmp_path: Path, average: str, rule: tuple[str, str]) -> None:
    found = table(tmp_path, {"one": f"20.83 75.00 {average}", "two": "- 60.00 60.00"})
    assert found.rule is not None
    assert (found.rule.rule.weights, found.rule.rule.dash) == rule
    assert found.findings == ()


def test_a_cell_that_no_count_gives(tmp_path: Path) -> None:
    found = table(tmp_path, {"one": "20.86 75.00 54.70"})
    assert places(found, "cell") == [("t", "m", "one", "hard")]
    assert found.findings[0].recomputed == pytest.approx(20.8333, abs=1e-4)
    assert "25/120 = 20.8333 and 26/120 = 21.6667" in found.findings[0].detail


def test_percents_above_a_hundred_are_not_reachable(tmp_path: Path) -> None:
    assert places(table(tmp_path, {"one": "100.83 75.00 84.68"}), "cell") == [("t", "m", "one", "hard")]


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
        "delta_x:seed1_vs_x:seed2": "-4.17 5.00 1.65",
    }
    found = table(tmp_path, rows)
    assert [(each.kind, each.column, each.recomputed) for each in found.findings] == [
        ("delta", "avg", 1.56),
        ("mean", "easy", 72.5),
    ]
    assert "(75.00 + 70.00) / 2 = 72.5000; printed 75.00, +2.5000" in found.findings[1].detail


def test_derived_rows_without_their_rows_are_named(tmp_path: Path) -> None:
    found = table(tmp_path, {"one": "20.83 75.00 54.68", "x:mean": "1.00 2.00 3.00", "delta_a_vs_b": "1.00 2.00 3.00"})
    assert found.findings == ()
    assert found.unchecked == (
        "t m x:mean: the rows it is the mean of are not there",
        "t m delta_a_vs_b: the rows it is the difference of are not there",
    )


def test_one_run_in_two_panels(tmp_path: Path) -> None:
    rows = {"a/one": "20.83 75.00 54.68", "b/one": "20.83 76.00 55.31", "b/other": "20.83 75.00 54.69"}
    assert places(table(tmp_path, rows), "duplicate") == [("t", "m", "one", "easy"), ("t", "m", "one", "avg")]
    assert places(table(tmp_path, rows, {"same_name_same_run": False}), "duplicate") == []
    aliased = table(tmp_path, rows, {"same_name_same_run": True, "same_runs": {"other": "one"}})
    assert ("t", "m", "other", "avg") in places(aliased, "duplicate")


def test_a_cell_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    lines = "".join(f"t,,m,one,one,easy,{percent}\n" for percent in ("75.00", "75.50"))
    (tmp_path / "mine.csv").write_text(HEADER + lines)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(COUNTS))
    with pytest.raises(DataError, match=r"mine\.csv:3: easy of row 'one' stands twice in one place"):
        read_printed(tmp_path / "mine.csv")
    with pytest.raises(DataError, match="is a folder; name a CSV file"):
        read_printed(tmp_path)


def test_an_order_that_the_recomputed_averages_turn_round(tmp_path: Path) -> None:
    rows = {"one": "20.83 75.00 54.68", "two": "25.00 75.00 54.60", "three": "5.00 50.00 33.12"}
    found = table(tmp_path, rows)
    assert [(each.row, each.printed, each.recomputed) for each in found.findings if each.kind == "ordering"] == [
        ("one", 0.08, -1.5637)
    ]


def claim(**values: Any) -> dict[str, Any]:
    return {"claims": [{"table": "t", "model": "m", "row": "one", "where": "Sec. 1", "says": "best"} | values]}


def test_claims(tmp_path: Path) -> None:
    rows = {"one": "20.83 75.00 54.68", "two": "25.00 70.00 53.12", "three": "5.00 50.00 33.12"}
    assert places(table(tmp_path, rows, claim(rank=1)), "ordering") == []
    assert places(table(tmp_path, rows, claim(rank=1, columns=["hard"])), "ordering") == [("t", "m", "one", "hard")]
    assert places(table(tmp_path, rows, claim(over=["two"], by=1.56)), "ordering") == []
    found = table(tmp_path, rows, claim(over=["two"], by=3.1))
    assert [(each.printed, each.recomputed) for each in found.findings] == [(3.1, 1.5613)]
    assert places(table(tmp_path, rows, claim(over=["two"], by=-1.56)), "ordering") == [("t", "m", "one", "avg")]


def test_claims_about_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t has no row 'on' of m\. Known: one"):
        table(tmp_path, {"one": "20.83 75.00 54.68"}, claim(row="on", rank=1))
    with pytest.raises(ConfigError, match="give either rank or over"):
        table(tmp_path, {"one": "20.83 75.00 54.68"}, claim())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("table,model,row\n", "lacks the column 'benchmark'"),
        (HEADER, "there is no printed number"),
        (HEADER + "t,,m,one,one,easy,7o\n", r"mine.csv:2: percent '7o' is not a number"),
        (HEADER + "t,,m,one,one,easy,1e99\n", "percent '1e99' is not a number"),
        (HEADER + "t,,m,one,one,eazy,70.00\n", r"mine.csv:2: benchmark 'eazy' has no counts. Did you mean 'easy'"),
        (HEADER + "t,,m,one\n", "mine.csv:2 has not as many values"),
        (HEADER + "t,,m,one,one,easy,1,2\n", "mine.csv:2 has not as many values"),
        ('"a', "is not a CSV file"),
        ("\x00", "."),
    ],
)
def test_bad_tables_are_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(COUNTS))
    with pytest.raises(DataError, match=message):
        read_printed(tmp_path / "mine.csv")


def test_bad_counts_are_one_clear_error(tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    with pytest.raises(DataError, match=r"mine.csv: no such file"):
        read_printed(csv)
    csv.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a CSV file in UTF-8"):
        read_printed(csv)
    csv.write_text(HEADER + "t,,m,one,one,easy,70.00\n")
    with pytest.raises(DataError, match=r"no counts: write .*mine.yaml beside it or name a file with --counts"):
        read_printed(csv)
    counts = tmp_path / "counts.yaml"
    with pytest.raises(DataError, match=r"counts.yaml cannot be read"):
        read_printed(csv, counts)
    counts.write_text("benchmarks: [")
    with pytest.raises(DataError, match=r"counts.yaml:1 is not YAML; give problems and samples"):
        read_printed(csv, counts)
    counts.write_text("- 1")
    with pytest.raises(DataError, match="must hold a mapping"):
        read_printed(csv, counts)
    counts.write_text("benchmarks: {easy: {problem: 200}}")
    with pytest.raises(ConfigError, match=r"unknown key 'benchmarks.easy.problem'. Did you mean 'problems'"):
        read_printed(csv, counts)


def test_one_decimal_in_a_table_of_two_is_read_as_two(tmp_path: Path) -> None:
    found = table(tmp_path, {"one": "20.83 75 54.68", "two": "20.8 75.00 54.68"})
    assert places(found, "cell") == [("t", "m", "two", "hard")]
