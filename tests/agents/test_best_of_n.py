"""Best-of-N on the toy world, where its law is known."""

import math

import numpy as np
import pytest

from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.model import Budget, Metered, ScriptedModel
from turnbench.agents.react import ReAct
from turnbench.agents.toy import toy_model
from turnbench.agents.turn_scores import TurnScorer
from turnbench.envs.errors import ConfigError, UnknownName, Unscored
from turnbench.envs.record import Failure, Outcome, Task
from turnbench.envs.toy import VARIANTS, Toy, enumerate_paths, uniform

MDP = VARIANTS["stochastic"]
TASK = Task("turnbench/Toy-v0", "0", seed=5)


def blind(**options) -> BestOfN:
    return BestOfN(toy_model(MDP, uniform(MDP)), **options)


def solve(agent, seed: int = 0):
    return agent.solve(Toy("stochastic"), TASK, np.random.default_rng(seed))


@pytest.mark.parametrize(("scorer", "power"), [("return", 4), ("random", 1)])
def test_success_is_one_minus_failure_to_the_n(scorer, power) -> None:
    """The deterministic world, so that paths of one task are independent given the policy."""
    mdp = VARIANTS["deterministic"]
    p = sum(path.probability for path in enumerate_paths(mdp, uniform(mdp)) if path.ret > 0)
    agent, rng, games = (
        BestOfN(toy_model(mdp, uniform(mdp)), n=4, scorer=scorer),
        np.random.default_rng(1),
        300,
    )
    wins = [agent.solve(Toy(), TASK, rng).best.ret for _ in range(games)]
    wanted = 1 - (1 - p) ** power
    assert np.mean(wins) == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / games))


def test_the_chosen_path_has_the_highest_score() -> None:
    for seed in range(20):
        population = solve(blind(n=5), seed)
        assert population.scores == tuple(path.ret for path in population.trajectories)
        assert population.scores[population.chosen] == max(population.scores)


def test_the_oracle_is_named() -> None:
    assert blind(n=2).privileges == ("oracle",)
    assert blind(n=2, scorer="random").privileges == blind(n=2, scorer="mean_logprob").privileges == ()


class Picky(TurnScorer):
    """Scores by the number of turns, and can't score those that begin with some action."""

    name = "picky"

    def __init__(self, *bad: str) -> None:
        self.bad = bad

    def turns(self, paths):
        if any(path.turns[0].action in self.bad for path in paths):
            raise Unscored("turn 1 is not to my taste")
        return [[1.0] * len(path.turns) for path in paths]


def test_a_path_that_cant_be_scored_costs_no_other_its_score() -> None:
    found = solve(blind(n=8, scorer=Picky("left")))
    bad = [path.turns[0].action == "left" for path in found.trajectories]
    assert any(bad) and not all(bad) and not bad[found.chosen]
    for path, score, is_bad in zip(found.trajectories, found.scores, bad, strict=True):
        assert score == (-math.inf if is_bad else 1.0)
        assert path.info.get("not_scored") == ("turn 1 is not to my taste" if is_bad else None)
        assert ("turn_scores" in path.info) is not is_bad


def test_a_pool_that_cant_be_scored_is_no_choice() -> None:
    with pytest.raises(Unscored, match="taste"):
        solve(blind(n=3, scorer=Picky("wait", "left", "right")))


def test_n_of_one_is_react() -> None:
    model = toy_model(MDP, uniform(MDP))
    for seed in range(10):
        one, react = solve(BestOfN(model, n=1), seed), solve(ReAct(model), seed)
        assert one.trajectories == react.trajectories


def test_every_turn_is_one_batch() -> None:
    batches = []

    class Counting(ScriptedModel):
        def generate(self, prompts, sampling=None):
            batches.append(len(prompts))
            return super().generate(prompts, sampling)

    BestOfN(Counting(lambda p: "wait"), n=6).solve(Toy(), TASK, np.random.default_rng(0))
    assert batches == [6, 6, 6, 6]


def test_paths_draw_their_own_luck() -> None:
    actions = {tuple(t.action for t in path.turns) for path in solve(blind(n=12)).trajectories}
    assert len(actions) > 6


def test_failed_paths_are_chosen_only_where_no_other_is_left() -> None:
    calls = iter(range(100))
    model = ScriptedModel(lambda p: Failure(Outcome.INFRA_ERROR, "busy") if next(calls) == 0 else "wait")
    population = BestOfN(model, n=3).solve(Toy(), TASK, np.random.default_rng(0))
    assert population.trajectories[0].missing and population.chosen == 1
    assert population.scores == (-math.inf, 0.0, 0.0)
    broken = ScriptedModel(lambda p: Failure(Outcome.INFRA_ERROR, "busy"))
    assert BestOfN(broken, n=3).solve(Toy(), TASK, np.random.default_rng(0)).best.missing


def test_a_budget_cuts_paths_and_not_the_episode() -> None:
    """Seven calls for three paths of four turns: the first two turns of all, then one."""
    meter = Metered(ScriptedModel(lambda p: "wait"), Budget(model_calls=7))
    population = BestOfN(meter, n=3).solve(Toy(), TASK, np.random.default_rng(0))
    assert [len(path.turns) for path in population.trajectories] == [3, 2, 2]
    assert {path.outcome for path in population.trajectories} == {Outcome.TIMEOUT}


def test_the_copies_are_closed_and_billed() -> None:
    closed = []

    class Closing(Toy):
        def close(self):
            closed.append(self)

    env = Closing("stochastic")
    population = blind(n=4).solve(env, TASK, np.random.default_rng(0))
    assert len(closed) == 3 and env not in closed
    assert env.counts.steps == sum(len(path.turns) for path in population.trajectories)


def test_a_scorer_may_be_ones_own() -> None:
    class Shortest:
        oracle = False

        def score(self, paths, rng):
            return [-len(path.turns) for path in paths]

    population = solve(blind(n=6, scorer=Shortest()))
    assert len(population.best.turns) == min(len(path.turns) for path in population.trajectories)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="n is 0"):
        blind(n=0)
    with pytest.raises(UnknownName, match="return"):
        blind(scorer="retrun")
    with pytest.raises(ConfigError, match="log-probs"):
        BestOfN(ScriptedModel(lambda p: "wait"), n=2, scorer="mean_logprob").solve(
            Toy(), TASK, np.random.default_rng(0)
        )
