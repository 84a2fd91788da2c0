import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.leaderboards import statistics
from turnbench.leaderboards.statistics import Interval, cluster_bootstrap, macro_bootstrap, mean


def test_one_task_or_equal_values_have_no_width() -> None:
    assert cluster_bootstrap({"a": [0.0, 1.0]}) == Interval(0.5, 0.5)
    assert cluster_bootstrap({t: [0.25, 0.25] for t in "abcdef"}) == Interval(0.25, 0.25)


def test_mean_is_over_episodes() -> None:
    assert mean({"a": [1.0, 1.0, 1.0], "b": [0.0]}) == 0.75


@pytest.mark.parametrize("size", [10, 60])
def test_agrees_with_scipy_where_every_task_has_one_episode(size: int) -> None:
    values = np.random.default_rng(1).normal(size=size)
    ours = cluster_bootstrap({str(k): [float(v)] for k, v in enumerate(values)})
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(2)
    )
    expected = theirs.confidence_interval
    # Two Monte Carlo quantiles of 10,000 draws: their standard error is about 0.02 of the spread.
    spread = values.std() / size**0.5
    assert ours.low == pytest.approx(expected.low, abs=0.12 * spread)
    assert ours.high == pytest.approx(expected.high, abs=0.12 * spread)


def test_exact_on_two_tasks() -> None:
    """Two tasks: the mean is a, (a + b) / 2 or b with probability 1/4, 1/2, 1/4."""
    assert cluster_bootstrap({"a": [0.0], "b": [1.0]}) == Interval(0.0, 1.0)
    low, high = cluster_bootstrap({"a": [0.0] * 3, "b": [1.0]})  # a mean of episodes, not of tasks
    assert (low, high) == (0.0, 1.0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=1, max_size=8),
    st.floats(-3, 3),
    st.floats(0.1, 4),
)
def test_moves_and_stretches_with_the_values(groups: list[list[float]], by: float, times: float) -> None:
    values = {str(k): v for k, v in enumerate(groups)}
    moved = {k: [x * times + by for x in v] for k, v in values.items()}
    low, high = cluster_bootstrap(values)
    assert min(map(min, groups)) - 1e-9 <= low <= high <= max(map(max, groups)) + 1e-9
    assert cluster_bootstrap(moved) == pytest.approx((low * times + by, high * times + by), abs=1e-6)


def test_order_of_tasks_does_not_matter() -> None:
    values = {str(k): [float(k % 3)] for k in range(20)}
    assert cluster_bootstrap(values) == cluster_bootstrap(dict(reversed(values.items())))


def test_coverage_on_simulated_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of random difficulty, three episodes each: about 95 % of intervals hold the truth."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    rng = np.random.default_rng(3)
    truth, hits, naive = 0.5, 0, 0
    for _ in range(400):
        difficulty = rng.beta(1, 1, size=60)
        values = {
            str(k): list(rng.binomial(1, p, size=3).astype(float)) for k, p in enumerate(difficulty)
        }
        low, high = cluster_bootstrap(values)
        hits += low <= truth <= high
        every = np.concatenate(list(values.values()))
        half = 1.96 * every.std() / len(every) ** 0.5
        naive += abs(every.mean() - truth) <= half
    assert 0.91 <= hits / 400 <= 0.98
    assert naive < hits  # which is why tasks are resampled and not episodes


def test_macro_mean_of_one_group_is_its_mean() -> None:
    values = {str(k): [float(k)] for k in range(12)}
    assert macro_bootstrap([values]) == cluster_bootstrap(values)


def test_macro_interval_of_a_constant_group_is_half_as_wide() -> None:
    values = {str(k): [float(k)] for k in range(12)}
    low, high = cluster_bootstrap(values)
    both = macro_bootstrap([values, {"x": [0.0]}])
    assert both == pytest.approx((low / 2, high / 2))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {str(k): [float(k % 7)] for k in range(100)}
    whole = cluster_bootstrap(values)
    monkeypatch.setattr(statistics, "BLOCK", 1 << 14)
    assert cluster_bootstrap(values) == pytest.approx(whole, rel=0.03)
