"""A table's archive: the table that is rendered from it elsewhere is the table it was packed from."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tepo_lab.cli import main
from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.execute.maintain.bundle import write_bundle
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.made_with import patch_file
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.files import TOKEN_COLUMNS, RunFolder, append_line, write_json
from tepo_lab.registry.compose import clear_caches
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.report.render import page_tokens
from tests.conftest import SMALL

ASKED = (*SMALL, "trainer.steps=4", "seeds=[1,2]")


@pytest.fixture
def home(tmp_path):
    """A home in which every run of a small panel E but one was evaluated, one of them with a changed tree."""
    home = tmp_path / "home"
    random = np.random.default_rng(0)
    *runs, last = expand(*load_sweep("panel-e", ASKED)).runs
    for run in runs:
        folder = entry(home, run).folder
        prepare_folder(entry(home, run))
        rows = [
            {"benchmark": name, "problem": f"{problem:03}", "sample": sample, "correct": int(random.random() < 0.4)}
            for name, each in run.spec.suite.benchmarks.items()
            for problem in range(each.problems)
            for sample in range(each.samples)
        ]
        frame = pd.DataFrame(rows).assign(truncated=False, extracted="1", tokens=3, response="1", how="exact")
        folder.generations(run.spec.steps).parent.mkdir()
        frame.to_parquet(folder.generations(run.spec.steps))
        append_line(folder.events_file, {"time": 1.0, "event": "started", "step": 0})
        counts = frame.groupby("benchmark")["correct"].agg(["sum", "size"])
        tallies = {name: {"correct": int(right), "graded": int(size)} for name, (right, size) in counts.T.items()}
        for step in range(1, run.spec.steps + 1):
            append_line(folder.metrics_file, {"step": step, "reward/mean": 0.1 * step, "time": 1.5})
        end = {"time": 2.0, "step": run.spec.steps}
        append_line(folder.events_file, {"event": "evaluated", "benchmarks": tallies, **end})
        append_line(folder.events_file, {"event": "complete", **end})
    found = json.loads(folder.run_file.read_text())
    found["provenance"] |= {"commit": "abc", "dirty": True, "diff": hashlib.sha256(b"patch").hexdigest()}
    write_json(folder.run_file, found)
    patch_file(home, found["provenance"]["diff"]).parent.mkdir(exist_ok=True)
    patch_file(home, found["provenance"]["diff"]).write_bytes(b"patch")
    prepare_folder(entry(home, last))
    append_line(entry(home, last).folder.events_file, {"time": 1.0, "event": "started", "step": 0})
    return home


def tepo_lab(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tepo-lab", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def unpack(archive, place):
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")
    (folder,) = place.iterdir()
    return folder


@pytest.mark.integration
def test_the_same_table_is_rendered_from_the_archive_elsewhere(home, tmp_path, capsys, monkeypatch):
    asked = ("table3", *ASKED, "--panel", "e")
    table = json.loads(tepo_lab(capsys, monkeypatch, "report", *asked, "--home", str(home), "--format", "json"))
    assert len([row for row in table["rows"] if row["average"]["macro"] is not None]) == 4
    archive = tmp_path / "table3.tar.gz"
    said = tepo_lab(capsys, monkeypatch, "bundle", *asked, "--home", str(home), "--out", str(archive))
    assert said.strip() == f"Bundle: {archive} (9 runs)"
    elsewhere = unpack(archive, tmp_path / "elsewhere")
    home.rename(tmp_path / "gone")
    assert json.loads((elsewhere / "table.json").read_text()) == table
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(elsewhere / "registry"))
    clear_caches()
    monkeypatch.chdir(elsewhere)
    again = tepo_lab(capsys, monkeypatch, "report", *asked, "--home", ".", "--format", "json")
    clear_caches()
    assert json.loads(again) == table
    readme = (elsewhere / "README.md").read_text()
    assert "TEPO_LAB_REGISTRY=$PWD/registry tepo-lab report table3 " in readme
    hashes = json.loads((elsewhere / "sha256.json").read_text())
    files = {str(path.relative_to(elsewhere)) for path in elsewhere.rglob("*") if path.is_file()}
    assert set(hashes) == files - {"sha256.json"}
    assert all(hashlib.sha256((elsewhere / name).read_bytes()).hexdigest() == sha for name, sha in hashes.items())
    assert [path.read_text() for path in elsewhere.glob("provenance/*.patch") if path.read_text() == "patch"]
    assert not list(elsewhere.rglob("checkpoints"))
    assert "`provenance/` holds" in readme


@pytest.mark.integration
def test_a_figure_is_drawn_from_the_archive_by_the_command_that_it_names(home, tmp_path, capsys, monkeypatch):
    (tepo,) = map(RunFolder, home.glob("runs/tepo-nano-s1-*"))
    append_line(tepo.metrics_file, {"step": 1, "reward/mean": 0.5, "actor/entropy": 0.25})
    archive = tmp_path / "dynamics.tgz"
    asked = ("dynamics", *ASKED, "profile=nano")
    tepo_lab(capsys, monkeypatch, "bundle", *asked, "--home", str(home), "--out", str(archive))
    elsewhere = unpack(archive, tmp_path / "elsewhere")
    (line,) = [line for line in (elsewhere / "README.md").read_text().splitlines() if "tepo-lab report" in line]
    setting, *command = shlex.split(line)
    assert setting == "TEPO_LAB_REGISTRY=$PWD/registry"
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(elsewhere / "registry"))
    clear_caches()
    monkeypatch.chdir(elsewhere)
    said = tepo_lab(capsys, monkeypatch, *command[1:])
    clear_caches()
    assert said == f"Figure: {elsewhere / 'dynamics.pdf'}\n"
    assert (elsewhere / "dynamics.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.integration
def test_the_token_files_that_a_page_shows_are_packed(home, tmp_path, capsys, monkeypatch):
    folders = sorted(map(RunFolder, home.glob("runs/tepo-nano-*")), key=lambda each: each.name)
    response = {name: [0.5] * 4 for name in TOKEN_COLUMNS}
    for folder in folders:
        for step in (1, 2, 3):
            write_json(folder.tokens(step), {"step": step, "groups": [{"problem": "p", "responses": [response]}]})
    # Room for two steps of each of two runs, which is room for four of one.
    monkeypatch.setattr(page_tokens, "PAGE_TOKENS", 16)
    for seeds, steps in (((1, 2), [[2, 3], [2, 3]]), ((1,), [[1, 2, 3], []])):
        asked = ("panel-e", *SMALL, "trainer.steps=4", f"seeds={list(seeds)}", "--home", str(home))
        archive, page = tmp_path / f"{len(seeds)}.tgz", tmp_path / f"{len(seeds)}.html"
        tepo_lab(capsys, monkeypatch, "bundle", *asked, "--out", str(archive))
        tepo_lab(capsys, monkeypatch, "report", *asked, "--page", "--out", str(page))
        packed = unpack(archive, tmp_path / f"elsewhere-{len(seeds)}")
        assert [RunFolder(packed / "runs" / each.name).token_steps() for each in folders] == steps
        (shown,) = re.findall(r'id="token-data">(.*?)</script>', page.read_text(), re.DOTALL)
        runs = {each["run"]: [step["step"] for step in each["steps"]] for each in json.loads(shown)}
        assert [runs.get(each.name, []) for each in folders] == steps


def test_a_file_that_is_there_is_not_overwritten(home, tmp_path):
    out = tmp_path / "mine.tgz"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"mine\.tgz exists already: remove it, or name another file with --out"):
        write_bundle(out, home, families=["x"], tables={}, report="table3", arguments=())
    assert out.read_text() == "mine"


def test_the_readme_names_only_what_is_there(home, tmp_path):
    families = {json.loads(path.read_text())["family"] for path in home.glob("runs/*/run.json")}
    for path in home.glob("provenance/*"):
        path.unlink()
    write_bundle(tmp_path / "bare.tar.gz", home, families=families, tables={}, report="table3", arguments=())
    bare = unpack(tmp_path / "bare.tar.gz", tmp_path / "bare")
    assert not (bare / "provenance").exists()
    assert "provenance" not in (bare / "README.md").read_text()


def test_a_record_cannot_bring_files_from_outside_the_home_into_an_archive(home, tmp_path):
    (run_file, *_) = sorted(home.glob("runs/*/run.json"))
    run = json.loads(run_file.read_text())
    (tmp_path / "secret.patch").write_text("secret")
    run["provenance"]["diff"] = "../../secret"
    write_json(run_file, run)
    with pytest.raises(RecordError, match="as the SHA-256 of a patch"):
        write_bundle(tmp_path / "x.tar.gz", home, families=[run["family"]], tables={}, report="table3", arguments=())


@pytest.mark.parametrize("what", ["metrics.jsonl", "generations", "selection.json"])
def test_a_link_out_of_the_home_is_not_followed(home, tmp_path, what):
    (run_file, *_) = sorted(home.glob("runs/*/run.json"))
    path = run_file.with_name(what)
    secret = tmp_path / "secret"
    if what == "generations":
        path.rename(secret)
    else:
        secret.write_text("secret")
    if what == "selection.json":
        path = home / "sweeps" / "a" / what
        path.parent.mkdir(parents=True)
    path.symlink_to(secret)
    family = json.loads(run_file.read_text())["family"]
    with pytest.raises(RecordError, match=f"{what}.* link"):
        write_bundle(tmp_path / "x.tar.gz", home, families=[family], tables={}, report="table3", arguments=())
    assert not (tmp_path / "x.tar.gz").exists()


def test_the_same_records_give_the_same_bytes(home, tmp_path):
    families = {json.loads(path.read_text())["family"] for path in home.glob("runs/*/run.json")}
    archives = [tmp_path / "one.tar.gz", tmp_path / "two" / "one.tar.gz"]
    archives[1].parent.mkdir()
    for archive in archives:
        write_bundle(archive, home, families=families, tables={}, report="table3", arguments=())
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as opened:
        members = opened.getmembers()
    assert {(member.uid, member.uname, member.mtime) for member in members} == {(0, "", 0)}
    assert all(member.isfile() and member.name.startswith("one/") for member in members)


def test_a_home_without_the_tables_runs_and_an_unusable_place_are_refused(home, tmp_path):
    with pytest.raises(RecordError, match="has no run of table3: run it first"):
        write_bundle(Path("x.tar.gz"), home, families=["other"], tables={}, report="table3", arguments=())
    for place, said in (("x.zip", r"name a \.tar\.gz file"), ("nowhere/x.tar.gz", "its folder must exist")):
        with pytest.raises(ConfigError, match=said):
            write_bundle(tmp_path / place, home, families=["x"], tables={}, report="table3", arguments=())


def test_a_damaged_run_file_stops_neither_table_nor_archive(home, tmp_path, capsys, monkeypatch):
    damaged = next(home.glob("runs/tepo-nano-s2-*/run.json"))
    damaged.write_text('{"id": ')
    asked = ("panel-e", *ASKED, "--home", str(home))
    table = json.loads(tepo_lab(capsys, monkeypatch, "report", *asked, "--format", "json"))
    outcomes = {row["arm"]: row["outcome"] for row in table["rows"]}
    assert outcomes["tepo"] == "partly: 1 of 2 seeds (records damaged)"
    assert tepo_lab(capsys, monkeypatch, "bundle", *asked, "--out", str(tmp_path / "x.tar.gz")).endswith("(8 runs)\n")
