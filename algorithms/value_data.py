"""What a value function learns from: states of rollouts and targets; and how good it is on others."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from turnbench.agents.core import Population
from turnbench.agents.regression import Reader, Row, State, nested
from turnbench.envs.record import Task, Trajectory

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
