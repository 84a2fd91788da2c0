"""What a value function learns from: rollouts of a model, kept as Population lines, and targets."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turnbench import envs
from turnbench.agents import make_model
from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.agents.react import ReActPolicy
from turnbench.agents.regression import Reader, Row, State, nested
from turnbench.agents.rollout import finish_all, play, start_many
from turnbench.envs.core import TextEnv, mix
from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import Task, Trajectory

FILE = "rollouts.jsonl"
TOGETHER = 64  # rollouts that are played side by side, so that each turn is one batch


def read_rollouts(path: Path) -> list[Population]:
    """The populations of a file; a torn last line is left out. Raises LogError for another."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(population_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise LogError(f"{path}:{number} is no population: {error}") from error
    return found


def collect(
    path: Path, env: TextEnv, tasks: Sequence[Task], group: int, model: Any, policy: dict[str, Any]
) -> Iterator[Population]:
    """Play each task `group` times, a line a task; tasks that the file holds are not played again."""
    found = read_rollouts(path)
    _drop_torn_line(path)
    yield from found
    done = {population.best.task for population in found}
    todo = [task for task in tasks if task not in done]
    if not todo:
        return
    asked = make_model(model)
    try:
        size = max(1, TOGETHER // group)
        with path.open("a", encoding="utf-8") as file:
            for start in range(0, len(todo), size):
                played = _play(env, todo[start : start + size], group, ReActPolicy(asked, **policy))
                for population in played:
                    file.write(json.dumps(population_to_json(population)) + "\n")
                    file.flush()
                    yield population
    finally:
        asked.close()


def _play(env: TextEnv, tasks: Sequence[Task], group: int, policy: ReActPolicy) -> list[Population]:
    """Many tasks at once, in step. The rollouts of a task depend on that task alone."""
    groups = []
    for task in tasks:
        rng = np.random.default_rng(mix(task.seed, task.env, task.id, "value"))
        groups.append(start_many(env.spawn(), task, rng, group))
    play([rollout for rollouts in groups for rollout in rollouts], policy)
    return [Population(finish_all(rollouts, env)) for rollouts in groups]


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def tasks_of(env_id: str, options: dict[str, Any], split: str, seeds: Sequence[int]) -> list[Task]:
    """All tasks of a split under all seeds. Raises ConfigError where there are none."""
    env = envs.make(env_id, **options)
    tasks = [Task(env_id, task, split, seed) for seed in seeds for task in env.tasks(split)]
    env.close()
    if not tasks:
        raise ConfigError(f"split {split!r} of {env_id} has no tasks with {options}")
    return tasks


# --- targets --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of one or more states of a path, with what each should be worth, and where it was."""

    row: Row
    targets: tuple[float, ...]
    turns: tuple[int, ...]
    task: Task


def examples(
    populations: Iterable[Population],
    reader: Reader,
    *,
    best_only: bool,
    predicts: Literal["return", "future"],
    merge: bool,
) -> list[Example]:
    """One example for all states of a path that begin each other (with `merge`), else one a state.

    A state's target is the return of the path it is on, or what was still to come. `best_only` keeps
    the best path of each population, as AMC's released training does. Missing paths say nothing.
    """
    made = []
    for population in populations:
        paths = [path for path in population.trajectories if not path.missing]
        if best_only and paths:
            paths = [max(paths, key=lambda path: path.ret)]
        for path in paths:
            made += _of_path(path, reader, predicts, merge)
    return made


def _of_path(
    path: Trajectory, reader: Reader, predicts: Literal["return", "future"], merge: bool
) -> list[Example]:
    seen = [turn.observation for turn in path.turns] + [path.final]
    texts = [reader.ids(State(path.turns[:k], now)) for k, now in enumerate(seen)]
    paid = np.cumsum([0.0, *(turn.reward for turn in path.turns)])
    worth = paid[-1] - (paid if predicts == "future" else 0 * paid)
    rows = nested(texts) if merge else [Row(text, (len(text),)) for text in texts]
    made, turn = [], 0
    for row in rows:
        span = range(turn, turn + len(row.ends))
        made.append(Example(row, tuple(float(worth[k]) for k in span), tuple(span), path.task))
        turn += len(row.ends)
    return made


def split_tasks(tasks: Iterable[Task], held_out: float, seed: int) -> set[str]:
    """The ids of the tasks that are kept for early stopping: all seeds of a task go together."""
    ids = sorted({task.id for task in tasks})
    count = max(1, round(held_out * len(ids)))
    if count >= len(ids):
        raise ConfigError(f"{len(ids)} tasks are too few to hold {held_out:g} of them out")
    chosen = np.random.default_rng([seed, 1]).permutation(len(ids))[:count]
    return {ids[k] for k in chosen}


# --- quality --------------------------------------------------------------------------------------


def pearson(predicted: np.ndarray[Any, Any], actual: np.ndarray[Any, Any]) -> float | None:
    """Pearson's r; None where one side doesn't vary."""
    if predicted.std() < 1e-12 or actual.std() < 1e-12:
        return None
    return float(np.corrcoef(predicted, actual)[0, 1])


def auroc(scores: np.ndarray[Any, Any], positive: np.ndarray[Any, Any]) -> float | None:
    """Probability that a positive scores above a negative, ties counting half; None for one class."""
    wins = int(positive.sum()), int((~positive).sum())
    if not all(wins):
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - wins[0] * (wins[0] + 1) / 2) / (wins[0] * wins[1]))


def auroc_within(
    scores: np.ndarray[Any, Any], positive: np.ndarray[Any, Any], groups: Sequence[Any]
) -> float | None:
    """AUROC over pairs of the same group only: what a choice among the particles of a task rests on."""
    members: dict[Any, list[int]] = defaultdict(list)
    for k, group in enumerate(groups):
        members[group].append(k)
    total = pairs = 0.0
    for index in members.values():
        found = auroc(scores[index], positive[index])
        if found is not None:
            weight = positive[index].sum() * (~positive[index]).sum()
            total, pairs = total + found * weight, pairs + weight
    return total / pairs if pairs else None


def calibration(
    predicted: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], bins: int = 10
) -> tuple[float, list[list[float]]]:
    """(mean absolute gap, [[mean prediction, mean outcome, count] a bin]), bins of equal count."""
    order = np.argsort(predicted, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    table = [[float(predicted[p].mean()), float(actual[p].mean()), float(len(p))] for p in parts]
    gap = sum(abs(p - a) * n for p, a, n in table) / len(predicted)
    return gap, table
