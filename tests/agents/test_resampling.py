"""Weights and resampling schemes: closed forms, and A12 of the method's properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.resampling import RESAMPLERS, Weights, draw, resampler
from turnbench.envs.errors import UnknownName

SCHEMES = sorted(RESAMPLERS)
LOGS = st.lists(st.floats(-50, 50) | st.just(-math.inf), min_size=1, max_size=12).filter(
    lambda logs: max(logs) > -math.inf
)


@given(LOGS, st.floats(-5000, 5000))
def test_weights_do_not_change_with_a_common_factor(logs: list[float], shift: float) -> None:
    weights = Weights(tuple(logs))
    assert weights.normalised.sum() == pytest.approx(1)
    shifted = weights.times([shift] * len(logs))
    assert shifted.normalised == pytest.approx(weights.normalised, abs=1e-9)
    assert shifted.log_mean == pytest.approx(weights.log_mean + shift, abs=1e-6)
    assert 1 - 1e-9 <= weights.ess <= len(logs) + 1e-9


def test_raw_exponentials_break_under_a_common_factor() -> None:
    class Raw(Weights):
        @property
        def normalised(self):  # type: ignore[no-untyped-def]
            return np.exp(self.logs) / np.exp(self.logs).sum()

    logs = (1000.0, 1001.0)
    assert Weights(logs).normalised == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    with np.errstate(all="ignore"):
        assert np.isnan(Raw(logs).normalised).any()


def test_log_mean_and_ess_by_hand() -> None:
    weights = Weights((math.log(1), math.log(3), -math.inf))
    assert weights.log_mean == pytest.approx(math.log(2))  # the dropped particle is no zero
    assert weights.ess == pytest.approx(1 / (0.25**2 + 0.75**2))


@pytest.mark.parametrize("logs", [(), (math.nan,), (0.0, math.inf), (-math.inf, -math.inf)])
def test_weights_that_cannot_be_normalised_are_refused(logs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="weight"):
        Weights(logs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a12_expected_counts_are_n_times_the_weights(scheme: str) -> None:
    rng, runs = np.random.default_rng(1), 20_000
    weights = np.array([0.5, 0.0, 0.21, 0.04, 0.25])
    counts = np.stack([_counts(scheme, weights, rng) for _ in range(runs)])
    assert (counts.sum(1) == 5).all()
    assert (counts[:, 1] == 0).all()
    bound = 4.5 * np.sqrt(5 * weights * (1 - weights) / runs) + 1e-12  # multinomial's is the largest
    assert (abs(counts.mean(0) - 5 * weights) <= bound).all()


@given(LOGS, st.integers(0, 2**32))
def test_a12_systematic_counts_are_floor_or_ceil(logs: list[float], seed: int) -> None:
    weights = Weights(tuple(logs)).normalised
    counts = _counts("systematic", weights, np.random.default_rng(seed))
    expected = len(logs) * weights
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


@given(LOGS, st.integers(0, 2**32))
def test_a12_residual_keeps_the_integer_parts(logs: list[float], seed: int) -> None:
    weights = Weights(tuple(logs)).normalised
    counts = _counts("residual", weights, np.random.default_rng(seed))
    assert counts.sum() == len(logs)
    assert (counts >= np.floor(len(logs) * weights + 1e-12)).all()
    assert (counts[weights == 0] == 0).all()


@pytest.mark.parametrize("scheme", ["systematic", "residual"])
def test_uniform_weights_give_each_particle_one_child(scheme: str) -> None:
    parents = resampler(scheme)(Weights.uniform(7).normalised, np.random.default_rng(0))
    assert parents.tolist() == list(range(7))


def test_a_uniform_that_rounds_to_one_finds_the_last_particle() -> None:
    class Highest:
        def random(self, size=None):  # type: ignore[no-untyped-def]
            return math.nextafter(1, 0) if size is None else np.full(size, math.nextafter(1, 0))

    size = 20_000
    for scheme in SCHEMES:
        parents = resampler(scheme)(np.full(size, 1 / size), Highest())  # type: ignore[arg-type]
        assert parents.max() == size - 1
    tail = np.array([1.0, 0.0])
    assert draw(tail, 3, Highest()).tolist() == [0, 0, 0]  # type: ignore[arg-type]


def test_an_unknown_scheme_names_the_known() -> None:
    with pytest.raises(UnknownName, match="systematic"):
        resampler("sistematic")


def _counts(scheme: str, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.bincount(resampler(scheme)(weights, rng), minlength=len(weights))
