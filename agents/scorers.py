"""Scorers: a number for each path, by which an agent may choose among its own."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from turnbench.agents.values import is_value_folder
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Trajectory


class Scorer(Protocol):
    """Scores paths; higher is better. `oracle` tells whether it looks at true rewards."""

    oracle: bool

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """One number a path."""
        ...


class RandomScore:
    """A uniform random number: choosing by it is choosing blindly."""

    oracle = False

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """Uniform on [0, 1)."""
        return [float(u) for u in rng.random(len(paths))]


class TrueReturn:
    """The true return: an oracle, which makes best-of-N the published pass@N-like figure."""

    oracle = True

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """The sum of rewards."""
        return [path.ret for path in paths]


class MeanLogprob:
    """The mean log-prob (nats) of all sampled tokens of a path: the model's own confidence."""

    oracle = False

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """Mean over tokens; minus infinity for a path without any turn. Raises ConfigError."""
        return [self._mean(path) for path in paths]

    def _mean(self, path: Trajectory) -> float:
        if any(turn.tokens is None for turn in path.turns):
            raise ConfigError("the scorer mean_logprob needs log-probs, which this model doesn't give")
        logprobs = [p for turn in path.turns if turn.tokens for p in turn.tokens.logprobs]
        return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf


SCORERS: dict[str, type[Scorer]] = {
    "mean_logprob": MeanLogprob,
    "random": RandomScore,
    "return": TrueReturn,
}


def make_scorer(name: str) -> Scorer:
    """The scorer of that name, or the trained value function in that folder. Raises UnknownName."""
    if name in SCORERS:
        return SCORERS[name]()
    if is_value_folder(name):
        from turnbench.agents.regression import trained_value

        return trained_value(Path(name).resolve())
    raise UnknownName("scorer", name, SCORERS)
