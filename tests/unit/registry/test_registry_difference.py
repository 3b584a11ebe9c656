"""What differs between arms, without keys that neither reads."""

from __future__ import annotations

from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.difference import difference, read_difference
from tepo_lab.schema.objective import Objective


def test_keys_that_neither_side_reads_are_left_out():
    tepo, gspo, entropy = (compose_run(arm, "nano") for arm in ("tepo", "gspo", "max_entropy"))
    assert set(difference(tepo, gspo)) - set(read_difference(tepo, gspo)) == {
        "objective.penalty.direction",
        "objective.penalty.top_fraction",
    }
    assert set(read_difference(tepo, entropy)) == {f"objective.penalty.{key}" for key in ("coef", "kind", "where")}
    read = read_difference(gspo, entropy)
    assert read["objective.penalty.direction"] == (None, "maximise")
    assert "objective.penalty.estimator" not in read


def test_what_an_objective_reads():
    plain = Objective()
    assert plain.unread == {"max_response_length", "entropy_change", "entropy_change_tolerance"}
    masked = Objective(penalty={"kind": "kl", "coef": 1, "where": "union"})
    assert masked.unread == {"max_response_length", "penalty.direction", "penalty.top_fraction"}
    cov = Objective(surrogate="unclipped", penalty={"kind": "kl", "coef": 1, "where": "top_covariance"})
    assert {"clip_low", "clip_high", "penalty.direction"} <= cov.unread
    assert "penalty.top_fraction" not in cov.unread
