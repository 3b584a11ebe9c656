"""Modules of the folder where a command is given are imported by none of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tepo_lab.execute.running.executor import Executor
from tepo_lab.execute.running.session_cost import CpuMeter

MARK = "from pathlib import Path\nPath({path!r}).touch()\nraise ImportError\n"


def hostile_folder(folder: Path, mark: Path) -> Path:
    """A folder with modules that hide others of these names, and make the file `mark` when they are imported."""
    folder.mkdir()
    for name in ("pyarrow", "statistics", "uvicorn", "fastapi", "colorsys"):
        (folder / f"{name}.py").write_text(MARK.format(path=str(mark)))
    return folder


def test_workers_of_ray_import_nothing_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.chdir(hostile_folder(tmp_path / "folder", mark))

    def imported() -> tuple[str, str]:
        import colorsys

        import pyarrow

        return str(pyarrow.__file__), str(colorsys.__file__)

    with Executor(tmp_path / "home", CpuMeter()):
        import ray

        files = ray.get(ray.remote(num_cpus=0)(imported).remote())
    assert not any(file.startswith(str(tmp_path)) for file in files)
    assert not mark.exists()
