"""Draws docs/panel-e.svg from the records of `tepo-lab run panel-e`: python docs/picture.py [HOME]"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from tepo_lab.report.render.terminal import WIDTH, renderable
from tepo_lab.tables import resolved_reports, tables_of

#: As rich draws a terminal, with the reader's own monospaced font: the picture fetches nothing.
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
)


def picture(home: Path) -> str:
    """The table of panel E as a picture of a terminal."""
    (table,) = tables_of(home, resolved_reports(home, "table3", ["profile=nano"], panels=["e"]))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(renderable(table, WIDTH))
    return console.export_svg(title="tepo-lab run panel-e", code_format=SVG, unique_id="panel-e")


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")
    Path(__file__).with_name("panel-e.svg").write_text(picture(home))
