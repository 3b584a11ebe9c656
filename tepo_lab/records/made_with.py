"""What two provenances of a run, one made after the other, tell of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(last: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """What differs: of commit, diff, versions, hardware, model, data, device, and resources other than the device.

    Nothing else of a provenance counts, nor does a value in these that only one of them has: an earlier release may not
    have asked for it.
    """
    found = {key for key in ("commit", "diff") if last.get(key) != now.get(key)}
    found |= {key for key in ("versions", "hardware", "model", "data") if differs(last.get(key), now.get(key))}
    then, here = (told if isinstance(told := each.get("resources"), Mapping) else {} for each in (last, now))
    changed = {key for key in then.keys() & here.keys() if then[key] != here[key]}
    return found | ({"device"} & changed) | ({"resources"} if changed - {"device"} else set())


def differs(then: Any, now: Any) -> bool:
    """Whether two values of a provenance differ, as far as both tell; not where the same files lie elsewhere."""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return bool(then != now)
    places = {"path"} if then.get("sha256") and now.get("sha256") else set()
    # Of files, also those count that one side alone has.
    return any(
        then[key] != now[key] if key.endswith("sha256") else differs(then[key], now[key])
        for key in (then.keys() & now.keys()) - places
    )
