"""Uniform draws that are a function of what they are for: the seed, the prompt, the sample and the token's position."""

from __future__ import annotations

import torch
from torch import Tensor

#: Constants of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), as signed
#: 64-bit integers: torch's arithmetic on them wraps around.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def uniform(seed: int, prompts: Tensor, samples: Tensor, positions: Tensor) -> Tensor:
    """Draws in [0, 1), float64, for every combination that the integer tensors' broadcasting gives.

    One draw does not depend on which others are made with it, so neither the layout of a batch nor how prompts are
    divided among processes changes what a prompt samples.
    """
    key = _mixed(torch.tensor(seed % 2**63, device=prompts.device))
    for counter in (prompts, samples, positions):
        key = _mixed(key + (counter + 1) * _GAMMA)
    return _shifted(key, 11).double() * 2.0**-53


def prompt_seed(seed: int, prompt: int) -> int:
    """A 62-bit seed of a prompt's own, for samplers that count on from it: no two prompts' come near each other."""
    key = _mixed(torch.tensor(seed % 2**63))
    return int(_shifted(_mixed(key + torch.tensor(prompt + 1) * _GAMMA), 2))


def _mixed(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills with zeros: torch's own repeats the sign."""
    return (value >> bits).bitwise_and(2 ** (64 - bits) - 1)
