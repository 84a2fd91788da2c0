"""Objectives: ratios, clipped surrogates, KL estimators and averages, as pure functions.

Shapes as in advantages.py: log-probs, advantages and ratios are [B, T], `turns` says which tokens
are actions. Log-probs are natural. Objectives are to be maximised; a loss is their negative average.
"""

from typing import Literal

import torch
from torch import Tensor

from turnbench.algorithms.advantages import Turns

MAX_LOG_RATIO = 20.0  # beyond this exp overflows in half precision; such tokens are clipped anyway

Averaging = Literal["token", "turn", "sequence"]


def token_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """[B, T]: pi(y) / pi_old(y) of each token (PPO)."""
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def turn_ratio(
    turns: Turns, logprobs: Tensor, old: Tensor, *, form: Literal["product", "geomean"] = "product"
) -> Tensor:
    """[B, T]: the ratio of a whole turn, on each of its tokens (docs/mpo.md, eq. 4).

    Its value is rho_k on every token of turn k, but its gradient with respect to the policy is
    rho_k times that token's own grad log pi (stop-gradient form). Without that, the gradients of a
    turn's tokens would be equal and a mean-preserving refinement of their credit would cancel.
    `product` is the turn's likelihood ratio; `geomean` its n-th root, biased but of low variance.
    """
    if form not in ("product", "geomean"):
        raise ValueError(f"form is {form!r}; it must be product or geomean")
    total = turns.sum(logprobs - old)
    level = total if form == "product" else total / turns.lengths.clamp(min=1)
    return _stopped(turns.to_tokens(level), logprobs)


def sequence_ratio(turns: Turns, logprobs: Tensor, old: Tensor) -> Tensor:
    """[B, T]: GSPO-token's ratio, the geometric mean over all action tokens (Zheng et al. 2025)."""
    count = turns.lengths.sum(1, keepdim=True).clamp(min=1)
    level = torch.where(turns.mask, logprobs - old, 0).sum(1, keepdim=True) / count
    return _stopped(level.expand_as(logprobs), logprobs)


def _stopped(log_ratio: Tensor, logprobs: Tensor) -> Tensor:
    """exp(log_ratio) in value; its gradient is that value times grad log pi of each token."""
    value = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().detach()
    return value * (logprobs - logprobs.detach()).exp()


def clipped(
    ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> Tensor:
    """[B, T]: min(ratio A, clip(ratio, 1 - low, 1 + high) A) (Schulman et al. 2017, eq. 7).

    `dual` c > 1 bounds it from below by c A where A < 0 (Ye et al. 2020, eq. 5).
    """
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is None:
        return surrogate
    return torch.where(advantages < 0, torch.maximum(surrogate, dual * advantages), surrogate)


def masked_ratio(
    ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, low: float, high: float
) -> Tensor:
    """[B, T]: SAO's sg[f(ratio) A] log pi, f 0 outside (1 - low, 1 + high) for either sign of A."""
    inside = (ratio > 1 - low) & (ratio < 1 + high)
    return (torch.where(inside, ratio, 0) * advantages).detach() * logprobs


def is_clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """[B, T] bool: whether the clip takes a token's gradient away."""
    return ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))


def kl_estimate(
    logprobs: Tensor, reference: Tensor, *, estimator: Literal["k1", "k2", "k3"] = "k3"
) -> Tensor:
    """[B, T]: estimates of KL(pi || reference) from tokens drawn from pi (Schulman 2020).

    With d = log reference - log pi: k1 = -d, unbiased; k2 = d^2 / 2, of low variance;
    k3 = e^d - d - 1, unbiased and never negative.
    """
    d = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            return d.exp() - d - 1
    raise ValueError(f"estimator is {estimator!r}; it must be k1, k2 or k3")


def overlong(lengths: Tensor, *, limit: int, cache: int) -> Tensor:
    """DAPO's soft punishment of long answers, of the shape of `lengths` in tokens (Yu et al. 2025, eq. 13).

    0 up to limit - cache tokens, then falling linearly to -1 at the limit, and -1 beyond.
    """
    return ((limit - cache - lengths) / cache).clamp(-1, 0)


def token_weights(turns: Turns, *, over: Averaging = "token") -> Tensor:
    """[B, T]: weights of action tokens that add up to 1, so that a sum with them is a mean.

    `token` gives every token the same weight, so that long turns count more; `turn` every turn;
    `sequence` every trajectory. Empty trajectories and turns have none.
    """
    match over:
        case "token":
            return turns.mask / turns.mask.sum().clamp(min=1)
        case "turn":
            return turns.to_tokens(1 / turns.lengths.clamp(min=1)) / turns.valid.sum().clamp(min=1)
        case "sequence":
            count = turns.mask.sum(1, keepdim=True)
            return turns.mask / count.clamp(min=1) / (count > 0).sum().clamp(min=1)
    raise ValueError(f"over is {over!r}; it must be token, turn or sequence")
