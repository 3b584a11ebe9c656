"""Where every run of a home stands, from the ends of its records: thousands of runs are told in a second or two."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.ledger import fault_at_end
from tepo_lab.execute.showing.progress import PACE_STEPS, counted, duration, evaluation_seconds, pace
from tepo_lab.records.files import RunFolder, tail
from tepo_lab.records.footers import generations_of
from tepo_lab.records.lease_file import is_held

#: Seconds between two looks with --watch.
WATCH_SECONDS = 2.0

#: Seconds that a run is told to take where it has no pace of its own.
_ESTIMATES = ("seconds_per_step", "evaluation_seconds")

_STYLES = {
    "complete": "green",
    "collapsed": "yellow",
    "failed": "red",
    "running": "cyan",
    "interrupted": "magenta",
    "damaged": "red",
    "blocked": "red",
}

_OVER = frozenset({"complete", "collapsed", "stopped", "failed", "blocked"})


@dataclass(frozen=True)
class Status:
    """One run as its records tell it. `reward` is the last step's mean; `seconds_left` None when the run is over."""

    name: str
    state: str
    step: int = 0
    steps: int | None = None
    reward: float | None = None
    seconds_left: float | None = None
    detail: str = ""
    updated: float | None = None

    @property
    def is_over(self) -> bool:
        return self.state in _OVER


def status_of(folder: RunFolder) -> Status:
    """One run's status. A folder whose run.json cannot be read is "damaged", with the mend; nothing is raised."""
    if not folder.run_file.exists():
        return Status(folder.name, "pending")
    try:
        spec = folder.run()["spec"]
        steps = int(spec["trainer"]["steps"]) if spec["arm"]["trained"] else 0
        estimates = {name: float(spec["profile"]["estimates"][name]) for name in _ESTIMATES}
    except RecordError as error:
        return Status(folder.name, "damaged", detail=str(error))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{folder.run_file} is damaged ({type(error).__name__}: {error})"
        return Status(folder.name, "damaged", detail=f"{reason}: the command that ran it writes it anew.")
    events = tail(folder.events_file)
    state, detail = _state(folder, events, steps, generations_of(spec.get("suite")))
    metrics = tail(folder.metrics_file, 1 if state in _OVER else PACE_STEPS)
    step = max([int(each.get("step") or 0) for each in (*events[-3:], *metrics[-1:])], default=0)
    recorded = metrics[-1].get("step", 0) if metrics else 0
    if state in ("complete", "collapsed") and recorded < events[-1].get("step", 0):
        lacking = f"metrics.jsonl ends at step {recorded}"
        detail = f"{detail}; {lacking}" if detail else lacking
    left = None
    if state not in _OVER:
        per_step = pace(metrics) or estimates["seconds_per_step"]
        evaluation = evaluation_seconds(events) or estimates["evaluation_seconds"]
        left = max(0, steps - step) * per_step + evaluation
    return Status(
        name=folder.name,
        state=state,
        step=step,
        steps=steps,
        reward=metrics[-1].get("reward/mean") if metrics else None,
        seconds_left=left,
        detail=detail,
        updated=max((float(each["time"]) for each in (*events[-1:], *metrics[-1:]) if "time" in each), default=None),
    )


def statuses(folders: Iterable[RunFolder]) -> list[Status]:
    """The status of each run, in order."""
    return [status_of(folder) for folder in folders]


def _state(folder: RunFolder, events: Sequence[dict[str, Any]], steps: int, generations: int | None) -> tuple[str, str]:
    if folder.lease_file.exists() and is_held(folder):
        return "running", ""
    last = events[-1] if events else {}
    event = last.get("event")
    if (fault := fault_at_end(folder, events, steps, generations)) is not None:
        return "blocked" if fault.is_lost else "interrupted", str(fault)
    # A complete run that is asked for more steps since goes on with those.
    if event == "collapsed" or (event == "complete" and int(last.get("step") or 0) >= steps):
        return event, str(last.get("rule", ""))
    if event == "stopped":
        return "stopped", f"by the search ({last.get('by')})"
    if event == "failed":
        return "failed", f"{last.get('kind')}: {last.get('error')}"
    return ("pending", "") if event is None else ("interrupted", "the command that ran it goes on from here")


def as_json(found: Sequence[Status]) -> dict[str, Any]:
    """Counts by state and one object a run, for scripts."""
    return {"states": dict(Counter(each.state for each in found)), "runs": [asdict(each) for each in found]}


def summary(found: Sequence[Status]) -> str:
    """The runs counted by state, in one line."""
    counts = Counter(each.state for each in found)
    if not found:
        return "No runs here yet: tepo-lab run panel-e makes some."
    return f"{counted(len(found), 'run')}: " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def status_table(found: Sequence[Status], *, most: int | None = None) -> Group:
    """The runs as a table with their counts under it. Args: `most` rows; those that are not over come first then."""
    shown = found if most is None else sorted(found, key=lambda each: each.is_over)[:most]
    headings = ("run", "state", "step", "reward", "left", "why")
    rows = [(each.name, each.state, *_figures(each), each.detail) for each in shown]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = [
        _line(headings, widths, "bold", "bold"),
        *(_line(row, widths, "", _STYLES.get(row[1], "dim")) for row in rows),
    ]
    more = f" ({len(found) - len(shown)} more not shown)" if len(shown) < len(found) else ""
    return Group(*lines, Text(f"\n{summary(found)}{more}", style="bold"))


def _line(cells: Sequence[str], widths: Sequence[int], style: str, state_style: str) -> Text:
    """A row of the table. Laid out here: a table of Rich's takes a second for two thousand rows."""
    name, state, *figures, why = cells
    line = Text(name.ljust(widths[0]) + "  ", style=style, no_wrap=True, overflow="ellipsis")
    line.append(state.ljust(widths[1]), style=state_style)
    line.append("".join(f"  {each.rjust(width)}" for each, width in zip(figures, widths[2:5], strict=True)))
    return line.append(f"  {why}".rstrip())


def status_line(each: Status) -> str:
    """A run's status as one plain line."""
    step, reward, left = _figures(each)
    parts = [each.name, each.state, f"step {step}" if step else "", f"reward {reward}" if reward else ""]
    line = "  ".join(part for part in [*parts, f"{left} left" if left else ""] if part)
    return f"{line}  ({each.detail})" if each.detail else line


def _figures(each: Status) -> tuple[str, str, str]:
    step = "" if each.steps is None else f"{each.step}/{each.steps}"
    reward = "" if each.reward is None else f"{each.reward:.3f}"
    return step, reward, "" if each.seconds_left is None else duration(each.seconds_left)


def watch(
    look: Callable[[], Sequence[Status]], console: Console, *, wait: Callable[[float], None] = time.sleep
) -> None:
    """Show the runs until all are over: live in a terminal, elsewhere a plain line for each change."""
    if not console.is_terminal:
        _watch_plainly(look, console, wait)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            found = look()
            live.update(status_table(found, most=max(5, console.height - 5)), refresh=True)
            if all(each.is_over for each in found):
                return
            wait(WATCH_SECONDS)


def _watch_plainly(look: Callable[[], Sequence[Status]], console: Console, wait: Callable[[float], None]) -> None:
    told: dict[str, tuple[str, int]] = {}
    while True:
        found = look()
        for each in found:
            if told.get(each.name) != (each.state, each.step):
                told[each.name] = (each.state, each.step)
                console.print(status_line(each), markup=False, highlight=False, soft_wrap=True)
        if all(each.is_over for each in found):
            console.print(summary(found), markup=False, highlight=False, soft_wrap=True)
            return
        wait(WATCH_SECONDS)
