"""`tepo-lab ui` as a reader meets it: the command's server, seen by a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tepo_lab.records.files import RunFolder
from tepo_lab.track.mirror import Mirror
from tests.integration.test_working_folder import hostile_folder
from tests.mlflow_runs import complete, start_run, write_steps, write_sweep

CHROMIUM = "/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

SERVE = """
import sys
from pathlib import Path
from tepo_lab.track.ui import serve
serve(Path(sys.argv[1]), lambda address: print(address, flush=True))
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunFolder]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folders = [start_run(tmp_path, arm) for arm in ("tepo_no_kl", "tepo")]
    write_sweep(tmp_path, folders)
    for folder in folders:
        write_steps(folder, range(1, 21))
        complete(folder, 20)
    problems: list[str] = []
    mirror = Mirror(tmp_path, None, "panel-e", problems.append)
    assert mirror.update(folders, over=True)
    assert problems == []
    return folders


@contextmanager
def served(home: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-P", "-c", SERVE, str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def group_members(home: Path) -> list[str]:
    """Command lines of the processes that serve `home`."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "mlflow" in line and str(home) in line:
            lines.append(line)
    return lines


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium at /usr/bin/chromium or on PATH (apt-get install chromium)")
def test_a_browser_sees_the_runs_by_name_and_a_chart(tmp_path: Path, runs: list[RunFolder]) -> None:
    from playwright.sync_api import sync_playwright

    screenshots = Path(os.environ.get("TEPO_LAB_SCREENSHOTS", tmp_path))
    asked: set[str] = set()
    with served(tmp_path) as (address, _), sync_playwright() as playwright:
        assert address.startswith("http://127.0.0.1:")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.set_default_timeout(90_000)
        page.on("request", lambda request: asked.add(request.url.split("/")[2] if "//" in request.url else ""))
        page.goto(address)
        for folder in runs:
            page.get_by_role("link", name=folder.name, exact=True).wait_for()
        page.get_by_role("link", name="panel-e", exact=True).first.wait_for()
        page.screenshot(path=screenshots / "mlflow-runs.png")

        page.get_by_role("link", name=runs[1].name, exact=True).click()
        page.get_by_text("Model metrics").first.click()
        for metric in ("mean", "entropy"):
            page.get_by_text(metric, exact=True).first.wait_for()
        curve = page.locator(".js-plotly-plot .scatterlayer path.js-line").first
        curve.wait_for()
        # The entropy falls from step to step; y grows downwards in an SVG path "Mx,yLx,y...".
        points = [tuple(map(float, pair.split(","))) for pair in str(curve.get_attribute("d")).strip("M").split("L")]
        assert len(points) > 5
        assert points == sorted(points)
        assert [y for _, y in points] == sorted(y for _, y in points)
        page.screenshot(path=screenshots / "mlflow-run.png")
        assert runs[1].name in page.inner_text("body")
        browser.close()
    assert {host for host in asked if host} == {address.split("/")[2]}


def test_ending_the_command_ends_its_server(
    tmp_path: Path, runs: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.chdir(hostile_folder(tmp_path / "folder", mark))
    with served(tmp_path) as (address, process):
        assert address.endswith("/runs?workflowType=machine_learning")
        assert any("mlflow server" in line for line in group_members(tmp_path))
    assert process.returncode == 0
    assert group_members(tmp_path) == []
    assert not mark.exists()
