"""How figures look, and how they become files: PNG, PDF, and SVG by itself or within a page."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tepo_lab.errors import ConfigError
from tepo_lab.records.files import write_atomically

#: Okabe and Ito's colours, distinct for readers with any kind of colour blindness; without their yellow, which is
#: hard to see as a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#999999"

#: Arms differ by these as well, for readers without colour. Both repeat; together they distinguish 56 arms.
MARKERS = "osD^vPX*"

SUFFIXES = (".png", ".svg", ".pdf")

_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "pdf.fonttype": 42,
    # The same figure gives the same bytes.
    "svg.hashsalt": "tepo-lab",
    # A dollar sign in a label is a dollar sign.
    "text.parse_math": False,
}


def style(settings: Mapping[Any, Any] = MappingProxyType({})) -> AbstractContextManager[None]:
    """The settings that figures are drawn with and saved with, and further ones."""
    return matplotlib.rc_context(_SETTINGS | dict(settings))


@dataclass(frozen=True)
class Drawn:
    """A figure with what it is called, what it shows, and what is missing of it."""

    name: str
    title: str
    figure: Figure
    gaps: tuple[str, ...] = ()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, whose axes make room for their labels; `frame` adds what stands around them."""
    return Figure(figsize=(width, height), layout="constrained")


def frame(figure: Figure, title: str, notes: Sequence[str], legend: Sequence[Artist] = ()) -> None:
    """The title above the figure, and below it the legend of labelled artists and the notes; the figure grows by
    them."""
    width, plots = figure.get_size_inches()
    above = textwrap.wrap(title, int(12 * width))
    below = [line for note in notes for line in textwrap.wrap(note, int(17 * width))]
    longest = max((len(str(each.get_label())) for each in legend), default=0)
    across = max(1, min(len(legend), int(width / (0.5 + 0.065 * longest))))
    legend_rows = -(-len(legend) // across)
    top, bottom = 0.1 + 0.18 * len(above), 0.08 + 0.14 * len(below)
    taken = bottom + (0.12 + 0.19 * legend_rows if legend else 0)
    height = plots + top + taken
    figure.set_size_inches(width, height)
    figure.text(0.5, 1 - 0.05 / height, "\n".join(above), ha="center", va="top", fontsize=10.5, fontweight="bold")
    figure.text(0.08 / width, (bottom - 0.05) / height, "\n".join(below), va="top", fontsize=7.5, color="#444444")
    if legend:
        # Arms are read along the rows.
        order = [legend[number] for column in range(across) for number in range(column, len(legend), across)]
        anchor = (0.5, bottom / height)
        made = figure.legend(handles=order, loc="lower center", ncols=across, fontsize=8, bbox_to_anchor=anchor)
        made.set_in_layout(False)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, taken / height, 1, plots / height))


def check_suffix(path: Path) -> None:
    """Raises `ConfigError` for a file that is not one of `SUFFIXES`."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--out {path}: figures are written as {', '.join(SUFFIXES)}; give the file such an ending.")


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the path's ending names, atomically."""
    check_suffix(path)
    write_atomically(path, _bytes(figure, path.suffix.lower().removeprefix(".")))


def svg_fragment(drawn: Drawn, prefix: str) -> str:
    """The figure as an `<svg>` element for a page; `prefix` keeps its ids apart from those of other figures there."""
    # Text stays text: smaller, and the page's search finds it.
    text = _bytes(drawn.figure, "svg", {"svg.fonttype": "none"}).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(drawn.title)}"', 1)


def _bytes(figure: Figure, form: str, settings: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    stream = io.BytesIO()
    # Without a date the same figure gives the same bytes.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with style(settings):
        figure.savefig(stream, format=form, dpi=160, metadata=metadata)
    return stream.getvalue()
