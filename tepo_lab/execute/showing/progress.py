"""The display of a sweep while it runs: the status of its pending runs, live in a terminal, else as plain lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.showing.status import STYLES, RunStatus, run_status
from tepo_lab.execute.showing.text import duration
from tepo_lab.records.files import RunFolder

#: Plain output: seconds between lines about a run whose state stays the same.
PLAIN_SECONDS = 15.0


@dataclass
class Progress:
    """Shows a sweep's pending runs. Call it now and then, and a last time with True.

    Args: `slots`: how many runs go at once; `began`: Unix seconds; what was recorded before is of earlier attempts.
    """

    title: str
    pending: Sequence[Entry]
    slots: int
    console: Console
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._statuses: dict[str, RunStatus] = {}
        self._seen: dict[str, tuple[float, ...]] = {}
        self._printed: dict[str, tuple[str, int, float]] = {}
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def __call__(self, final: bool) -> None:
        for entry in self.pending:
            self._refresh(entry.folder)
        if self._live is None:
            self._print_changes()
        elif final:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        else:
            self._live.update(Group(self._table(), self._summary()), refresh=True)

    def seconds_left(self) -> float:
        """Wall seconds to the sweep's end: what all runs still take, shared by those that go at once."""
        left = [self._own_seconds_left(entry) for entry in self.pending]
        return max([sum(left) / max(1, self.slots), *left])

    def _refresh(self, folder: RunFolder) -> None:
        """Read the run again if its records have changed."""
        paths = (folder.metrics_file, folder.events_file)
        stamps = tuple(path.stat().st_mtime if path.exists() else 0.0 for path in paths)
        if self._seen.get(folder.name) != stamps:
            self._seen[folder.name] = stamps
            self._statuses[folder.name] = run_status(folder)

    def _state(self, entry: Entry) -> tuple[str, RunStatus]:
        """What the run does in this session, and its status."""
        status = self._statuses.get(entry.folder.name) or RunStatus(entry.folder.name, "pending")
        if (status.updated or 0.0) < self.began:
            return "waiting", status
        if status.state in ("running", "interrupted"):
            return ("evaluating" if status.step >= entry.planned.spec.steps else "training"), status
        return status.state, status

    def _own_seconds_left(self, entry: Entry) -> float:
        state, status = self._state(entry)
        if status.is_over and state != "waiting":
            return 0.0
        estimates = entry.planned.spec.profile.estimates
        known = list(self._statuses.values())
        paces = [each.seconds_per_step for each in known if each.seconds_per_step]
        evaluations = [each.evaluation_seconds for each in known if each.evaluation_seconds]
        pace = status.seconds_per_step or (sum(paces) / len(paces) if paces else estimates.seconds_per_step)
        evaluation = sum(evaluations) / len(evaluations) if evaluations else estimates.evaluation_seconds
        return max(0, entry.planned.spec.steps - status.step) * pace + evaluation

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", title=self.title, title_justify="left")
        for heading in ("run", "state"):
            table.add_column(heading)
        for heading in ("step", "", "reward", "entropy", "left"):
            table.add_column(heading, justify="right")
        for entry in self.pending:
            state, status = self._state(entry)
            steps = entry.planned.spec.steps
            table.add_row(
                _label(entry),
                Text(state, style=STYLES.get(state, "dim")),
                f"{status.step}/{steps}",
                ProgressBar(total=max(1, steps), completed=status.step, width=16),
                _number(status.reward),
                _number(status.entropy),
                duration(self._own_seconds_left(entry)) if state in ("training", "evaluating") else "",
            )
        return table

    def _summary(self) -> Text:
        elapsed, left = duration(time.time() - self.began), duration(self.seconds_left())
        over = f"{self._over()} of {len(self.pending)} runs done"
        return Text(f"\n{over}, {elapsed} so far, about {left} left", style="bold")

    def _over(self) -> int:
        states = [self._state(entry) for entry in self.pending]
        return sum(status.is_over and state != "waiting" for state, status in states)

    def _print_changes(self) -> None:
        """Plain lines: when a run's state changes, and now and then while it trains."""
        now, over = time.time(), self._over()
        for entry in self.pending:
            state, status = self._state(entry)
            last = self._printed.get(status.name)
            if state == "waiting" or (last and last[:2] == (state, status.step)):
                continue
            if last and last[0] == state and now - last[2] < PLAIN_SECONDS:
                continue
            self._printed[status.name] = (state, status.step, now)
            parts = [
                f"[{over}/{len(self.pending)}] {_label(entry)}: {state}",
                f"step {status.step}/{entry.planned.spec.steps}",
                *([f"reward {status.reward:.3f}"] if status.reward is not None else []),
                *([f"entropy {status.entropy:.3f}"] if status.entropy is not None else []),
            ]
            detail = f" ({status.detail})" if status.detail and status.is_over else ""
            left = f"; about {duration(self.seconds_left())} left" if over < len(self.pending) else ""
            self.console.print(", ".join(parts) + detail + left, markup=False, highlight=False, soft_wrap=True)


def _label(entry: Entry) -> str:
    spec = entry.planned.spec
    return f"{spec.arm.name} s{spec.seed}" if spec.arm.trained else spec.arm.name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
