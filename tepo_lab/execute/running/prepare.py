"""What a session writes for its runs: the request of each run, its run.json, and which runs the sweep consists of."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.planning.made_with import going_on, is_other, provenance
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.history import RunHistory
from tepo_lab.records.sweeps import recorded_runs
from tepo_lab.registry.expand import IDENTITY_VERSION, Expansion
from tepo_lab.registry.values import flatten


def request_of(entry: Entry) -> dict[str, Any]:
    """What a session asks of a run: the run.json of one that begins, with the software and the command that ask."""
    planned, folder = entry.planned, entry.folder
    # A trial has a working folder of its own, on whatever node it runs.
    spec = planned.spec.with_absolute_paths()
    return {
        "id": planned.run_id,
        "family": planned.family,
        "identity_version": IDENTITY_VERSION,
        "name": folder.name,
        "created": time.time(),
        "spec": spec.model_dump(mode="json"),
        "provenance": provenance(folder.home, spec),
    }


def write_requests(pending: Sequence[Entry], requests: Path) -> None:
    """Write each run's request to the folder `requests`, where the run reads it when it begins.

    A run without a run.json gets the request as its run.json, so that it is listed while it waits. Others keep theirs
    until they go on: another session may own the run.
    """
    for entry in pending:
        request = requests / f"{entry.folder.name}.json"
        write_json(request, request_of(entry))
        entry.folder.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(request, entry.folder.run_file)


def read_request(requests: Path, folder: RunFolder) -> dict[str, Any] | None:
    """A run's request; None when its session is over."""
    try:
        request: dict[str, Any] = json.loads((requests / f"{folder.name}.json").read_bytes())
    except FileNotFoundError:
        return None
    return request


def begun_file(requests: Path, folder: RunFolder) -> Path:
    """A file beside a run's request that exists once the session has begun the run."""
    return requests / f"{folder.name}.begun"


def write_run(history: RunHistory, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write run.json of a run that the caller owns, as the request asks. Returns the provenance it is made with now.

    A run that goes on keeps when it was created, its commits of the hub, and each earlier provenance that differs. One
    that has made nothing yet begins: another model and other data than before are its first.
    """
    goes_on = bool(history.checkpoints or history.evaluations)
    now, earlier = dict(request["provenance"]), list(history.run.get("earlier_provenance", []))
    last = history.run.get("provenance")
    if last is not None:
        now = going_on(now, last) if goes_on else now
        earlier += [last] if is_other(last, now, inputs=goes_on) else []
    values = {**request, "created": history.run.get("created") or request["created"], "provenance": now}
    history.folder.path.mkdir(parents=True, exist_ok=True)
    write_json(history.folder.run_file, values | ({"earlier_provenance": earlier} if earlier else {}))
    return now


def prepare_folder(entry: Entry) -> None:
    """Write run.json of a run that no other process can own, such as one that is run without Ray."""
    write_run(RunHistory.read(entry.folder, owned_by_us=True), request_of(entry))


def write_sweep(home: Path, expansion: Expansion, folders: Sequence[RunFolder]) -> None:
    """Record which runs a sweep consists of, and which it had before, for the mirror and for people."""
    sweep = expansion.sweep
    path = home / "sweeps" / sweep.name / "sweep.json"
    runs, before = [folder.name for folder in folders], set[str]()
    # It is missing at first, and one that is damaged is written again.
    with suppress(RecordError):
        before = {*recorded_runs(path), *recorded_runs(path, "earlier_runs")}
    values = sweep.model_dump(mode="json", by_alias=True)
    chosen = {key: value for key, value in flatten(values).items() if value not in (None, [], {})}
    write_json(
        path,
        {
            "name": sweep.name,
            "title": sweep.title,
            "profile": sweep.profile,
            "runs": runs,
            "earlier_runs": sorted(before.difference(runs)),
            "sweep": chosen,
            "overrides": list(expansion.overrides),
        },
    )
