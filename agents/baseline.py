"""Baselines that ask no model: what a world pays for playing blindly, and for knowing the answer."""

from collections.abc import Iterator, Sequence

import numpy as np

from turnbench.agents.core import Population
from turnbench.agents.rollout import Move, Rollout, play, start_many
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.probe import examples
from turnbench.envs.record import Failure, Outcome, Task

POLICIES = ("first", "oracle", "random")


class Baseline:
    """Plays without a model, by one of POLICIES.

    "random" takes any of the actions that the world offers as examples, each as likely as another, and
    "first" the first of them. "oracle" plays the world's own solution (an oracle, and it says so); where
    that ends before the episode does (or is empty, as the world finds none), so does the path.
    """

    def __init__(self, *, policy: str = "random") -> None:
        if policy not in POLICIES:
            raise UnknownName("policy", policy, POLICIES)
        self.policy = policy
        self.privileges: tuple[str, ...] = ("oracle",) if policy == "oracle" else ()
        self._plan: Iterator[str] = iter(())

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Play the task once. Raises ConfigError where the world offers nothing to play."""
        rollouts = start_many(env, task, rng, 1)
        if self.policy == "oracle" and not rollouts[0].over:
            if type(env).solution is TextEnv.solution:
                raise ConfigError(f"{task.env} offers no solution, which this baseline plays")
            self._plan = iter(env.solution())
        play(rollouts, self)
        return Population((rollouts[0].finish(),))

    def act(self, rollouts: Sequence[Rollout]) -> list[Move | Failure]:
        """The next move of each rollout."""
        return [self._move(rollout) for rollout in rollouts]

    def _move(self, rollout: Rollout) -> Move | Failure:
        if self.policy == "oracle":
            action = next(self._plan, None)
            ended = Failure(Outcome.TRUNCATED, "the world's own solution ends before the episode")
            return ended if action is None else Move(action)
        offered = examples(rollout.env)
        if not offered:
            raise ConfigError(f"{rollout.task.env} offers no example actions, which this baseline plays")
        return Move(offered[0 if self.policy == "first" else int(rollout.rng.integers(len(offered)))])
