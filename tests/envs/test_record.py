"""The record: JSON there and back loses nothing, token sequences are rebuilt as they were sampled."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.core import Population, failed, population_from_json, population_to_json
from turnbench.envs.errors import LogError
from turnbench.envs.record import (
    MISSING,
    Failure,
    Outcome,
    Task,
    Tokens,
    Trajectory,
    Turn,
    Usage,
    fields_to_json,
    trajectory_from_json,
    trajectory_to_json,
)

TEXT = st.text(max_size=20)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 10**6), max_size=5).map(tuple)
TASKS = st.builds(Task, TEXT, TEXT, TEXT, st.integers(0, 2**31 - 1))


@st.composite
def tokens(draw) -> Tokens:
    ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    logprobs = draw(st.lists(st.floats(-50, 0), min_size=len(ids), max_size=len(ids)))
    return Tokens(draw(st.integers(0, 9)), draw(IDS), tuple(ids), tuple(logprobs))


TURNS = st.builds(Turn, TEXT, TEXT, NUMBER, st.none() | TEXT, st.none() | tokens())
JSON = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | NUMBER | TEXT, max_size=3)
TRAJECTORIES = st.builds(
    Trajectory,
    TASKS,
    st.lists(TURNS, max_size=4).map(tuple),
    TEXT,
    st.sampled_from(Outcome),
    st.none() | TEXT,
    st.none() | st.booleans(),
    JSON,
)
COUNT = st.integers(0, 10**9)
USAGES = st.builds(
    Usage,
    *(COUNT for _ in range(4)),
    st.none() | st.floats(0, 1e6),
    *(COUNT for _ in range(3)),
)


def through_json(row):
    return json.loads(json.dumps(row, allow_nan=False, ensure_ascii=False))


@given(TRAJECTORIES)
def test_trajectory_json_round_trip(path) -> None:
    assert trajectory_from_json(through_json(trajectory_to_json(path)), path.task) == path


@given(st.lists(TRAJECTORIES, min_size=1, max_size=3), st.data())
def test_population_json_round_trip(paths, data) -> None:
    task = data.draw(TASKS)
    paths = tuple(
        Trajectory(task, p.turns, p.final, p.outcome, p.failure, p.success, p.info) for p in paths
    )
    score = NUMBER | st.just(-math.inf)
    scores = data.draw(st.just(()) | st.tuples(*(score for _ in paths)))
    weights = data.draw(st.just(()) | st.tuples(*(score for _ in paths)))
    chosen = data.draw(st.integers(0, len(paths) - 1))
    population = Population(paths, chosen, weights, scores, data.draw(USAGES))
    assert population_from_json(through_json(population_to_json(population))) == population


@given(TASKS, USAGES)
def test_flat_records_round_trip(task, usage) -> None:
    assert Task(**through_json(fields_to_json(task))) == task
    assert Usage(**through_json(fields_to_json(usage))) == usage


def test_json_leaves_defaults_out() -> None:
    turn, path = (
        Turn("o", "a", 1.0),
        Trajectory(Task("e", "0"), (Turn("o", "a", 1.0),), "end", Outcome.OK),
    )
    assert trajectory_to_json(path) == {
        "outcome": "ok",
        "turns": [{"obs": "o", "act": "a", "rew": 1.0}],
        "final": "end",
    }
    assert turn.text == "a" and Turn("o", "a", 0.0, "Thought: x").text == "Thought: x"


@given(st.data())
def test_sequences_are_rebuilt_from_what_was_kept(data) -> None:
    """Prompts that extend the last sequence, cut it anywhere, or share nothing with it."""
    whole: tuple[int, ...] = ()
    wanted, turns = [], []
    for _ in range(data.draw(st.integers(0, 5))):
        keep = data.draw(st.integers(0, len(whole)))
        prompt, ids = data.draw(IDS), data.draw(IDS)
        wanted.append((whole[:keep] + prompt, ids))
        turns.append(Turn("o", "a", 0.0, None, Tokens(keep, prompt, ids, (0.0,) * len(ids))))
        whole = whole[:keep] + prompt + ids
    assert Trajectory(Task("e", "0"), tuple(turns), "", Outcome.OK).sequences() == wanted


def test_a_turn_without_tokens_has_no_sequence() -> None:
    with pytest.raises(LogError, match="turn 0 of task 7"):
        Trajectory(Task("e", "7"), (Turn("o", "a", 0.0),), "", Outcome.OK).sequences()


@given(st.lists(st.floats(-1e300, 1e300), max_size=6))
def test_return_is_the_exact_sum_of_rewards(rewards) -> None:
    turns = tuple(Turn("", "", reward) for reward in rewards)
    path = Trajectory(Task("e", "0"), turns, "", Outcome.OK)
    assert path.ret == math.fsum(rewards)


@pytest.mark.parametrize("outcome", Outcome)
def test_what_is_missing_says_nothing_about_the_agent(outcome) -> None:
    missing = outcome in (Outcome.ENV_ERROR, Outcome.INFRA_ERROR)
    assert Trajectory(Task("e", "0"), (), "", outcome).missing == missing == (outcome in MISSING)


@given(USAGES, USAGES, USAGES)
def test_usage_adds_up(a, b, c) -> None:
    left, right = (a + b) + c, a + (b + c)
    assert (
        left.prompt_tokens == right.prompt_tokens == a.prompt_tokens + b.prompt_tokens + c.prompt_tokens
    )
    assert left.forks == right.forks and a + Usage() == a
    unknown = None in (a.cost, b.cost, c.cost)
    assert (left.cost is None) == unknown, "an unknown price stays unknown, it is never 0"
    assert unknown or left.cost == pytest.approx(a.cost + b.cost + c.cost)


def test_failures_are_one_bounded_line() -> None:
    failure = Failure.of(RuntimeError("first\nsecond\t third" + "x" * 1000), Outcome.INFRA_ERROR)
    assert failure.message.startswith("RuntimeError: first second third") and len(failure.message) == 500
    assert Failure.of(KeyError(), Outcome.ENV_ERROR).message == "KeyError: no message"


def test_a_failed_episode_is_a_population() -> None:
    task, failure = Task("e", "0"), Failure(Outcome.INFRA_ERROR, "server gone")
    population = failed(task, failure, Usage(3))
    assert population.best.missing and population.best.failure == "server gone"
    assert population.usage.model_calls == 3
    assert population_from_json(through_json(population_to_json(population))) == population
