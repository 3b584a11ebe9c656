"""The status of runs: one row a run, a view of its history and of the end of its step metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tepo_lab.execute.showing.text import counted, duration
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory, State

#: Seconds between two looks with --watch.
WATCH_SECONDS = 2.0

#: Steps whose mean is a run's pace.
PACE_STEPS = 5

STYLES = {
    "complete": "green",
    "collapsed": "yellow",
    "failed": "red",
    "running": "cyan",
    "training": "cyan",
    "evaluating": "magenta",
    "interrupted": "magenta",
    "damaged": "red",
}

#: What `--format json` has of a status.
_KEYS = ("name", "state", "step", "steps", "reward", "seconds_left", "detail", "updated")


@dataclass(frozen=True)
class RunStatus:
    """One run as it is now.

    `steps` it is asked for (None: unknown); `reward` and `entropy` (nats) of its last step; seconds are wall time, None
    where nothing was measured; `seconds_left` None when it is over; `updated` Unix seconds.
    """

    name: str
    state: str
    step: int = 0
    steps: int | None = None
    reward: float | None = None
    entropy: float | None = None
    seconds_per_step: float | None = None
    evaluation_seconds: float | None = None
    seconds_left: float | None = None
    detail: str = ""
    updated: float | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("complete", "collapsed", "stopped", "failed", "damaged")


def run_status(folder: RunFolder) -> RunStatus:
    """The status of the run in `folder`."""
    history = RunHistory.read(folder)
    if not history.run or history.state in (State.PENDING, State.DAMAGED):
        return RunStatus(folder.name, history.state, detail=history.damage or "")
    metrics = folder.last_metrics(PACE_STEPS)
    last = metrics[-1] if metrics else {}
    step, steps = max(history.step, int(last.get("step") or 0)), history.asked_steps
    timed = [line["seconds/step"] for line in metrics if line.get("seconds/step") is not None]
    per_step = sum(timed) / len(timed) if timed else None
    # An evaluation that was graded again took no time of the run's.
    evaluations = [each.seconds for _, each in sorted(history.evaluations.items()) if each.seconds]
    evaluation = evaluations[-1] if evaluations else None
    # A run that was complete and is asked for more steps goes on with those.
    is_extended = history.state is State.COMPLETE and history.step < steps
    state = State.INTERRUPTED if is_extended else history.state
    left = None
    if state in (State.RUNNING, State.INTERRUPTED):
        estimates = history.spec.get("profile", {}).get("estimates", {})
        pace = per_step or float(estimates.get("seconds_per_step") or 0)
        left = max(0, steps - step) * pace + (evaluation or float(estimates.get("evaluation_seconds") or 0))
    return RunStatus(
        folder.name,
        state,
        step,
        steps,
        last.get("reward/mean"),
        last.get("actor/entropy"),
        per_step,
        evaluation,
        left,
        "" if state in (State.RUNNING, State.COMPLETE) else history.description,
        max(filter(None, (history.updated, last.get("time"))), default=None),
    )


def as_json(statuses: Sequence[RunStatus]) -> dict[str, Any]:
    """Counts by state and one object a run, for scripts."""
    return {
        "states": dict(Counter(status.state for status in statuses)),
        "runs": [{key: getattr(status, key) for key in _KEYS} for status in statuses],
    }


def summary(statuses: Sequence[RunStatus]) -> str:
    """The runs counted by state, in one line."""
    if not statuses:
        return "No runs here yet: tepo-lab run panel-e makes some."
    counts = Counter(status.state for status in statuses)
    return f"{counted(len(statuses), 'run')}: " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def status_table(statuses: Sequence[RunStatus], *, most: int | None = None) -> Group:
    """The runs as a table with their counts under it. Args: `most` rows; those that are not over come first then."""
    shown = statuses if most is None else sorted(statuses, key=lambda status: status.is_over)[:most]
    headings = ("run", "state", "step", "reward", "left", "why")
    rows = [(status.name, status.state, *_numbers(status), status.detail) for status in shown]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for row in (headings, *rows):
        name, state, *numbers, why = row
        style = "bold" if row is headings else STYLES.get(state, "dim")
        # Laid out here: a rich table takes a second for two thousand rows.
        line = Text(name.ljust(widths[0]) + "  ", style="bold" if row is headings else "", no_wrap=True)
        line.append(state.ljust(widths[1]), style=style)
        line.append("".join(f"  {text.rjust(width)}" for text, width in zip(numbers, widths[2:5], strict=True)))
        lines.append(line.append(f"  {why}".rstrip()))
    more = f" ({len(statuses) - len(shown)} more not shown)" if len(shown) < len(statuses) else ""
    return Group(*lines, Text(f"\n{summary(statuses)}{more}", style="bold"))


def status_line(status: RunStatus) -> str:
    """A run's status as one plain line."""
    step, reward, left = _numbers(status)
    parts = [status.name, status.state, f"step {step}" if step else "", f"reward {reward}" if reward else ""]
    line = "  ".join(part for part in [*parts, f"{left} left" if left else ""] if part)
    return f"{line}  ({status.detail})" if status.detail else line


def _numbers(status: RunStatus) -> tuple[str, str, str]:
    step = "" if status.steps is None else f"{status.step}/{status.steps}"
    reward = "" if status.reward is None else f"{status.reward:.3f}"
    return step, reward, "" if status.seconds_left is None else duration(status.seconds_left)


def watch(
    read: Callable[[], Sequence[RunStatus]], console: Console, *, wait: Callable[[float], None] = time.sleep
) -> None:
    """Show the runs until all are over: live in a terminal, elsewhere a plain line for each change."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                statuses = read()
                live.update(status_table(statuses, most=max(5, console.height - 5)), refresh=True)
                if all(status.is_over for status in statuses):
                    return
                wait(WATCH_SECONDS)
    printed: dict[str, tuple[str, int]] = {}
    while True:
        statuses = read()
        lines = [status_line(each) for each in statuses if printed.get(each.name) != (each.state, each.step)]
        printed = {status.name: (status.state, status.step) for status in statuses}
        is_over = all(status.is_over for status in statuses)
        for line in [*lines, *([summary(statuses)] if is_over else [])]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if is_over:
            return
        wait(WATCH_SECONDS)


def statuses(folders: Iterable[RunFolder]) -> list[RunStatus]:
    """The status of each run, in order."""
    return [run_status(folder) for folder in folders]
