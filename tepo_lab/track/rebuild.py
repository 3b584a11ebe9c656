"""The whole mirror of a home brought up to date with its records, or made again from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filelock import Timeout

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, run_folders
from tepo_lab.records.sweeps import recorded_runs
from tepo_lab.track.address import tracking_address
from tepo_lab.track.mirror import Mirror, problem_with
from tepo_lab.track.store import FAILURES, one_writer

#: The experiment of runs that no sweep.json names.
NO_SWEEP = "runs of no sweep"


def mirror_home(
    home: Path, tracking_uri: str | None, on_problem: Callable[[str], None], *, rebuild: bool = False
) -> int:
    """Show every sweep and every run of a home in MLflow. Returns how many runs, one of two sweeps counted in both.

    What the records of the sweeps do not name is deleted from MLflow.
    Args: `rebuild` deletes all that MLflow shows of the home first. `on_problem` is called with each damaged record.
    Raises `RecordError` when MLflow cannot be written, `ConfigError` for an unusable tracking URI.
    """
    uri = tracking_address(home, tracking_uri)
    sweeps: dict[str, tuple[list[str], list[str]]] = {}
    for path in sorted(home.glob("sweeps/*/sweep.json")):
        try:
            sweeps[path.parent.name] = recorded_runs(path), recorded_runs(path, "earlier_runs")
        except RecordError as error:
            on_problem(f"MLflow does not show sweep {path.parent.name}: {error}")
    named = {name for runs in sweeps.values() for names in runs for name in names}
    if others := [folder.name for folder in run_folders(home) if folder.name not in named]:
        sweeps[NO_SWEEP] = others, []
    return sum(
        _mirror_sweep(Mirror(home, uri, sweep, on_problem), runs, earlier, rebuild)
        for sweep, (runs, earlier) in sweeps.items()
    )


def _mirror_sweep(mirror: Mirror, runs: list[str], earlier: list[str], rebuild: bool) -> int:
    present = [name for name in (*runs, *earlier) if RunFolder(mirror.home / "runs" / name).is_run()]
    wanted = {mirror.sweep, *present}
    listed, others = (
        [RunFolder(mirror.home / "runs" / name) for name in names if name in wanted] for names in (runs, earlier)
    )
    try:
        with one_writer(mirror.home, wait_seconds=60):
            mirror.delete(lambda name: rebuild or name not in wanted)
            return mirror.sync(listed, others, over=True)
    except Timeout:
        raise RecordError(
            f"Another process is writing to the mirror of {mirror.home}: call again when it is done."
        ) from None
    except FAILURES as error:
        raise RecordError(
            f"{problem_with(mirror.uri, error)} If the database is damaged, move it away and call again."
        ) from error
