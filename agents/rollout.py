"""Rollout: a live path, which is also the particle of search; `play` advances many to their ends."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from turnbench.agents.model import Completion, common_prefix
from turnbench.agents.turn_scores import show
from turnbench.envs.core import TextEnv
from turnbench.envs.record import MISSING, Failure, Json, Outcome, Task, Tokens, Trajectory, Turn
from turnbench.envs.toolset import is_schema


@dataclass(frozen=True, slots=True)
class Move:
    """What a policy decided: the text for the environment, and the completion it was read from."""

    action: str
    completion: Completion | None = None


class Policy(Protocol):
    """Chooses the next move of each of several rollouts (agents/react.py has the usual one)."""

    def act(self, rollouts: Sequence["Rollout"]) -> list[Move | Failure]:
        """One move, or the failure to make one, for each rollout."""
        ...


class Rollout:
    """An environment, the turns played in it so far, and a random generator of its own.

    `context` are the token ids of the whole conversation up to the last sampled token. `toolsets` are
    the tools' schemas where the world has any: (turns played before they were shown, schemas).
    `notes` are numbers by turn for the run's page: strip -> turns played -> number.
    """

    __slots__ = (
        *("context", "env", "failure", "info", "notes", "observation", "rng", "task", "toolsets"),
        *("truncated", "turns"),
    )

    def __init__(self, env: TextEnv, task: Task, rng: np.random.Generator) -> None:
        self.env, self.task, self.rng = env, task, rng
        self.turns: list[Turn] = []
        self.observation = ""
        self.context: tuple[int, ...] = ()
        self.failure: Failure | None = None
        self.truncated = False
        self.info: dict[str, object] = {}
        self.toolsets: tuple[tuple[int, tuple[Json, ...]], ...] = ()
        self.notes: dict[str, dict[int, float]] = {}

    @classmethod
    def start(cls, env: TextEnv, task: Task, rng: np.random.Generator) -> Self:
        """Reset `env` to `task`. An environment that fails to is a failed rollout, not an exception."""
        rollout = cls(env, task, rng)
        try:
            rollout.observation, info = env.reset(seed=task.seed, options={"task": task.id})
            rollout._note_tools(info)
        except Exception as error:
            rollout.failure = Failure.of(error, Outcome.ENV_ERROR)
        return rollout

    @property
    def over(self) -> bool:
        """Whether nothing more can be played."""
        return self.failure is not None or self.env.over

    @property
    def missing(self) -> bool:
        """Whether this path says nothing about the agent (environment or infrastructure failed)."""
        return self.failure is not None and self.failure.outcome in MISSING

    @property
    def ret(self) -> float:
        """The rewards collected so far."""
        return math.fsum(turn.reward for turn in self.turns)

    def advance(self, move: Move | Failure) -> None:
        """Play one turn, or end with the failure to make one."""
        if isinstance(move, Failure):
            self.failure = move
            return
        try:
            seen, reward, _, self.truncated, self.info = self.env.step(move.action)
        except Exception as error:
            self.failure = Failure.of(error, Outcome.ENV_ERROR)
            return
        self.turns.append(self._turn(move, reward))
        self.observation = seen
        self._note_tools(self.info)

    def _note_tools(self, info: Mapping[str, object]) -> None:
        """Keep the tools that a world shows in its info, with when they were shown."""
        tools = info.get("tools")
        if tools is None:
            return
        if not isinstance(tools, list | tuple) or not all(map(is_schema, tools)):
            self.failure = Failure(Outcome.ENV_ERROR, 'info["tools"] is no list of OpenAI tool schemas')
            return
        self.toolsets = (*self.toolsets, (len(self.turns), tuple(tools)))

    def _turn(self, move: Move, reward: float) -> Turn:
        done = move.completion
        if done is None:
            return Turn(self.observation, move.action, reward)
        text = None if done.text == move.action else done.text
        tokens = None
        if done.logprobs:
            keep = common_prefix(self.context, done.prompt_ids)
            tokens = Tokens(keep, done.prompt_ids[keep:], done.ids, done.logprobs)
            self.context = done.prompt_ids + done.ids
        return Turn(self.observation, move.action, reward, text, tokens)

    def note(self, strip: str, number: float) -> None:
        """Show a number under the latest turn on the run's page; `strip` names it, with its unit."""
        self.notes.setdefault(strip, {})[len(self.turns)] = number

    def fork(self) -> "Rollout":
        """An independent copy of the path so far, with a random generator spawned from this one's.

        An ended path shares its world, which nobody needs any more; a world that can't be forked
        makes the copy a failed one.
        """
        env, failure = self.env, self.failure
        if not self.over:
            try:
                env = self.env.fork()
            except Exception as error:
                env, failure = self.env.spawn(), Failure.of(error, Outcome.ENV_ERROR)
        twin = Rollout(env, self.task, self.rng.spawn(1)[0])
        twin.turns, twin.toolsets = self.turns.copy(), self.toolsets
        twin.observation, twin.context = self.observation, self.context
        twin.failure, twin.truncated, twin.info = failure, self.truncated, dict(self.info)
        twin.notes = {strip: dict(numbers) for strip, numbers in self.notes.items()}
        return twin

    def finish(self) -> Trajectory:
        """The path as a record."""
        ended = Outcome.TRUNCATED if self.truncated or not self.env.over else Outcome.OK
        outcome = ended if self.failure is None else self.failure.outcome
        judged = self.env.has_success and outcome not in MISSING
        path = Trajectory(
            self.task,
            tuple(self.turns),
            self.observation,
            outcome,
            None if self.failure is None else self.failure.message,
            bool(self.info.get("success")) if judged else None,
            {name: self.info[name] for name in self.env.recorded if name in self.info},
        )
        for strip, numbers in self.notes.items():
            show(path, strip, [numbers.get(k, math.nan) for k in range(1, len(path.turns) + 1)])
        return path


def start_many(env: TextEnv, task: Task, rng: np.random.Generator, count: int) -> list[Rollout]:
    """`count` independent rollouts of `task`: one in `env`, the others in new environments like it."""
    envs = [env, *(env.spawn() for _ in range(count - 1))]
    return [Rollout.start(e, task, r) for e, r in zip(envs, rng.spawn(count), strict=True)]


def play(rollouts: Sequence[Rollout], policy: Policy) -> None:
    """Advance all rollouts, in step, until each is over: one batch of model calls a turn."""
    while live := [rollout for rollout in rollouts if not rollout.over]:
        for rollout, move in zip(live, policy.act(live), strict=True):
            rollout.advance(move)


def finish_all(
    rollouts: Sequence[Rollout], mine: TextEnv, others: Collection[Rollout] = ()
) -> tuple[Trajectory, ...]:
    """The records of all rollouts; closes their environments, each once.

    `mine`, which is the caller's, stays open, and so does what one of the `others` still plays in.
    """
    paths = tuple(rollout.finish() for rollout in rollouts)
    kept = {id(mine), *(id(rollout.env) for rollout in others)}
    for env in {id(rollout.env): rollout.env for rollout in rollouts}.values():
        if id(env) not in kept:
            env.close()
    return paths
