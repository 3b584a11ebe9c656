"""LaTeX that compiles: by tectonic or pdflatex where there is one, and everywhere by a reader of what tables use."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_home import REPORT, SyntheticHome
from synthetic_steps import write_steps

from tepo_lab.report.render.formats import render
from tepo_lab.report.table.rows import PublishedScore
from tepo_lab.report.table.target import Target, steps_to_target

ENGINE = shutil.which("tectonic") or shutil.which("pdflatex")

#: Commands of LaTeX itself, booktabs and graphicx that a table may use, with their number of arguments.
COMMANDS = (
    dict.fromkeys(("centering", "linewidth", "toprule", "midrule", "bottomrule", "scriptsize", "footnotesize"), 0)
    | dict.fromkeys(("smallskip", "par", "leq", "geq", "cdot", "Delta", "beta", "ldots", "rightarrow", "times"), 0)
    | dict.fromkeys(("ifdim", "width", "else", "fi", "medskip"), 0)
    | dict.fromkeys(("textbackslash", "textasciitilde", "textasciicircum"), 0)
    | dict.fromkeys(("caption", "label", "textit", "textbf", "begin", "end"), 1)
    | {"parbox": 2, "resizebox": 3, "multicolumn": 3}
)

AWKWARD = r"50% & A_1 <0 #β~ \textbf{x} $y^2$ {z} – − … ΔH ≤ ≥ |"


@pytest.fixture
def source(full_home: SyntheticHome) -> str:
    full_home.rows["plain"] = replace(full_home.rows["plain"], label=AWKWARD)
    return render(full_home.table("base"), "latex")


def problems(source: str) -> list[str]:
    """What LaTeX would stop at: unknown commands, open braces, environments or formulas, bare special characters."""
    faults: list[str] = []
    text = re.sub(r"(?m)(?<!\\)%.*$", "", source)
    faults += [f"not ASCII: {character!r}" for character in sorted(set(text)) if not character.isascii()]
    open_groups: list[str] = []
    environments: list[str] = []
    for match in re.finditer(r"\\(begin|end)\{(\w+)\}|\\([A-Za-z]+)|\\(.)|([{}$#_^&])", text, re.DOTALL):
        which, environment, command, _, character = match.groups()
        if which == "begin":
            environments.append(environment)
        elif which == "end":
            if not environments or environments.pop() != environment:
                faults.append(f"ends {environment}")
        elif command is not None:
            follows = text[match.end() :].lstrip()[:1]
            if command not in COMMANDS:
                faults.append(f"unknown: \\{command}")
            elif COMMANDS[command] and follows not in ("{", "["):
                faults.append(f"no argument: \\{command}")
        elif character == "$" and open_groups[-1:] == ["$"]:
            open_groups.pop()
        elif character in ("{", "$"):
            open_groups.append(character)
        elif character == "}":
            if not open_groups or open_groups.pop() != "{":
                faults.append("closes a brace")
        elif character == "&" and environments[-1:] != ["tabular"]:
            faults.append("bare &")
        elif character in ("#", "_", "^") and open_groups[-1:] != ["$"]:
            faults.append(f"bare {character}")
    return faults + [f"left open: {name}" for name in (*open_groups, *environments)] + wrong_rows(text)


def wrong_rows(text: str) -> list[str]:
    """Rows of the tabular that have not as many cells as it has columns."""
    faults = []
    for spec, body in re.findall(r"\\begin\{tabular\}\{([lrc]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        faults += _wrong_rows(spec, body)
    return faults


def _wrong_rows(spec: str, body: str) -> list[str]:
    faults = []
    for row in re.split(r"\\\\", re.sub(r"\\(top|mid|bottom)rule", "", body)):
        spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        cells = len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans)
        if row.strip() and cells != len(spec):
            faults.append(f"{cells} cells for {len(spec)} columns: {row.strip()[:60]}")
    return faults


def test_the_reader_finds_nothing_wrong(source: str) -> None:
    assert problems(source) == []


TABLE = r"""\begin{table}[t]
\begin{tabular}{lrr}
\toprule
Arm & Avg. & Macro \\
\midrule
\textbf{TEPO} & 50\% & $<$1 \\
\bottomrule
\end{tabular}
\end{table}
"""


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("\\toprule", "\\toprul", "unknown"),
        ("\\end{table}", "\\end{tabular}", "ends tabular"),
        ("\\midrule", "\\midrule one & two \\\\ \\midrule", "cells for"),
        ("Arm", "Ar_m", "bare _"),
        ("Arm", "Ärm", "not ASCII"),
        ("\\textbf{", "\\textbf{{", "left open"),
    ],
)
def test_the_reader_finds_what_is_wrong(before: str, after: str, problem: str) -> None:
    assert problems(TABLE) == []
    assert before in TABLE
    assert any(problem in other for other in problems(TABLE.replace(before, after, 1)))


@pytest.fixture
def others(full_home: SyntheticHome, source: str) -> list[str]:
    """Tables with pass@k, with the paper's numbers, and steps to a target."""
    for seed in (1, 2, 3):
        write_steps(full_home.run("plain", seed, right={"greedy": [1] * 6, "sampled": [4, 1, 0]}), 20)
    table = full_home.table("base", pass_at=(1, 4))
    published = {name: PublishedScore(50.0, -1.5, True) for name in ("greedy", "avg")}
    beside = replace(table, rows=tuple(replace(row, published=published) for row in table.rows), published="a_paper")
    target = steps_to_target(REPORT, [full_home.wanted("base")], Target(60.0), home=full_home.path, draws=100)
    return [render(one, "latex") for one in (table, beside, target)]


def test_the_reader_finds_nothing_wrong_with_any_kind_of_table(others: list[str]) -> None:
    assert [problems(one) for one in others] == [[]] * 3


@pytest.mark.integration
@pytest.mark.skipif(ENGINE is None, reason="neither tectonic nor pdflatex on PATH")
def test_it_compiles(source: str, others: list[str], tmp_path: Path) -> None:
    source += "".join(f"\\clearpage\n{one}" for one in others)
    document = tmp_path / "table.tex"
    packages = "\\usepackage{booktabs}\n\\usepackage{graphicx}\n"
    document.write_text(
        f"\\documentclass{{article}}\n{packages}\\begin{{document}}\n{source}\\end{{document}}\n", encoding="utf-8"
    )
    options = [] if "tectonic" in str(ENGINE) else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run(
        [str(ENGINE), *options, document.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").read_bytes().startswith(b"%PDF")
