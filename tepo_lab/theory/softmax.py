"""Statements about softmax policies: Eq. 1, Lemmas 3.1 and 3.2, Theorem 3.1 of arXiv 2604.12736.

B policies over V actions, in float64. Entropies are in nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tepo_lab.objectives import entropy_from_logits
from tepo_lab.theory.check import Array, Check, Flags, count

ACTIONS = 32

#: Changes of entropy below this are rounding errors.
MEASURABLE = 1e-12

#: Step size of the measured updates of Theorem 3.1, and a large one.
STEP, LARGE_STEP = 0.1, 1.0

#: Two optima whose probabilities all differ by less than this are the same.
SAME_OPTIMUM = 1e-5

ENTROPY_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
PROBABILITY_BINS = (0.0, 0.01, 0.1, 0.5, 1.0)


def random_logits(random: np.random.Generator, policies: int, widest: float = 10.0) -> Array:
    """(B, V) normal logits, their spread log-uniform from 0.1 to `widest`: from nearly uniform to nearly certain."""
    spread = np.exp(random.uniform(np.log(0.1), np.log(widest), size=(policies, 1)))
    return np.asarray(spread * random.standard_normal((policies, ACTIONS)))


def entropy(logits: Array) -> Array:
    """(B,) entropies."""
    log_probs = log_softmax(logits, axis=-1)
    return np.asarray(-(np.exp(log_probs) * log_probs).sum(-1))


def entropy_gradient(logits: Array) -> Array:
    """dH/dlogits (B, V) = -pi (log pi + H): Eq. 1 with the minus sign that is missing in print."""
    log_probs = log_softmax(logits, axis=-1)
    return np.asarray(-np.exp(log_probs) * (log_probs + entropy(logits)[:, None]))


@dataclass(frozen=True)
class Gradients:
    """Eq. 1 as printed and the gradient by autograd, (B, V) each."""

    printed: Array
    autograd: Array


def compute_gradients(random: np.random.Generator, policies: int = 500) -> Gradients:
    """Both gradients of the entropy at random policies."""
    logits = random_logits(random, policies)
    leaf = torch.from_numpy(logits).requires_grad_()
    entropy_from_logits(leaf).sum().backward()
    assert leaf.grad is not None
    return Gradients(-entropy_gradient(logits), leaf.grad.numpy())


def check_gradients(gradients: Gradients) -> list[Check]:
    """Eq. 1 against autograd: as printed, and with the opposite sign."""
    measurable = np.abs(gradients.autograd) > MEASURABLE
    printed, autograd = gradients.printed[measurable], gradients.autograd[measurable]
    among, difference = "logits of random policies", np.abs(printed + autograd)
    largest = float(difference.max())
    return [
        count("Eq. 1", "as printed, has autograd's sign", among, np.sign(printed) == np.sign(autograd)),
        count(
            "Eq. 1",
            "with a minus sign, equals autograd to 1e-10",
            among,
            difference < 1e-10,
            largest_difference=largest,
        ),
    ]


@dataclass(frozen=True)
class Optima:
    """Policies (B, V) that maximise E_p[A] - beta KL(p || pi): in closed form and by an optimizer."""

    closed: Array
    numerical: Array


def compute_optima(random: np.random.Generator, policies: int = 50) -> Optima:
    """Both optima for random policies and advantages, beta log-uniform from 0.1 to 10.

    The optimizer takes quasi-Newton steps on the logits, from the uniform policy.
    """
    logits = random_logits(random, policies, widest=3.0)
    advantages = random.standard_normal(logits.shape)
    betas = np.exp(random.uniform(np.log(0.1), np.log(10.0), size=(policies, 1)))
    log_old = log_softmax(logits, axis=-1)

    def loss(new_logits: Array, log_old: Array, advantages: Array, beta: float) -> tuple[float, Array]:
        log_new = log_softmax(new_logits)
        new, utility = np.exp(log_new), advantages - beta * (log_new - log_old)
        value = float(new @ utility)
        return -value, -new * (utility - value)

    start = np.zeros(ACTIONS)
    optima = [
        softmax(minimize(loss, start, args=case, jac=True, method="BFGS", tol=1e-9).x)
        for case in zip(log_old, advantages, betas[:, 0], strict=True)
    ]
    return Optima(softmax(log_old + advantages / betas, axis=-1), np.stack(optima))


def check_optima(optima: Optima) -> list[Check]:
    """Lemma 3.1's update against the numerical optimum."""
    difference = np.abs(optima.closed - optima.numerical).max(-1)
    statement = f"pi exp(A / beta) is the optimum to {SAME_OPTIMUM:g}"
    among, largest = "random policies, advantages and beta", float(difference.max())
    return [count("Lemma 3.1", statement, among, difference < SAME_OPTIMUM, largest_difference=largest)]


@dataclass(frozen=True)
class Updates:
    """One sampled token's policy gradient at each of B random policies.

    log_prob: the token's; advantage: the token's; inner: <grad H, grad J>, where J is A times the token's
    log-probability; change and large_change: measured H after minus before, for two step sizes; inner_all:
    <grad H, grad J> with Eq. 3's gradient, where every action has an advantage.
    """

    log_prob: Array
    entropy: Array
    advantage: Array
    inner: Array
    change: Array
    large_change: Array
    inner_all: Array

    @property
    def falls(self) -> Flags:
        """Where ΔH has the sign that Theorem 3.1 states: the opposite of the advantage's."""
        return np.asarray(np.sign(self.change) == -np.sign(self.advantage))

    @property
    def measurable(self) -> Flags:
        return np.asarray(np.abs(self.change) > MEASURABLE)

    def by_entropy(self) -> dict[str, Flags]:
        """Cases by entropy, as a share of the largest possible."""
        return _bins(self.entropy / np.log(ACTIONS), ENTROPY_BINS, "H / log V")

    def by_probability(self) -> dict[str, Flags]:
        """Cases by the token's probability."""
        return _bins(np.exp(self.log_prob), PROBABILITY_BINS, "p")

    def by_typicality(self) -> dict[str, Flags]:
        """Cases by whether the token is likelier than the policy's typical one: log p against -H."""
        return {"log p > -H": self.log_prob > -self.entropy, "log p < -H": self.log_prob < -self.entropy}


def _bins(values: Array, edges: tuple[float, ...], name: str) -> dict[str, Flags]:
    """Values from each edge up to but without the next; the highest bin includes all above it too."""
    return {
        f"{name} from {low:g} to {high:g}": np.asarray((values >= low) & ((values < high) | (high >= 1.0)))
        for low, high in pairwise(edges)
    }


def compute_updates(random: np.random.Generator, policies: int = 40_000) -> Updates:
    """Tokens sampled from random policies, half of them with a positive advantage."""
    logits = random_logits(random, policies)
    log_probs = log_softmax(logits, axis=-1)
    probs, rows = np.exp(log_probs), np.arange(policies)
    # Gumbel noise: the largest of the perturbed logits is a sample of the policy.
    token = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    all_advantages = random.standard_normal(logits.shape)
    advantage = all_advantages[rows, token]
    # d log pi(token) / d logits is one at the token minus the policy (Eq. 3 for one sample).
    ascent = -probs * advantage[:, None]
    ascent[rows, token] += advantage
    slope = entropy_gradient(logits)
    ascent_all = probs * (all_advantages - (probs * all_advantages).sum(-1, keepdims=True))
    before = entropy(logits)
    return Updates(
        log_prob=log_probs[rows, token],
        entropy=before,
        advantage=advantage,
        inner=(slope * ascent).sum(-1),
        change=entropy(logits + STEP * ascent) - before,
        large_change=entropy(logits + LARGE_STEP * ascent) - before,
        inner_all=(slope * ascent_all).sum(-1),
    )


def check_updates(updates: Updates) -> list[Check]:
    """Lemma 3.2 and Theorem 3.1, among all updates and by entropy and probability of the token."""
    positive = (updates.advantage > 0) & updates.measurable
    negative = (updates.advantage < 0) & updates.measurable
    lemma, theorem, falls = "Lemma 3.2", "Theorem 3.1", "A > 0 implies ΔH < 0"
    checks = [
        count(lemma, "A > 0 implies <∇H, ∇J> < 0", "sampled tokens", updates.inner[positive] < 0),
        count(lemma, "A < 0 implies <∇H, ∇J> > 0", "sampled tokens", updates.inner[negative] > 0),
        count(lemma, "A > 0 implies <∇H, ∇J> < 0", "every action has an A (Eq. 3)", updates.inner_all[positive] < 0),
        count(theorem, falls, f"step {STEP:g}", updates.change[positive] < 0),
        count(theorem, "A < 0 implies ΔH > 0", f"step {STEP:g}", updates.change[negative] > 0),
        count(theorem, falls, f"step {LARGE_STEP:g}", updates.large_change[positive] < 0),
    ]
    groups = updates.by_entropy() | updates.by_probability() | updates.by_typicality()
    checks += [count(theorem, falls, among, updates.falls[within & positive]) for among, within in groups.items()]
    return checks
