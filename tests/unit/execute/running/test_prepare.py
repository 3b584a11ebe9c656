from __future__ import annotations

from pathlib import Path

from tepo_lab.execute.running.prepare import write_sweep
from tepo_lab.records.files import RunFolder
from tepo_lab.records.sweeps import recorded_runs
from tepo_lab.registry.expand import expand, load_sweep


def test_runs_that_a_sweep_has_no_more_are_recorded_as_its_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "sweeps/panel-e/sweep.json"

    def write(*names: str) -> tuple[list[str], list[str]]:
        folders = [RunFolder(tmp_path / "runs" / name) for name in names]
        write_sweep(tmp_path, expand(*load_sweep("panel-e", [])), folders)
        return recorded_runs(path), recorded_runs(path, "earlier_runs")

    assert write("a", "b", "c") == (["a", "b", "c"], [])
    assert write("a", "d") == (["a", "d"], ["b", "c"])
    assert write("b") == (["b"], ["a", "c", "d"])
    path.write_text("{")
    assert write("a") == (["a"], [])
