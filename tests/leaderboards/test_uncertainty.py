"""AUROC, rank correlation, risk and coverage: by definition, against scipy, and where they don't exist."""

import itertools

import numpy as np
import pytest

from turnbench.leaderboards.uncertainty import (
    Undefined,
    auroc,
    auroc_interval,
    mid_ranks,
    pearson,
    risk_coverage,
    spearman,
)

RNG = np.random.default_rng(0)
SCORES = RNG.integers(0, 6, size=60).astype(float).tolist()
WON = (RNG.random(60) < 0.4).tolist()
TASKS = [str(k // 4) for k in range(60)]


def mann_whitney(scores, won) -> float:
    hits = [s for s, w in zip(scores, won, strict=True) if w]
    misses = [s for s, w in zip(scores, won, strict=True) if not w]
    pairs = list(itertools.product(hits, misses))
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


def test_p5_auroc_is_mann_whitney_with_ties_at_a_half() -> None:
    value = auroc(SCORES, WON)
    assert value == pytest.approx(mann_whitney(SCORES, WON), abs=1e-12)
    assert auroc([-s for s in SCORES], WON) == pytest.approx(1 - value, abs=1e-12)
    assert auroc([0.03 * s for s in SCORES], WON) == pytest.approx(value, abs=1e-12)


def test_p6_equal_scores_know_nothing() -> None:
    assert auroc([0.0] * 60, WON) == 0.5


@pytest.mark.parametrize(("won", "what"), [([True] * 3, "succeeded"), ([False] * 3, "failed")])
def test_labels_of_one_class_have_no_auroc(won, what) -> None:
    with pytest.raises(Undefined, match=f"all of the 3 paths {what}"):
        auroc([1.0, 2.0, 3.0], won)
    with pytest.raises(Undefined):
        auroc_interval([1.0, 2.0, 3.0], won, ["a", "b", "c"])


def test_the_interval_is_that_of_resampled_tasks(monkeypatch) -> None:
    """The same as drawing tasks by hand and computing AUROC of what was drawn."""
    from turnbench.leaderboards import uncertainty

    monkeypatch.setattr(uncertainty, "RESAMPLES", 300)
    found = auroc_interval(SCORES, WON, TASKS, seed=3)
    drawn = uncertainty._counts(15, np.random.default_rng(3))
    names = sorted(set(TASKS))
    values = []
    for counts in drawn.astype(int):
        rows = [
            k
            for t, c in zip(names, counts, strict=True)
            for _ in range(c)
            for k in range(60)
            if TASKS[k] == t
        ]
        values.append(mann_whitney([SCORES[k] for k in rows], [WON[k] for k in rows]))
    assert found.interval == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])), abs=1e-9)
    assert found.interval.low < found.value < found.interval.high


def test_spearman_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    other = (np.array(SCORES) + RNG.integers(0, 4, size=60)).tolist()
    assert spearman(SCORES, other) == pytest.approx(stats.spearmanr(SCORES, other).statistic, abs=1e-12)
    assert mid_ranks(SCORES).tolist() == stats.rankdata(SCORES).tolist()
    with pytest.raises(Undefined):
        pearson([1.0, 1.0], [1.0, 2.0])


def test_risk_falls_with_a_perfect_score_and_stays_with_none() -> None:
    perfect = risk_coverage([3, 2, 1, 0], [True, True, False, False])
    assert perfect.coverage == [0.25, 0.5, 0.75, 1.0]
    assert perfect.risk == pytest.approx([0, 0, 1 / 3, 0.5]) and perfect.aurc == pytest.approx(5 / 24)
    assert risk_coverage([1.0] * 4, [True, True, False, False]).risk == pytest.approx([0.5] * 4)
    worst = risk_coverage([0, 1, 2, 3], [True, True, False, False])
    assert worst.aurc > 0.5 > perfect.aurc
    with pytest.raises(ValueError, match="at least one"):
        risk_coverage([], [])
