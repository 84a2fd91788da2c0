"""Choices made on held-out tasks: the aggregation, the reference, a monitor's threshold.

Whoever picks the best of many by looking at the labels gets a good figure for nothing. So tasks are
split in two by a hash of their names: one half chooses, the other tells what the choice is worth; and
beside the best of a grid stands what the best of the same grid would be if labels were drawn anew.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnbench.agents.monitor import running
from turnbench.agents.turn_scores import Aggregation, Rated, grid
from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.said import Said
from turnbench.leaderboards.scored import progress_of, read_by, success_of_best
from turnbench.leaderboards.uncertainty import Undefined, auroc, mid_ranks

Array = NDArray[np.float64]
DRAWS = 500  # of labels, for the null spread


def chooses(task: str) -> bool:
    """Whether a task is of the half that chooses."""
    return hashlib.sha256(task.encode()).digest()[0] % 2 == 0


def halves(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The cases of the tasks that choose, and of those that tell."""
    return [c for c in cases if chooses(c.task)], [c for c in cases if not chooses(c.task)]


def figures(cases: Sequence[Case], rated: Mapping[str, Rated]) -> dict[str, float | None]:
    """AUROC, and success of the best of a pool; None where they are undefined."""
    known = [c for c in cases if c.id in rated and c.success is not None]
    told: dict[str, float | None] = {"auroc": None, "best_of_n": None}
    try:
        told["auroc"] = auroc([rated[c.id][1] for c in known], [bool(c.success) for c in known])
    except Undefined:
        pass
    told["best_of_n"] = success_of_best(known, rated)
    return told


def choose(
    one: Sequence[Case],
    other: Sequence[Case],
    options: Mapping[str, Mapping[str, Rated]],
    default: str,
) -> dict[str, Any]:
    """For each figure: which option the cases `one` choose, what it is worth on the cases `other`, and
    what the default is worth there; with all options' figures on both."""
    table = {
        name: {
            "chooses": figures(one, rated),
            "tells": figures(other, rated),
            "all": figures([*one, *other], rated),
        }
        for name, rated in options.items()
    }
    told: dict[str, Any] = {"table": table, "tasks": [_tasks(one), _tasks(other)]}
    for figure in ("auroc", "best_of_n"):
        found = {n: v for n in table if (v := table[n]["chooses"][figure]) is not None}
        best = max(found, key=lambda n: found[n]) if found else None
        told[figure] = {
            "chosen": best,
            "there": None if best is None else found[best],
            "here": None if best is None else table[best]["tells"][figure],
            "default_here": table[default]["tells"][figure],
        }
    return told


def _tasks(cases: Sequence[Case]) -> int:
    return len({case.task for case in cases})


def name_of(how: Aggregation) -> str:
    """As in "mean/min", with the order where it isn't the usual one."""
    return f"{how.token}/{how.turn}" + ("" if how.order == "difference" else " of aggregates")


def aggregation_grid(
    one: Sequence[Case], other: Sequence[Case], policy: Said, reference: Said
) -> dict[str, Any]:
    """`choose` among all ways to aggregate, and the null spread of picking the best of them on `other`."""
    one, other = read_by(one, policy, reference), read_by(other, policy, reference)
    options = {name_of(how): progress_of([*one, *other], policy, reference, how) for how in grid()}
    told = choose(one, other, options, name_of(Aggregation()))
    return told | {"null": null_spread(other, options)}


def null_spread(
    cases: Sequence[Case], options: Mapping[str, Mapping[str, Rated]], *, seed: int = 0
) -> dict[str, Any]:
    """The best figure of all options when labels mean nothing: mean and 95th percentile over draws.

    To be compared with the best figure that the same cases give. For AUROC tasks swap their labels (whole,
    where all have as many paths), for best-of-N the attempts at a task do.
    """
    known = [c for c in cases if c.success is not None]
    scores = np.array([[rated[c.id][1] for c in known] for rated in options.values()])
    won = np.array([bool(c.success) for c in known], dtype=np.bool_)
    rng = np.random.default_rng(seed)
    return {
        "auroc": _null_auroc(scores, won, [c.task for c in known], rng),
        "best_of_n": _null_best(scores, won, [c.pool for c in known], rng),
    }


def _null_auroc(
    scores: Array, won: NDArray[np.bool_], tasks: Sequence[str], rng: np.random.Generator
) -> dict[str, float] | None:
    hits, misses = int(won.sum()), int((~won).sum())
    if not hits or not misses:
        return None
    ranks = np.stack([mid_ranks(row) for row in scores])
    drawn = np.stack([_swapped(won, tasks, rng) for _ in range(DRAWS)], axis=1)
    found = (ranks @ drawn - hits * (hits + 1) / 2) / (hits * misses)
    return _told(found.max(0))


def _swapped(won: NDArray[np.bool_], tasks: Sequence[str], rng: np.random.Generator) -> Array:
    places: dict[str, list[int]] = defaultdict(list)
    for k, task in enumerate(tasks):
        places[task].append(k)
    rows = [np.array(row) for row in places.values()]
    if len({len(row) for row in rows}) > 1:
        return rng.permutation(won).astype(np.float64)
    made = np.empty(len(won))
    for row, source in zip(rows, rng.permutation(len(rows)), strict=True):
        made[row] = rng.permutation(won[rows[source]])
    return made


def _null_best(
    scores: Array, won: NDArray[np.bool_], pools: Sequence[str], rng: np.random.Generator
) -> dict[str, float] | None:
    places: dict[str, list[int]] = defaultdict(list)
    for k, pool in enumerate(pools):
        places[pool].append(k)
    rows = [np.array(row) for row in places.values() if len(row) > 1]
    if not rows:
        return None
    picks = [scores[:, row].argmax(1) for row in rows]
    found = [
        np.mean([rng.permutation(won[row])[pick] for row, pick in zip(rows, picks, strict=True)], axis=0)
        for _ in range(DRAWS)
    ]
    return _told(np.max(found, axis=1))


def _told(best: Array) -> dict[str, float]:
    return {"mean": float(best.mean()), "p95": float(np.percentile(best, 95))}


# --- a monitor's threshold ------------------------------------------------------------------------


def lowest(numbers: Sequence[float], how: str, after: int) -> float:
    """The lowest running score from `after` turns on; infinity for a shorter path, which is never flagged."""
    judged = [score for score in running(numbers, how)[after - 1 :] if math.isfinite(score)]
    return min(judged, default=math.inf)


def threshold(
    cases: Sequence[Case], rated: Mapping[str, Rated], *, how: str, after: int, false_alarms: float
) -> dict[str, Any]:
    """The threshold that flags most failures and at most a share `false_alarms` of successes.

    Chosen on all given cases, which should be of a train split; `held_out` tells what a threshold chosen
    on one half of the tasks does on the other. Raises ConfigError where one kind is missing.
    """
    known = [c for c in cases if c.id in rated and c.success is not None]
    lows = {c.id: lowest(rated[c.id][0], how, after) for c in known}
    at = _at(known, lows, false_alarms)
    told: dict[str, Any] = {"threshold": at, **_rates(known, lows, at), "paths": len(known)}
    one, other = halves(known)
    try:
        told["held_out"] = _rates(other, lows, _at(one, lows, false_alarms))
    except ConfigError:
        told["held_out"] = None
    return told


def _at(cases: Sequence[Case], lows: Mapping[str, float], false_alarms: float) -> float:
    """Just low enough: scores below it are flagged."""
    good = sorted(lows[c.id] for c in cases if c.success)
    if not good or len(good) == len(cases):
        raise ConfigError("a threshold needs paths that succeeded and paths that failed")
    allowed = math.floor(false_alarms * len(good) + 1e-9)  # a share of 0.29 of 100 is 29
    at = good[min(allowed, len(good) - 1)]
    if not math.isfinite(at):
        raise ConfigError(
            "most paths that succeeded are over before the first judgement, so that no threshold can be told "
            "from them: judge earlier (--after)"
        )
    return at


def _rates(cases: Sequence[Case], lows: Mapping[str, float], at: float) -> dict[str, float | None]:
    good = [lows[c.id] < at for c in cases if c.success]
    bad = [lows[c.id] < at for c in cases if not c.success]
    return {
        "false_alarms": sum(good) / len(good) if good else None,
        "detected": sum(bad) / len(bad) if bad else None,
    }
