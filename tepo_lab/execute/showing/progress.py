"""Where each run of a sweep stands, read from its records, and the display of it while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.planning.ledger import Entry
from tepo_lab.records.files import RunFolder, tail

#: Plain output: seconds between lines about a run that only trains on.
PLAIN_SECONDS = 15.0

#: Steps whose mean is a run's pace.
PACE_STEPS = 5

_STYLES = {"complete": "green", "collapsed": "yellow", "failed": "red", "training": "cyan", "evaluating": "magenta"}


@dataclass
class Standing:
    """One run as its records tell it now. Seconds are wall seconds."""

    entry: Entry
    state: str = "waiting"
    step: int = 0
    reward: float | None = None
    entropy: float | None = None
    seconds_per_step: float | None = None
    evaluation_seconds: float | None = None
    detail: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("complete", "collapsed", "stopped", "failed")

    @property
    def steps(self) -> int:
        return self.entry.planned.spec.steps

    @property
    def label(self) -> str:
        spec = self.entry.planned.spec
        return f"{spec.arm.name} s{spec.seed}" if spec.arm.trained else spec.arm.name

    def seconds_left(self, per_step: float, evaluation: float) -> float:
        """Wall seconds to the run's end, at the given pace where the run has none of its own."""
        if self.is_over:
            return 0.0
        return (self.steps - self.step) * (self.seconds_per_step or per_step) + evaluation


@dataclass
class Watch:
    """Reads the records of a sweep's pending runs and shows them; call it now and then, and a last time with True."""

    title: str
    pending: Sequence[Entry]
    slots: int
    console: Console
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.standings = [Standing(entry) for entry in self.pending]
        self._seen: dict[str, tuple[float, float]] = {}
        self._told: dict[str, tuple[str, int, float]] = {}
        self._live: Live | None = None
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()

    def __call__(self, final: bool) -> None:
        for standing in self.standings:
            if self._changed(standing.entry.folder):
                refresh(standing, since=self.began)
        if self._live is None:
            self._tell_changes()
            return
        if final:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        else:
            self._live.update(Group(self._table(), self._summary()), refresh=True)

    def seconds_left(self) -> float:
        """Wall seconds to the sweep's end: the rest of all runs, shared by the runs that go at once."""
        paces = [each.seconds_per_step for each in self.standings if each.seconds_per_step]
        evaluations = [each.evaluation_seconds for each in self.standings if each.evaluation_seconds]
        estimates = self.pending[0].planned.spec.profile.estimates
        per_step = sum(paces) / len(paces) if paces else estimates.seconds_per_step
        evaluation = sum(evaluations) / len(evaluations) if evaluations else estimates.evaluation_seconds
        left = [each.seconds_left(per_step, evaluation) for each in self.standings]
        return max([sum(left) / max(1, self.slots), *left])

    def _changed(self, folder: RunFolder) -> bool:
        stamps = tuple(
            path.stat().st_mtime if path.exists() else 0.0 for path in (folder.metrics_file, folder.events_file)
        )
        if self._seen.get(folder.name) == stamps:
            return False
        self._seen[folder.name] = (stamps[0], stamps[1])
        return True

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", title=self.title, title_justify="left")
        for heading in ("run", "state"):
            table.add_column(heading)
        for heading in ("step", "", "reward", "entropy", "left"):
            table.add_column(heading, justify="right")
        for each in self.standings:
            table.add_row(
                each.label,
                Text(each.state, style=_STYLES.get(each.state, "dim")),
                f"{each.step}/{each.steps}",
                ProgressBar(total=max(1, each.steps), completed=each.step, width=16),
                _number(each.reward),
                _number(each.entropy),
                "" if each.is_over or each.state == "waiting" else duration(self._own_seconds_left(each)),
            )
        return table

    def _own_seconds_left(self, standing: Standing) -> float:
        estimates = standing.entry.planned.spec.profile.estimates
        return standing.seconds_left(estimates.seconds_per_step, estimates.evaluation_seconds)

    def _summary(self) -> Text:
        over = sum(each.is_over for each in self.standings)
        elapsed = duration(time.time() - self.began)
        left = duration(self.seconds_left())
        return Text(f"\n{over} of {len(self.standings)} runs done, {elapsed} so far, about {left} left", style="bold")

    def _tell_changes(self) -> None:
        """Plain lines: when a run's state changes, and now and then while it trains."""
        now = time.time()
        for each in self.standings:
            before = self._told.get(each.label)
            if each.state == "waiting" or (before and before[:2] == (each.state, each.step)):
                continue
            if before and before[0] == each.state and now - before[2] < PLAIN_SECONDS:
                continue
            self._told[each.label] = (each.state, each.step, now)
            over = sum(one.is_over for one in self.standings)
            line = f"[{over}/{len(self.standings)}] {each.label}: {each.state}, step {each.step}/{each.steps}"
            if each.reward is not None:
                line += f", reward {each.reward:.3f}"
            if each.entropy is not None:
                line += f", entropy {each.entropy:.3f}"
            if each.detail:
                line += f" ({each.detail})"
            if over < len(self.standings):
                line += f"; about {duration(self.seconds_left())} left"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def refresh(standing: Standing, *, since: float = 0.0) -> None:
    """Read the ends of the run's records into `standing`; events before `since` (Unix seconds) are of earlier attempts.

    The ends alone, however long the run: this is called at every step of every run that goes on. An event that does not
    say when it was is passed over, a step that does not say how long it took is none to judge the pace by.
    """
    folder = standing.entry.folder
    metrics = tail(folder.metrics_file, PACE_STEPS)
    events = [event for event in tail(folder.events_file) if event.get("time", -1.0) >= since]
    if metrics:
        standing.step = int(metrics[-1]["step"])
        standing.reward, standing.entropy = metrics[-1].get("reward/mean"), metrics[-1].get("actor/entropy")
    standing.seconds_per_step = pace(metrics) or standing.seconds_per_step
    if not events:
        return
    standing.evaluation_seconds = evaluation_seconds(events) or standing.evaluation_seconds
    standing.state, standing.detail = _state(events[-1], standing)


def pace(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean wall seconds of these steps, of those that say how long they took."""
    recent = [step["seconds/step"] for step in metrics if step.get("seconds/step") is not None]
    return sum(recent) / len(recent) if recent else None


def evaluation_seconds(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Wall seconds of the last evaluation among these events that was sampled."""
    # Grades made again are recorded as evaluated too, and took no time of the run's.
    seconds = [event["seconds"] for event in events if event["event"] == "evaluated" and event.get("seconds")]
    return float(seconds[-1]) if seconds else None


def _state(last: dict[str, Any], standing: Standing) -> tuple[str, str]:
    event = str(last["event"])
    if event == "complete":
        return event, ""
    if event == "stopped":
        return event, f"by the search, {last['by']}"
    if event == "collapsed":
        return event, str(last["rule"])
    if event == "failed":
        return event, str(last["error"])
    return ("evaluating" if standing.step >= standing.steps else "training"), ""


def duration(seconds: float) -> str:
    """A duration for people: 45 s, 3 min 20 s, 5 h 12 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(count: int, what: str) -> str:
    """So many of something for people: 1 run, 2 runs."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
