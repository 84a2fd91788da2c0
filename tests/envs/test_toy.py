"""The toy world's dynamic programming against enumeration of its paths, and the identities of AMC
and Progress Advantage, on random worlds."""

import math

import numpy as np
import pytest

from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toy import (
    VARIANTS,
    Toy,
    ToyMDP,
    corridor,
    describe,
    enumerate_paths,
    log_evidence,
    posterior,
    soft_optimum,
    soft_values,
    understand,
    uniform,
    values,
    with_reward,
)

BETAS = (0.3, 1.0, 4.0)


def random_world(seed: int, deterministic: bool = False):
    """A world and a random policy for each turn in it."""
    rng = np.random.default_rng(seed)
    mdp = ToyMDP.random(rng, deterministic=deterministic)
    return mdp, rng.dirichlet(np.ones(len(mdp.actions)), (mdp.horizon, len(mdp.states)))


@pytest.fixture(params=[(s, d) for s in range(3) for d in (True, False)], ids=str)
def world(request):
    return random_world(*request.param)


def test_paths_are_a_distribution_without_repetition(world) -> None:
    mdp, policy = world
    paths = enumerate_paths(mdp, policy)
    assert math.fsum(path.probability for path in paths) == pytest.approx(1, abs=1e-12)
    assert len({(path.states, path.actions) for path in paths}) == len(paths)


def test_values_are_the_mean_return(world) -> None:
    mdp, policy = world
    for start in range(len(mdp.states) - 1):
        paths = enumerate_paths(mdp, policy, start)
        mean = math.fsum(path.probability * path.ret for path in paths)
        assert values(mdp, policy)[0, start] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_a1_soft_value_of_the_start_is_the_log_evidence(world, beta) -> None:
    mdp, policy = world
    paths = enumerate_paths(mdp, policy)
    z = math.fsum(path.probability * math.exp(path.ret / beta) for path in paths)
    assert log_evidence(mdp, policy, beta) == pytest.approx(math.log(z), abs=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_a1_recursion_with_the_reward_of_the_state_itself(world, beta) -> None:
    """V_t(s) = r(s)/beta + log E exp V_{t+1}(s'), and V is r/beta where the episode is over."""
    mdp, policy = world
    v = with_reward(mdp, soft_values(mdp, policy, beta), beta)
    for turn in range(1, mdp.horizon):
        odds = np.einsum("sa,sax->sx", policy[turn], mdp.transitions)
        onward = mdp.rewards / beta + np.log(odds @ np.exp(v[turn + 1]))
        wanted = np.where(mdp.terminal, mdp.rewards / beta, onward)
        np.testing.assert_allclose(v[turn], wanted, atol=1e-10)
    np.testing.assert_allclose(v[-1], mdp.rewards / beta)


@pytest.mark.parametrize("beta", BETAS)
def test_a2_log_increments_telescope_to_the_return(world, beta) -> None:
    """For any V that ends as r/beta, wrong ones too."""
    mdp, policy = world
    rng = np.random.default_rng(0)
    for path in enumerate_paths(mdp, policy)[:200]:
        v = rng.normal(size=len(path.states))
        v[-1] = path.rewards[-1] / beta
        paid = np.array([0.0, *path.rewards[:-1]])
        assert np.sum(np.diff(v) + paid / beta) == pytest.approx(path.ret / beta - v[0], abs=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_a3_exact_increments_have_mean_one(world, beta) -> None:
    mdp, policy = world
    v = with_reward(mdp, soft_values(mdp, policy, beta), beta)
    for turn in range(mdp.horizon):
        for state in np.flatnonzero(~mdp.terminal):
            odds = policy[turn, state] @ mdp.transitions[state]
            paid = mdp.rewards[state] / beta if turn else 0.0
            assert odds @ np.exp(v[turn + 1] - v[turn, state] + paid) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_posterior_is_the_reweighted_law(world, beta) -> None:
    mdp, policy = world
    paths = enumerate_paths(mdp, policy)
    evidence = log_evidence(mdp, policy, beta)
    direct = [path.probability * math.exp(path.ret / beta - evidence) for path in paths]
    np.testing.assert_allclose(posterior(paths, beta), direct, atol=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_a11_the_kl_optimal_law_is_the_posterior_only_without_luck(beta) -> None:
    for deterministic in (True, False):
        mdp, policy = random_world(3, deterministic)
        paths = enumerate_paths(mdp, policy)
        best = soft_optimum(mdp, policy, beta).policy
        law = {(p.states, p.actions): p.probability for p in enumerate_paths(mdp, best)}
        gap = posterior(paths, beta) - [law.get((p.states, p.actions), 0.0) for p in paths]
        distance = np.abs(gap).sum() / 2
        assert distance < 1e-10 if deterministic else distance > 0.01


@pytest.mark.parametrize("beta", BETAS)
def test_p1_progress_advantage_is_the_log_ratio(world, beta) -> None:
    mdp, reference = world
    best = soft_optimum(mdp, reference, beta)
    np.testing.assert_allclose(best.policy.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(beta * np.log(best.policy / reference), best.advantage, atol=1e-10)


@pytest.mark.parametrize("beta", BETAS)
def test_p1_the_optimum_cannot_be_bettered(world, beta) -> None:
    mdp, reference = world
    best = soft_optimum(mdp, reference, beta)
    top = regularised_return(mdp, best.policy, reference, beta)
    assert top == pytest.approx(best.v[0, 0], abs=1e-10)
    rng = np.random.default_rng(1)
    for _ in range(20):
        moved = best.policy * np.exp(rng.normal(scale=0.5, size=best.policy.shape))
        moved /= moved.sum(-1, keepdims=True)
        assert regularised_return(mdp, moved, reference, beta) < top


def regularised_return(mdp, policy, reference, beta) -> float:
    """E[return] - beta KL(policy || reference), by enumeration."""
    paths = enumerate_paths(mdp, policy)
    ratio = np.log(policy / reference)
    return math.fsum(
        p.probability * (p.ret - beta * sum(ratio[t, p.states[t], a] for t, a in enumerate(p.actions)))
        for p in paths
    )


@pytest.mark.parametrize("beta", BETAS)
def test_p2_means_of_the_advantage(world, beta) -> None:
    mdp, reference = world
    best = soft_optimum(mdp, reference, beta)
    a = best.advantage
    np.testing.assert_allclose((reference * np.exp(a / beta)).sum(-1), 1, atol=1e-10)
    kl = (best.policy * np.log(best.policy / reference)).sum(-1)
    np.testing.assert_allclose((best.policy * a).sum(-1), beta * kl, atol=1e-10)
    assert ((best.policy * a).sum(-1) >= -1e-12).all() and ((reference * a).sum(-1) <= 1e-12).all()


@pytest.mark.parametrize("beta", BETAS)
def test_p3_sum_of_advantages_is_the_return_without_luck(world, beta) -> None:
    mdp, reference = world
    best = soft_optimum(mdp, reference, beta)
    lucks, odds = [], []
    for path in enumerate_paths(mdp, reference):
        luck = advantages = 0.0
        for turn, action in enumerate(path.actions):
            state, after = path.states[turn], path.states[turn + 1]
            onward = 0.0 if mdp.terminal[after] else best.v[turn + 1, after]
            luck += best.q[turn, state, action] - mdp.rewards[after] - onward
            advantages += best.advantage[turn, state, action]
        assert advantages == pytest.approx(path.ret - best.v[0, path.states[0]] + luck, abs=1e-10)
        lucks.append(luck)
        odds.append(path.probability)
    assert np.dot(lucks, odds) == pytest.approx(0, abs=1e-10)
    assert mdp.deterministic == bool(np.allclose(lucks, 0, atol=1e-10))


def test_large_beta_forgets_rewards_and_small_beta_seeks_them() -> None:
    mdp = corridor()
    blind = uniform(mdp)
    np.testing.assert_allclose(
        soft_optimum(mdp, blind, 1e6).policy, soft_optimum(mdp, blind, 1e9).policy, atol=1e-6
    )
    assert soft_optimum(mdp, blind, 0.01).policy[0, 2].argmax() == mdp.actions.index("right")
    assert np.isfinite(soft_values(mdp, blind, 1e-3)).all()


# --- the world that plays it ------------------------------------------------------------------------


def test_corridor_under_blind_choice() -> None:
    """Room 2 of 0..4, 4 turns, left, right or wait: 12 of the 81 action rows reach room 4 first."""
    mdp = corridor()
    won = sum(p.probability for p in enumerate_paths(mdp, uniform(mdp)) if p.ret == 1)
    assert won == pytest.approx(values(mdp, uniform(mdp))[0, 2])
    rows = 3**4
    brute = 0
    for row in range(rows):
        room = 2
        for turn in range(4):
            if room not in (0, 4):
                room += (-1, 1, 0)[row // 3**turn % 3]
        brute += room == 4
    assert won == pytest.approx(brute / rows)


@pytest.mark.parametrize("variant", VARIANTS)
def test_played_frequencies_are_the_enumerated_probabilities(variant) -> None:
    """4000 games of right, right, wait, right: returns occur as often as the exact law says."""
    env, actions = Toy(variant), ("right", "right", "wait", "right")
    script = np.zeros((4, 5, 3))
    for turn, action in enumerate(actions):
        script[turn, :, env.mdp.actions.index(action)] = 1
    exact: dict[float, float] = {}
    for path in enumerate_paths(env.mdp, script, env.mdp.starts[1]):
        exact[round(path.ret, 6)] = exact.get(round(path.ret, 6), 0) + path.probability
    seen: dict[float, float] = {}
    games = 4000 if "stochastic" in variant else 5
    for seed in range(games):
        env.reset(seed=seed, options={"task": "1"})
        ret = 0.0
        for action in actions:
            if not env.over:
                ret += env.step(action)[1]
        seen[round(ret, 6)] = seen.get(round(ret, 6), 0) + 1 / games
    assert seen.keys() <= exact.keys()
    for ret, odds in exact.items():
        assert seen.get(ret, 0) == pytest.approx(
            odds, abs=4 * math.sqrt(odds * (1 - odds) / games) + 1e-9
        )


def test_observations_can_be_understood() -> None:
    for mdp in (*VARIANTS.values(), random_world(0)[0]):
        for left in range(mdp.horizon + 1):
            for state in range(len(mdp.states)):
                text = describe(mdp, state, left)
                assert understand(mdp, text) == (mdp.horizon - left, state)
                assert understand(mdp, f"That is no action. {text}") == (mdp.horizon - left, state)
    with pytest.raises(ValueError, match="no observation"):
        understand(corridor(), "You are lost.")


def test_what_is_no_action_costs_a_turn_and_moves_nobody() -> None:
    env = Toy("stochastic-shaped")
    env.reset(seed=0, options={"task": "2"})
    for turn in range(1, 5):
        seen, reward, terminated, truncated, _ = env.step("jump")
        assert "left, right, wait" in seen and seen.endswith(describe(env.mdp, 3, 4 - turn))
        assert (reward, terminated, truncated) == (0.0, turn == 4, False)


def test_fork_copies_the_luck_and_nothing_else() -> None:
    """Both go on with the same luck, and neither moves the other."""
    env = Toy(mdp=random_world(5)[0])
    for seed in range(20):
        env.reset(seed=seed, options={"task": "0"})
        env.step("door 0")
        twin = env.fork()
        ours = [env.step("door 1") for _ in range(3) if not env.over]
        theirs = [twin.step("door 1") for _ in range(3) if not twin.over]
        assert ours == theirs


def test_bad_worlds_are_refused() -> None:
    mdp = corridor()
    with pytest.raises(ConfigError, match="distribution"):
        ToyMDP(mdp.states, mdp.actions, mdp.transitions * 2, mdp.rewards, mdp.terminal, 4)
    with pytest.raises(ConfigError, match="shape"):
        ToyMDP(mdp.states, ("left",), mdp.transitions, mdp.rewards, mdp.terminal, 4)
    with pytest.raises(ConfigError, match="horizon"):
        ToyMDP(mdp.states, mdp.actions, mdp.transitions, mdp.rewards, mdp.terminal, 0)
    with pytest.raises(UnknownName, match="stochastic"):
        Toy("stochastics")
    with pytest.raises(UnknownName):
        Toy().reset(options={"task": "7"})
    with pytest.raises(UnknownName):
        Toy().tasks("dev")
