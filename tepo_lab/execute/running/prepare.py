"""What a session writes before its runs begin: each run's run.json, and which runs the sweep consists of."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tepo_lab.execute.planning.actions import Action, Entry, action
from tepo_lab.execute.planning.provenance import going_on, provenance, tells_other
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.history import RunHistory
from tepo_lab.registry.expand import IDENTITY_VERSION, Expansion
from tepo_lab.registry.values import flatten
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec


def drafts_in(scratch: Path) -> Path:
    """Where a session keeps what it asks of its runs."""
    return scratch / "drafts"


def prepare(pending: Sequence[Entry], drafts: Path) -> None:
    """Write what is asked of each run to `drafts`, from where the run itself takes it when it begins.

    That is the run.json of a run that has none. The others keep theirs until they go on: another session may have one.
    """
    for each in pending:
        draft = draft_file(drafts, each.folder)
        write_json(draft, draft_of(each))
        each.folder.path.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(draft, each.folder.run_file)


def draft_file(drafts: Path, folder: RunFolder) -> Path:
    """Where a session keeps what it asks of one run."""
    return drafts / f"{folder.name}.json"


def prepare_folder(each: Entry) -> None:
    """Write run.json of a run that nobody else can have."""
    write_run(RunHistory.read(each.folder, owned_by_us=True), draft_of(each))


def draft_of(each: Entry) -> dict[str, Any]:
    """What a session asks of a run, as the run.json of one that begins: with the software and the command that ask."""
    planned, folder = each.planned, each.folder
    home = folder.path.parent.parent
    # A trial has a working folder of its own, on whatever node it runs.
    spec = planned.spec.with_absolute_paths()
    return {
        "id": planned.run_id,
        "family": planned.family,
        "identity_version": IDENTITY_VERSION,
        "name": folder.name,
        "created": time.time(),
        "spec": spec.model_dump(mode="json"),
        "provenance": provenance(home, spec),
    }


def begin(folder: RunFolder, draft: Mapping[str, Any]) -> bool:
    """Write run.json of a run that the caller owns, as a session asks for it. False where nothing is left to do."""
    spec = validate(RunSpec, draft["spec"], where=str(folder.run_file))
    history = RunHistory.read(folder, owned_by_us=True)
    if action(history, spec)[0] in (Action.SKIP, Action.BLOCKED):
        return False
    write_run(history, draft)
    return True


def write_run(history: RunHistory, draft: Mapping[str, Any]) -> None:
    """Write run.json, again when the run goes on: its extent, the software and the command may differ now."""
    keeps = bool(history.checkpoints or history.evaluations)
    made_with = _made_with(dict(draft["provenance"]), history.run, keeps=keeps)
    created = history.run.get("created") or draft["created"]
    history.folder.path.mkdir(parents=True, exist_ok=True)
    write_json(history.folder.run_file, {**draft, "created": created, **made_with})


def _made_with(now: dict[str, Any], before: Mapping[str, Any], *, keeps: bool) -> dict[str, Any]:
    """The provenance of a run that begins or goes on: what it goes on with, and what it was made with until then.

    Args: `keeps`, whether it goes on from anything; else another model and other data than before are its first.
    """
    last = before.get("provenance")
    earlier = list(before.get("earlier_provenance", []))
    if last is not None:
        now = going_on(now, last) if keeps else now
        earlier += [last] if tells_other(last, now, inputs=keeps) else []
    return {"provenance": now, **({"earlier_provenance": earlier} if earlier else {})}


def write_sweep(home: Path, expansion: Expansion, folders: Sequence[RunFolder]) -> None:
    """Record which runs a sweep consists of, for the mirror and for people."""
    sweep = expansion.sweep
    values = sweep.model_dump(mode="json", by_alias=True)
    chosen = {key: value for key, value in flatten(values).items() if value not in (None, [], {})}
    write_json(
        home / "sweeps" / sweep.name / "sweep.json",
        {
            "name": sweep.name,
            "title": sweep.title,
            "profile": sweep.profile,
            "runs": [folder.name for folder in folders],
            "sweep": chosen,
            "overrides": list(expansion.overrides),
        },
    )
