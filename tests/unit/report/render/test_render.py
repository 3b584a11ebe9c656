"""Renderings against the files in tests/golden/report (written again when UPDATE_GOLDEN is set), and their forms."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_home import SUITE, SyntheticHome, columns_of, random_columns

from tepo_lab.errors import ConfigError
from tepo_lab.report.render.document import caption, footnotes
from tepo_lab.report.render.formats import FORMATS, render
from tepo_lab.report.render.terminal import renderable
from tepo_lab.report.table import columns
from tepo_lab.report.table.columns import Column
from tepo_lab.report.table.wanted import WantedRow
from tepo_lab.schema.profile import Suite
from tests.golden_files import assert_golden


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_golden(full_home: SyntheticHome, form: str) -> None:
    assert_golden("report/table3", form, render(full_home.table("base"), form))


def test_golden_of_a_table_with_pass_at_k(full_home: SyntheticHome) -> None:
    assert_golden("report/pass_at", "json", render(full_home.table("base", pass_at=(1, 4)), "json"))


def test_golden_of_suspect_rows_and_changed_trees(home: SyntheticHome) -> None:
    """A score of nothing, truncated generations, a changed tree, and a run that went on with other code."""
    for arm in ("none", "cut", "dirty", "continued"):
        home.want(arm, (1,))
    graded = columns_of(SUITE, {"greedy": [1] * 6, "sampled": [4, 1, 0]})
    home.run("none", 1, right={"greedy": [0] * 6, "sampled": [0, 0, 0]})
    home.run("cut", 1, columns=graded | {"truncated": [number < 6 for number in range(18)]})
    home.run("dirty", 1, columns=graded, provenance={"dirty": True})
    home.run("continued", 1, columns=graded, earlier=[{"commit": "fedcba9876543210", "dirty": False}])
    assert_golden("report/suspect", "json", render(home.table(), "json"))


class TestANewColumn:
    """A column is one entry of a list: every format has it, and no other code knows of it."""

    @pytest.fixture
    def more(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        tokens = Column("tokens", "Tokens", lambda row, _: row.mean_of("tokens"), "{:.1f}".format, is_fact=True)
        collapsed = Column("collapsed", "Collapsed", lambda row, _: len(row.collapses), is_fact=True)
        gap = Column("gap", "Gap", lambda one, _: one.difference, "{:.4f}".format, is_fact=True)
        monkeypatch.setattr(columns, "COLUMNS", columns.COLUMNS)
        columns.COLUMNS += [tokens, collapsed]
        columns.COMPARISON_COLUMNS.append(gap)
        yield
        del columns.COLUMNS[-2:], columns.COMPARISON_COLUMNS[-1]

    @pytest.mark.usefixtures("more")
    def test_it_is_in_every_format(self, full_home: SyntheticHome) -> None:
        table = full_home.table("base")
        for form in ("text", "md", "latex", "html"):
            shown = render(table, form)
            for heading in ("Tokens", "Collapsed", "Gap"):
                assert heading in shown, form
            # Every response of a synthetic run has 3 tokens; the difference is that of the table's Difference.
            assert "3.0" in shown
            assert f"{table.comparisons[0].difference:.4f}" in shown
        rows = json.loads(render(table, "json"))["rows"]
        assert [(row["tokens"], row["collapsed"]) for row in rows] == [
            (3, 0),
            (3, 0),
            (3, 3),
            (None, 0),
            (None, 0),
            (3, 0),
        ]
        assert json.loads(render(table, "json"))["comparisons"][0]["gap"] == table.comparisons[0].difference
        lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
        assert {(line["tokens"], line["collapsed"]) for line in lines if line["arm"] == "collapsing"} == {("3.0", "3")}


def seven_benchmarks() -> Suite:
    sampled = {"problems": 83, "samples": 32, "temperature": 0.6}
    labels = {"AIME24": sampled, "AIME25": sampled, "C8MM @32": sampled, "MATH-500": {"problems": 500}}
    labels |= {"OMNI-MATH": {"problems": 2811}, "OlympiadBench": {"problems": 675}, "Minerva": {"problems": 272}}
    data = {"kind": "chain", "terms": [3]}
    benchmarks = {
        f"b{number}": {"label": label, "data": data, **values} for number, (label, values) in enumerate(labels.items())
    }
    return Suite.model_validate({"name": "seven", "max_new_tokens": 8, "benchmarks": benchmarks})


def test_seven_benchmarks_fit_120_columns_with_every_number_in_full(tmp_path: Path) -> None:
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
        for score in row.scores.values():
            assert f"{score.percent:.2f}" in rendered
            assert f"{score.correct}/{score.graded}" in rendered
    assert "TEPO w. KL (A<0, dH>0)" in rendered
    assert rendered.count("not run") >= 9
    assert f"{table.rows[0].scores['b4'].correct}/8433" in render(table, "text", width=60)


@pytest.mark.parametrize(
    ("title", "shown"),
    [("Does a wider clip help?", "help? Profile"), ("A title.", "A title. Profile"), ("A title", "A title. Profile")],
)
def test_a_caption_has_one_mark_after_the_title(home: SyntheticHome, title: str, shown: str) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right={"greedy": [1] * 6, "sampled": [4] * 3})
    assert shown in caption(replace(home.table(), title=title))


def test_a_reason_ends_in_one_full_stop(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    events = ({"event": "failed", "step": 3, "kind": "user", "error": "there is no such folder."},)
    home.run("plain", 1, events=events)
    assert "PLAIN: failed: user: there is no such folder." in footnotes(home.table())


def test_a_long_benchmark_label_is_broken_at_its_words(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right={"greedy": [1] * 6, "sampled": [4] * 3})
    table = home.table()
    first, second = table.benchmarks
    named = replace(table, benchmarks=(replace(first, label="My own little test set"), second))
    head = [" ".join(line.split()) for line in render(named, "text").splitlines()[3:6]]
    assert head == ["My own", "little", "test set Sampled @4 Avg. Macro"]


def test_a_terminal_gets_the_best_in_bold(full_home: SyntheticHome) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system="standard")
    console.print(renderable(full_home.table("base")))
    assert re.search(r"\x1b\[1;32m\*72\.22", stream.getvalue())


#: What each format would read as markup or as the end of a row.
AWKWARD = "50% & A_1 <b>#β~ [x](y) ![z](w) | `c` *d*\r\u2028$m$ &lt;\nnext"


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("md", r"50% & A\_1 \<b>#β\~ \[x\](y) !\[z\](w) \| \`c\` \*d\*  \$m\$ \&lt; next"),
        (
            "latex",
            r"50\% \& A\_1 $<$b$>$\#$\beta$\textasciitilde{} {[}x](y) !{[}z](w) $|$ `c` {*}d{*}  \$m\$ \&lt; next",
        ),
        ("html", "50% &amp; A_1 &lt;b&gt;#β~ [x](y) ![z](w) | `c` *d*\r\u2028$m$ &amp;lt;\nnext"),
    ],
)
def test_every_value_is_escaped_once(full_home: SyntheticHome, form: str, shown: str) -> None:
    full_home.rows["plain"] = replace(full_home.rows["plain"], label=AWKWARD)
    table = full_home.table("base")
    rendered = render(replace(table, title=AWKWARD, panels={"e": AWKWARD}), form)
    # In the caption (and the page's title), the panel's heading, its row and as the parent of three comparisons.
    assert rendered.count(shown) >= 5
    assert "A_1" not in rendered.replace(shown, "")


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


def test_html_is_well_formed(full_home: SyntheticHome) -> None:
    parser = Cells()
    parser.feed(render(full_home.table("base"), "html"))
    assert parser.open == []
    assert parser.rows[4][1:3] == ["83.3315/18", "66.6724/36"]
    assert parser.rows[7] == ["ABSENTno seeds, not run", *["not run"] * 4]


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'jsn'.*'json'"):
        render(None, "jsn")  # type: ignore[arg-type]
