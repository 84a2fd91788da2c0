"""The monitor: what it sees it writes down, and where it should it stops."""

import math

import numpy as np
import pytest

from turnbench.agents.model import ScriptedModel
from turnbench.agents.monitor import STOPPED, Monitor, first_below, running
from turnbench.agents.toy import toy_model
from turnbench.agents.turn_scores import TurnScorer
from turnbench.envs.errors import ConfigError, UnknownName, Unscored
from turnbench.envs.record import Outcome, Task, Usage
from turnbench.envs.toy import Toy, uniform

TASK = Task("turnbench/Toy-v0", "0", seed=5)
GAVE = {"wait": 1.0, "left": -5.0, "right": 0.5}


class ByAction(TurnScorer):
    name = "by action"

    def __init__(self) -> None:
        self.asked = 0

    def turns(self, paths):
        self.asked += len(paths)
        return [[GAVE[turn.action] for turn in path.turns] for path in paths]


def scripted(*actions: str) -> ScriptedModel:
    """Plays these in order, by the turns left that the observation tells."""
    return ScriptedModel(lambda p: actions[4 - int(p.messages[-1].content.split("Turns left: ")[1][0])])


def solve(agent: Monitor):
    return agent.solve(Toy(), TASK, np.random.default_rng(0))


def test_running_scores_and_the_first_below() -> None:
    assert running([1.0, 3.0, -1.0], "mean") == [1, 2, 1] and running([2.0, 1.0], "min") == [2, 1]
    assert first_below([-1, 0, -1], 0, after=2) == 2 and first_below([0, 0], 0) is None


def test_a_low_turn_is_flagged_and_the_episode_goes_on() -> None:
    agent = Monitor(scripted("wait", "left", "wait", "wait"), watch=ByAction(), threshold=-1.0)
    path = solve(agent).best
    assert len(path.turns) == 4 and path.outcome is Outcome.OK
    assert path.info["monitor"] == {"threshold": -1.0, "flagged_at": 2}
    assert path.info["turn_scores"] == {"monitor: by action": [1.0, -2.0, -1.0, -0.5]}


def test_a_low_turn_stops_the_episode() -> None:
    agent = Monitor(
        scripted("wait", "left", "wait", "wait"), watch=ByAction(), threshold=-1, on_low="stop"
    )
    path = solve(agent).best
    assert len(path.turns) == 2 and path.outcome is Outcome.TRUNCATED
    assert STOPPED in path.failure and "by action -2 is below -1" in path.failure
    assert path.info["monitor"]["flagged_at"] == 2 and path.success is False


def test_a_good_episode_is_left_alone_by_both() -> None:
    for on_low in ("flag", "stop"):
        agent = Monitor(scripted(*["right"] * 4), watch=ByAction(), threshold=-1, on_low=on_low)
        path = solve(agent).best
        assert path.success and path.info["monitor"]["flagged_at"] is None


def test_best_of_n_can_be_watched() -> None:
    agent = Monitor(
        scripted("wait", "left", "wait", "wait"),
        watch=ByAction(),
        threshold=-1,
        watched="best_of_n",
        on_low="stop",
        n=3,
        scorer="random",
    )
    assert [len(p.turns) for p in solve(agent).trajectories] == [2, 2, 2]


class Doubts(TurnScorer):
    """Judges a path as it is, in one number at its last turn: lower with every turn. It costs."""

    name, turn = "doubts", "last"

    def __init__(self) -> None:
        self.usage = Usage()
        self.seen: list[int] = []

    def turns(self, paths):
        self.usage += Usage(len(paths), 10, 0, 1)
        self.seen += [len(path.turns) for path in paths]
        return [[math.nan] * (len(p.turns) - 1) + [-float(len(p.turns))] for p in paths]


@pytest.mark.parametrize("how", ["mean", "last"])
def test_flag_sees_what_stop_sees_and_when(how) -> None:
    """A turn keeps the number that it had as the last one, also where the scorer has none for it later."""
    at = {}
    for on_low in ("flag", "stop"):
        agent = Monitor(
            scripted(*["wait"] * 4), watch=Doubts(), threshold=-1.4, running=how, on_low=on_low, after=1
        )
        population = solve(agent)
        at[on_low] = population.best.info["monitor"]["flagged_at"]
        assert agent.watch.scorer.seen == list(range(1, len(population.best.turns) + 1))  # each once
        calls = len(population.best.turns)
        assert population.usage == Usage(calls, 10 * calls, 0, calls)
    assert at == {"flag": 2, "stop": 2}


def test_particles_that_branch_off_keep_the_numbers_of_their_past() -> None:
    agent = Monitor(
        toy_model(Toy().mdp, uniform(Toy().mdp)),
        watch=Doubts(),
        threshold=-9,
        watched="amc",
        n=4,
        value="collected",
    )
    for path in solve(agent).trajectories:
        scores = path.info["turn_scores"]["monitor: doubts"]
        assert scores == [-1.0, -1.5, -2.0, -2.5][: len(path.turns)]


class Lost(ByAction):
    """Loses the thread at `left`."""

    def turns(self, paths):
        if any(turn.action == "left" for path in paths for turn in path.turns):
            raise Unscored("left is no word of mine")
        return super().turns(paths)


@pytest.mark.parametrize("on_low", ["flag", "stop"])
def test_who_cant_be_scored_plays_on_and_says_so(on_low) -> None:
    agent = Monitor(scripted("wait", "left", "wait", "wait"), watch=Lost(), threshold=2, on_low=on_low)
    agent.watch.after = 2
    path = solve(agent).best
    assert len(path.turns) == 4 and path.outcome is Outcome.OK
    assert path.info["not_scored"] == "left is no word of mine" and "turn_scores" not in path.info
    assert path.info["monitor"]["flagged_at"] is None


def test_wrong_monitors_are_refused() -> None:
    model = scripted("wait")
    for options, why in (
        ({"watch": "return"}, "no oracle"),
        ({"watch": "random"}, "a number a turn"),
        ({"watch": ByAction(), "threshold": float("nan")}, "finite threshold"),
    ):
        with pytest.raises(ConfigError, match=why):
            Monitor(model, **{"threshold": 0.0, **options})
    with pytest.raises(UnknownName, match="style"):
        Monitor(model, watch=ByAction(), threshold=0, stile="plain")
    with pytest.raises(UnknownName, match="stop"):
        Monitor(model, watch=ByAction(), threshold=0, on_low="stopp")
