"""Advantages: credit for tokens and turns, as pure functions on padded tensors.

Shapes: B trajectories, T tokens, K turns. `values[b, t]` is the critic's value *before* token t is
written, so at a turn's first token it is the value of the turn's state. Rewards are paid at the ends
of turns. `bootstrap[b]` is the value of the state after the last turn: 0 where the episode ended,
the critic's word where it was truncated. Observation tokens are never actions: their values are not
looked at, and no trace decays over them. Everything is in units of reward.

Derivations of the multiscale estimate are in docs/mpo.md; sources are named function by function.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Boundary = Literal["bootstrap", "afterstate", "drop"]


@dataclass(frozen=True, slots=True)
class Turns:
    """Which tokens are actions, and of which turn.

    `mask` [B, T] bool; `index` [B, T] long, the turn of each action token (anything elsewhere);
    `starts`, `ends` [B, T] bool mark a turn's first and last action token; `lengths` [B, K] float
    counts its tokens; `valid` [B, K] bool marks turns that exist.
    """

    mask: Tensor
    index: Tensor
    starts: Tensor
    ends: Tensor
    lengths: Tensor
    valid: Tensor

    @classmethod
    def of(cls, mask: Tensor, index: Tensor, turns: int) -> "Turns":
        """From the action mask [B, T] and turn index [B, T]; `turns` is K.

        Raises ValueError where a turn that is followed by another has no action token.
        """
        mask = mask.bool()
        index = torch.where(mask, index, 0)
        starts = mask & (_previous(mask, index) != index)
        ends = mask & (_next(mask, index) != index)
        lengths = torch.zeros(len(mask), turns, device=mask.device).scatter_add(1, index, mask.float())
        valid = lengths > 0
        if (valid[:, 1:] & ~valid[:, :-1]).any():
            raise ValueError("a turn without action tokens stands before one that has some")
        return cls(mask, index, starts, ends, lengths, valid)

    def take(self, chosen: Tensor) -> "Turns":
        """The trajectories of these numbers [B']."""
        return Turns(*(getattr(self, name)[chosen] for name in self.__slots__))

    def to(self, device: torch.device | str) -> "Turns":
        """The same on another device."""
        return Turns(*(getattr(self, name).to(device) for name in self.__slots__))

    def to_tokens(self, per_turn: Tensor) -> Tensor:
        """[B, K] -> [B, T]: each action token gets its turn's number, other tokens 0."""
        return per_turn.gather(1, self.index) * self.mask

    def sum(self, per_token: Tensor) -> Tensor:
        """[B, T] -> [B, K]: the sum over each turn's action tokens."""
        zeros = torch.zeros_like(self.lengths, dtype=per_token.dtype)
        return zeros.scatter_add(1, self.index, torch.where(self.mask, per_token, 0))

    def mean(self, per_token: Tensor) -> Tensor:
        """[B, T] -> [B, K]: the mean over each turn's action tokens; 0 for turns that don't exist."""
        return self.sum(per_token) / self.lengths.clamp(min=1)

    def at_starts(self, per_token: Tensor) -> Tensor:
        """[B, T] -> [B, K]: the number at each turn's first action token."""
        return self.sum(torch.where(self.starts, per_token, 0))

    def at_ends(self, per_token: Tensor) -> Tensor:
        """[B, T] -> [B, K]: the number at each turn's last action token."""
        return self.sum(torch.where(self.ends, per_token, 0))


def _previous(mask: Tensor, index: Tensor) -> Tensor:
    """The turn of the action token before each position; -1 where there is none."""
    return _next(mask.flip(1), index.flip(1)).flip(1)


def _next(mask: Tensor, index: Tensor) -> Tensor:
    """The turn of the action token after each position; -1 where there is none."""
    shifted = torch.where(mask, index + 1, 0).double()
    following = suffix_scan(shifted, (~mask).double())
    return torch.cat([following[:, 1:], torch.zeros_like(following[:, :1])], 1).long() - 1


def suffix_scan(x: Tensor, decay: Tensor) -> Tensor:
    """s[t] = x[t] + decay[t] * s[t + 1] along the last axis, in log2(T) vectorised steps.

    `x` and `decay` have the same shape; s beyond the end is 0.
    """
    total, factor, step = x, decay, 1
    while step < x.shape[-1]:
        ahead_total = torch.nn.functional.pad(total[..., step:], (0, step))
        ahead_factor = torch.nn.functional.pad(factor[..., step:], (0, step))
        total = total + factor * ahead_total
        factor = factor * ahead_factor
        step *= 2
    return total


def next_values(turns: Turns, values: Tensor, bootstrap: Tensor) -> Tensor:
    """[B, T]: for each action token the value at the next one, `bootstrap` [B] after the last."""
    here = torch.where(turns.mask, values, 0)
    padded_here = torch.cat([here, bootstrap[:, None]], 1)
    stop = torch.cat([turns.mask, torch.ones_like(turns.mask[:, :1])], 1)
    following = suffix_scan(padded_here, (~stop).to(values.dtype))
    return following[:, 1:] * turns.mask


def token_gae(
    turns: Turns,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
) -> Tensor:
    """[B, T]: generalised advantage estimate over action tokens (Schulman et al. 2016, eq. 16).

    `rewards` [B, K] are paid at each turn's last token. The trace runs from token to token across
    turns, skipping observations, as in PPO for language models. `lam` may be [B, 1], one a trajectory.
    """
    paid = torch.where(turns.ends, turns.to_tokens(rewards), 0)
    delta = (paid + gamma * next_values(turns, values, bootstrap) - values) * turns.mask
    decay = torch.where(turns.mask, gamma * torch.as_tensor(lam, dtype=values.dtype), 1.0)
    return suffix_scan(delta, decay) * turns.mask


def turn_deltas(
    turns: Turns, rewards: Tensor, values: Tensor, bootstrap: Tensor, *, gamma: float
) -> Tensor:
    """[B, K]: r_k + gamma V(s_{k+1}) - V(s_k), with values at turn starts only."""
    starts = turns.at_starts(values)
    return (rewards + gamma * _next_starts(turns, starts, bootstrap) - starts) * turns.valid


def _next_starts(turns: Turns, starts: Tensor, bootstrap: Tensor) -> Tensor:
    """[B, K]: V(s_{k+1}); `bootstrap` after the last turn."""
    following = torch.cat([starts[:, 1:], torch.zeros_like(starts[:, :1])], 1)
    last = turns.valid & ~torch.cat([turns.valid[:, 1:], torch.zeros_like(turns.valid[:, :1])], 1)
    return torch.where(last, bootstrap[:, None], following)


def turn_gae(
    turns: Turns, rewards: Tensor, values: Tensor, bootstrap: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """[B, K]: A_k = delta_k + gamma lam A_{k+1} over turns (docs/mpo.md, eq. 1).

    Decays once a turn, however many tokens the turn has.
    """
    delta = turn_deltas(turns, rewards, values, bootstrap, gamma=gamma)
    return suffix_scan(delta, torch.full_like(delta, gamma * lam)) * turns.valid


def turn_residuals(
    turns: Turns,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    gamma_turn: float,
    gamma_token: float,
    lam_token: float,
    boundary: Boundary = "bootstrap",
    after: Tensor | None = None,
) -> Tensor:
    """[B, T]: e_{k,j}, the trace of token TD errors that never crosses its turn (eq. 2).

    What a turn's last token is compared with: `bootstrap`, the reward and the next turn's value, so
    that with both gammas 1 the token TDs of a turn add up to its turn TD; `afterstate`, the critic's
    word `after` [B, K] on the finished action before its observation, which keeps the world's luck
    out; `drop`, nothing (its TD is 0). Raises ValueError.
    """
    following = next_values(turns, values, bootstrap)
    inside = gamma_token * following - values
    match boundary:
        case "bootstrap":
            ahead = _next_starts(turns, turns.at_starts(values), bootstrap)
            last = turns.to_tokens(rewards + gamma_turn * ahead) - values
        case "afterstate" if after is not None:
            last = gamma_token * turns.to_tokens(after) - values
        case "drop":
            last = torch.zeros_like(values)
        case _:
            raise ValueError(
                f"boundary is {boundary!r}; it must be bootstrap, afterstate (with `after`) or drop"
            )
    delta = torch.where(turns.ends, last, inside) * turns.mask
    decay = _inside(turns, values, gamma_token * lam_token)
    return suffix_scan(delta, decay) * turns.mask


def _inside(turns: Turns, like: Tensor, decay: float) -> Tensor:
    """[B, T]: `decay` from each token of a turn to the next, 0 across the turn's end."""
    return torch.zeros_like(like).masked_fill(turns.mask & ~turns.ends, decay)


def multiscale(
    turns: Turns,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    gamma_turn: float = 1.0,
    lam_turn: float = 0.95,
    gamma_token: float = 1.0,
    lam_token: float = 0.9,
    beta: float = 0.5,
    boundary: Boundary = "bootstrap",
    after: Tensor | None = None,
) -> Tensor:
    """[B, T]: MPO's estimate A_{k,j} = A_k + beta (e_{k,j} - mean_i e_{k,i}) (eq. 3).

    Credit is given to turns and refined inside each, its mean over the turn's tokens kept. With
    beta 0 this is turn-level PPO; with one token a turn it is token GAE.
    """
    level = turn_gae(turns, rewards, values, bootstrap, gamma=gamma_turn, lam=lam_turn)
    trace = turn_residuals(
        turns,
        rewards,
        values,
        bootstrap,
        gamma_turn=gamma_turn,
        gamma_token=gamma_token,
        lam_token=lam_token,
        boundary=boundary,
        after=after,
    )
    centred = trace - turns.to_tokens(turns.mean(trace))
    return (turns.to_tokens(level) + beta * centred) * turns.mask


def bilevel(
    turns: Turns,
    rewards: Tensor,
    values: Tensor,
    *,
    gamma_turn: float = 0.95,
    lam_turn: float = 1.0,
    gamma_token: float = 1.0,
    lam_token: float = 1.0,
) -> Tensor:
    """[B, T]: VAGEN's bi-level estimate, for comparison (Wang et al. 2025, their released code).

    Turn GAE on the values at turn *ends*; then token GAE inside each turn, whose last token gets the
    turn's estimate. Unlike `multiscale`, the mean over a turn's tokens is not the turn's.
    """
    ends = turns.at_ends(values)
    following = torch.cat([ends[:, 1:], torch.zeros_like(ends[:, :1])], 1)
    delta = (rewards + gamma_turn * following - ends) * turns.valid
    level = suffix_scan(delta, torch.full_like(delta, gamma_turn * lam_turn)) * turns.valid
    zeros = torch.zeros(len(values), device=values.device, dtype=values.dtype)
    inside = gamma_token * next_values(turns, values, zeros) - values
    delta_token = torch.where(turns.ends, turns.to_tokens(level), inside) * turns.mask
    return suffix_scan(delta_token, _inside(turns, values, gamma_token * lam_token)) * turns.mask


def group_relative(
    returns: Tensor, groups: Tensor, *, scale: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """[B]: (R - mean of its group) / (standard deviation of its group + epsilon) (GRPO, eq. 3).

    `groups` [B] long names each trajectory's group. The deviation is the sample's (n - 1). In a
    group of one nothing can be compared: the advantage is 0. `scale=False` leaves the division out
    (Dr. GRPO).
    """
    if not len(returns):
        return returns
    mean, variance, differs = _group_moments(returns, groups)
    centred = torch.where(differs, returns - mean, 0)  # a mean of equals is not exactly their value
    return centred / (variance.sqrt() + epsilon) if scale else centred


def _group_moments(x: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and sample variance of each element's group, and whether it varies at all, as [B]."""
    size = int(groups.max()) + 1
    zeros = torch.zeros(size, dtype=x.dtype, device=x.device)
    count = torch.bincount(groups, minlength=size).to(x.dtype)
    mean = zeros.index_add(0, groups, x) / count.clamp(min=1)
    squares = zeros.index_add(0, groups, (x - mean[groups]).square())
    top, low = (zeros.scatter_reduce(0, groups, x, how, include_self=False) for how in ("amax", "amin"))
    return mean[groups], (squares / (count - 1).clamp(min=1))[groups], (top > low)[groups]


def turn_group_relative(
    turns: Turns, rewards: Tensor, anchors: Tensor, *, gamma: float, scale: bool = True
) -> Tensor:
    """[B, K]: GiGPO's step advantage (Feng et al. 2025, eq. 6-7).

    The discounted return from each turn on, compared with that of the turns in which the same
    observation was seen: `anchors` [B, K] long has one number a (group, observation). Turns whose
    anchor is seen once get 0.
    """
    returns = suffix_scan(rewards * turns.valid, torch.full_like(rewards, gamma))
    flat = torch.zeros_like(returns)
    flat[turns.valid] = group_relative(returns[turns.valid], anchors[turns.valid], scale=scale)
    return flat


def turn_targets(
    turns: Turns, rewards: Tensor, values: Tensor, bootstrap: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """[B, T]: what the critic should say at each action token: its turn's lambda-return A_k + V(s_k).

    With lam 1 that is the discounted return from the turn's start on.
    """
    level = turn_gae(turns, rewards, values, bootstrap, gamma=gamma, lam=lam)
    return turns.to_tokens(level + turns.at_starts(values))


def whiten(advantages: Tensor, mask: Tensor, *, centre: bool = True, epsilon: float = 1e-8) -> Tensor:
    """Advantages scaled to variance 1, and shifted to mean 0, over all masked tokens; others 0.

    One affine map for all tokens, so what holds between a turn and its tokens keeps holding. With
    `centre` False signs are kept.
    """
    chosen = advantages[mask]
    if chosen.numel() < 2:
        return advantages * mask
    shift = chosen.mean() if centre else 0.0
    return (advantages - shift) / (chosen.std(correction=0) + epsilon) * mask


def explained_variance(values: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Scalar: 1 - Var(targets - values) / Var(targets) over masked tokens; NaN where targets don't vary."""
    spread = targets[mask].var(correction=0)
    left = (targets - values)[mask].var(correction=0)
    return torch.where(spread > 0, 1 - left / spread.clamp(min=1e-30), torch.nan)


def between_turn_share(turns: Turns, values: Tensor) -> Tensor:
    """[B]: eta-squared, the share of a trajectory's value variance that lies between its turns.

    sum_k n_k (mean_k - mean)^2 / sum (v - mean)^2 over action tokens; NaN where values don't vary.
    """
    count = turns.lengths.sum(1).clamp(min=1)
    mean = (torch.where(turns.mask, values, 0).sum(1) / count)[:, None]
    between = (turns.lengths * (turns.mean(values) - mean).square()).sum(1)
    total = (torch.where(turns.mask, values - mean, 0)).square().sum(1)
    return torch.where(total > 0, between / total.clamp(min=1e-30), torch.nan)
