"""What a session gives a trial of Tune, without a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.running.prepare import draft_file, draft_of, drafts_in
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.registry.expand import planned
from tepo_lab.schema.run import RunSpec


def trial_config(spec: RunSpec, folder: RunFolder, *, stop: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The configuration of one run's trial in a session that asks for `spec`."""
    drafts = drafts_in(folder.path.parent.parent / "ray")
    asked = Entry(planned(spec), folder, "pending", 0, "not run yet")
    write_json(draft_file(drafts, folder), draft_of(asked))
    return {"folder": str(folder.path), "drafts": str(drafts), "stop": list(stop), "search": None, "session": "one"}
