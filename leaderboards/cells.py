"""Cell: what one system did in one environment, counted from a run's episodes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from turnbench.agents import core
from turnbench.agents.core import Population
from turnbench.envs.core import mix
from turnbench.envs.record import Usage
from turnbench.leaderboards.log import Episode

T = TypeVar("T")


class ByTask(defaultdict[str, dict[int, T]], Generic[T]):
    """One value an episode, by task and seed."""

    def __init__(self) -> None:
        super().__init__(dict)

    def lists(self) -> dict[str, list[T]]:
        """Each task's values in the order of their seeds."""
        return {task: [of[seed] for seed in sorted(of)] for task, of in self.items()}


@dataclass(slots=True)
class Cell:
    """What one system did in one environment. Episodes that are missing are counted, not scored."""

    scores: ByTask[float] = field(default_factory=ByTask)
    successes: ByTask[bool | None] = field(default_factory=ByTask)
    selectors: dict[str, ByTask[float]] = field(default_factory=lambda: defaultdict(ByTask))
    checks: dict[str, ByTask[float]] = field(default_factory=lambda: defaultdict(ByTask))
    outcomes: Counter[str] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    lost_paths: int = 0
    privileges: set[str] = field(default_factory=set)
    usage: Usage = Usage()
    seconds: float = 0.0

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        best, population = episode.population.best, episode.population
        self.outcomes[episode.outcome] += 1
        self.usage += population.usage
        self.seconds += episode.seconds
        self.privileges.update(episode.privileges)
        self.lost_paths += sum(path.missing for path in population.trajectories)
        if best.missing:
            return
        task, seed = best.task.id, best.task.seed
        self.scores[task][seed] = best.ret
        self.successes[task][seed] = best.success
        self.turns.append(len(best.turns))
        for name, value in numbers(best.info.get("checks")).items():
            self.checks[name][task][seed] = value
        if len(population.trajectories) > 1:
            for name, select in SELECTORS.items():
                with suppress(ValueError):  # only lost paths have weight: nothing to select from
                    self.selectors[name][task][seed] = select(population, episode)

    @property
    def tells_success(self) -> bool:
        """Whether the world said of any episode if it was solved."""
        return any(s is not None for of_task in self.successes.values() for s in of_task.values())

    @property
    def wins(self) -> ByTask[bool]:
        """Whether each episode solved its task; what wasn't told was not solved."""
        wins: ByTask[bool] = ByTask()
        for task, of_task in self.successes.items():
            wins[task] = {seed: bool(success) for seed, success in of_task.items()}
        return wins


def numbers(checks: object) -> dict[str, float]:
    """The numbers, and yes or no as 1 or 0, among what a world checked at the end of an episode."""
    if not isinstance(checks, dict):
        return {}
    plain = {name: value for name, value in checks.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in plain.items() if -1e9 < value < 1e9}


Cells = dict[tuple[str, int], Cell]


def tally(episodes: Iterable[Episode]) -> Cells:
    """Every episode counted, by (system, index of the environment)."""
    cells: Cells = defaultdict(Cell)
    for episode in episodes:
        cells[episode.key.agent, episode.key.env].add(episode)
    return cells


def _sampled(population: Population, episode: Episode) -> float:
    rng = np.random.default_rng(mix(episode.key.seed, *episode.key[0::2]))
    return core.sample_by_weight(population, rng)


SELECTORS: dict[str, Callable[[Population, Episode], float]] = {
    "oracle_max": lambda population, _: core.oracle_max(population),
    "oracle_ever": lambda population, _: core.oracle_ever(population),
    "top_5_mean": lambda population, _: core.top_k_mean(population),
    "max_score": lambda population, _: core.max_score(population),
    "max_weight": lambda population, _: core.max_weight(population),
    "sample_by_weight": _sampled,
    "population_mean": lambda population, _: core.population_mean(population),
}
