"""Statements about softmax policies: Eq. 1, Lemmas 3.1 and 3.2, Theorem 3.1 of arXiv 2604.12736.

B policies over V actions, in float64. Entropies are in nats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tepo_lab.objectives import entropy_from_logits
from tepo_lab.theory.check import Array, Check, Flags, counted

ACTIONS = 32

#: Changes of entropy below this are rounding, not a direction.
MEASURABLE = 1e-12

#: Step size of the measured updates of Theorem 3.1, and a large one.
STEP, LARGE_STEP = 0.1, 1.0

#: Probabilities nearer than this to each other are the same optimum.
SAME_OPTIMUM = 1e-5

ENTROPY_BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
PROBABILITY_BINS = (0.0, 0.01, 0.1, 0.5, 1.0)


def random_logits(random: np.random.Generator, count: int, widest: float = 10.0) -> Array:
    """(B, V) normal logits, their spread log-uniform from 0.1 to `widest`: from nearly uniform to nearly certain."""
    spread = np.exp(random.uniform(np.log(0.1), np.log(widest), size=(count, 1)))
    return np.asarray(spread * random.standard_normal((count, ACTIONS)))


def entropy(logits: Array) -> Array:
    """(B,) entropies."""
    log_probs = log_softmax(logits, axis=-1)
    return np.asarray(-(np.exp(log_probs) * log_probs).sum(-1))


def entropy_gradient(logits: Array) -> Array:
    """dH/dlogits (B, V) = -pi (log pi + H): Eq. 1 with the minus sign that it lacks in print."""
    log_probs = log_softmax(logits, axis=-1)
    return np.asarray(-np.exp(log_probs) * (log_probs + entropy(logits)[:, None]))


@dataclass(frozen=True)
class Gradients:
    """Eq. 1 as printed and the gradient that autograd gives, (B, V) each."""

    printed: Array
    autograd: Array


def gradients(random: np.random.Generator, count: int = 500) -> Gradients:
    """Both gradients of the entropy at random policies."""
    logits = random_logits(random, count)
    leaf = torch.from_numpy(logits).requires_grad_()
    entropy_from_logits(leaf).sum().backward()
    assert leaf.grad is not None
    return Gradients(-entropy_gradient(logits), leaf.grad.numpy())


def check_gradients(found: Gradients) -> list[Check]:
    """Eq. 1 against autograd: as printed, and with the sign turned round."""
    seen = np.abs(found.autograd) > MEASURABLE
    printed, autograd = found.printed[seen], found.autograd[seen]
    among = "logits of random policies"
    return [
        counted("Eq. 1", "as printed, has autograd's sign", among, np.sign(printed) == np.sign(autograd)),
        counted(
            "Eq. 1",
            "with a minus sign, equals autograd to 1e-10",
            among,
            np.abs(printed + autograd) < 1e-10,
            largest_difference=float(np.abs(printed + autograd).max()),
        ),
    ]


@dataclass(frozen=True)
class Optima:
    """Policies (B, V) that maximise E_p[A] - beta KL(p || pi): in closed form and found numerically."""

    closed: Array
    numerical: Array


def optima(random: np.random.Generator, count: int = 50) -> Optima:
    """Both optima for random policies and advantages, beta log-uniform from 0.1 to 10."""
    logits = random_logits(random, count, widest=3.0)
    advantages = random.standard_normal(logits.shape)
    betas = np.exp(random.uniform(np.log(0.1), np.log(10.0), size=(count, 1)))
    closed = softmax(log_softmax(logits, axis=-1) + advantages / betas, axis=-1)
    found = [_maximum(*each) for each in zip(log_softmax(logits, axis=-1), advantages, betas[:, 0], strict=True)]
    return Optima(closed, np.stack(found))


def _maximum(log_old: Array, advantages: Array, beta: float) -> Array:
    """The optimum from the uniform policy, by quasi-Newton steps on its logits."""

    def loss(logits: Array) -> tuple[float, Array]:
        log_new = log_softmax(logits)
        new, utility = np.exp(log_new), advantages - beta * (log_new - log_old)
        value = float(new @ utility)
        return -value, -new * (utility - value)

    return np.asarray(softmax(minimize(loss, np.zeros_like(log_old), jac=True, method="BFGS", tol=1e-9).x))


def check_optima(found: Optima) -> list[Check]:
    """Lemma 3.1's update against the numerical optimum."""
    difference = np.abs(found.closed - found.numerical).max(-1)
    statement = f"pi exp(A / beta) is the optimum to {SAME_OPTIMUM:g}"
    among = "random policies, advantages and beta"
    held = difference < SAME_OPTIMUM
    return [counted("Lemma 3.1", statement, among, held, largest_difference=float(difference.max()))]


@dataclass(frozen=True)
class Updates:
    """One sampled token's policy gradient at each of B random policies.

    log_prob: the token's; entropy_share: H / log V; advantage: the token's; inner: <grad H, grad J>, where J is A times
    the token's log-probability; change and large_change: measured H after minus before, for two step sizes;
    inner_all: <grad H, grad J> with Eq. 3's gradient, where every action has an advantage.
    """

    log_prob: Array
    entropy: Array
    advantage: Array
    inner: Array
    change: Array
    large_change: Array
    inner_all: Array

    @property
    def entropy_share(self) -> Array:
        return np.asarray(self.entropy / np.log(ACTIONS))

    @property
    def falls(self) -> Flags:
        """Where ΔH has the sign that Theorem 3.1 says it always has: the opposite of the advantage's."""
        return np.asarray(np.sign(self.change) == -np.sign(self.advantage))

    @property
    def measurable(self) -> Flags:
        return np.asarray(np.abs(self.change) > MEASURABLE)


def updates(random: np.random.Generator, count: int = 40_000) -> Updates:
    """Tokens sampled from random policies, half of them with a positive advantage."""
    logits = random_logits(random, count)
    log_probs = log_softmax(logits, axis=-1)
    probs, rows = np.exp(log_probs), np.arange(count)
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


def check_updates(found: Updates) -> list[Check]:
    """Lemma 3.2 and Theorem 3.1, among all updates and by entropy and probability of the token."""
    seen = found.measurable
    positive, negative = (found.advantage > 0) & seen, (found.advantage < 0) & seen
    lemma, theorem = "Lemma 3.2", "Theorem 3.1"
    checks = [
        counted(lemma, "A > 0 implies <∇H, ∇J> < 0", "sampled tokens", found.inner[positive] < 0),
        counted(lemma, "A < 0 implies <∇H, ∇J> > 0", "sampled tokens", found.inner[negative] > 0),
        counted(lemma, "A > 0 implies <∇H, ∇J> < 0", "every action has an A (Eq. 3)", found.inner_all[positive] < 0),
        counted(theorem, "A > 0 implies ΔH < 0", f"step {STEP:g}", found.change[positive] < 0),
        counted(theorem, "A < 0 implies ΔH > 0", f"step {STEP:g}", found.change[negative] > 0),
        counted(theorem, "A > 0 implies ΔH < 0", f"step {LARGE_STEP:g}", found.large_change[positive] < 0),
    ]
    groups = [*by_entropy(found), *by_probability(found), *by_typicality(found)]
    return [
        *checks,
        *(counted(theorem, "A > 0 implies ΔH < 0", among, found.falls[each & positive]) for among, each in groups),
    ]


def by_entropy(found: Updates) -> Iterator[tuple[str, Flags]]:
    """Cases by entropy, as a share of the largest possible."""
    for low, high, among in _bins(ENTROPY_BINS, "H / log V"):
        yield among, _within(found.entropy_share, low, high)


def by_probability(found: Updates) -> Iterator[tuple[str, Flags]]:
    """Cases by the token's probability."""
    for low, high, among in _bins(PROBABILITY_BINS, "p"):
        yield among, _within(np.exp(found.log_prob), low, high)


def by_typicality(found: Updates) -> Iterator[tuple[str, Flags]]:
    """Cases by whether the token is likelier than the policy's typical one: log p against -H."""
    yield "log p > -H", np.asarray(found.log_prob > -found.entropy)
    yield "log p < -H", np.asarray(found.log_prob < -found.entropy)


def _bins(edges: tuple[float, ...], name: str) -> Iterator[tuple[float, float, str]]:
    for low, high in pairwise(edges):
        yield low, high, f"{name} from {low:g} to {high:g}"


def _within(values: Array, low: float, high: float) -> Flags:
    """Values from `low` up to but without `high`; the highest bin takes all above it too."""
    return np.asarray((values >= low) & ((values < high) | (high >= 1.0)))
