"""Which point of an exploratory sweep is chosen, by its validation scores, and what a table says about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.records.files import read_record, write_json
from tepo_lab.records.history import RunHistory, State
from tepo_lab.schema.sweep import Sweep

FILE = "selection.json"


def write_selection(home: Path, sweep: Sweep, entries: Sequence[Entry]) -> None:
    """Record each point's validation score and the best point of each arm in the sweep's folder.

    A point's score is the mean over its seeds of the last validation of runs that came to their end; a point that the
    search ended early, or that collapsed, cannot be chosen. What was chosen before stands while any run is blocked,
    since its score is unknown.
    """
    assert sweep.search is not None
    if any(entry.action == "blocked" for entry in entries):
        return
    scores: dict[str, list[float]] = {}
    arms: dict[str, str] = {}
    for entry in entries:
        if not entry.planned.spec.arm.trained:
            continue
        arms[entry.planned.family] = entry.planned.spec.arm.name
        value = last_validation(entry.history) if entry.history.state is State.COMPLETE else None
        if value is not None:
            scores.setdefault(entry.planned.family, []).append(value)
    means = {family: fmean(values) for family, values in scores.items()}
    best = max if sweep.search.mode == "max" else min
    chosen = [
        best((family for family in means if arms[family] == arm), key=means.__getitem__)
        for arm in sorted({arms[family] for family in means})
    ]
    points = {arm: sum(other == arm for other in arms.values()) for arm in set(arms.values())}
    write_json(
        home / "sweeps" / sweep.name / FILE,
        {
            "metric": sweep.search.metric,
            "mode": sweep.search.mode,
            "scores": means,
            "chosen": {family: {"arm": arms[family], "points": points[arms[family]]} for family in chosen},
        },
    )


def last_validation(history: RunHistory) -> float | None:
    """The run's last validation score in percent, or None if it was never validated."""
    return history.validations[max(history.validations)] if history.validations else None


def selection_notes(home: Path) -> dict[str, str]:
    """family -> what its row's label must add, for every point that a search in this home has chosen.

    Raises `RecordError` for a damaged file: without it a label would keep to itself that its point was chosen.
    """
    notes: dict[str, str] = {}
    for path in sorted(home.glob(f"sweeps/*/{FILE}")):
        try:
            for family, point in json.loads(read_record(path))["chosen"].items():
                notes[family] = f"chosen among {point['points']} points"
        except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            fix = "remove it; running the sweep again writes it"
            raise RecordError(f"{path} is damaged ({type(error).__name__}: {error}): {fix}.") from None
    return notes
