"""Statistics of a board: means with cluster-bootstrap intervals over tasks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
BLOCK = 1_000_000  # numbers drawn at once


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def mean(values: Mapping[str, Sequence[float]]) -> float:
    """Mean over all values of all tasks."""
    return float(np.mean([v for of_task in values.values() for v in of_task]))


def cluster_bootstrap(values: Mapping[str, Sequence[float]], *, seed: int = 0) -> Interval:
    """95 % percentile interval of the mean, resampling whole tasks.

    `values` maps a task to its episodes' values. Episodes of one task depend on each other (they
    share its difficulty), so tasks are drawn with replacement and keep all of their episodes. With
    one task there is nothing to resample: the interval is the mean itself.
    """
    sums, counts = _clusters(values)
    return _percentiles(_resampled_means(sums, counts, np.random.default_rng(seed)))


def macro_bootstrap(groups: Sequence[Mapping[str, Sequence[float]]], *, seed: int = 0) -> Interval:
    """The same for the mean of several environments' means, each resampled on its own."""
    rng = np.random.default_rng(seed)
    means = [_resampled_means(*_clusters(values), rng) for values in groups]
    return _percentiles(np.mean(means, axis=0))


def _clusters(values: Mapping[str, Sequence[float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    ordered = [values[task] for task in sorted(values)]
    sums = np.array([np.sum(of_task) for of_task in ordered], dtype=np.float64)
    return sums, np.array([len(of_task) for of_task in ordered], dtype=np.float64)


def _resampled_means(
    sums: NDArray[np.float64], counts: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """One mean a resample; drawn in blocks, so that memory is bounded however many tasks there are."""
    size = len(sums)
    kind = np.uint16 if size <= 2**16 else np.uint32  # half the width is drawn in half the time
    means = np.empty(RESAMPLES)
    block = max(1, BLOCK // size)
    for start in range(0, RESAMPLES, block):
        rows = min(block, RESAMPLES - start)
        drawn = rng.integers(size, size=(rows, size), dtype=kind)
        means[start : start + rows] = sums[drawn].sum(1) / counts[drawn].sum(1)
    return means


def _percentiles(means: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(low), float(high))
