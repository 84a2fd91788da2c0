"""Plug-in for verl: the multiscale estimate and the turn's ratio, under verl's own registries.

    from turnbench.algorithms import verl_plugin
    verl_plugin.register()                          # before verl's trainer is made

Then `actor_rollout_ref.actor.policy_loss.loss_mode=turn_ratio` reweighs whole turns, and
`algorithm.adv_estimator=multiscale` gives MPO's credit. verl hands the critic's values to its own "gae"
alone, and has a critic only for that by default: `register(in_place_of_gae=True)` puts the estimate where
verl calls GAE, so that `algorithm.adv_estimator=gae` is the multiscale one with verl's `gamma` and `lam`
as those of turns.

A turn is a run of ones in verl's response mask. The interface was read from verl's core_algos.py of
November 2026; verl itself is imported by `register` only.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turnbench.algorithms import advantages, objectives
from turnbench.algorithms.advantages import Turns
from turnbench.envs.errors import ConfigError

ESTIMATOR, LOSS = "multiscale", "turn_ratio"


def register(core_algos: Any = None, *, in_place_of_gae: bool = False, **options: float) -> None:
    """Register both with verl. `options` are keyword arguments of `advantages.multiscale`.

    `core_algos` is verl's module of that name, imported where it isn't given. Raises ConfigError where
    verl isn't installed or lacks the registries.
    """
    if core_algos is None:
        try:
            core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
        except ImportError as error:
            raise ConfigError(f"verl can't be imported: {error}") from error
    for name in ("register_adv_est", "register_policy_loss", "agg_loss"):
        if not hasattr(core_algos, name):
            raise ConfigError(f"this verl has no {name} in core_algos: another version is needed")
    core_algos.register_adv_est(ESTIMATOR)(estimator(**options))
    core_algos.register_policy_loss(LOSS)(policy_loss(core_algos.agg_loss))
    if in_place_of_gae:
        core_algos.compute_gae_advantage_return = in_gaes_place(**options)


def turns_of(response_mask: Tensor) -> tuple[Turns, Tensor]:
    """The turns of a response mask [B, T], and for every token [B, T] the turn that it belongs to or
    follows (the first, where none came before)."""
    mask = response_mask.bool()
    before = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1)
    number = (mask & ~before).cumsum(1).clamp(min=1) - 1
    return Turns.of(mask, number, int(number.max()) + 1), number


def multiscale(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """(whitened advantages, returns), both [B, T], as verl's estimators give them.

    What is paid at an observation's token belongs to the turn before it.
    """
    with torch.no_grad():
        turns, number = turns_of(response_mask)
        rewards = torch.zeros_like(turns.lengths, dtype=values.dtype)
        rewards = rewards.scatter_add(1, number, token_level_rewards.to(values.dtype))
        args = turns, rewards, values, torch.zeros_like(values[:, 0])
        credit = advantages.multiscale(*args, **options)
        returns = advantages.turn_targets(*args, gamma=options.get("gamma_turn", 1.0), lam=1.0)
        return advantages.whiten(credit, turns.mask), returns


def estimator(**options: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """The estimator for `register_adv_est`."""

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        values: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, Tensor]:
        if values is None:
            raise ConfigError(
                "this verl gives registered estimators no values: use register(in_place_of_gae=True) "
                "and algorithm.adv_estimator=gae"
            )
        return multiscale(token_level_rewards, values, response_mask, **options)

    return compute


def in_gaes_place(**options: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function with the arguments of verl's compute_gae_advantage_return."""

    def compute(
        token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
    ) -> tuple[Tensor, Tensor]:
        chosen = {"gamma_turn": float(gamma), "lam_turn": float(lam)} | options
        return multiscale(token_level_rewards, values, response_mask, **chosen)

    return compute


def policy_loss(agg_loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """The loss for `register_policy_loss`; `agg_loss` is verl's, which averages as its config says."""

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        low, high, dual = clip_widths(config)
        turns, _ = turns_of(response_mask)
        ratio = objectives.turn_ratio(turns, log_prob, old_log_prob)
        loss = -objectives.clipped(ratio, advantages, low=low, high=high, dual=dual)
        if rollout_is_weights is not None:
            loss = loss * rollout_is_weights
        shared = getattr(config, "global_batch_info", None) or {}
        total = agg_loss(loss_mat=loss, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **shared)
        cut = objectives.is_clipped(ratio, advantages, low=low, high=high)
        mean = objectives.token_weights(turns)
        told = {
            "actor/pg_clipfrac": float((mean * cut).detach().sum()),
            "actor/ppo_kl": float((mean * (old_log_prob - log_prob)).detach().sum()),
            "actor/pg_clipfrac_lower": 0.0,
        }
        return total, told

    return compute


def clip_widths(config: Any) -> tuple[float, float, float | None]:
    """(below 1, above 1, dual clip or None) from verl's actor config."""

    def read(name: str, otherwise: Any) -> Any:
        found = getattr(config, name, None)
        return otherwise if found is None else found

    width = read("clip_ratio", 0.2)
    return read("clip_ratio_low", width), read("clip_ratio_high", width), read("clip_ratio_c", None)
