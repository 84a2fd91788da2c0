"""Value functions: what a live path may still earn, for search that is steered by it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from turnbench.agents.rollout import Rollout
from turnbench.envs.errors import ConfigError, UnknownName


class Value(Protocol):
    """Estimates the *future* return of live paths, in units of reward.

    AMC's V (nats, current reward included) is (future + reward) / beta; the future of an ended path
    is 0 by definition and is never asked for. `oracle` tells whether true rewards are looked at.
    """

    oracle: bool

    def future(self, rollouts: Sequence[Rollout]) -> list[float]:
        """One estimate for each rollout; all are asked for at once."""
        ...


class Constant:
    """Knows nothing: the same future for every path. Search by it only reweighs at rewards."""

    oracle = False

    def future(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Zeros."""
        return [0.0] * len(rollouts)


class Computed:
    """A value computed by a function of the rollout: for tests and for worlds solved exactly."""

    def __init__(self, function: Callable[[Rollout], float], *, oracle: bool = False) -> None:
        self.function, self.oracle = function, oracle

    def future(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The function's values."""
        return [self.function(rollout) for rollout in rollouts]


VALUES: dict[str, Callable[[], Value]] = {"constant": Constant}


def make_value(name: str) -> Value:
    """A value function by name. Raises UnknownName, ConfigError."""
    if not isinstance(name, str):
        raise ConfigError(f"a value function is wanted, not {name!r}")
    if name not in VALUES:
        raise UnknownName("value function", name, VALUES)
    return VALUES[name]()
