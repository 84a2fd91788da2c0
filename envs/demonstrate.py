"""Demonstrations: episodes played by someone who knows what to do, with mistakes if wanted.

A world's guide says what is right at each turn, and what a learner would do wrong. `solve` is the
demonstrator of every world that knows its own solutions.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.probe import examples
from turnbench.envs.record import Outcome, Task, Trajectory, Turn


class Guide(Protocol):
    """Knows the way through an episode that was just reset."""

    def right(self) -> str | None:
        """The action to take now; None where there is none."""

    def wrong(self, rng: np.random.Generator) -> str | None:
        """A mistake to make instead; None where none fits."""

    def moved(self, action: str, observation: str, astray: bool) -> None:
        """Hears what was done (a mistake if `astray`), and what the world said."""


def guided(
    env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float, guide: Callable[[], Guide]
) -> Trajectory:
    """An episode of `env` itself, whatever its data and turn limit, played as a guide says.

    With probability `mistakes` a turn is a wrong action instead; the numbers of these turns are in
    `info["mistakes"]`. Where the guide has nothing left to do the path ends, as truncated.
    """
    observation, _ = env.reset(seed=task.seed, options={"task": task.id})
    known, turns, wrong = guide(), list[Turn](), list[int]()
    outcome, success = Outcome.OK, None
    while not env.over:
        error = known.wrong(rng) if rng.random() < mistakes else None
        action = known.right() if error is None else error
        if action is None:
            outcome, success = Outcome.TRUNCATED, False
            break
        if error is not None:
            wrong.append(len(turns))
        seen, reward, _, truncated, info = env.step(action)
        known.moved(action, seen, error is not None)
        turns.append(Turn(observation, action, reward))
        observation = seen
        success = not truncated and bool(info.get("success")) if env.has_success else None
        outcome = Outcome.TRUNCATED if truncated else Outcome.OK
    return Trajectory(
        task, tuple(turns), observation, outcome, success=success, info={"mistakes": wrong}
    )


class Plan:
    """Given actions, one after the other. A mistake is any other action that the world offers; one that
    spoils the plan makes a demonstration that fails."""

    def __init__(self, env: TextEnv, actions: Iterable[str]) -> None:
        self.env, self.todo = env, list(actions)

    def right(self) -> str | None:
        """The next of them."""
        return self.todo[0] if self.todo else None

    def wrong(self, rng: np.random.Generator) -> str | None:
        """Anything else on offer."""
        offered = [action for action in examples(self.env) if action != self.right()]
        return offered[int(rng.integers(len(offered)))] if offered else None

    def moved(self, action: str, observation: str, astray: bool) -> None:
        """A mistake is no step of the plan."""
        if not astray:
            del self.todo[0]


def solve(env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float = 0.0) -> Trajectory:
    """Play a world's own solution. Raises ConfigError where it knows none."""
    if type(env).solution is TextEnv.solution:
        raise ConfigError(f"{task.env} has neither a demonstrator nor a solution to demonstrate")
    return guided(env, task, rng, mistakes, lambda: Plan(env, env.solution()))
