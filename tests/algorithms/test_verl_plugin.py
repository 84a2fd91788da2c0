"""The plug-in against verl's interface as it was recorded from its core_algos.py and ray_trainer.py."""

import inspect
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from turnbench.algorithms import advantages as adv
from turnbench.algorithms import objectives, verl_plugin
from turnbench.algorithms.advantages import Turns
from turnbench.envs.errors import ConfigError

# What verl passes: ray_trainer.compute_advantage, and the actor's update of the policy.
ADVANTAGE_CALL = ("token_level_rewards", "response_mask", "config", "index")
GAE_CALL = ("token_level_rewards", "values", "response_mask", "gamma", "lam")
LOSS_CALL = (
    "old_log_prob",
    "log_prob",
    "advantages",
    "response_mask",
    "loss_agg_mode",
    "config",
    "rollout_is_weights",
)


def recorded():
    """A stand-in with verl's registries, their refusal of a second registration, and its mean."""
    made = SimpleNamespace(estimators={}, losses={}, compute_gae_advantage_return=None)

    def register_adv_est(name):
        def decorator(function):
            if made.estimators.get(name, function) != function:
                raise ValueError(f"Adv estimator {name} has already been registered")
            made.estimators[name] = function
            return function

        return decorator

    def register_policy_loss(name):
        return lambda function: made.losses.setdefault(name, function)

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, **info):
        assert loss_agg_mode == "token-mean"
        return (loss_mat * loss_mask).sum() / loss_mask.sum()

    made.register_adv_est, made.register_policy_loss = register_adv_est, register_policy_loss
    made.agg_loss = agg_loss
    return made


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 0, 1, 1]])
    index = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0, 2, 2]])
    rewards = torch.zeros(2, 8)
    rewards[0, 6], rewards[1, 3] = 1.0, 0.5  # the second is paid at an observation's token
    per_turn = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    return SimpleNamespace(
        mask=mask,
        turns=Turns.of(mask, index, 3),
        rewards=rewards,
        per_turn=per_turn,
        values=torch.randn(2, 8, generator=g),
        new=-torch.rand(2, 8, generator=g),
        old=-torch.rand(2, 8, generator=g),
    )


def test_in_gaes_place_it_is_the_multiscale_estimate(data):
    verl = recorded()
    verl_plugin.register(verl, in_place_of_gae=True, beta=0.7)
    function = verl.compute_gae_advantage_return
    assert tuple(inspect.signature(function).parameters) == GAE_CALL
    got, returns = function(data.rewards, data.values, data.mask, gamma=0.9, lam=0.8)
    args = data.turns, data.per_turn, data.values, torch.zeros(2)
    want = adv.multiscale(*args, gamma_turn=0.9, lam_turn=0.8, beta=0.7)
    torch.testing.assert_close(got, adv.whiten(want, data.mask.bool()))
    torch.testing.assert_close(returns, adv.turn_targets(*args, gamma=0.9, lam=1.0))


def test_as_an_estimator_it_needs_the_values_and_says_so(data):
    verl = recorded()
    verl_plugin.register(verl)
    verl_plugin.register(recorded())
    function = verl.estimators["multiscale"]
    call = dict(zip(ADVANTAGE_CALL, (data.rewards, data.mask, None, np.arange(2)), strict=True))
    with pytest.raises(ConfigError, match="in_place_of_gae"):
        function(**call)
    got, _ = function(**call, values=data.values)
    want = adv.multiscale(data.turns, data.per_turn, data.values, torch.zeros(2))
    torch.testing.assert_close(got, adv.whiten(want, data.mask.bool()))


def test_the_loss_is_the_clipped_turn_ratio(data):
    verl = recorded()
    verl_plugin.register(verl)
    function = verl.losses["turn_ratio"]
    config = SimpleNamespace(clip_ratio=0.3, clip_ratio_low=0.1, clip_ratio_high=None, clip_ratio_c=3.0)
    new = data.new.requires_grad_()
    values = (data.old, new, data.values, data.mask, "token-mean", config, None)
    loss, told = function(**dict(zip(LOSS_CALL, values, strict=True)))
    ratio = objectives.turn_ratio(data.turns, new, data.old)
    surrogate = objectives.clipped(ratio, data.values, low=0.1, high=0.3, dual=3.0)
    want = -surrogate[data.mask.bool()].mean()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, new), torch.autograd.grad(want, new))
    assert told.keys() == {"actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"}


def test_another_verl_is_refused_in_words():
    with pytest.raises(ConfigError, match="no register_policy_loss"):
        verl_plugin.register(SimpleNamespace(register_adv_est=lambda name: None))


def test_without_verl_it_says_so():
    if find_spec("verl"):
        pytest.skip("verl is installed")
    with pytest.raises(ConfigError, match="verl can't be imported"):
        verl_plugin.register()
