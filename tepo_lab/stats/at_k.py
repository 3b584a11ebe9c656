"""pass@k from counts of right samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k_by_problem(correct: ArrayLike, samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """The chance for each problem that at least one of k samples is right, estimated without bias.

    1 - C(n - c, k) / C(n, k) for c right of n samples (Chen et al., 2021, arXiv 2107.03374, Eq. 1), computed as a
    product of ratios so that no binomial overflows. Raises ValueError when k is below 1 or above some n.
    """
    right, drawn = _counts(correct, samples)
    if not 1 <= k <= drawn.min():
        raise ValueError(f"k must lie between 1 and the {int(drawn.min())} samples of a problem, not {k}")
    steps = np.arange(k)
    all_wrong = np.clip((drawn - right)[:, None] - steps, 0, None) / (drawn[:, None] - steps)
    return np.asarray(1 - all_wrong.prod(1), dtype=np.float64)


def _counts(correct: ArrayLike, samples: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    right, drawn = np.broadcast_arrays(np.atleast_1d(np.asarray(correct)), np.asarray(samples))
    if right.size == 0 or (drawn < 1).any() or (right < 0).any() or (right > drawn).any():
        raise ValueError("each problem needs at least one sample, and between none and all of them right")
    return right, drawn
