"""Agentic Monte Carlo on the toy world, whose posterior is known: properties A1 to A11."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnbench.agents import core
from turnbench.agents.amc import AMC, STRIP, Cloud
from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.agents.model import Answer, Prompt, ScriptedModel
from turnbench.agents.react import ReAct
from turnbench.agents.resampling import Weights, resampler
from turnbench.agents.rollout import Move, Rollout
from turnbench.agents.values import Computed, Constant, Value
from turnbench.envs import toy
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Failure, Outcome, Task, Trajectory
from turnbench.envs.toy import Array, Path, Toy, ToyMDP

BETA = 0.7
TASK = Task("turnbench/Toy-v0", "0")
FIXED = [1, 3]


DETERMINISTIC = ToyMDP.random(np.random.default_rng(16), deterministic=True)  # 12 paths, none rare
STOCHASTIC = ToyMDP.random(np.random.default_rng(5))
WORLDS = pytest.mark.parametrize("mdp", [DETERMINISTIC, STOCHASTIC], ids=["det", "stoch"])


class Lucky(Toy):
    """A toy world in which every copy has luck of its own, as the theory has it."""

    luck = np.random.default_rng(0)

    @property
    def rng(self) -> np.random.Generator:
        return self.luck


class Drawn:
    """A policy by table, [S, A], that asks no model."""

    def __init__(self, mdp: ToyMDP, odds: Array) -> None:
        self.edges, self.mdp = np.cumsum(odds, axis=1), mdp

    def act(self, rollouts: Sequence[Rollout]) -> list[Move | Failure]:
        states = [r.env.state for r in rollouts]  # type: ignore[attr-defined]
        uniforms = np.array([r.rng.random() for r in rollouts])
        chosen = (uniforms[:, None] > self.edges[states]).sum(1)
        return [Move(self.mdp.actions[k]) for k in chosen]


def prior(mdp: ToyMDP) -> Array:
    return np.random.default_rng(11).dirichlet(np.ones(len(mdp.actions)), len(mdp.states))


def exact_value(mdp: ToyMDP, beta: float = BETA, noise: float = 0.0) -> Value:
    """The soft return of the whole episode; with noise it stands for a learned value."""
    soft = beta * toy.soft_values(mdp, prior(mdp), beta)
    soft = soft + noise * np.random.default_rng(2).normal(size=soft.shape)
    return Computed(lambda r: r.ret + soft[len(r.turns), r.env.state])  # type: ignore[attr-defined]


def random_value(mdp: ToyMDP) -> Value:
    return exact_value(mdp, noise=1.0)


VALUES: dict[str, Callable[[ToyMDP], Value]] = {
    "exact": exact_value,
    "learned": lambda mdp: exact_value(mdp, noise=0.3),
    "random": random_value,
    "constant": lambda mdp: Constant(),
}


def search(
    mdp: ToyMDP, value: Value, n: int, seed: int = 0, kind: type[AMC] = AMC, **options: Any
) -> Population:
    Lucky.luck = np.random.default_rng([seed, 1])
    agent = kind(ScriptedModel(lambda _: ""), n=n, value=value, beta=BETA, **options)
    agent.policy = Drawn(mdp, prior(mdp))  # type: ignore[assignment]
    return agent.solve(Lucky(mdp=mdp), TASK, np.random.default_rng(seed))


def states_of(mdp: ToyMDP, seen: Sequence[str]) -> tuple[int, ...]:
    return tuple(toy.understand(mdp, observation)[1] for observation in seen)


def distance(mdp: ToyMDP, population: Population) -> float:
    """Total variation between the weighted particles and the exact posterior, over state paths."""
    paths = toy.enumerate_paths(mdp, prior(mdp))
    difference: Counter[tuple[int, ...]] = Counter()
    for path, probability in zip(paths, toy.posterior(paths, BETA), strict=True):
        difference[path.states] += probability
    weights = Weights(population.log_weights).normalised
    for weight, found in zip(weights, population.trajectories, strict=True):
        seen = [turn.observation for turn in found.turns] + [found.final]
        difference[states_of(mdp, seen)] -= weight
    return sum(map(abs, difference.values())) / 2


# --- A1 to A3: values and increments ----------------------------------------------------------------


@WORLDS
def test_a1_the_soft_value_of_the_start_is_the_evidence(mdp: ToyMDP) -> None:
    paths = toy.enumerate_paths(mdp, prior(mdp))
    log_z = math.log(math.fsum(p.probability * math.exp(p.ret / BETA) for p in paths))
    assert toy.log_evidence(mdp, prior(mdp), BETA) == pytest.approx(log_z, abs=1e-10)


@WORLDS
@pytest.mark.parametrize("value", VALUES)
def test_a2_increments_of_any_value_sum_to_the_return(mdp: ToyMDP, value: str) -> None:
    for seed in range(20):
        path = search(mdp, VALUES[value](mdp), 1, seed, resample_at="every")
        assert path.log_evidence == pytest.approx(path.best.ret / BETA, abs=1e-10)


@WORLDS
def test_a3_exact_increments_have_mean_one(mdp: ToyMDP) -> None:
    value = toy.with_reward(mdp, toy.soft_values(mdp, prior(mdp), BETA), BETA)
    paid = np.where(np.arange(mdp.horizon)[:, None] > 0, mdp.rewards / BETA, 0)
    odds = np.einsum("sa,sat->st", prior(mdp), mdp.transitions)
    for turn, state in itertools.product(range(mdp.horizon), np.flatnonzero(~mdp.terminal)):
        increments = np.exp(value[turn + 1] - value[turn, state] + paid[turn, state])
        assert odds[state] @ increments == pytest.approx(1, abs=1e-12)


# --- A4 to A6: the population is a posterior sample -------------------------------------------------


@WORLDS
@pytest.mark.parametrize("value", VALUES)
def test_a4_weighted_particles_converge_to_the_posterior(mdp: ToyMDP, value: str) -> None:
    many = distance(mdp, search(mdp, VALUES[value](mdp), 2500, resample_at=FIXED))
    few = [distance(mdp, search(mdp, VALUES[value](mdp), 25, s, resample_at=FIXED)) for s in range(12)]
    assert many < 0.14  # .05 at N = 20,000
    assert 5 < np.mean(few) / many < 20  # the square root of 100 in the mean


@WORLDS
@pytest.mark.parametrize("value", VALUES)
def test_a4_the_evidence_is_unbiased(mdp: ToyMDP, value: str) -> None:
    estimated = [
        math.exp(search(mdp, VALUES[value](mdp), 10, seed, resample_at=FIXED).log_evidence or 0)
        for seed in range(200)
    ]
    exact = math.exp(toy.log_evidence(mdp, prior(mdp), BETA))
    error = np.std(estimated) / math.sqrt(len(estimated))
    assert abs(np.mean(estimated) - exact) < 3.5 * error
    assert error < 0.2 * exact


@pytest.mark.parametrize("scheme", ["residual", "stratified", "systematic"])
def test_a4_holds_for_every_scheme(scheme: str) -> None:
    options = {"resample_at": FIXED, "resampling": scheme}
    assert distance(STOCHASTIC, search(STOCHASTIC, exact_value(STOCHASTIC), 2500, **options)) < 0.1


def test_a4_breaks_without_the_final_weighting() -> None:
    class Unweighted(AMC):
        def _weigh(self, cloud: Cloud) -> None:
            if cloud.live:
                super()._weigh(cloud)

    found = search(DETERMINISTIC, random_value(DETERMINISTIC), 2500, kind=Unweighted, resample_at=FIXED)
    assert distance(DETERMINISTIC, found) > 0.15


@WORLDS
def test_a5_weights_do_not_depend_on_when_the_value_was_asked(mdp: ToyMDP) -> None:
    asked: list[int] = []
    inner = random_value(mdp)
    value = Computed(lambda r: (asked.append(len(r.turns)), inner.returns([r])[0])[1])
    often = search(mdp, value, 40, resample_at="ess", ess_below=1e-6)
    assert asked
    asked.clear()
    once = search(mdp, value, 40, resample_at=[])
    assert not asked  # every particle had ended when it was weighed
    assert played(often) == played(once)
    assert often.log_weights == pytest.approx(once.log_weights, abs=1e-9)
    assert often.log_evidence == pytest.approx(once.log_evidence, abs=1e-9)


def test_a6_ess_keeps_the_weights_it_has_gathered() -> None:
    class Forgetful(AMC):
        """The released code's rule: a check without resampling forgets the weights so far."""

        def _weigh(self, cloud: Cloud) -> None:
            cloud.weights = Weights.uniform(self.n)
            super()._weigh(cloud)

    options = {"resample_at": "ess", "ess_below": 0.7}
    value = random_value(DETERMINISTIC)
    right = search(DETERMINISTIC, value, 2500, **options)
    assert right.resamplings
    assert distance(DETERMINISTIC, right) < 0.05
    assert distance(DETERMINISTIC, search(DETERMINISTIC, value, 2500, kind=Forgetful, **options)) > 0.15


# --- A7 and A8: limits ------------------------------------------------------------------------------


def weights_for(successes: Sequence[float]) -> Weights:
    """Weights of particles that succeed with these probabilities, by the perfect value at beta 1."""
    return Weights(tuple(math.log(1 + p * (math.e - 1)) for p in successes))


def test_a7_resampling_by_a_perfect_value_raises_the_mean_reward() -> None:
    rng = np.random.default_rng(0)
    for p in rng.random((50, 6)):
        after = float(weights_for(p).normalised @ p)
        closed = ((math.e - 1) * (p**2).sum() + p.sum()) / ((math.e - 1) * p.sum() + len(p))
        assert after == pytest.approx(closed)
        assert after >= p.mean()


def test_a7_but_the_maximum_can_go_down() -> None:
    weights = weights_for([1, 0])
    assert weights.normalised == pytest.approx([0.731, 0.269], abs=5e-4)
    rng, draw = np.random.default_rng(0), resampler("multinomial")
    kept = np.mean([0 in draw(weights.normalised, rng) for _ in range(20_000)])
    assert kept == pytest.approx(0.928, abs=0.006)  # best-of-2 is certain of it


def scripted(mdp: ToyMDP) -> ScriptedModel:
    odds = prior(mdp)

    def answer(prompt: Prompt) -> str:
        _, state = toy.understand(mdp, prompt.messages[-1].content)
        return mdp.actions[
            int(np.random.default_rng(prompt.seed).choice(len(mdp.actions), p=odds[state]))
        ]

    return ScriptedModel(answer)


def test_a8_without_tilt_it_is_best_of_n() -> None:
    world = Toy(mdp=DETERMINISTIC)
    options = {"beta": math.inf, "resampling": "systematic", "resample_at": FIXED}
    value = random_value(DETERMINISTIC)
    found = AMC(scripted(DETERMINISTIC), n=6, value=value, select="oracle", **options).solve(  # type: ignore[arg-type]
        world, TASK, np.random.default_rng(1)
    )
    other = BestOfN(scripted(DETERMINISTIC), n=6).solve(world, TASK, np.random.default_rng(1))
    assert played(found) == played(other)
    assert set(found.log_weights) == {0.0}
    assert (found.chosen, found.log_evidence) == (other.chosen, 0)


def test_a8_one_particle_is_react() -> None:
    world = Toy(mdp=STOCHASTIC)
    one = AMC(scripted(STOCHASTIC), n=1, value=random_value(STOCHASTIC), resample_at="every")
    for seed in range(5):
        plain = ReAct(scripted(STOCHASTIC)).solve(world, TASK, np.random.default_rng(seed))
        assert played(one.solve(world, TASK, np.random.default_rng(seed))) == played(plain)


def test_a8_a_constant_value_without_resampling_weighs_by_the_return() -> None:
    world = Toy("stochastic")
    found = AMC(scripted(world.mdp), n=20, beta=BETA, resample_at=[])
    population = found.solve(world, TASK, np.random.default_rng(0))
    assert population.log_weights == pytest.approx([t.ret / BETA for t in population.trajectories])
    assert len(set(population.log_weights)) > 1


def played(population: Population) -> list[Trajectory]:
    """The paths without the values noted beside them."""
    return [replace(path, info={}) for path in population.trajectories]


def test_the_values_at_weightings_are_noted_under_the_turns() -> None:
    value = Computed(lambda r: 10 * len(r.turns) + r.ret)
    found = search(STOCHASTIC, value, 6, resample_at=[1, 3], rewards="estimated")
    assert found.discarded
    for path in found.trajectories + found.discarded:
        for k, number in enumerate(path.info["turn_scores"][STRIP], start=1):
            wanted = 10 * k + sum(turn.reward for turn in path.turns[:k])
            asked = k in (1, 3) or k == len(path.turns)
            assert number == pytest.approx(wanted, rel=1e-5) if asked else number is None


# --- A9: copies are worlds of their own -------------------------------------------------------------


def replays(population: Population, mdp: ToyMDP) -> bool:
    """Whether every path, played again, shows what was recorded."""
    for path in population.trajectories + population.discarded:
        world = Toy(mdp=mdp)
        seen, _ = world.reset(seed=path.task.seed, options={"task": path.task.id})
        for turn in path.turns:
            if seen != turn.observation:
                return False
            seen, reward, *_ = world.step(turn.action)
            if reward != turn.reward:
                return False
        if seen != path.final:
            return False
    return True


def test_a9_copies_do_not_alias() -> None:
    rollout = Rollout.start(Toy(mdp=STOCHASTIC), TASK, np.random.default_rng(0))
    rollout.advance(Move("door 0"))
    one, two = rollout.fork(), rollout.fork()
    for action in ("door 1", "door 0"):
        one.advance(Move(action))
    assert len(rollout.turns) == len(two.turns) == len(rollout.env.history) == 1
    for action in ("door 1", "door 0"):
        two.advance(Move(action))
        rollout.advance(Move(action))
    assert one.finish() == two.finish() == rollout.finish()
    assert one.rng.random() != two.rng.random()


def test_a9_every_path_replays_and_aliasing_copies_would_not() -> None:
    class Aliasing(Toy):
        def fork(self) -> "Aliasing":
            return self

    def solve(world: Toy) -> Population:
        agent = AMC(scripted(STOCHASTIC), n=12, value=exact_value(STOCHASTIC), resample_at="every")
        return agent.solve(world, TASK, np.random.default_rng(4))

    assert replays(solve(Toy(mdp=STOCHASTIC)), STOCHASTIC)
    try:
        aliased = solve(Aliasing(mdp=STOCHASTIC))
    except Exception:
        return
    assert not replays(aliased, STOCHASTIC)


# --- A11: what the posterior is ---------------------------------------------------------------------


def test_a11_the_posterior_is_the_kl_optimal_law_only_without_luck() -> None:
    for mdp, alike in ((DETERMINISTIC, True), (STOCHASTIC, False)):
        paths = toy.enumerate_paths(mdp, prior(mdp))
        best = toy.soft_optimum(mdp, prior(mdp), BETA).policy
        law = np.array([law_of(mdp, best, path) for path in paths])
        assert law.sum() == pytest.approx(1)
        apart = abs(law - toy.posterior(paths, BETA)).sum() / 2
        assert apart < 1e-12 if alike else apart > 0.01


def law_of(mdp: ToyMDP, policy: Array, path: Path) -> float:
    steps = zip(path.states, path.actions, path.states[1:], strict=False)
    odds = (policy[t, s, a] * mdp.transitions[s, a, then] for t, (s, a, then) in enumerate(steps))
    return math.prod(float(p) for p in odds)


# --- failures ---------------------------------------------------------------------------------------


def failing(mdp: ToyMDP, share: float, outcome: Outcome = Outcome.INFRA_ERROR) -> ScriptedModel:
    model = scripted(mdp)

    def answer(prompt: Prompt) -> str | Answer:
        if np.random.default_rng([prompt.seed, 7]).random() < share:
            return Failure(outcome, "no answer")
        return model.answer(prompt)

    return ScriptedModel(answer)


def test_failed_particles_are_dropped_with_their_cause() -> None:
    world, value = Toy(mdp=DETERMINISTIC), random_value(DETERMINISTIC)
    agent = AMC(failing(DETERMINISTIC, 0.2), n=12, value=value, beta=BETA, resample_at=[])
    found = agent.solve(world, TASK, np.random.default_rng(2))
    lost = [path.missing for path in found.trajectories]
    assert 0 < sum(lost) < 12
    for path, gone, weight in zip(found.trajectories, lost, found.log_weights, strict=True):
        assert weight == (-math.inf if gone else pytest.approx(path.ret / BETA))
        assert path.failure == ("no answer" if gone else None)
    left = [math.exp(p.ret / BETA) for p in found.trajectories if not p.missing]
    assert found.log_evidence == pytest.approx(math.log(np.mean(left)))
    assert not found.best.missing


def test_the_evidence_survives_failures() -> None:
    agent = AMC(
        failing(DETERMINISTIC, 0.15),
        n=20,
        value=random_value(DETERMINISTIC),
        beta=BETA,
        resample_at=FIXED,
    )
    world = Toy(mdp=DETERMINISTIC)
    runs = [agent.solve(world, TASK, np.random.default_rng(s)) for s in range(100)]
    estimated = [math.exp(run.log_evidence) for run in runs if run.log_evidence is not None]
    exact = math.exp(toy.log_evidence(DETERMINISTIC, prior(DETERMINISTIC), BETA))
    assert sum(p.missing for run in runs for p in run.trajectories) > 60
    assert abs(np.mean(estimated) - exact) < 4 * np.std(estimated) / math.sqrt(len(estimated))


def test_when_all_particles_fail_the_population_says_why() -> None:
    agent = AMC(failing(DETERMINISTIC, 1.0), n=4, resample_at="every")
    found = agent.solve(Toy(mdp=DETERMINISTIC), TASK, np.random.default_rng(0))
    assert found.best.outcome is Outcome.INFRA_ERROR
    assert found.log_evidence is None
    assert population_from_json(population_to_json(found)) == found


def test_a_path_cut_short_by_a_limit_counts_as_it_stands() -> None:
    agent = AMC(failing(DETERMINISTIC, 0.2, Outcome.TRUNCATED), n=12, beta=BETA, resample_at=[])
    found = agent.solve(Toy(mdp=DETERMINISTIC), TASK, np.random.default_rng(2))
    assert any(path.failure for path in found.trajectories)
    assert found.log_weights == pytest.approx([path.ret / BETA for path in found.trajectories])


def test_a_copy_that_cannot_be_made_is_dropped() -> None:
    class Brittle(Toy):
        def fork(self) -> "Brittle":
            raise OSError("no space")

    agent = AMC(scripted(DETERMINISTIC), n=8, value=exact_value(DETERMINISTIC), resample_at=[1])
    found = agent.solve(Brittle(mdp=DETERMINISTIC), TASK, np.random.default_rng(0))
    parents = found.resamplings[0].parents
    copies = [parents[k] in parents[:k] for k in range(8)]
    assert [path.outcome is Outcome.ENV_ERROR for path in found.trajectories] == copies
    assert any(copies)
    assert not all(copies)


def test_worlds_are_closed_once_and_never_while_played_in() -> None:
    closed: Counter[int] = Counter()
    made: list[Toy] = []

    class Counted(Toy):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

        def fork(self) -> "Counted":
            made.append(super().fork())
            return made[-1]  # type: ignore[return-value]

        def step(self, action: str) -> Any:
            assert not closed[id(self)]
            return super().step(action)

        def close(self) -> None:
            closed[id(self)] += 1

    mine = Counted(mdp=STOCHASTIC)
    agent = AMC(scripted(STOCHASTIC), n=10, value=random_value(STOCHASTIC), resample_at="every")
    agent.solve(mine, TASK, np.random.default_rng(0))
    assert {closed[id(world)] for world in made if world is not mine} == {1}
    assert not closed[id(mine)]


# --- records, selectors, determinism ----------------------------------------------------------------


@pytest.mark.parametrize("resample_at", [FIXED, "every", "ess"])
def test_the_same_generator_gives_the_same_bytes(resample_at: Any) -> None:
    def run() -> str:
        agent = AMC(scripted(STOCHASTIC), n=8, value=random_value(STOCHASTIC), resample_at=resample_at)
        found = agent.solve(Toy(mdp=STOCHASTIC), TASK, np.random.default_rng(9))
        return json.dumps(population_to_json(found))

    assert run() == run()


def test_a_population_with_a_genealogy_survives_json() -> None:
    agent = AMC(failing(STOCHASTIC, 0.1), n=8, value=random_value(STOCHASTIC), resample_at="every")
    found = agent.solve(Toy(mdp=STOCHASTIC), TASK, np.random.default_rng(5))
    assert found.resamplings
    assert found.discarded
    row = json.loads(json.dumps(population_to_json(found), allow_nan=False))
    assert population_from_json(row) == found


def test_the_genealogy_tells_where_each_path_comes_from() -> None:
    found = search(STOCHASTIC, exact_value(STOCHASTIC), 12, resample_at=[2])
    (event,) = found.resamplings
    assert event.turn == 2
    heads = [path.turns[: event.turn] for path in found.trajectories]
    for one, other in itertools.combinations(range(12), 2):
        if event.parents[one] == event.parents[other]:
            assert heads[one] == heads[other]
    assert len(found.discarded) == 12 - len(set(event.parents))


def test_selectors_of_one_log() -> None:
    found = search(DETERMINISTIC, exact_value(DETERMINISTIC), 10, resample_at=[2])
    returns = np.array([path.ret for path in found.trajectories])
    weights = Weights(found.log_weights).normalised
    assert core.oracle_max(found) == returns.max()
    assert core.oracle_ever(found) == max(returns.max(), *(p.ret for p in found.discarded))
    assert core.top_k_mean(found, 5) == pytest.approx(np.sort(returns)[-5:].mean())
    assert core.top_k_mean(found, 99) == pytest.approx(returns.mean())
    assert core.max_weight(found) == returns[weights.argmax()]
    assert core.max_score(found) == returns[np.argmax(found.scores)]
    assert core.population_mean(found) == pytest.approx(weights @ returns)
    rng = np.random.default_rng(0)
    drawn = [core.sample_by_weight(found, rng) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(weights @ returns, abs=0.1)


def test_without_true_rewards_the_value_function_judges_ends_as_well() -> None:
    asked: list[bool] = []
    value = Computed(lambda r: (asked.append(r.over), 0.1 * len(r.turns))[1])
    options: dict[str, Any] = {"n": 6, "value": value, "resample_at": [2], "beta": 0.1}
    blind = AMC(scripted(DETERMINISTIC), rewards="estimated", select="max_value", **options)
    assert blind.privileges == ()
    found = blind.solve(Toy(mdp=DETERMINISTIC), TASK, np.random.default_rng(0))
    assert any(asked)
    assert found.scores == pytest.approx([0.1 * len(path.turns) for path in found.trajectories])
    assert found.chosen == int(np.argmax(found.scores))
    assert found.log_evidence is None  # it would be that of the estimates
    assert AMC(scripted(DETERMINISTIC), **options).privileges == ("oracle",)


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0"),
        ({"beta": 0.0}, "beta above 0"),
        ({"beta": math.nan}, "beta above 0"),
        ({"ess_below": 0.0}, "ess_below"),
        ({"select": "best"}, "max_weight"),
        ({"rewards": "no"}, "estimated"),
        ({"resample_at": "sometimes"}, "every, ess or null"),
        ({"resample_at": [0]}, "every, ess or null"),
        ({"resample_at": [1.5]}, "every, ess or null"),
        ({"resampling": "roulette"}, "multinomial"),
        ({"value": "oracel"}, "value function"),
        ({"value": {"model": {}}}, "needs the key 'value'"),
        ({"value": {"value": "constant", "depth": 3}}, "depth"),
    ],
)
def test_wrong_options_are_refused_when_the_agent_is_made(options: Any, message: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=message):
        AMC(ScriptedModel(lambda _: ""), **options)


def refused(message: str, world: Toy | None = None, **options: Any) -> None:
    """The agent refuses the world before its model is asked."""
    model = ScriptedModel(lambda _: pytest.fail("the model was asked"))
    with pytest.raises(ConfigError, match=message):
        AMC(model, **options).solve(world or Toy(), TASK, np.random.default_rng(0))


def test_a_schedule_past_the_horizon_is_refused() -> None:
    refused(r"resample_at is \[3, 20\], but an episode .* has 20 turns", resample_at=[3, 20])


def test_a_world_that_cannot_be_copied_is_refused() -> None:
    class Stuck(Toy):
        can_fork = False

    refused("can't be forked", Stuck())
    alone = AMC(scripted(Stuck().mdp), n=1).solve(Stuck(), TASK, np.random.default_rng(0))
    assert len(alone.trajectories) == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_an_error_that_names_the_function(number: float) -> None:
    agent = AMC(scripted(DETERMINISTIC), n=3, value=Computed(lambda _: number), resample_at=[1])
    with pytest.raises(ConfigError, match="value function 'computed' returned"):
        agent.solve(Toy(mdp=DETERMINISTIC), TASK, np.random.default_rng(0))


def test_a_beta_too_small_for_the_returns_is_an_error() -> None:
    value = Computed(lambda r: -1.0)
    agent = AMC(scripted(DETERMINISTIC), n=3, value=value, resample_at=[1], beta=1e-310)
    with pytest.raises(ConfigError, match="too small"):
        agent.solve(Toy(mdp=DETERMINISTIC), TASK, np.random.default_rng(0))
