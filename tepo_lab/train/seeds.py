"""Independent random streams from one seed, so that a step's draws do not depend on how it was reached."""

from __future__ import annotations

import hashlib


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for the stream that `labels` name, such as ("rollout", step)."""
    text = "/".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
