"""Weights of particles, and ways to resample by them (numpy only).

Douc, Cappe and Moulines (2005), "Comparison of resampling schemes for particle filtering".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from turnbench.envs.errors import UnknownName

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
BELOW_ONE = np.nextafter(1.0, 0.0)  # (N - 1 + u) / N can round to 1 for u below 1


@dataclass(frozen=True, slots=True)
class Weights:
    """Log-weights of N particles, in nats. A dropped particle has minus infinity.

    The only place where weights are exponentiated. Raises ValueError for NaN, plus infinity, or
    when no particle is left.
    """

    logs: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what can't be normalised."""
        logs = np.asarray(self.logs)
        if logs.size == 0 or np.isnan(logs).any() or np.isposinf(logs).any():
            raise ValueError(f"log-weights must be numbers below infinity: {self.logs}")
        if np.isneginf(logs).all():
            raise ValueError("no particle has weight")

    @classmethod
    def uniform(cls, count: int) -> Self:
        """Equal weights that sum to `count`, so that `log_mean` is 0."""
        return cls((0.0,) * count)

    def times(self, log_factors: Sequence[float]) -> "Weights":
        """The weights multiplied by exp(log_factors)."""
        return Weights(tuple(w + f for w, f in zip(self.logs, log_factors, strict=True)))

    @property
    def normalised(self) -> Floats:
        """Weights that sum to 1, shape [N]."""
        logs = np.asarray(self.logs)
        shifted: Floats = np.exp(logs - logs.max())
        normalised: Floats = shifted / shifted.sum()
        return normalised

    @property
    def ess(self) -> float:
        """Effective sample size 1 / sum(w^2) of the normalised weights, in [1, N]."""
        return float(1 / np.square(self.normalised).sum())

    @property
    def log_mean(self) -> float:
        """Log of the mean weight over the particles that are left (minus infinity is left out)."""
        logs = np.asarray([w for w in self.logs if w != -np.inf])
        return float(logs.max() + np.log(np.exp(logs - logs.max()).mean()))


def multinomial(weights: Floats, rng: np.random.Generator) -> Indices:
    """N independent draws. `weights` [N] sum to 1; returns the N parents in ascending order."""
    return draw(weights, len(weights), rng)


def draw(weights: Floats, count: int, rng: np.random.Generator) -> Indices:
    """`count` independent draws with replacement, in ascending order."""
    return _invert(np.sort(rng.random(count)), weights)


def stratified(weights: Floats, rng: np.random.Generator) -> Indices:
    """One draw from each of N equal strata of the unit interval."""
    size = len(weights)
    return _invert((np.arange(size) + rng.random(size)) / size, weights)


def systematic(weights: Floats, rng: np.random.Generator) -> Indices:
    """One draw shared by all strata: each count is N w rounded down or up."""
    size = len(weights)
    return _invert((np.arange(size) + rng.random()) / size, weights)


def residual(weights: Floats, rng: np.random.Generator) -> Indices:
    """The integer part of N w for certain, the rest by multinomial draws from what is left over."""
    size = len(weights)
    expected = size * weights
    sure = np.floor(expected + 1e-12).astype(np.intp)
    rest = size - int(sure.sum())
    counts = sure
    if rest:
        left = np.clip(expected - sure, 0, None)
        counts = sure + np.bincount(draw(left, rest, rng), minlength=size)
    return np.repeat(np.arange(size), counts)


def _invert(uniforms: Floats, weights: Floats) -> Indices:
    """The inverse of the cumulative weights at sorted `uniforms`; never a particle of weight 0."""
    edges = np.cumsum(weights)
    edges /= edges[-1]  # rounding must not leave a gap below 1
    parents: Indices = np.searchsorted(edges, np.minimum(uniforms, BELOW_ONE), side="right")
    return parents


Resampler = Callable[[Floats, np.random.Generator], Indices]

RESAMPLERS: dict[str, Resampler] = {
    "multinomial": multinomial,
    "residual": residual,
    "stratified": stratified,
    "systematic": systematic,
}


def resampler(name: str) -> Resampler:
    """The resampling scheme of that name. Raises UnknownName."""
    if name not in RESAMPLERS:
        raise UnknownName("resampling scheme", name, RESAMPLERS)
    return RESAMPLERS[name]
