"""Agent: a way to solve a task; Population: what it returns; selectors: what can be made of that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple, Protocol

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.record import (
    Failure,
    Json,
    Task,
    Trajectory,
    Usage,
    fields_to_json,
    task_from_json,
    trajectory_from_json,
    trajectory_to_json,
    usage_from_json,
)


class Resampling(NamedTuple):
    """After `turn` turns particle k became a copy of particle `parents[k]`; the weights were these."""

    turn: int
    parents: tuple[int, ...]
    log_weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Population:
    """What an agent returns: paths, their log-weights (up to a constant), and the one it submits.

    `scores` holds the selecting scorer's numbers, one a path, where there was one. Search by
    resampling also tells its genealogy, the paths it gave up (as far as they went), its estimate of
    log E exp(return / beta), and how many value estimates had to be replaced by a fallback.
    """

    trajectories: tuple[Trajectory, ...]
    chosen: int = 0
    log_weights: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    usage: Usage = Usage()
    resamplings: tuple[Resampling, ...] = ()
    discarded: tuple[Trajectory, ...] = ()
    log_evidence: float | None = None
    fallbacks: int = 0

    def __post_init__(self) -> None:
        size = len(self.trajectories)
        if not 0 <= self.chosen < size:
            raise ValueError(f"chosen is {self.chosen}, but there are {size} trajectories")
        for name, values in (("log_weights", self.log_weights), ("scores", self.scores)):
            if values and len(values) != size:
                raise ValueError(f"{len(values)} {name} for {size} trajectories")
            if not all(value < math.inf for value in values):
                raise ValueError(f"{name} hold what is no number below infinity: {values}")

    @property
    def best(self) -> Trajectory:
        """The submitted trajectory."""
        return self.trajectories[self.chosen]


def population_to_json(population: Population) -> Json:
    """JSON object of a population; minus infinity becomes "-inf", as JSON has no such number."""
    row: Json = {
        "task": fields_to_json(population.best.task),
        "chosen": population.chosen,
        "trajectories": [trajectory_to_json(t) for t in population.trajectories],
        "log_weights": [_number(w) for w in population.log_weights],
        "scores": [_number(s) for s in population.scores],
        "usage": fields_to_json(population.usage),
    }
    if population.resamplings:
        row["resamplings"] = [
            [t, p, [_number(w) for w in logs]] for t, p, logs in population.resamplings
        ]
    if population.discarded:
        row["discarded"] = [trajectory_to_json(t) for t in population.discarded]
    if population.log_evidence is not None:
        row["log_evidence"] = _number(population.log_evidence)
    if population.fallbacks:
        row["fallbacks"] = population.fallbacks
    return row


def population_from_json(row: Json) -> Population:
    """Inverse of `population_to_json`. Raises LookupError, TypeError, ValueError for what is none."""
    task = task_from_json(row["task"])
    return Population(
        tuple(trajectory_from_json(t, task) for t in row["trajectories"]),
        index(row["chosen"]),
        _numbers(row["log_weights"]),
        _numbers(row["scores"]),
        usage_from_json(row["usage"]),
        tuple(
            Resampling(index(t), tuple(map(index, p)), _numbers(w))
            for t, p, w in row.get("resamplings", ())
        ),
        tuple(trajectory_from_json(t, task) for t in row.get("discarded", ())),
        float(row["log_evidence"]) if "log_evidence" in row else None,
        index(row.get("fallbacks", 0)),
    )


def _numbers(row: list[float | str]) -> tuple[float, ...]:
    return tuple(float(value) for value in row)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def failed(task: Task, failure: Failure, usage: Usage = Usage()) -> Population:
    """The population of an episode of which nothing is known but how it failed."""
    path = Trajectory(task, (), "", failure.outcome, failure.message)
    return Population((path,), usage=usage)


class Agent(Protocol):
    """A way to solve tasks. It is made anew for each episode, so it may keep state in between.

    `privileges` names what it used beyond playing: "oracle" (it saw true rewards before choosing).
    """

    privileges: tuple[str, ...]

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Play `task` in `env` and its copies, drawing only from `rng`."""
        ...


# --- selectors: numbers that one population answers for all --------------------------------------


def _weights(population: Population) -> np.ndarray[Any, np.dtype[np.float64]]:
    logs = np.array(population.log_weights or np.zeros(len(population.trajectories)))
    logs = np.where([t.missing for t in population.trajectories], -np.inf, logs)
    if np.all(np.isneginf(logs)):
        raise ValueError("no trajectory has weight")
    shifted = np.exp(logs - logs.max())
    return shifted / shifted.sum()  # type: ignore[no-any-return]


def _returns(population: Population) -> Sequence[float]:
    return [t.ret for t in population.trajectories]


def oracle_max(population: Population) -> float:
    """The highest true return of all paths: pass@N, and what AMC's tables report."""
    return top_k_mean(population, 1)


def top_k_mean(population: Population, k: int = 5) -> float:
    """The mean of the k highest true returns (AMC's table 12 has the top 5 of 15): an oracle."""
    highest = sorted((t.ret for t in population.trajectories if not t.missing), reverse=True)[:k]
    return math.fsum(highest) / len(highest)


def oracle_ever(population: Population) -> float:
    """The highest true return of all paths, those that resampling gave up included.

    AMC's published TextCraft figures are of this kind; without resampling it is `oracle_max`.
    """
    given_up = [t.ret for t in population.discarded if not t.missing]
    return max(oracle_max(population), *given_up) if given_up else oracle_max(population)


def max_weight(population: Population) -> float:
    """The return of the path with the largest weight (the first of equals)."""
    return _returns(population)[int(np.argmax(_weights(population)))]


def max_score(population: Population) -> float:
    """The return of the path with the highest score; of the submitted one where nothing was scored."""
    if not population.scores:
        return population.best.ret
    scores = np.where([t.missing for t in population.trajectories], -np.inf, population.scores)
    return _returns(population)[int(np.argmax(scores))]


def sample_by_weight(population: Population, rng: np.random.Generator) -> float:
    """The return of one path drawn by weight: a posterior sample."""
    weights = _weights(population)
    return _returns(population)[int(rng.choice(len(weights), p=weights))]


def population_mean(population: Population) -> float:
    """The weighted mean return: the posterior's expected return."""
    return float(_weights(population) @ np.array(_returns(population)))
