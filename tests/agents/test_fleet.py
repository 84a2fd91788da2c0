"""Fleet of Agents: what is recorded, what it weighs, and what is submitted."""

import math
from typing import Any

import numpy as np
import pytest

from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.agents.fleet import FLOOR, Fleet, Memory, Record
from turnbench.agents.model import Prompt, ScriptedModel
from turnbench.agents.rollout import Move, Rollout
from turnbench.agents.values import Computed
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Failure, Outcome, Task
from turnbench.envs.toy import Toy, corridor

TASK = Task("turnbench/Toy-v0", "0")
ACTIONS = corridor().actions


def walker(prompt: Prompt) -> str:
    return ACTIONS[prompt.seed % 3]


def room(rollout: Rollout) -> float:
    return rollout.env.state / 4  # type: ignore[attr-defined, no-any-return]


def solve(seed: int = 0, world: Toy | None = None, answer: Any = walker, **options: Any) -> Population:
    options = {"n": 8, "every": 1, "value": Computed(room)} | options
    agent = Fleet(ScriptedModel(answer), **options)
    return agent.solve(world or Toy("deterministic"), TASK, np.random.default_rng(seed))


def test_odds_are_value_times_decay_to_the_age_plus_a_floor() -> None:
    agent = Fleet(ScriptedModel(walker), value=Computed(room), decay=0.5)
    records = [Record(None, 0.8, 1), Record(None, 0.4, 3), Record(None, 0.2, 2)]  # type: ignore[arg-type]
    weights = np.array([0.8 * 0.25, 0.4, 0.2 * 0.5]) + FLOOR
    assert agent._odds(records, 3) == pytest.approx(weights / weights.sum())
    agent.weights = "linear_filtered"
    kept = np.array([0.8 * 0.25 + FLOOR, 0.4 + FLOOR, 0.0])
    assert agent._odds(records, 3) == pytest.approx(kept / kept.sum())


@pytest.mark.parametrize(("decay", "back"), [(1.0, True), (0.0, False)])
def test_the_fleet_goes_back_to_older_states(decay: float, back: bool) -> None:
    agent = Fleet(ScriptedModel(walker), value=Computed(room), decay=decay)
    old = Rollout.start(Toy(), TASK, np.random.default_rng(0))
    newer = old.fork()
    newer.advance(Move("right"))
    memory, fleet = Memory([Record(old, 1.0, 1)]), [newer.fork() for _ in range(200)]
    agent._draw(fleet, memory, 2, np.random.default_rng(0))
    returned = sum(not rollout.turns for rollout in fleet)
    assert returned / 200 == pytest.approx(agent._odds(memory.records, 2)[0], abs=0.02)
    assert (returned > 0) == back


def test_ended_agents_keep_their_places() -> None:
    """Places must tell nothing about how a path ended: equal weights take the first."""
    found = [[len(path.turns) for path in solve(seed, n=12).trajectories] for seed in range(10)]
    assert any(lengths != sorted(lengths) for lengths in found)


def test_a_copy_that_cannot_be_made_never_plays_in_its_parent() -> None:
    class Brittle(Toy):
        def fork(self) -> "Brittle":
            raise OSError("no space")

    found = solve(world=Brittle(), n=6, answer=lambda _: "wait")
    assert {path.outcome for path in found.trajectories} == {Outcome.ENV_ERROR}
    assert {len(path.turns) for path in found.trajectories} == {1}


def test_states_without_value_are_never_recorded() -> None:
    asked: list[float] = []
    value = Computed(lambda r: (asked.append(v := room(r) - 0.5), v)[1])
    found = solve(value=value, n=12)
    assert min(asked) <= 0 < max(asked)
    hopeless = [p for p in found.discarded if "room 1" in p.final or "room 2" in p.final]
    assert hopeless
    assert len(found.trajectories) == 12


def test_ended_agents_leave_the_fleet_and_stay_in_the_population() -> None:
    found = solve(n=20)
    ends = [path.outcome for path in found.trajectories]
    assert len(ends) == 20
    assert Outcome.OK in ends
    assert all(len(path.turns) <= 4 for path in found.trajectories)


def test_rounds_are_bounded_by_the_turns_of_an_episode() -> None:
    calls = 0

    def answer(prompt: Prompt) -> str:
        nonlocal calls
        calls += 1
        return "wait"

    found = solve(world=Toy(max_turns=3), answer=answer, n=5)
    assert calls <= 15
    assert {path.outcome for path in found.trajectories} == {Outcome.TRUNCATED}


def test_search_beats_blind_walking() -> None:
    def successes(**options: Any) -> float:
        runs = [solve(seed, **options).trajectories for seed in range(20)]
        return float(np.mean([path.ret for paths in runs for path in paths]))

    assert successes() > successes(value="constant") + 0.1


def test_submitted_is_the_highest_value_or_the_highest_return() -> None:
    contrary = Computed(lambda r: 1 - room(r) / 2)
    by_value, by_return = solve(value=contrary), solve(value=contrary, select="oracle")
    assert by_value.chosen == int(np.argmax(by_value.scores))
    returns = [path.ret for path in by_return.trajectories]
    assert by_return.best.ret == max(returns) > by_value.best.ret
    assert Fleet(ScriptedModel(walker), value=contrary, select="oracle").privileges == ("oracle",)  # type: ignore[arg-type]
    assert Fleet(ScriptedModel(walker), value=contrary).privileges == ()


def test_the_record_is_deterministic_and_survives_json() -> None:
    one, two = solve(3, n=10), solve(3, n=10)
    assert one == two
    assert one.discarded
    assert population_from_json(population_to_json(one)) == one


def test_failed_agents_leave_the_fleet() -> None:
    def answer(prompt: Prompt) -> Any:
        lost = prompt.seed % 5 == 0
        return Failure(Outcome.INFRA_ERROR, "no answer") if lost else walker(prompt)

    found = solve(answer=answer, n=12)
    gone = [path.missing for path in found.trajectories]
    assert any(gone)
    assert not found.best.missing
    assert [score == -math.inf for score in found.scores] == gone


def test_a_world_that_fails_to_start_is_a_failure() -> None:
    class Broken(Toy):
        def _reset(self, task: str) -> str:
            raise OSError("no disk")

    assert solve(world=Broken()).best.outcome is Outcome.ENV_ERROR


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0"),
        ({"every": 0}, "every 0"),
        ({"decay": 1.5}, "decay 1.5"),
        ({"weights": "squared"}, "linear_filtered"),
        ({"select": "weight"}, "oracle"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fleet(ScriptedModel(walker), value="constant", **options)


def test_a_world_that_cannot_be_copied_is_refused() -> None:
    class Stuck(Toy):
        can_fork = False

    with pytest.raises(ConfigError, match="can't be forked"):
        solve(world=Stuck())
