"""Populations and their selectors."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents import AGENTS, agent_class
from turnbench.agents.core import (
    Population,
    max_weight,
    oracle_max,
    population_mean,
    sample_by_weight,
)
from turnbench.envs.errors import UnknownName
from turnbench.envs.record import Outcome, Task, Trajectory, Turn

TASK = Task("e", "0")


def paths(*returns: float, missing: tuple[int, ...] = ()) -> tuple[Trajectory, ...]:
    return tuple(
        Trajectory(TASK, (Turn("o", "a", r),), "", Outcome.INFRA_ERROR if k in missing else Outcome.OK)
        for k, r in enumerate(returns)
    )


LOGS = st.floats(-800, 800) | st.just(-math.inf)


@given(st.lists(st.tuples(st.floats(-5, 5), LOGS), min_size=1, max_size=6), st.floats(-500, 500))
def test_selectors_know_weights_up_to_a_constant(rows, constant) -> None:
    returns, logs = zip(*rows, strict=True)
    population = Population(paths(*returns), log_weights=logs)
    shifted = Population(paths(*returns), log_weights=tuple(w + constant for w in logs))
    if max(logs) == -math.inf:
        for selector in (max_weight, population_mean):
            with pytest.raises(ValueError, match="no trajectory has weight"):
                selector(population)
        return
    assert population_mean(population) == pytest.approx(population_mean(shifted), abs=1e-6)
    assert oracle_max(population) == max(returns)
    heaviest = [r for r, w in rows if w >= max(logs) - 1e-9]
    assert max_weight(population) in heaviest
    assert min(returns) - 1e-9 <= population_mean(population) <= max(returns) + 1e-9


def test_population_mean_in_numbers() -> None:
    weights = tuple(math.log(w) for w in (1.0, 2.0, 5.0))
    assert population_mean(Population(paths(1.0, 4.0, 3.0), log_weights=weights)) == pytest.approx(3.0)
    assert population_mean(Population(paths(1.0, 4.0, 4.0))) == pytest.approx(3.0), "equal without any"


def test_paths_that_are_missing_are_left_out() -> None:
    population = Population(paths(9.0, 1.0, 3.0, missing=(0,)), log_weights=(5.0, 0.0, 0.0))
    assert oracle_max(population) == 3.0
    assert population_mean(population) == pytest.approx(2.0)
    assert max_weight(population) == 1.0, "the first of equals"
    assert {sample_by_weight(population, np.random.default_rng(k)) for k in range(30)} == {1.0, 3.0}


def test_sampling_follows_the_weights() -> None:
    population = Population(paths(0.0, 1.0), log_weights=(math.log(0.2), math.log(0.8)))
    rng = np.random.default_rng(0)
    mean = np.mean([sample_by_weight(population, rng) for _ in range(4000)])
    assert mean == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 4000))


@pytest.mark.parametrize(
    "wrong",
    [{"chosen": 2}, {"chosen": -1}, {"log_weights": (0.0,)}, {"scores": (1.0, 2.0, 3.0)}],
)
def test_impossible_populations_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="2 trajectories"):
        Population(paths(0.0, 1.0), **wrong)


def test_the_submitted_path() -> None:
    assert Population(paths(0.0, 1.0), chosen=1).best.ret == 1.0


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_found_by_name(name) -> None:
    assert agent_class(name) is agent_class(AGENTS[name]) and callable(agent_class(name).solve)


@pytest.mark.parametrize("name", ["reactt", "no_such_module:Agent", "math:Agent", "", ":", "react:"])
def test_unknown_agents_name_the_neighbours(name) -> None:
    with pytest.raises(UnknownName, match="react"):
        agent_class(name)
