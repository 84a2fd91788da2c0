"""Progress Advantage: the identity on the toy world (P1-P4), the scores' algebra (P5-P10), real checkpoints."""

import math

import numpy as np
import pytest

from turnbench.agents.attribution import RULES, Label, chance, decisive_step, judge
from turnbench.agents.progress import path_advantage, turn_advantage, turn_advantages
from turnbench.agents.turn_scores import (
    AGGREGATES,
    LINEAR,
    Aggregation,
    aggregate,
    bottom10,
    grid,
    position_weighted,
)
from turnbench.envs.errors import ModelError, UnknownName
from turnbench.envs.toy import Path, SoftOptimum, ToyMDP, enumerate_paths, soft_optimum

BETA = 0.3
WORLDS = [ToyMDP.random(np.random.default_rng(k), states=3, horizon=3) for k in range(3)]


def reference(mdp: ToyMDP, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(len(mdp.actions)), len(mdp.states))


def log_ratio(mdp: ToyMDP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """beta log pi*/pi_ref [H, S, A], with pi* and the advantage Q* - V*."""
    best = soft_optimum(mdp, reference(mdp), BETA)
    return BETA * np.log(best.policy / reference(mdp)), best.policy, best.advantage


@pytest.mark.parametrize("mdp", WORLDS)
def test_p1_the_log_ratio_is_the_soft_advantage(mdp) -> None:
    ratio, policy, advantage = log_ratio(mdp)
    np.testing.assert_allclose(ratio, advantage, atol=1e-10)
    np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-12)
    objective = regularised(mdp, policy)
    rng = np.random.default_rng(1)
    for _ in range(20):
        other = 0.9 * policy + 0.1 * rng.dirichlet(np.ones(2), policy.shape[:2])
        assert regularised(mdp, other) <= objective + 1e-12


def regularised(mdp: ToyMDP, policy: np.ndarray) -> float:
    """Expected return less beta KL(policy || reference), from the first task's start."""
    paths = enumerate_paths(mdp, policy)
    ref = reference(mdp)
    costs = [
        sum(np.log(policy[t, p.states[t], a] / ref[p.states[t], a]) for t, a in enumerate(p.actions))
        for p in paths
    ]
    return sum(p.probability * (p.ret - BETA * c) for p, c in zip(paths, costs, strict=True))


@pytest.mark.parametrize("mdp", WORLDS)
def test_p2_what_both_policies_expect_of_it(mdp) -> None:
    ratio, policy, _ = log_ratio(mdp)
    ref = np.broadcast_to(reference(mdp), policy.shape)
    np.testing.assert_allclose((ref * np.exp(ratio / BETA)).sum(-1), 1, atol=1e-10)
    kl = (policy * np.log(policy / ref)).sum(-1)
    np.testing.assert_allclose((policy * ratio).sum(-1), BETA * kl, atol=1e-10)
    assert kl.min() >= -1e-12 and (ref * ratio).sum(-1).max() <= 1e-12


def gap(mdp: ToyMDP, path: Path, best: SoftOptimum) -> float:
    """The sum of log-ratios along a path, less (return - V*(s_0))."""
    ratio = BETA * np.log(best.policy / reference(mdp))
    total = sum(ratio[t, path.states[t], a] for t, a in enumerate(path.actions))
    return float(total - (path.ret - best.v[0, path.states[0]]))


def luck(mdp: ToyMDP, path: Path, best: SoftOptimum) -> float:
    """M = sum_t E[V*(s_t+1) + r] - (V*(s_t+1) + r): what the world owes the path."""
    owed = 0.0
    for t, a in enumerate(path.actions):
        after = mdp.rewards + np.where(mdp.terminal, 0.0, best.v[t + 1])
        owed += float(mdp.transitions[path.states[t], a] @ after - after[path.states[t + 1]])
    return owed


@pytest.mark.parametrize("mdp", WORLDS)
def test_p3_the_sum_is_the_return_without_the_worlds_luck(mdp) -> None:
    best = soft_optimum(mdp, reference(mdp), BETA)
    paths = enumerate_paths(mdp, best.policy)
    owed = [luck(mdp, path, best) for path in paths]
    assert [gap(mdp, path, best) for path in paths] == pytest.approx(owed, abs=1e-9)
    assert max(map(abs, owed)) > 0.01
    assert sum(p.probability * m for p, m in zip(paths, owed, strict=True)) == pytest.approx(0, abs=1e-9)


def test_p3_in_a_deterministic_world_the_sum_ranks_as_the_return() -> None:
    mdp = ToyMDP.random(np.random.default_rng(3), horizon=3, deterministic=True)
    best = soft_optimum(mdp, reference(mdp), BETA)
    for path in enumerate_paths(mdp, reference(mdp)):
        assert gap(mdp, path, best) == pytest.approx(0, abs=1e-9)


def test_p4_the_tokens_of_a_turn_add_up_to_its_advantage() -> None:
    """An action of two tokens: the first says which half of the actions, the second which one of it."""
    mdp = ToyMDP.random(np.random.default_rng(4), actions=4)
    ratio, policy, _ = log_ratio(mdp)
    ref = np.broadcast_to(reference(mdp), policy.shape)

    def tokens(odds: np.ndarray, action: int) -> list[float]:
        half = odds[:2] if action < 2 else odds[2:]
        return [math.log(half.sum()), math.log(half[action % 2] / half.sum())]

    how = Aggregation(token="sum")
    for t, s, a in np.ndindex(*policy.shape):
        turn = turn_advantage(tokens(policy[t, s], a), tokens(ref[t, s], a), how)
        assert BETA * turn == pytest.approx(ratio[t, s, a], abs=1e-10)


@pytest.mark.parametrize("name", AGGREGATES)
def test_p5_a_positive_factor_changes_nothing(name) -> None:
    numbers = np.random.default_rng(0).normal(size=23).tolist()
    assert aggregate(name, [0.07 * x for x in numbers]) == pytest.approx(0.07 * aggregate(name, numbers))


@pytest.mark.parametrize("rule", RULES)
def test_p5_attribution_ignores_a_positive_factor(rule) -> None:
    scores = np.random.default_rng(1).normal(size=9).tolist()
    assert decisive_step(rule, scores) == decisive_step(rule, [12.5 * x for x in scores])


@pytest.mark.parametrize("how", grid())
def test_p6_equal_policies_have_no_advantage(how) -> None:
    turns = [[-1.0, -0.2, -3.0], [-0.5]]
    assert path_advantage(turns, turns, how) == 0


def test_p7_order_matters_for_extremes_and_for_nothing_linear() -> None:
    policy, ref = [-5, -0.1, -0.2], [-6, -0.05, -3]
    for name in AGGREGATES:
        one, other = (
            turn_advantage(policy, ref, Aggregation(name, "mean", order))
            for order in ("difference", "aggregates")
        )
        assert (one == pytest.approx(other)) == (name in LINEAR), name
    assert turn_advantage(policy, ref, Aggregation("min", "mean", "aggregates")) == pytest.approx(1.0)
    assert turn_advantage(policy, ref, Aggregation("min")) == pytest.approx(-0.05)


def test_p9_rules_of_attribution() -> None:
    scores = [0.1, -0.2, 0.3, -0.9, 0.4]
    assert {rule: decisive_step(rule, scores) for rule in RULES} == dict.fromkeys(RULES, 3)
    rising = [0.1, 0.2, 0.3]
    assert {rule: decisive_step(rule, rising) for rule in RULES} == dict.fromkeys(RULES, 0)
    assert decisive_step("min_cumulative", [-1, -1, 3, -1.5]) == 1
    assert decisive_step("sharpest_abs_drop", [-5, -5, -4, -4.5]) == 3
    assert decisive_step("argmin", [math.nan, 2.0, 1.0]) == 2 and decisive_step("argmin", []) is None


def test_p9_steps_are_equal_as_integers() -> None:
    speakers = [["a"] * 13, ["a", "b"]]
    verdict = judge([1, 1], [Label(12, "a"), Label(1, "b")], speakers)
    assert verdict == (2, 0.5, 1.0, 5.5)
    assert judge([None], [Label(3)]) == (1, 0.0, None, None)


def test_chance_is_what_guessing_gives_in_expectation() -> None:
    labels, speakers = [Label(1, "b"), Label(0, "a")], [["a", "b", "a"], ["a"]]
    guesses = [judge([k, 0], labels, speakers) for k in range(3)]
    told = chance(labels, speakers)
    assert told.step == pytest.approx(np.mean([g.step for g in guesses]))
    assert told.agent == pytest.approx(np.mean([g.agent for g in guesses]))
    assert told.mae == pytest.approx(np.mean([g.mae for g in guesses]))


def test_aggregates_by_hand() -> None:
    numbers = [3.0, 1.0, 2.0]
    told = {"sum": 6, "mean": 2, "last": 2, "min": 1, "max": 3, "position": 11 / 6, "bottom10": 1}
    assert {name: aggregate(name, numbers) for name in AGGREGATES} == pytest.approx(told)
    assert bottom10(list(range(20, 0, -1))) == 1.5 and position_weighted([7.0]) == 7.0


def test_wrong_aggregation_is_refused() -> None:
    with pytest.raises(UnknownName, match="mean"):
        Aggregation("meen").check()
    with pytest.raises(UnknownName, match="aggregates"):
        Aggregation(order="first").check()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing"):
        path_advantage([], [])


def test_turns_without_tokens_and_numbers_that_are_none_are_refused_by_turn() -> None:
    with pytest.raises(ModelError, match="turn 2 has no action tokens"):
        turn_advantages([[-1.0], []], [[-1.0], []])
    with pytest.raises(ModelError, match="turn 1: the reference gave a log-prob that is no finite"):
        turn_advantages([[-1.0]], [[math.nan]])
    with pytest.raises(ModelError, match="not read the same tokens"):
        turn_advantages([[-1.0]], [[-1.0, -2.0]])
