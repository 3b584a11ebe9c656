"""`tepo-lab report --page` and figures as a reader meets them: written by the command, opened in a real browser."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.files import run_folders
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.train.trial import run_trial
from tests.conftest import SMALL
from tests.integration.test_run import run

CHROMIUM = "/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

OPTIONS = (*SMALL, "trainer.steps=2")

#: What a model may write to get out of the text and into the page.
HOSTILE = '</script><img src=x onerror="window.reached = true"><script>window.reached = true</script>'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the untrained model and two trained arms of panel E; one token holds hostile text."""
    home = tmp_path_factory.mktemp("home")
    for arm, seed in (("base", 0), ("tepo_no_kl", 1), ("tepo", 1)):
        made = planned(compose_run(arm, "nano", OPTIONS, seed=seed))
        item = entry(home, made)
        prepare_folder(item)
        run_trial(made.spec, item.folder)
    tepo = next(folder for folder in run_folders(home) if folder.name.startswith("tepo-"))
    values = json.loads(tepo.tokens(2).read_text())
    values["groups"][0]["responses"][0]["tokens"][0] = HOSTILE
    tepo.tokens(2).write_text(json.dumps(values))
    return home


@pytest.fixture(scope="module")
def page_file(home: Path) -> Path:
    done = run("report", "panel-e", *OPTIONS, "--page", "--home", str(home))
    path = Path(done.stdout.strip().removeprefix("Page: "))
    assert path == home / "pages" / "panel-e.html"
    return path


def test_the_page_is_one_file_with_tables_figures_and_verdicts(page_file: Path) -> None:
    text = page_file.read_text()
    assert text.count("<svg role=") == 4
    assert "Against the parent: 1 not resolved (fewer than 3 seeds)." in text
    assert "They are not AIME" in text
    assert HOSTILE not in text
    assert "src=" not in text.replace("src=x onerror", "")
    assert "default-src 'none'" in text


def assert_problems_can_be_turned(page: Any) -> None:
    prompt = page.locator("#token-problem").inner_text()
    page.get_by_role("button", name="Next problem").click()
    assert page.locator("#token-group").inner_text() == "Problem 2 of 4"
    assert page.locator("#token-problem").inner_text() != prompt
    page.get_by_role("button", name="Previous problem").click()
    assert page.locator("#token-problem").inner_text() == prompt


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium at /usr/bin/chromium or on PATH (apt-get install chromium)")
def test_a_browser_shows_single_tokens_in_any_colour(page_file: Path, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    screenshots = Path(os.environ.get("TEPO_LAB_SCREENSHOTS", tmp_path))
    asked: list[str] = []
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(page_file.as_uri())

        def colours(side: str) -> set[str]:
            tokens = page.locator(f"#token-{side} .token").all()
            return {str(token.evaluate("node => node.style.backgroundColor")) for token in tokens}

        page.get_by_role("link", name="Single tokens").click()
        # Advantage: all of a right response above zero, all of a wrong one below.
        page.get_by_role("radio", name="advantage").check()
        assert {colour.rsplit(",", 1)[0] for colour in colours("right")} == {"rgba(213, 94, 0"}
        assert {colour.rsplit(",", 1)[0] for colour in colours("wrong")} == {"rgba(0, 114, 178"}
        page.get_by_role("radio", name="probability ratio").check()
        assert len(colours("right") | colours("wrong")) > 3

        # The first arm has no penalty and so no mask; the second marks A > 0 and dH < 0, never a wrong response.
        page.get_by_role("radio", name="mask").check()
        assert page.locator("#token-scale").inner_text() == "This arm's objective has no penalty, so no mask."
        assert colours("right") == {"transparent"}
        page.locator("#token-run").select_option(label="TEPO, seed 1")
        assert len(colours("right")) == 2
        assert len(colours("wrong")) == 1
        page.get_by_role("radio", name="ΔH").check()
        assert "entropy after the step's updates minus that before them" in page.locator("#token-scale").inner_text()

        # Hostile text is shown as the token that it is.
        assert HOSTILE in page.locator(".token").all_inner_texts()
        assert page.evaluate("window.reached") is None
        assert page.locator("#tokens img").count() == 0

        first = page.locator("#token-right .token").nth(1)
        first.click()
        detail = page.locator("#token-detail").inner_text()
        assert all(word in detail for word in ("token 2", "ratio ", "ΔH ", "mask ", "log-probability ", "advantage "))
        page.locator("#token-wrong .token").first.hover()
        assert page.locator("#token-detail").inner_text() == detail
        page.screenshot(path=screenshots / "page-tokens.png")

        assert_problems_can_be_turned(page)
        assert page.locator("figure svg").count() == 4
        page.screenshot(path=screenshots / "page.png", full_page=True)
        browser.close()
    assert wrong == []
    assert asked == [page_file.as_uri()]


def test_a_figure_is_written_and_what_is_missing_is_named(home: Path, tmp_path: Path) -> None:
    done = run("report", "cells", *OPTIONS, "--home", str(home))
    assert [line.partition("figures/")[2] for line in done.stdout.splitlines()] == [
        "cells-nano.png",
        "cells-nano.svg",
        "cells-nano.pdf",
    ]
    assert "Missing or cut short: not run: w. GRPO/DAPO (token-level)" in done.stderr
    out = tmp_path / "mine.svg"
    run("report", "figure3", *OPTIONS, "--home", str(home), "--out", str(out))
    assert ElementTree.fromstring(out.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    assert not (home / "figures" / "figure3-nano.svg").exists()


def test_a_figure_without_runs_of_its_arms_gets_one_clear_line(home: Path) -> None:
    done = run("report", "figure2", "trainer.learning_rate=1", "--home", str(home), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "(grpo_dapo, tepo)" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("tepo-lab: ")]) == 1
    assert done.stdout == ""
