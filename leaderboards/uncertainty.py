"""Does a score know which paths succeed? AUROC with intervals, rank correlation, risk and coverage.

Functions of scores and of labels (success or not). Intervals resample whole tasks, as everywhere.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnbench.leaderboards.statistics import RESAMPLES, Interval

Array = NDArray[np.float64]
ONE_CLASS = "undefined: all of the {n} paths {what}"


class Undefined(ValueError):
    """A statistic doesn't exist for these labels; the message says why."""


def _split(scores: Sequence[float], labels: Sequence[bool]) -> tuple[Array, NDArray[np.bool_]]:
    values, won = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.bool_)
    if values.shape != won.shape:
        raise ValueError(f"{len(values)} scores for {len(won)} labels")
    if np.isnan(values).any():
        raise ValueError("a score is not a number")
    if won.all() or not won.any():
        what = "succeeded" if won.size and won.all() else "failed" if won.size else "are missing"
        raise Undefined(ONE_CLASS.format(n=len(won), what=what))
    return values, won


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """The probability that a success scores above a failure, ties counted half (Mann-Whitney).

    Raises Undefined where all labels are the same.
    """
    values, won = _split(scores, labels)
    ranks = mid_ranks(values)
    hits, misses = int(won.sum()), int((~won).sum())
    return float((ranks[won].sum() - hits * (hits + 1) / 2) / (hits * misses))


def mid_ranks(values: Sequence[float] | Array) -> Array:
    """Ranks from 1; ties share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)


class Estimate(NamedTuple):
    """A statistic with its 95 % interval."""

    value: float
    interval: Interval


def auroc_interval(
    scores: Sequence[float], labels: Sequence[bool], tasks: Sequence[str], *, seed: int = 0
) -> Estimate:
    """AUROC with a percentile interval by resampling tasks; draws with one class only are left out.

    Raises Undefined.
    """
    value = auroc(scores, labels)
    wins, hits, misses = _between_tasks(scores, labels, tasks)
    drawn = _counts(len(hits), np.random.default_rng(seed))
    pairs = (drawn @ hits) * (drawn @ misses)
    above = np.einsum("rt,rt->r", drawn @ wins, drawn)
    found = above[pairs > 0] / pairs[pairs > 0]
    low, high = np.percentile(found, [2.5, 97.5])
    return Estimate(value, Interval(float(low), float(high)))


def _between_tasks(
    scores: Sequence[float], labels: Sequence[bool], tasks: Sequence[str]
) -> tuple[Array, Array, Array]:
    """[T, T] of how often a success of one task beats a failure of another; successes and failures [T]."""
    values, won = _split(scores, labels)
    names, which = np.unique(np.asarray(tasks), return_inverse=True)
    size = len(names)
    wins = np.zeros((size, size))
    lost, lost_task = values[~won], which[~won]
    for value, task in zip(values[won], which[won], strict=True):
        beaten = (value > lost) + 0.5 * (value == lost)
        wins[task] += np.bincount(lost_task, weights=beaten, minlength=size)
    return (
        wins,
        np.bincount(which[won], minlength=size).astype(np.float64),
        np.bincount(lost_task, minlength=size).astype(np.float64),
    )


def _counts(size: int, rng: np.random.Generator) -> Array:
    """How often each of `size` tasks is drawn, in each of RESAMPLES draws with replacement."""
    return rng.multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation with ties. Raises Undefined where one side doesn't vary."""
    if len(one) != len(other):
        raise ValueError(f"{len(one)} and {len(other)} numbers")
    return pearson(mid_ranks(one), mid_ranks(other))


def pearson(one: Sequence[float] | Array, other: Sequence[float] | Array) -> float:
    """Correlation. Raises Undefined where one side doesn't vary."""
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        raise Undefined("undefined: there is nothing that varies")
    return float(np.corrcoef(a, b)[0, 1])


class RiskCoverage(NamedTuple):
    """Risk (share of failures) among the best-scored share `coverage` of paths, for every such share; and
    the mean risk over them, AURC. Ties are taken together, at their mean risk."""

    coverage: list[float]
    risk: list[float]
    aurc: float

    def some(self, points: int = 20) -> list[tuple[float, float]]:
        """(coverage, risk) at so many places of the curve, evenly spread, or at all there are."""
        size = len(self.coverage)
        places = sorted({-(-size * k // points) - 1 for k in range(1, points + 1)})
        return [(self.coverage[k], self.risk[k]) for k in places]


def risk_coverage(scores: Sequence[float], labels: Sequence[bool]) -> RiskCoverage:
    """What refusing the worst-scored paths brings. Raises ValueError for none."""
    values, won = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.bool_)
    if not len(values) or values.shape != won.shape:
        raise ValueError("as many scores as labels are needed, at least one")
    failures: dict[float, list[float]] = defaultdict(list)
    for value, success in zip(values.tolist(), won.tolist(), strict=True):
        failures[value].append(float(not success))
    smooth = [
        float(np.mean(failures[value]))
        for value in sorted(failures, reverse=True)
        for _ in failures[value]
    ]
    taken = np.arange(1, len(smooth) + 1)
    risk = np.cumsum(smooth) / taken
    return RiskCoverage((taken / len(smooth)).tolist(), risk.tolist(), float(risk.mean()))
