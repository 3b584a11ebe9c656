"""The covariance estimate on tokens made by hand, and on a real run of the embedded model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tepo_lab.objectives.batch import Batch, batch_totals
from tepo_lab.objectives.entropy import covariance_estimate
from tepo_lab.theory import nano_run
from tepo_lab.theory.nano_run import Tokens, check_tokens, means


def tokens(step: list[int], advantage: list[float], log_prob: list[float], new: list[float]) -> Tokens:
    numbers = np.array(step)
    zeros = np.zeros(len(step))
    return Tokens(numbers, numbers, np.array(advantage), np.array(log_prob), zeros, np.array(new))


def test_the_estimate_is_the_objectives_own_in_each_step() -> None:
    random = np.random.default_rng(0)
    log_prob, advantage = -random.random((2, 6)), random.standard_normal((2, 6))
    made = tokens([1] * 6 + [2] * 6, advantage.ravel().tolist(), log_prob.ravel().tolist(), [0.0] * 12)
    for row in range(2):
        own = made.estimate().reshape(2, 6)[row]
        assert own == pytest.approx(_estimate(log_prob[row], advantage[row]), abs=1e-15)


def _estimate(log_prob: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    values = torch.from_numpy(log_prob).unsqueeze(0)
    valid = torch.ones_like(values, dtype=torch.bool)
    totals = batch_totals(valid)
    batch = Batch(
        log_probs=values,
        old_log_probs=values,
        log_ratio=values - values,
        advantages=torch.from_numpy(advantage).unsqueeze(0),
        valid=valid,
        padding=~valid,
        lengths=valid.sum(-1),
        tokens=valid.sum(),
        totals=totals,
        entropy=None,
        old_entropy=None,
        full_kl=None,
    )
    return covariance_estimate(batch)[0].numpy()


def test_the_means_of_groups_are_in_their_order() -> None:
    assert means(np.array([4.0, 1.0, 2.0]), np.array([7, 3, 7])) == pytest.approx([1.0, 3.0])


def test_agreement_and_agreement_by_chance() -> None:
    # Step 1: the likely token has the positive advantage, so the estimate is negative; step 2 the other way round.
    made = tokens([1, 1, 2, 2], [1, -1, 1, -1], [-0.1, -2.0, -2.0, -0.1], [-1.0, 0.5, 1.0, 0.5])
    by_step, _, by_token = check_tokens(made)
    assert (by_step.holds, by_step.cases) == (2, 2)
    assert (by_token.holds, by_token.cases) == (3, 4)
    assert by_token.values["by_chance"] == pytest.approx(0.5)
    assert by_token.values["mean_change"] == 0.25


@pytest.mark.integration
def test_a_run_of_the_nano_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("trainer.steps=2", "trainer.prompts_per_step=8", "trainer.mini_batch_prompts=4")
    monkeypatch.setattr(nano_run, "OVERRIDES", (*small, "rollout.max_new_tokens=24"))
    made = nano_run.run_nano(1)
    assert set(made.step) == {1, 2}
    assert (made.entropy >= 0).all()
    assert (made.log_prob <= 0).all()
    # Group-normalised advantages: every prompt that is kept has right and wrong answers.
    assert all({-1.0, 1.0} <= set(np.sign(made.advantage[made.prompt == prompt])) for prompt in set(made.prompt))
    assert 0 < np.abs(made.change[made.step == 1]).mean() < 0.5
    again = nano_run.run_nano(1)
    assert (again.new_entropy == made.new_entropy).all()
