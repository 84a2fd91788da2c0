"""Scorers: what they say, what they need, and that choosing by them means what it says."""

import math
from dataclasses import replace

import numpy as np
import pytest

from turnbench.agents.scorers import SCORERS, MeanLogprob, RandomScore, TrueReturn, make_scorer
from turnbench.envs.errors import ConfigError, UnknownName, Unscored
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn


def path(*turns: tuple[float, ...], reward: float = 0.0) -> Trajectory:
    """A path whose turns have these log-probs."""
    rows = [Turn("o", "a", reward, None, Tokens(0, (), (1,) * len(t), t)) for t in turns]
    return Trajectory(Task("e", "0"), tuple(rows), "", Outcome.OK)


RNG = np.random.default_rng


def test_true_return_is_an_oracle() -> None:
    assert TrueReturn().score([path((-1.0,), (-1.0,), reward=0.5), path()], RNG()) == [1.0, 0.0]
    assert [name for name, scorer in SCORERS.items() if scorer.oracle] == ["return"]


def test_mean_logprob_is_over_all_tokens_not_over_turns() -> None:
    scores = MeanLogprob().score([path((-1.0, -1.0, -4.0), (-2.0,)), path((-0.5,))], RNG())
    assert scores == [pytest.approx(-2.0), -0.5]


def test_mean_logprob_of_nothing_is_the_lowest() -> None:
    assert MeanLogprob().score([path()], RNG()) == [-math.inf]


def test_mean_logprob_needs_logprobs_of_every_turn() -> None:
    half = Trajectory(Task("e", "0"), (*path((-1.0,)).turns, Turn("o", "a", 0.0)), "", Outcome.OK)
    with pytest.raises(Unscored, match="turn 2 has no action tokens"):
        MeanLogprob().score([half], RNG())
    with pytest.raises(ConfigError, match="log-probs"):
        MeanLogprob().score([replace(half, turns=half.turns[1:])], RNG())


def test_random_scores_choose_blindly_and_repeatably() -> None:
    paths = [path() for _ in range(4)]
    assert RandomScore().score(paths, RNG(1)) == RandomScore().score(paths, RNG(1))
    rng = RNG(0)
    chosen = [int(np.argmax(RandomScore().score(paths, rng))) for _ in range(4000)]
    shares = np.bincount(chosen, minlength=4) / 4000
    assert np.abs(shares - 0.25).max() < 4 * math.sqrt(0.25 * 0.75 / 4000)


OPTIONS = {"judge": {"model": {"backend": "api", "model": "m", "base_url": "http://127.0.0.1:1/v1"}}}
OPTIONS |= dict.fromkeys(("entropy", "self_certainty"), {"policy": "FOLDER"})
OPTIONS |= {f"deepconf_{kind}": {"policy": "FOLDER"} for kind in ("bottom10", "lowest", "tail")}
OPTIONS |= {"progress": {"reference": "FOLDER"}, "prm": {"model": "FOLDER"}}
OPTIONS |= {"reward_model": {"model": "FOLDER"}}


@pytest.mark.parametrize("name", SCORERS)
def test_scorers_by_name(name) -> None:
    scorer = make_scorer({"scorer": name, **OPTIONS.get(name, {})})
    assert isinstance(scorer, SCORERS[name])
    if name not in OPTIONS:
        assert scorer.score([], RNG()) == make_scorer(name).score([], RNG()) == []


def test_scorers_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="needs the option 'reference'"):
        make_scorer("progress")
    with pytest.raises(UnknownName, match="reference"):
        make_scorer({"scorer": "progress", "refrence": "FOLDER"})
    with pytest.raises(ConfigError, match="its name"):
        make_scorer({"reference": "FOLDER"})


def test_unknown_scorers_name_the_neighbours() -> None:
    with pytest.raises(UnknownName, match="mean_logprob"):
        make_scorer("mean_logprobs")
