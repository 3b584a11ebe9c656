"""An archive of what a table or figure is made from, and from which it can be made again anywhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.execute.planning.made_with import patch_file
from tepo_lab.records.files import is_inside, read_record, write_atomically
from tepo_lab.records.history import RunHistory, read_histories
from tepo_lab.registry.locations import Kind, roots
from tepo_lab.report.figures.series import ArmRuns
from tepo_lab.report.render.page_tokens import shown_files

#: Registry files a report can refer to.
_REGISTRY_SUFFIXES = (".yaml", ".csv")
_KINDS: tuple[Kind, ...] = ("experiments", "sweeps", "reports")


def write_bundle(
    out: Path,
    home: Path,
    *,
    families: Iterable[str],
    tables: Any,
    arms: Iterable[ArmRuns] = (),
    report: str,
    arguments: Sequence[str],
    is_figure: bool = False,
) -> list[str]:
    """Write the archive of a report's tables. Returns the names of the runs in it.

    Args: `out`, a .tar.gz file that does not exist yet; `families`, those of the tables' rows; `tables`, the tables as
    plain values; `arms`, the runs that the tables' rows show; `report`, its name or path; `arguments`, the rest of its
    command (overrides, --panel); `is_figure`, whether the report is one.
    It has run.json, events, metrics and generations of every run of these families, the token files that a page of
    `arms` shows, the patches of their provenance, the registry as it is now, the tables as JSON, the SHA-256 of every
    file, and the command that makes table or figure again. A run with damaged run.json or events is left out.
    The same records give the same bytes.
    Raises `ConfigError` for an unusable `out`, `RecordError` when the home has no such run, or a record is not a file
    of the home (a link to elsewhere, a device).
    """
    if not out.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"--out {out}: name a .tar.gz file.")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: its folder must exist, and it must be no folder itself.")
    if out.exists():
        raise ConfigError(f"{out} exists already: remove it, or name another file with --out.")
    wanted = set(families)
    runs = [history for history in read_histories(home) if history.run and history.family in wanted]
    if not runs:
        raise RecordError(f"{home} has no run of {report}: run it first, or name another home with --home.")
    paths = [path for history in runs for path in _records(home, history)]
    # The labels of a search's rows say what it chose.
    paths += sorted(home.glob("sweeps/*/selection.json"))
    paths += [path for path, _ in shown_files(arms)]
    for path in paths:
        if not is_inside(path, home):
            raise RecordError(f"{path} is a link out of the home: replace it with what it links to.")
    files = {str(path.relative_to(home)): read_record(path) for path in paths} | _registry()
    name = _report_name(files, report)
    files["table.json"] = (json.dumps(tables, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    has_patches = any(path.startswith("provenance/") for path in files)
    names = [history.name for history in runs]
    files["README.md"] = _readme(name, arguments, names, is_figure=is_figure, has_patches=has_patches).encode()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}
    files["sha256.json"] = (json.dumps(hashes, indent=1) + "\n").encode()
    write_atomically(out, _archive(files, out.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")))
    return names


def _records(home: Path, history: RunHistory) -> list[Path]:
    """The files of a run that belong into an archive, as far as they exist."""
    folder = history.folder
    paths = [folder.run_file, folder.events_file, folder.metrics_file]
    paths += [evaluation.path for _, evaluation in sorted(history.evaluations.items())]
    paths += [patch_file(home, str(made["diff"])) for made in history.made_with if "diff" in made]
    return [path for path in paths if os.path.lexists(path)]


def _registry() -> dict[str, bytes]:
    """Every registry file, by its path in the archive; a user's file replaces the package's of the same name."""
    found: dict[str, bytes] = {}
    for kind in _KINDS:
        for root in reversed(roots(kind)):
            for path in sorted(root.rglob("*")):
                if path.suffix in _REGISTRY_SUFFIXES and path.is_file():
                    found[f"registry/{kind}/{path.relative_to(root)}"] = path.read_bytes()
    return found


def _report_name(files: dict[str, bytes], report: str) -> str:
    """The report's name in the archive; a report or sweep given as a file is put into it."""
    path = Path(report)
    if not (report.endswith((".yaml", ".yml")) and path.is_file()):
        return report
    place = f"own/{path.name}"
    files[place] = path.read_bytes()
    return place


def _readme(report: str, arguments: Sequence[str], runs: Sequence[str], *, is_figure: bool, has_patches: bool) -> str:
    kind, made = ("figure", ["--out", f"{Path(report).stem}.pdf"]) if is_figure else ("table", ["--format", "json"])
    command = shlex.join(["tepo-lab", "report", report, *arguments, "--home", ".", *made])
    does = (
        "draws it again; a name that ends in .png or .svg will do too. table.json has the scores of its runs."
        if is_figure
        else "prints table.json again; `--format` md, latex, html, csv or text prints it for people, and `--page` "
        "instead of `--format` writes a page with figures and single tokens."
    )
    listed = "\n".join(f"- {run}" for run in runs)
    patches = " `provenance/` holds how a run's source tree differed from its commit." if has_patches else ""
    return (
        f"# {report}\n\n"
        f"The records from which this {kind} was made, and the configuration it was asked for with. In this folder,\n\n"
        f"    TEPO_LAB_REGISTRY=$PWD/registry {command}\n\n"
        f"{does} `sha256.json` holds the SHA-256 of every file.{patches}\n\n"
        f"Runs:\n\n{listed}\n"
    )


def _archive(files: Mapping[str, bytes], folder: str) -> bytes:
    """A .tar.gz with the files in one folder; nothing in it depends on when, where or by whom it was packed."""
    packed = io.BytesIO()
    # No file name and no time in the header either.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), 0o644, 0
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
