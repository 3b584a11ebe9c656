"""What a session gives a trial of Tune, without a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import request_of
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.registry.expand import planned
from tepo_lab.schema.run import RunSpec


def trial_config(
    spec: RunSpec, folder: RunFolder, *, stop: Sequence[dict[str, Any]] = (), session: str = "one"
) -> dict[str, Any]:
    """The configuration of one run's trial in a session that asks for `spec`."""
    requests = folder.home / "ray" / session
    write_json(requests / f"{folder.name}.json", request_of(entry(folder.home, planned(spec))))
    return {
        "folder": str(folder.path),
        "requests": str(requests),
        "stop": list(stop),
        "search": None,
        "session": session,
    }
