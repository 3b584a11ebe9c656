"""Leases as owners on other nodes leave them."""

from __future__ import annotations

import os
import time
from typing import Any

from tepo_lab.records.files import RunFolder, write_json


def lease_of_another_node(folder: RunFolder, *, age: float = 0.0, **values: Any) -> None:
    """Write a lease that was last renewed `age` seconds ago."""
    now = time.time()
    write_json(folder.lease_file, {"host": "elsewhere", "pid": 1, "token": "another", "time": now, **values})
    os.utime(folder.lease_file, (now - age, now - age))
