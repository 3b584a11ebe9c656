"""The keys of an objective that none of its terms reads."""

from __future__ import annotations

from tepo_lab.schema.objective import Objective


def test_what_an_objective_reads():
    plain = Objective()
    assert plain.unread == {"max_response_length", "entropy_change", "entropy_change_tolerance"}
    masked = Objective(penalty={"kind": "kl", "coef": 1, "where": "union"})
    assert masked.unread == {"max_response_length", "penalty.direction", "penalty.top_fraction"}
    cov = Objective(surrogate="unclipped", penalty={"kind": "kl", "coef": 1, "where": "top_covariance"})
    assert {"clip_low", "clip_high", "penalty.direction"} <= cov.unread
    assert "penalty.top_fraction" not in cov.unread
