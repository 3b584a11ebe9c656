"""Renderings against the files in tests/golden/report (written anew when UPDATE_GOLDEN is set), and their forms."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_home import SUITE, SyntheticHome, columns_of, random_columns

from tepo_lab.errors import ConfigError
from tepo_lab.report.render.formats import FORMATS, render
from tepo_lab.report.render.terminal import renderable
from tepo_lab.report.render.words import caption, footnotes
from tepo_lab.report.table.frame import WantedRow
from tepo_lab.schema.profile import Suite
from tests.golden_files import assert_golden


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_golden(full_home: SyntheticHome, form: str) -> None:
    assert_golden("report/table3", form, render(full_home.table("base"), form))


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_golden_of_a_table_with_pass_at_k(full_home: SyntheticHome, form: str) -> None:
    assert_golden("report/pass_at", form, render(full_home.table("base", pass_at=(1, 4)), form))


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_golden_of_suspect_rows_and_changed_trees(home: SyntheticHome, form: str) -> None:
    """A score of nothing, truncated generations, a changed tree, and a run that went on with other code."""
    for arm in ("none", "cut", "dirty", "continued"):
        home.want(arm, (1,))
    columns = columns_of(SUITE, {"greedy": [1] * 6, "sampled": [4, 1, 0]})
    home.run("none", 1, right={"greedy": [0] * 6, "sampled": [0, 0, 0]})
    home.run("cut", 1, columns=columns | {"truncated": [number < 6 for number in range(18)]})
    home.run("dirty", 1, columns=columns, provenance={"dirty": True})
    home.run("continued", 1, columns=columns, earlier=[{"commit": "fedcba9876543210", "dirty": False}])
    assert_golden("report/suspect", form, render(home.table(), form))


def seven_benchmarks() -> Suite:
    sampled = {"problems": 83, "samples": 32, "temperature": 0.6}
    labels = {"AIME24": sampled, "AIME25": sampled, "C8MM @32": sampled, "MATH-500": {"problems": 500}}
    labels |= {"OMNI-MATH": {"problems": 2811}, "OlympiadBench": {"problems": 675}, "Minerva": {"problems": 272}}
    data = {"kind": "chain", "terms": [3]}
    benchmarks = {
        f"b{number}": {"label": label, "data": data, **each} for number, (label, each) in enumerate(labels.items())
    }
    return Suite.model_validate({"name": "seven", "max_new_tokens": 8, "benchmarks": benchmarks})


def test_seven_benchmarks_fit_120_columns_with_every_number_whole(tmp_path: Path) -> None:
    home = SyntheticHome(tmp_path, seven_benchmarks())
    home.rows = {}
    for arm, label in (("plain", "TEPO w/o KL"), ("masked", "TEPO w. KL (A<0, dH>0)"), ("none", "TEPO w. KL (both)")):
        home.rows[arm] = WantedRow("e", arm, label, home.want(arm).family, (1, 2, 3))
    for seed in (1, 2, 3):
        home.run("plain", seed, columns=random_columns(home.suite, 0.8, seed))
        home.run("masked", seed, columns=random_columns(home.suite, 0.9, seed), parent="plain")
    table = home.table()
    rendered = render(table, "text")
    assert max(len(line) for line in rendered.splitlines()) <= 120
    for row in table.rows[:2]:
        for cell in row.cells.values():
            assert f"{cell.percent:.2f}" in rendered
            assert f"{cell.correct}/{cell.graded}" in rendered
    assert "TEPO w. KL (A<0, dH>0)" in rendered
    assert rendered.count("not run") >= 9
    wide = render(table, "text", width=60)
    assert f"{table.rows[0].cells['b4'].correct}/8433" in wide


@pytest.mark.parametrize(
    ("title", "said"),
    [("Does a wider clip help?", "help? Profile"), ("A title.", "A title. Profile"), ("A title", "A title. Profile")],
)
def test_a_caption_has_one_mark_after_the_title(home: SyntheticHome, title: str, said: str) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right={"greedy": [1] * 6, "sampled": [4] * 3})
    assert said in caption(replace(home.table(), title=title))


def test_a_reason_ends_in_one_full_stop(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    events = ({"event": "failed", "step": 3, "kind": "user", "error": "there is no such folder."},)
    home.run("plain", 1, events=events)
    assert "PLAIN: failed: user: there is no such folder." in footnotes(home.table())


def test_a_long_benchmark_label_takes_two_lines_where_there_is_room(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right={"greedy": [1] * 6, "sampled": [4] * 3})
    table = home.table()
    first, second = table.columns
    named = replace(table, columns=(replace(first, label="My own little test set"), second))
    head = render(named, "text").splitlines()[3:5]
    assert [" ".join(line.split()) for line in head] == ["My own little Sampled", "test set @4 Avg. Macro"]
    # Where there is none, a label is as wide as its longest word or the scores under it.
    narrow = render(named, "text", width=44).splitlines()
    assert [line.split()[0] for line in narrow[3:7]] == ["My", "little", "test", "set"]


def test_a_terminal_gets_the_best_in_bold(full_home: SyntheticHome) -> None:
    stream = io.StringIO()
    Console(file=stream, width=120, force_terminal=True, color_system="standard").print(
        renderable(full_home.table("base"))
    )
    assert re.search(r"\x1b\[1;32m\*72\.22", stream.getvalue())


def test_markdown_marks_the_best_and_shows_counts(full_home: SyntheticHome) -> None:
    rows = [line.split("|") for line in render(full_home.table("base"), "md").splitlines() if line.startswith("|")]
    table = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in rows[:10]}
    assert table["MASKED"][3:5] == ["**83.33** (15/18)", "**66.67** (24/36)"]
    assert table["PARTIAL"][3] == "100.00 (6/6)"
    assert table["ABSENT"][3:] == ["not run"] * 4
    assert len({len(cells) for cells in rows[:10]}) == 1
    assert "**" not in "".join(table["BASE"])


def test_latex_is_balanced_and_escaped(full_home: SyntheticHome) -> None:
    full_home.rows["plain"] = WantedRow("e", "plain", "50% & A_1 <0 #β~", full_home.rows["plain"].family, (1, 2, 3))
    rendered = render(full_home.table("base"), "latex")
    assert r"50\% \& A\_1 $<$0 \#$\beta$\textasciitilde{}" in rendered
    plain = re.sub(r"\\[\\{}%&#$_]", "", rendered)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    begun, ended = (re.findall(rf"\\{which}{{(\w+)}}", rendered) for which in ("begin", "end"))
    # The comparisons stand in a table of their own.
    assert begun == ["table", "tabular"] * 2
    assert ended == ["tabular", "table"] * 2
    body = rendered.split("\\bottomrule")[0].split("\\midrule")[-1]
    for row in (line for line in body.splitlines() if line.endswith("\\\\") and "multicolumn" not in line):
        assert len(re.findall(r"(?<!\\)&", row)) == 4
    assert r"\textbf{66.67}" in rendered


class Cells(HTMLParser):
    """The text of each table row's cells, and whether every element was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.rows and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_html_is_well_formed_and_escaped(full_home: SyntheticHome) -> None:
    full_home.rows["plain"] = WantedRow("e", "plain", "<b>A<0 & B", full_home.rows["plain"].family, (1, 2, 3))
    parser = Cells()
    parser.feed(render(full_home.table("base"), "html"))
    assert parser.open == []
    assert parser.rows[3][0] == "<b>A<0 & Bseeds 1 2 3, complete"
    assert parser.rows[4][1:3] == ["83.3315/18", "66.6724/36"]
    assert parser.rows[7] == ["ABSENTno seeds, not run", *["not run"] * 4]


def test_csv_has_a_line_for_every_row_and_column(full_home: SyntheticHome) -> None:
    lines = list(csv.DictReader(io.StringIO(render(full_home.table("base"), "csv"))))
    assert len(lines) == 7 * 4
    masked = {line["benchmark"]: line for line in lines if line["arm"] == "masked"}
    assert (masked["sampled"]["correct"], masked["sampled"]["graded"]) == ("24", "36")
    assert float(masked["avg"]["percent"]) == pytest.approx(100 * 39 / 54, abs=1e-4)
    assert {line["reason"] for line in lines if line["arm"] == "absent"} == {"not run"}


def test_json_can_be_read_again(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    assert json.loads(render(table, "json")) == table.to_dict()


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no format 'jsn'\. Did you mean 'json'\?"):
        render(None, "jsn")  # type: ignore[arg-type]
