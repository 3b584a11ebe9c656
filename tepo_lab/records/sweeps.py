"""What is recorded of a sweep: HOME/sweeps/<name>/sweep.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from tepo_lab.errors import RecordError
from tepo_lab.records.files import read_record


def recorded_runs(snapshot: Path, key: Literal["runs", "earlier_runs"] = "runs") -> list[str]:
    """Folder names of a sweep's runs, from the sweep.json that it was last run with. Raises `RecordError` if damaged.

    Args: `earlier_runs` are those that it had before and has no more; none where the file does not say.
    """
    try:
        values = json.loads(read_record(snapshot))
        runs = values["runs"] if key == "runs" else values.get(key, [])
        if all(isinstance(name, str) and Path(name).name == name for name in runs):
            return list(runs)
        reason = f"{key}: not names of folders"
    except (FileNotFoundError, RecordError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error)
    raise RecordError(f"{snapshot} is damaged ({reason}): remove it; running the sweep writes it again.")
