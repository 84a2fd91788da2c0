"""Numbers by turn: how tokens become a turn's number and turns a path's, and scorers that give both."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from turnbench.envs.errors import ConfigError, Unanswered, UnknownName, Unscored
from turnbench.envs.record import Trajectory

Numbers = Sequence[float]
Rated = tuple[list[float], float]
"""Of a path: a number a turn, and its score."""
Asked = TypeVar("Asked")
Told = TypeVar("Told")
TURN_SCORES = "turn_scores"  # the key of a path's info under which pages find numbers by turn
NOT_SCORED = "not_scored"  # and that of the cause where there are none


def bottom10(numbers: Numbers) -> float:
    """The mean of the lowest tenth (rounded up)."""
    count = math.ceil(len(numbers) / 10)
    return math.fsum(sorted(numbers)[:count]) / count


def position_weighted(numbers: Numbers) -> float:
    """The mean with weights 1, 2, ..., n: what came later counts more."""
    size = len(numbers)
    return 2 * math.fsum(k * x for k, x in enumerate(numbers, start=1)) / (size * (size + 1))


def mean(numbers: Numbers) -> float:
    """The mean, whatever the length."""
    return math.fsum(numbers) / len(numbers)


AGGREGATES: dict[str, Callable[[Numbers], float]] = {
    "bottom10": bottom10,
    "last": lambda numbers: numbers[-1],
    "max": max,
    "mean": mean,
    "min": min,
    "position": position_weighted,
    "sum": math.fsum,
}
"""By name: a function of one number or more. All are positively homogeneous, so that no choice, AUROC
or attribution depends on a positive factor."""

LINEAR = frozenset({"last", "mean", "position", "sum"})
"""Aggregates of which the difference is the aggregate of differences."""


def aggregate(name: str, numbers: Numbers) -> float:
    """One number for several. Raises UnknownName; ValueError for none at all."""
    if name not in AGGREGATES:
        raise UnknownName("aggregate", name, AGGREGATES)
    if not len(numbers):
        raise ValueError(f"there is nothing to take the {name} of")
    return AGGREGATES[name](numbers)


class Aggregation(NamedTuple):
    """How token numbers become a path's. The declared default is the mean of means.

    `order`: "difference" aggregates the differences of two models' log-probs; "aggregates" takes the
    difference of the aggregates, as the released code does. They differ for min, max and bottom10.
    """

    token: str = "mean"
    turn: str = "mean"
    order: Literal["difference", "aggregates"] = "difference"

    def check(self) -> "Aggregation":
        """Itself. Raises UnknownName."""
        for name in (self.token, self.turn):
            if name not in AGGREGATES:
                raise UnknownName("aggregate", name, AGGREGATES)
        if self.order not in ("difference", "aggregates"):
            raise UnknownName("order", self.order, ("difference", "aggregates"))
        return self


def grid() -> list[Aggregation]:
    """Every way to aggregate; both orders only where they differ."""
    return [
        Aggregation(token, turn, order)  # type: ignore[arg-type]
        for token in sorted(AGGREGATES)
        for turn in sorted(AGGREGATES)
        for order in (("difference",) if token in LINEAR else ("difference", "aggregates"))
    ]


class TurnScorer(ABC):
    """A scorer that has a number for each turn, and shows them on the run's page; higher is better.

    `strip` is what the numbers by turn are called there, with their unit in brackets: scorers that only
    make a path's score of the same numbers in another way share it. Left out, it is the scorer's `name`.
    `turn` names the aggregate that makes a path's score.
    """

    name = ""
    strip = ""
    oracle = False
    turn = "mean"

    @abstractmethod
    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """One number a turn for each path. Raises ConfigError, ModelError."""

    def path_score(self, numbers: Numbers) -> float:
        """A path's score; minus infinity for a path without any turn."""
        return aggregate(self.turn, numbers) if len(numbers) else -math.inf

    def rate(self, paths: Sequence[Trajectory]) -> list[Rated]:
        """Both for each path. Raises ConfigError, ModelError."""
        return [(numbers, self.path_score(numbers)) for numbers in self.turns(paths)]

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """One number a path; the turns' are written into its info. Raises ConfigError, ModelError."""
        rated = self.rate(paths)
        for path, (numbers, _) in zip(paths, rated, strict=True):
            show(path, self.strip or self.name, numbers)
        return [score for _, score in rated]


def ask_apart(
    ask: Callable[[Sequence[Asked]], Sequence[Told]], paths: Sequence[Asked]
) -> list[Told | Unscored]:
    """What a scorer or a reader says of paths, or why it can't say anything of one.

    All are asked about at once, and each alone where that fails, so that a path which can't be scored costs
    no other its score. Raises Unanswered, and what concerns all paths.
    """
    try:
        return list(ask(paths))
    except Unanswered:
        raise
    except Unscored:
        return [_ask_alone(ask, path) for path in paths]


def _ask_alone(ask: Callable[[Sequence[Asked]], Sequence[Told]], path: Asked) -> Told | Unscored:
    try:
        return ask([path])[0]
    except Unanswered:
        raise
    except Unscored as error:
        return error
    except ConfigError as error:  # of all of them it wasn't true
        return Unscored(str(error))


def show(path: Trajectory, name: str, numbers: Numbers) -> None:
    """Put numbers by turn into a path's info, where pages find them."""
    strips = path.info.setdefault(TURN_SCORES, {})
    strips[name] = [float(f"{x:.6g}") if math.isfinite(x) else None for x in numbers]


def check_numbers(turns: Sequence[Numbers], what: str, measure: str = "log-prob") -> None:
    """Refuse spans without tokens and numbers that are none. Raises Unscored that names the turn."""
    for k, numbers in enumerate(turns, start=1):
        if not len(numbers):
            raise Unscored(f"turn {k} has no action tokens, so there is nothing to score")
        if not all(map(math.isfinite, numbers)):
            raise Unscored(f"turn {k}: {what} gave a {measure} that is no finite number")


def recorded(paths: Sequence[Trajectory], what: str) -> list[list[list[float]]]:
    """The log-probs that the log holds of each path, by turn. Raises ConfigError where there are none at
    all, and Unscored for a path that lacks some."""
    turns = [turn for path in paths for turn in path.turns]
    if turns and all(turn.tokens is None for turn in turns):
        raise ConfigError(f"{what} needs log-probs, which this model doesn't give")
    found = [[list(turn.tokens.logprobs) if turn.tokens else [] for turn in p.turns] for p in paths]
    for numbers in found:
        check_numbers(numbers, "the log")
    return found


def options_of(spec: Mapping[str, object], key: str) -> tuple[str, dict[str, object]]:
    """The name that a mapping has under `key`, and its other entries. Raises ConfigError."""
    options = dict(spec)
    name = options.pop(key, None)
    if not isinstance(name, str):
        raise ConfigError(f"a {key} with options needs the key {key!r}: its name")
    return name, options
