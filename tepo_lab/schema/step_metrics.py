"""What a training step records in metrics.jsonl, by name: what a sweep's stop rules can watch.

A step has those that its arm, data and engine give rise to: an arm without a penalty has no `mask/share`.
"""

from __future__ import annotations

#: How far the sampler is from the trainer at a step, mean over tokens, in nats. Null where it was not finite, absent
#: where the sampler is the trainer's own model; so is the other, of a few responses, in the event of an evaluation.
SAMPLER_MISMATCH = "rollout/sampler_mismatch_mean"
EVALUATED_MISMATCH = "sampler_mismatch"

#: Name -> what it is. Shares are of 0 to 1; what is of tokens is a mean over the response tokens.
STEP_METRICS: dict[str, str] = {
    "reward/mean": "share of the sampled responses that are right",
    "reward/all_right_groups": "share of the sampled groups whose responses are all right",
    "reward/all_wrong_groups": "share of the sampled groups whose responses are all wrong",
    "reward/timed_out": "responses whose symbolic grading took too long",
    "data/dropped_overlaps": "training problems left out because a benchmark has them",
    "rollout/response_tokens_mean": "tokens of a response",
    "rollout/response_tokens_max": "tokens of the longest response",
    "rollout/truncated_share": "share of responses that the length limit ended",
    "rollout/tokens": "tokens sampled",
    "rollout/prompt_tokens": "tokens of the prompts",
    "rollout/kept_groups": "groups that were learned from",
    "rollout/generation_batches": "batches of prompts that were sampled",
    SAMPLER_MISMATCH: "distance of the sampler's log-probabilities from the trainer's, in nats",
    "rollout/sampler_mismatch_max": "the largest of those distances, in nats",
    "actor/pg_loss": "the policy term of the loss",
    "actor/kl_loss": "the KL penalty before its coefficient, in nats",
    "actor/kl_coef": "the KL penalty's coefficient",
    "actor/grad_norm": "Euclidean norm of the gradient before clipping",
    "actor/lr": "learning rate",
    "actor/updates": "optimizer steps",
    "actor/entropy": "entropy of the policy, in nats",
    "actor/ppo_kl": "estimate of the KL divergence from the rollout policy, in nats",
    "actor/pg_clipfrac": "share of tokens that the surrogate clips",
    "actor/pg_clipfrac_lower": "share of tokens that the dual clip bounds",
    "actor/clip_fraction_high": "share of tokens whose ratio is above 1 + clip_high",
    "actor/clip_fraction_low": "share of tokens whose ratio is below 1 - clip_low",
    "actor/clip_fraction_positive": "share of tokens that are clipped and have a positive advantage",
    "actor/clip_fraction_negative": "share of tokens that are clipped and have a negative advantage",
    "ratio/mean": "importance weight",
    "ratio/min": "smallest importance weight",
    "ratio/max": "largest importance weight",
    "entropy/change_mean": "change of the entropy in the update, in nats",
    "cells/positive_falling": "share of tokens with a positive advantage and falling entropy",
    "cells/positive_rising": "share of tokens with a positive advantage and rising entropy",
    "cells/negative_falling": "share of tokens with a negative advantage and falling entropy",
    "cells/negative_rising": "share of tokens with a negative advantage and rising entropy",
    "mask/share": "share of tokens on which the penalty acts",
    "penalty/kl_on_mask": "KL penalty where it acts, in nats",
    "penalty/gradient_ratio": "norm of the penalty's gradient by that of the rest",
    "selection/dropped": "share of tokens that a selection leaves out",
    "weights/mean": "token weight",
    "weights/min": "smallest token weight",
    "weights/max": "largest token weight",
    "seconds/step": "wall seconds of the step",
    "seconds/cpu": "CPU seconds of the step",
    "seconds/rollout": "wall seconds of sampling",
    "seconds/grade": "wall seconds of grading",
    "seconds/old_log_probs": "wall seconds of scoring before the updates",
    "seconds/update": "wall seconds of the updates",
}
