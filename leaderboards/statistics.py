"""Statistics of a board: intervals by cluster bootstrap over tasks, paired tests, ranks with ties.

Episodes of one task depend on each other (they share its difficulty), so tasks are what is resampled
and what tests count. Everything here is a function of numbers: a task's values are a list with one
value an episode, a system's values a mapping from task to such a list (`Values`), one for each
environment of a suite.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
BLOCK = 1_000_000  # numbers drawn at once
Values = Mapping[str, Sequence[float]]
Successes = Mapping[str, Mapping[int, bool]]  # by task and seed
Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """By how much one system's mean exceeds another's on the tasks both have, and how sure that is.

    `p` is two-sided. `tasks` counts the common tasks and `sd` is the spread of one task's difference
    (which tells how many tasks a smaller one would need); it is 0 with a single task.
    """

    delta: float
    interval: Interval
    p: float
    tasks: int
    sd: float


def mean(values: Values) -> float:
    """Mean over all values of all tasks."""
    return float(np.mean([v for of_task in values.values() for v in of_task]))


def cluster_bootstrap(values: Values, *, seed: int = 0) -> Interval:
    """95 % percentile interval of the mean, resampling whole tasks.

    Tasks are drawn with replacement and keep all of their episodes. With one task there is nothing to
    resample: the interval is the mean itself. As every percentile interval it is somewhat narrow with
    few tasks (about 93 % coverage with 30).
    """
    sums, counts = _clusters(values)
    return _percentiles(_resampled_means(sums, counts, np.random.default_rng(seed)))


def macro_bootstrap(groups: Sequence[Values], *, seed: int = 0) -> Interval:
    """The same for the mean of several environments' means, each resampled on its own."""
    rng = np.random.default_rng(seed)
    means = [_resampled_means(*_clusters(values), rng) for values in groups]
    return _percentiles(np.mean(means, axis=0))


def paired_bootstrap(left: Sequence[Values], right: Sequence[Values], *, seed: int = 0) -> Difference:
    """`left` minus `right` in the mean over environments of the mean over their common tasks.

    Both systems' episodes of a task are drawn together, so a task's difficulty cancels. `p` is the
    smallest level at which the percentile interval leaves out 0; where no resample crosses 0, the
    normal tail at the bootstrap's standard error. It is never below 2^(1 - tasks), the exact sign
    test's smallest. Raises ValueError where an environment has no task in common.
    """
    rng = np.random.default_rng(seed)
    pairs = [_common(a, b) for a, b in zip(left, right, strict=True)]
    drawn = np.mean([_resampled_differences(*pair, rng) for pair in pairs], axis=0)
    apart = [pair[0][0] / pair[0][1] - pair[1][0] / pair[1][1] for pair in pairs]
    delta = float(np.mean([_mean_difference(*pair) for pair in pairs]))
    tasks = sum(map(len, apart))
    # Environments count alike: one task of an environment moves the mean by (tasks / its own) / k.
    parts = [np.var(d, ddof=1) * tasks / len(d) / len(pairs) ** 2 for d in apart if len(d) > 1]
    p = _p_value(drawn, delta, tasks)
    return Difference(delta, _percentiles(drawn), p, tasks, float(np.sqrt(sum(parts))))


def _p_value(drawn: Array, delta: float, tasks: int) -> float:
    crossed = int(min(np.sum(drawn <= 0), np.sum(drawn >= 0)))
    p = 2 * (1 + crossed) / (len(drawn) + 1)
    spread = float(drawn.std())
    if crossed == 0 and spread > 0:
        p = min(p, math.erfc(abs(delta) / spread / math.sqrt(2)))
    elif crossed == 0:
        p = 0.0
    return min(1.0, max(p, 2.0 ** (1 - tasks)))


class Discordant(NamedTuple):
    """McNemar's test: how often only one of two systems succeeded, and the two-sided p."""

    left_only: int
    right_only: int
    p: float


def mcnemar(left: Successes, right: Successes) -> Discordant:
    """Whether two systems succeed equally often on their common tasks, paired by task and seed.

    With one episode a task this is McNemar's exact test; with more it is its extension to clusters
    (Durkalski et al., Statistics in Medicine 22, 2003), in which a task counts once however many
    episodes it has.
    """
    per_task = [
        (sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs), len(pairs))
        for task in sorted(left.keys() & right.keys())
        if (pairs := [(left[task][s], right[task][s]) for s in left[task].keys() & right[task].keys()])
    ]
    b, c = sum(t[0] for t in per_task), sum(t[1] for t in per_task)
    if all(n == 1 for *_, n in per_task):
        tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
        return Discordant(b, c, min(1.0, 2 * tail))
    shares = np.array([(x - y) / n for x, y, n in per_task])
    square = float(np.sum(shares**2))
    p = math.erfc(math.sqrt(float(shares.sum()) ** 2 / square / 2)) if square else 1.0
    return Discordant(b, c, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 6, 1979), in the order given."""
    adjusted, worst = [0.0] * len(ps), 0.0
    for place, k in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        worst = max(worst, min(1.0, (len(ps) - place) * ps[k]))
        adjusted[k] = worst
    return adjusted


def ranks(systems: Sequence[Sequence[Values]], *, level: float = 0.05) -> list[int]:
    """A rank for each system: 1 plus the number of systems that are better beyond noise.

    Better means by the paired bootstrap, with Holm's correction over all pairs. Systems that can't be
    told apart share a rank. Each system is a sequence of values, one an environment, and all have
    played the same tasks (else ValueError).
    """
    if not systems:
        return []
    means, drawn, tasks = _all_resampled(systems)
    pairs = [(i, j) for i in range(len(systems)) for j in range(i + 1, len(systems))]
    ps = [_p_value(drawn[i] - drawn[j], means[i] - means[j], tasks) for i, j in pairs]
    worse = [0] * len(systems)
    for (i, j), p in zip(pairs, holm(ps), strict=True):
        if p <= level:
            worse[j if means[i] > means[j] else i] += 1
    return [1 + count for count in worse]


def _all_resampled(systems: Sequence[Sequence[Values]]) -> tuple[Array, Array, int]:
    """Every system's mean (systems,) and resampled means (systems, RESAMPLES), and how many tasks."""
    rng = np.random.default_rng(0)
    means, drawn, tasks = [], [], 0
    for of_env in zip(*systems, strict=True):
        if any(values.keys() != of_env[0].keys() for values in of_env):
            raise ValueError("the systems have played different tasks")
        rows = np.stack([_clusters(values) for values in of_env])  # (systems, 2, tasks)
        means.append(rows[:, 0].sum(1) / rows[:, 1].sum(1))
        sums = _resampled_sums(rows.reshape(-1, rows.shape[2]), rng).reshape(len(rows), 2, -1)
        drawn.append(sums[:, 0] / sums[:, 1])
        tasks += rows.shape[2]
    return np.mean(means, axis=0), np.mean(drawn, axis=0), tasks


def tasks_needed(difference: float, sd: float, *, power: float = 0.8, level: float = 0.05) -> int:
    """How many tasks tell a true `difference` of means with probability `power`.

    `sd` is the standard deviation of one task's paired difference, in the same unit. By the normal
    approximation of the two-sided paired test; at least 2.
    """
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(power)
    return max(2, math.ceil((quantiles * sd / difference) ** 2))


# --- resampling -----------------------------------------------------------------------------------


def _clusters(values: Values) -> tuple[Array, Array]:
    """Sum and number of each task's values, both of shape (tasks,), in the order of the names."""
    ordered = [values[task] for task in sorted(values)]
    sums = np.array([np.sum(of_task) for of_task in ordered], dtype=np.float64)
    return sums, np.array([len(of_task) for of_task in ordered], dtype=np.float64)


def _common(left: Values, right: Values) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    both = left.keys() & right.keys()
    if not both:
        raise ValueError("no task in common")
    return _clusters({t: left[t] for t in both}), _clusters({t: right[t] for t in both})


def _mean_difference(left: tuple[Array, Array], right: tuple[Array, Array]) -> float:
    return float(left[0].sum() / left[1].sum() - right[0].sum() / right[1].sum())


def _resampled_means(sums: Array, counts: Array, rng: np.random.Generator) -> Array:
    """One mean a resample, of shape (RESAMPLES,)."""
    totals = _resampled_sums(np.stack([sums, counts]), rng)
    means: Array = totals[0] / totals[1]
    return means


def _resampled_differences(
    left: tuple[Array, Array], right: tuple[Array, Array], rng: np.random.Generator
) -> Array:
    a, m, b, n = _resampled_sums(np.stack([*left, *right]), rng)
    differences: Array = a / m - b / n
    return differences


def _resampled_sums(rows: Array, rng: np.random.Generator) -> Array:
    """Sums of each row over drawn tasks: (k, tasks) to (k, RESAMPLES). All rows share the draws, made
    in blocks, so that memory is bounded however many tasks there are.
    """
    size = rows.shape[1]
    sums = np.empty((len(rows), RESAMPLES))
    block = max(1, BLOCK // size)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        drawn = rng.integers(size, size=(count, size), dtype=np.uint32)
        drawn += (np.arange(count, dtype=np.uint32) * size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)
        sums[:, start : start + count] = rows @ times.T
    return sums


def _percentiles(means: Array) -> Interval:
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(low), float(high))
