import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.algorithms.pass_k import pass_at_k, pass_hat_k
from turnbench.leaderboards import statistics
from turnbench.leaderboards.statistics import (
    Interval,
    cluster_bootstrap,
    holm,
    macro_bootstrap,
    mcnemar,
    mean,
    paired_bootstrap,
    ranks,
    tasks_needed,
)


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
    """Tasks of random difficulty, three episodes each: 95 % of the intervals hold the truth."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    rng = np.random.default_rng(3)
    names, hits, naive = [str(k) for k in range(100)], 0, 0
    for _ in range(1000):
        drawn = rng.binomial(1, rng.beta(1, 1, size=100)[:, None], size=(100, 3)).astype(float)
        low, high = cluster_bootstrap(dict(zip(names, drawn, strict=True)))
        hits += low <= 0.5 <= high
        naive += abs(drawn.mean() - 0.5) <= 1.96 * drawn.std() / drawn.size**0.5
    assert 930 <= hits <= 970
    assert naive < 930  # which is why tasks are resampled and not episodes


def test_coverage_and_level_of_the_paired_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two systems on the same tasks, the first better by 0.1: the interval holds 0.1 in 95 % of the
    cases, and two equal systems are told apart in 5 %.
    """
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    rng = np.random.default_rng(4)
    names, hits, found = [str(k) for k in range(100)], 0, 0
    for _ in range(1000):
        hard = rng.uniform(0, 0.9, size=(100, 1))
        a, b, c = (rng.binomial(1, hard + more, size=(100, 3)) for more in (0.1, 0.0, 0.0))
        x, y, z = ([dict(zip(names, v.astype(float), strict=True))] for v in (a, b, c))
        low, high = paired_bootstrap(x, y).interval
        hits += low <= 0.1 <= high
        found += paired_bootstrap(y, z).p <= 0.05
    assert 930 <= hits <= 970
    assert 30 <= found <= 75


def test_paired_bootstrap_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=50), rng.normal(0.3, 1, size=50)
    x, y = ({str(k): [float(v)] for k, v in enumerate(values)} for values in (a, b))
    ours = paired_bootstrap([x], [y])
    expected = scipy.stats.bootstrap(
        (a - b,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(6)
    ).confidence_interval
    spread = (a - b).std() / 50**0.5
    assert ours.delta == pytest.approx((a - b).mean())
    assert ours.interval == pytest.approx((expected.low, expected.high), abs=0.12 * spread)
    assert ours.sd == pytest.approx((a - b).std(ddof=1)) and ours.tasks == 50
    assert ours.p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, abs=0.03)


def test_paired_bootstrap_takes_common_tasks_only() -> None:
    x = {"a": [1.0], "b": [0.0], "only left": [9.0]}
    y = {"a": [0.0], "b": [0.0], "only right": [9.0]}
    found = paired_bootstrap([x], [y])
    assert found.delta == 0.5 and found.tasks == 2
    back = paired_bootstrap([y], [x])
    assert back.delta == -0.5 and back.p == found.p
    with pytest.raises(ValueError, match="no task in common"):
        paired_bootstrap([{"a": [1.0]}], [{"b": [1.0]}])


def test_few_tasks_never_look_certain() -> None:
    """All of n tasks favour one side: the exact sign test's p is 2^(1 - n), and no test has less."""
    for n in (1, 2, 5, 8):
        x, y = ({str(k): [won] for k in range(n)} for won in (1.0, 0.0))
        assert paired_bootstrap([x], [y]).p == 2.0 ** (1 - n)


def test_a_large_difference_stays_beyond_doubt_among_many_pairs() -> None:
    rng = np.random.default_rng(9)
    x, y = ({str(k): [v] for k, v in enumerate(rng.normal(m, 1, size=200))} for m in (2, 0))
    assert paired_bootstrap([x], [y]).p < 1e-12


def test_paired_bootstrap_over_environments_is_their_mean() -> None:
    x = [{"a": [1.0], "b": [1.0]}, {"c": [0.0]}]
    y = [{"a": [0.0], "b": [0.0]}, {"c": [0.0]}]
    assert paired_bootstrap(x, y).delta == 0.5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_mcnemar_is_the_exact_binomial_test(pairs: list[tuple[bool, bool]]) -> None:
    left = {str(k): {0: a} for k, (a, _) in enumerate(pairs)}
    right = {str(k): {0: b} for k, (_, b) in enumerate(pairs)}
    found = mcnemar(left, right)
    b, c = pairs.count((True, False)), pairs.count((False, True))
    assert (found.left_only, found.right_only) == (b, c)
    expected = scipy.stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert found.p == pytest.approx(expected)


def test_mcnemar_counts_a_task_once_however_many_seeds() -> None:
    one = mcnemar(*({str(k): {0: won, 1: False} for k in range(30)} for won in (True, False)))
    copied = mcnemar(
        *({str(k): dict.fromkeys(range(20), won) for k in range(3)} for won in (True, False))
    )
    assert one.p == pytest.approx(scipy.stats.chi2.sf(30, 1))
    assert copied.p == pytest.approx(scipy.stats.chi2.sf(3, 1))  # 60 episodes are 3 tasks
    assert mcnemar({"a": {0: True}}, {"a": {1: False}}).p == 1.0  # nothing to pair


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_steps_reject(ps: list[float]) -> None:
    adjusted = holm(ps)
    order = sorted(range(len(ps)), key=ps.__getitem__)
    rejected = []
    for place, k in enumerate(order):
        if ps[k] * (len(ps) - place) > 0.05:
            break
        rejected.append(k)
    assert {k for k, p in enumerate(adjusted) if p <= 0.05} == set(rejected)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_ranks_tie_what_noise_could_explain() -> None:
    rng = np.random.default_rng(7)
    hard = rng.uniform(0, 0.5, size=200)
    good, twin, bad = (
        [{str(k): [float(rng.random() < p + more)] for k, p in enumerate(hard)}]
        for more in (0.4, 0.4, 0.0)
    )
    assert ranks([bad, good, twin]) == [3, 1, 1]
    assert ranks([good]) == [1] and ranks([]) == []
    with pytest.raises(ValueError, match="different tasks"):
        ranks([good, [{"0": [1.0]}]])


@pytest.mark.parametrize(("wins", "n", "k"), [(0, 5, 2), (1, 5, 2), (3, 5, 3), (5, 5, 5), (4, 6, 1)])
def test_pass_at_k_and_pass_hat_k_count_subsets(wins: int, n: int, k: int) -> None:
    subsets = list(itertools.combinations([True] * wins + [False] * (n - wins), k))
    assert pass_at_k(wins, n, k) == pytest.approx(np.mean([any(s) for s in subsets]))
    assert pass_hat_k(wins, n, k) == pytest.approx(np.mean([all(s) for s in subsets]))


def test_power_is_reached_with_the_tasks_that_are_said_to_be_needed() -> None:
    count = tasks_needed(0.1, 0.5)
    rng = np.random.default_rng(8)
    drawn = rng.normal(0.1, 0.5, size=(4000, count))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / count**0.5)
    assert np.mean(np.abs(t) > 1.96) == pytest.approx(0.8, abs=0.03)
    assert tasks_needed(0.05, 0.5) == pytest.approx(4 * count, rel=0.02)


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
