"""What `tepo-lab run` prints of a sweep: what it will do, its progress, what it cost, and which runs are not done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from tepo_lab.execute.planning.actions import Action, Entry
from tepo_lab.execute.planning.plan import Plan
from tepo_lab.execute.showing.progress import Progress
from tepo_lab.execute.showing.text import counted
from tepo_lab.records.events import Collapsed
from tepo_lab.registry.expand import Expansion

if TYPE_CHECKING:
    from tepo_lab.execute.running.run_sweep import SweepResult


@dataclass
class ConsoleObserver:
    """Prints what happens to a sweep. Args: `on_start` is called when its runs are about to start."""

    expansion: Expansion
    console: Console
    on_start: Callable[[], None] = lambda: None

    def planned(self, plan: Plan) -> None:
        for line in other_rules(plan, self.expansion):
            self.note(line)
        if any(entry.action not in (Action.SKIP, Action.BLOCKED) for entry in plan.entries):
            self._print(opening(plan, self.expansion))

    def started(self) -> None:
        self.on_start()

    def note(self, line: str) -> None:
        self._print(line, style="yellow")

    def watch(self, pending: Sequence[Entry], slots: int) -> Callable[[bool], None]:
        return Progress(self.expansion.sweep.title, pending, slots, self.console)

    def ended(self, result: SweepResult) -> None:
        """Print what it cost, and which runs are not done and why."""
        if result.cost is not None:
            self._print(f"Cost: {result.cost}.")
        elif result.failed:
            self._print(f"Nothing was started; {counted(len(result.failed), 'run')} not done, see below.")
        else:
            self._print("All runs were done before; nothing was started.")
        for entry in result.failed:
            self._print(f"Not done: {entry.folder.name}: {entry.reason.rstrip('.')}.", style="red")

    def _print(self, line: str, style: str | None = None) -> None:
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def opening(plan: Plan, expansion: Expansion) -> str:
    """How many runs are to be done, in a line."""
    done = sum(entry.action is Action.SKIP for entry in plan.entries)
    blocked = sum(entry.action is Action.BLOCKED for entry in plan.entries)
    rest = (f", {done} done before" if done else "") + (f", {blocked} blocked" if blocked else "")
    return f"{expansion.sweep.title}: {counted(len(plan.entries) - done - blocked, 'run')} to do{rest}."


def other_rules(plan: Plan, expansion: Expansion) -> Iterator[str]:
    """A line for each run that collapsed by a stop rule of another sweep: it is a result, and not run again here."""
    own = {rule.when for rule in expansion.sweep.stop}
    for entry in plan.entries:
        outcome = entry.history.outcome
        if isinstance(outcome, Collapsed) and outcome.rule not in own:
            yield (
                f"Not run again: {entry.folder.name} collapsed at step {outcome.step} by {outcome.rule}, which is no "
                f"rule of this sweep; remove {entry.folder.path} to run it again."
            )
