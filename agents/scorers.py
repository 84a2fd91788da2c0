"""Scorers: a number for each path, by which an agent may choose among its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from turnbench.agents import check_options
from turnbench.agents.confidence import (
    DeepConfBottom,
    DeepConfLowest,
    DeepConfTail,
    Entropy,
    Length,
    MeanLogprob,
    Perplexity,
    SelfCertainty,
)
from turnbench.agents.model import Model
from turnbench.agents.progress import ProgressAdvantage
from turnbench.agents.readers import Spec
from turnbench.agents.reward_models import Judge, ProcessRewardModel, RewardModel, is_reward_folder
from turnbench.agents.turn_scores import options_of
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


SCORERS: dict[str, type[Scorer]] = {
    "deepconf_bottom10": DeepConfBottom,
    "deepconf_lowest": DeepConfLowest,
    "deepconf_tail": DeepConfTail,
    "entropy": Entropy,
    "judge": Judge,
    "length": Length,
    "mean_logprob": MeanLogprob,
    "perplexity": Perplexity,
    "prm": ProcessRewardModel,
    "progress": ProgressAdvantage,
    "random": RandomScore,
    "return": TrueReturn,
    "reward_model": RewardModel,
    "self_certainty": SelfCertainty,
}


def make_scorer(spec: Scorer | Spec, model: Model | None = None) -> Scorer:
    """The scorer that an agent's option describes.

    A name, the folder of a trained value function or reward model, or a mapping of `scorer` (a name) and its options.
    `model` is the agent's, for those that ask one. Raises UnknownName, ConfigError.
    """
    if not isinstance(spec, str | Mapping):
        return spec
    options: dict[str, Any] = {}
    if isinstance(spec, str):
        name = spec
    else:
        name, options = options_of(spec, "scorer")
    if name in SCORERS:
        cls: Any = SCORERS[name]
        check_options(f"scorer {name!r}", cls, options, given={"asked"})
        made: Scorer = cls(model, **options) if cls is Judge else cls(**options)
        return made
    if is_reward_folder(name):
        check_options(f"reward model {name}", RewardModel, options, given={"model"})
        return RewardModel(model=name, **options)
    if not is_value_folder(name):
        raise UnknownName("scorer", name, SCORERS)
    if options:
        raise ConfigError(f"the value function in {name} takes no options, but got {', '.join(options)}")
    from turnbench.agents.regression import trained_value

    return trained_value(Path(name).resolve())
