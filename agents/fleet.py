"""Fleet of Agents: a genetic particle filter with a memory (Klein et al., ICML 2025).

All agents take a step a round; those that end leave the fleet. Every k rounds each agent's state is
valued and kept in a record of all states so far, from which the fleet is drawn anew, so that it can
go back to an older state. A state's weight is

    value x decay^(rounds since it was recorded) + 1e-6

a value and not the exponential of a difference, so that repeated resampling targets the product of
the values along the path and not AMC's posterior. What AMC's paper calls "SMC (FoA)" is another
thing: agents/amc.py with `value: {value: zero_shot, style: reflect}`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from turnbench.agents.amc import refuse_unforkable
from turnbench.agents.core import Population
from turnbench.agents.model import Model
from turnbench.agents.react import ReActPolicy
from turnbench.agents.resampling import Floats, draw
from turnbench.agents.rollout import Rollout, finish_all, start_many
from turnbench.agents.values import Value, estimates, make_value
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task

FLOOR = 1e-6  # what every recorded state weighs at least
FILTER = 0.5  # "linear_filtered" leaves out states below this share of the highest value


@dataclass(slots=True)
class Record:
    """A state that the fleet can go back to: its value, the round it was recorded in, how often it was."""

    state: Rollout
    value: float
    round: int
    drawn: int = 0


@dataclass(slots=True)
class Memory:
    """All states recorded so far, and those that were worth nothing and were given up."""

    records: list[Record] = field(default_factory=list)
    hopeless: list[Rollout] = field(default_factory=list)


class Fleet:
    """N agents that go on from the best states seen so far.

    `value`: the name or folder of a value function, or its mapping; values below 0 count as 0, and
    such states are never recorded. `every`: rounds between two drawings. `decay`: what a state's weight
    is multiplied by a round. `weights`: "linear", or "linear_filtered", which leaves out states below
    half of the highest value. `select`: the path of the highest value is submitted, or (an oracle) that
    of the highest true return. There are as many rounds as an episode has turns; an agent that has ended
    keeps its place. Other options are ReActPolicy's.
    """

    def __init__(
        self,
        model: Model,
        *,
        n: int = 15,
        value: Value | str | Mapping[str, Any] = "zero_shot",
        every: int = 4,
        decay: float = 0.5,
        weights: Literal["linear", "linear_filtered"] = "linear",
        select: Literal["value", "oracle"] = "value",
        style: Literal["plain", "thought"] = "plain",
        instructions: bool = True,
        history: int | None = None,
        reasoning: Literal["keep", "drop"] = "keep",
    ) -> None:
        if n < 1 or every < 1 or not 0 <= decay <= 1:
            raise ConfigError(
                f"n is {n}, every {every}, decay {decay}; n and every must be at least 1, decay from 0 to 1"
            )
        for name, given, known in (
            ("weights", weights, ("linear", "linear_filtered")),
            ("select", select, ("value", "oracle")),
        ):
            if given not in known:
                raise ConfigError(f"{name} is {given!r}; it must be one of {', '.join(known)}")
        self.n, self.every, self.decay, self.weights, self.select = n, every, decay, weights, select
        self.value = make_value(value, model)
        self.policy = ReActPolicy(model, style, instructions, history, reasoning)
        oracle = select == "oracle" or self.value.oracle
        self.privileges: tuple[str, ...] = ("oracle",) if oracle else ()

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Step, record and draw, until all agents have ended or the rounds are used up."""
        self.value.check(task.env)
        if self.n > 1 and self.every < env.max_turns:
            refuse_unforkable(env, task)
        memory, agents = Memory(), start_many(env, task, rng, self.n)
        for now in range(1, env.max_turns + 1):
            if now > 1 and (now - 1) % self.every == 0:
                self._draw(agents, memory, now, rng)
            live = [agent for agent in agents if not agent.over]
            for agent, move in zip(live, self.policy.act(live) if live else (), strict=True):
                agent.advance(move)
        return self._population(agents, memory, env)

    def _draw(self, agents: list[Rollout], memory: Memory, now: int, rng: np.random.Generator) -> None:
        """Record the states of all that play, then draw as many from the whole record in their places."""
        live = [k for k, agent in enumerate(agents) if not agent.over]
        values = estimates(self.value, [agents[k] for k in live])
        memory.records += [Record(agents[k], v, now) for k, v in zip(live, values, strict=True) if v > 0]
        if not (memory.records and live):
            return
        memory.hopeless += [agents[k] for k, v in zip(live, values, strict=True) if not v > 0]
        drawn = draw(self._odds(memory.records, now), len(live), rng)
        for k, which in zip(live, drawn, strict=True):
            memory.records[which].drawn += 1
            agents[k] = memory.records[which].state.fork()

    def _odds(self, records: Sequence[Record], now: int) -> Floats:
        """The probability of each recorded state, shape [records]."""
        values = np.array([record.value for record in records])
        ages = np.array([now - record.round for record in records])
        weights = values * self.decay**ages + FLOOR
        if self.weights == "linear_filtered":
            weights = np.where(values >= FILTER * values.max(), weights, 0.0)
        return weights / weights.sum()  # type: ignore[no-any-return]

    def _population(self, agents: list[Rollout], memory: Memory, mine: TextEnv) -> Population:
        """The fleet's paths. A recorded state that nobody went on from is a path given up."""
        asked = [agent for agent in agents if not agent.missing]
        values = dict(zip(map(id, asked), estimates(self.value, asked), strict=True))
        scores = [values.get(id(agent), -math.inf) for agent in agents]
        given_up = memory.hopeless + [r.state for r in memory.records if not r.drawn]
        gone_on = [r.state for r in memory.records if r.drawn]
        discarded = finish_all(given_up, mine, others=[*agents, *gone_on])
        paths = finish_all([*agents, *gone_on], mine)[: self.n]
        returns = [-math.inf if path.missing else path.ret for path in paths]
        return Population(
            paths,
            int(np.argmax(returns if self.select == "oracle" else scores)),
            scores=tuple(scores),
            usage=self.value.usage,
            discarded=discarded,
            fallbacks=self.value.fallbacks,
        )
