"""Correction for testing several hypotheses at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down p values (1979, "A simple sequentially rejective multiple test procedure"), in the order given.

    Rejecting where the corrected value is below alpha keeps the chance of any false rejection below alpha.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if ((p < 0) | (p > 1)).any() or np.isnan(p).any():
        raise ValueError("p values lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in corrected]
