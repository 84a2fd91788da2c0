"""Audits of a log: what search must have cost, whether its genealogy holds, what leaked into prompts."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnbench.agents import AGENTS
from turnbench.agents.core import Population
from turnbench.envs.core import TextEnv
from turnbench.envs.record import Trajectory
from turnbench.leaderboards.log import Episode

MIN_ID = 6  # shorter task ids, and numbers, stand in any text by chance
MIN_LINE = 16
MOST_SOLVED = 50  # tasks of a world whose solutions are looked for: some worlds take a while to say them


def search_fault(episode: Episode, agent: str, has_model: bool) -> str | None:
    """What is impossible about a population: its bill, its weights or its genealogy."""
    population = episode.population
    return bill_fault(population, agent, has_model) or genealogy_fault(population)


def bill_fault(population: Population, agent: str, has_model: bool) -> str | None:
    """Whether less was billed than what the paths imply.

    Paths that share a beginning were played once, so each distinct beginning is at least one step; and
    at least one model call, if its last turn was written by a model. Turns of an agent that isn't
    shipped count only where they carry a completion or tokens: it may play some without asking.
    """
    steps: set[int] = set()
    asked: set[int] = set()
    written: dict[int, int] = {}
    for path in (*population.trajectories, *population.discarded):
        beginning = 0
        for turn in path.turns:
            beginning = hash((beginning, turn.action, turn.completion))
            steps.add(beginning)
            if has_model and (agent in AGENTS or turn.completion is not None or turn.tokens):
                asked.add(beginning)
            if turn.tokens is not None:
                written[beginning] = len(turn.tokens.ids)
    usage, tokens = population.usage, sum(written.values())
    for name, billed, implied in (
        ("environment steps", usage.env_steps, len(steps)),
        ("model calls", usage.model_calls, len(asked)),
        ("completion tokens", usage.completion_tokens, tokens),
    ):
        if billed < implied:
            return f"{billed} {name} are counted, but its paths imply at least {implied}"
    return None


def genealogy_fault(population: Population) -> str | None:
    """Whether resamplings fit the paths: copies share every turn up to where they were copied."""
    size = len(population.trajectories)
    ancestors = list(range(size))
    for point in reversed(population.resamplings):
        if len(point.parents) != size or len(point.log_weights) != size:
            return f"the resampling at turn {point.turn} isn't over {size} particles"
        if not all(0 <= parent < size for parent in point.parents):
            return f"the resampling at turn {point.turn} names a parent that isn't there"
        ancestors = [point.parents[a] for a in ancestors]
        families: dict[int, list[Trajectory]] = defaultdict(list)
        for path, ancestor in zip(population.trajectories, ancestors, strict=True):
            families[ancestor].append(path)
        for first, *others in families.values():
            if any(_beginning(path, point.turn) != _beginning(first, point.turn) for path in others):
                return f"copies made at turn {point.turn} differ before it"
    return None


def _beginning(path: Trajectory, turns: int) -> list[tuple[str, float]]:
    return [(turn.action, turn.reward) for turn in path.turns[:turns]]


class Openings:
    """Lines that only one task's first observation has: its goal, usually."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[str]] = defaultdict(set)

    def add(self, episode: Episode) -> None:
        """Note the first observation of an episode."""
        best = episode.population.best
        opening = best.turns[0].observation if best.turns else best.final
        for line in opening.splitlines():
            if len(line.strip()) >= MIN_LINE:
                self._tasks[line.strip()].add(f"{episode.key.env} {episode.key.task}")

    @property
    def telling(self) -> list[str]:
        """The lines that tell a task from all others (none where there is only one task)."""
        several = len(set().union(*self._tasks.values())) > 1 if self._tasks else False
        return [line for line, tasks in self._tasks.items() if len(tasks) == 1 and several]


def solutions(env: TextEnv, tasks: Sequence[str], seed: int) -> dict[str, tuple[str, ...]]:
    """What solves each of some tasks, evenly spread, where the world knows it at once."""
    found: dict[str, tuple[str, ...]] = {}
    if not env.quick_solution:
        return found
    for task in tasks[:: -(-len(tasks) // MOST_SOLVED)]:
        env.reset(seed=seed, options={"task": task})
        found[task] = tuple(env.solution())
    return found


def leak_fault(
    system: Mapping[str, Any],
    tasks: Iterable[str],
    telling: Iterable[str],
    split: str,
    solved: Mapping[str, Sequence[str]] = {},
) -> str | None:
    """What of the tasks stands in what the system was told beforehand (its options, its model's).

    What a shipped agent's prompt holds besides is the world's own words, which are replayed, and the
    model's. `solved`: solutions by task; one is found if all its actions stand in the text.
    """
    told = json.dumps([system["options"], system["model"]], ensure_ascii=False)
    for task in tasks:
        if len(task) >= MIN_ID and not task.isdigit() and task in told:
            return f"the task id {task!a} of split {split!a} stands in the system's configuration"
    for line in telling:
        if json.dumps(line, ensure_ascii=False)[1:-1] in told:
            return f"the goal of a task stands in the system's configuration: {line[:60]!a}"
    for task, actions in solved.items():
        written = [json.dumps(action, ensure_ascii=False)[1:-1] for action in actions]
        if sum(map(len, written)) >= MIN_LINE and all(action in told for action in written):
            return f"the solution of task {task!a} stands in the system's configuration"
    return None
