"""Softmax policies: gradients, optima and updates against hand-made cases and identities."""

from __future__ import annotations

import numpy as np
import pytest

from tepo_lab.theory import softmax


@pytest.fixture(scope="module")
def updates() -> softmax.Updates:
    return softmax.compute_updates(np.random.default_rng(0), 5000)


def test_entropy_of_known_policies() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    assert softmax.entropy(logits) == pytest.approx([1.5 * np.log(2), np.log(3)])


def test_the_entropy_gradient_is_a_difference_quotient() -> None:
    logits = np.random.default_rng(1).standard_normal((1, 5))
    step = 1e-6 * np.eye(5)
    quotient = (softmax.entropy(logits + step) - softmax.entropy(logits - step)) / 2e-6
    assert softmax.entropy_gradient(logits)[0] == pytest.approx(quotient, abs=1e-9)


def test_eq_1_has_the_opposite_sign() -> None:
    printed, negated = softmax.check_gradients(softmax.compute_gradients(np.random.default_rng(0), 50))
    assert (printed.holds, printed.share) == (0, 0.0)
    assert negated.holds == negated.cases > 1000
    assert negated.values["largest_difference"] < 1e-12


def test_lemma_3_1_is_the_optimum() -> None:
    optima = softmax.compute_optima(np.random.default_rng(0), 5)
    (check,) = softmax.check_optima(optima)
    assert check.holds == check.cases == 5
    assert optima.closed.sum(-1) == pytest.approx(np.ones(5))
    wrong = softmax.Optima(optima.closed[::-1], optima.numerical)
    # The third of five stays in its place.
    assert softmax.check_optima(wrong)[0].holds == 1


def test_first_order_changes_agree_with_measured_ones(updates: softmax.Updates) -> None:
    small = np.abs(updates.advantage) < 0.02
    assert updates.change[small] == pytest.approx(softmax.STEP * updates.inner[small], rel=0.05, abs=1e-6)


def test_a_likely_token_lowers_the_entropy_and_an_unlikely_one_raises_it(updates: softmax.Updates) -> None:
    positive = updates.measurable & (updates.advantage > 0)
    groups = updates.by_probability() | updates.by_typicality()
    shares = {name: updates.falls[within & positive].mean() for name, within in groups.items()}
    assert shares["p from 0.5 to 1"] == 1
    assert shares["p from 0 to 0.01"] < 0.05
    assert shares["log p > -H"] > 0.8 > 0.1 > shares["log p < -H"]


def test_every_case_is_in_one_group(updates: softmax.Updates) -> None:
    for groups in (updates.by_entropy(), updates.by_probability(), updates.by_typicality()):
        assert (sum(within.astype(int) for within in groups.values()) == 1).all()


def test_theorem_3_1_is_no_law(updates: softmax.Updates) -> None:
    checks = {(check.source, check.statement, check.among): check for check in softmax.check_updates(updates)}
    theorem = checks["Theorem 3.1", "A > 0 implies ΔH < 0", "step 0.1"]
    assert theorem.cases > 2000
    assert theorem.share is not None
    assert 0.3 < theorem.share < 0.7
    assert len(checks) == 6 + 4 + 4 + 2


def test_the_same_seed_gives_the_same_numbers(updates: softmax.Updates) -> None:
    again = softmax.compute_updates(np.random.default_rng(0), 5000)
    assert (again.change == updates.change).all()
