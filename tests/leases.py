"""Leases as owners on other machines leave them."""

from __future__ import annotations

import os
import time
from typing import Any

from tepo_lab.records.files import RunFolder, write_json


def lease_of_another_machine(folder: RunFolder, *, age: float = 0.0, **values: Any) -> dict[str, Any]:
    """Write a lease that was last renewed `age` seconds ago. Returns what it says."""
    now = time.time()
    owner = {"host": "elsewhere", "pids": "pid:[1]", "pid": 1, "born": "1", "token": "another", "time": now, **values}
    write_json(folder.lease_file, owner)
    os.utime(folder.lease_file, (now - age, now - age))
    return owner
