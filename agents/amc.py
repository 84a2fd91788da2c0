"""Agentic Monte Carlo: sequential Monte Carlo over a black-box model's trajectories.

Hwang et al., "Agentic Monte Carlo" (ICML 2026), algorithm 1. Particles are rollouts, the proposal is
the model itself, and the target tilts it by exp(return / beta). With f(s) the future value of a
state in units of reward, a particle's weight between two weightings at turns j < t grows by (eq. 4,
telescoped)

    log w += ( rewards collected in (j, t]  +  f(s_t) - f(s_j) ) / beta

so the value function is asked at weightings only. f is 0 where an episode has ended, and is taken
as 0 at the start, where it is the same for all. Differences from the released code: accumulated
weights are kept when no resampling happens, the last weighting is never left out, weights stay
logarithms, and every copy is an environment of its own.

The posterior tilts the environment's luck as well: it is the KL-optimal policy's only where the
world is deterministic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from turnbench.agents.core import Population, Resampling
from turnbench.agents.model import Model
from turnbench.agents.react import ReActPolicy
from turnbench.agents.resampling import Resampler, Weights, resampler
from turnbench.agents.rollout import Rollout, finish_all, start_many
from turnbench.agents.values import Value, make_value
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task, Trajectory

# Turns after which the paper resamples, cross-validated there (section 5; papers' horizon 10 or 20).
PAPER_STEPS = {
    "turnbench/WebShop-v0": (6,),
    "turnbench/ScienceWorld-v0": (4, 12),
    "turnbench/TextCraft-v0": (4,),
}


@dataclass(slots=True)
class Cloud:
    """The particles, their weights, and what each was worth when it was last weighed."""

    particles: list[Rollout]
    weights: Weights
    worth: list[float]
    log_evidence: float = 0.0
    resamplings: list[Resampling] = field(default_factory=list)
    discarded: list[Trajectory] = field(default_factory=list)

    @classmethod
    def start(cls, particles: list[Rollout]) -> "Cloud":
        """Equal weights; nobody is worth anything yet."""
        return cls(particles, Weights.uniform(len(particles)), [0.0] * len(particles))

    @property
    def live(self) -> list[Rollout]:
        """The particles that can be played on."""
        return [particle for particle in self.particles if not particle.over]

    @property
    def lost(self) -> bool:
        """Whether every particle has failed."""
        return all(particle.failure is not None for particle in self.particles)


class AMC:
    """N particles, steered by a value function.

    `value`: a Value or the name of one (agents/values.py). `beta`: how sharply returns tilt the
    model, in units of reward: small is sharp. `resample_at`: turns after which to weigh and
    resample; "every" turn; "ess" for whenever the effective sample size falls below `ess_below` x N;
    None for the paper's turns. `select`: which particle is submitted: that of the largest weight, one
    drawn by weight, or (an oracle) that of the highest true return. The rest are ReActPolicy's.
    """

    def __init__(
        self,
        model: Model,
        *,
        n: int = 15,
        value: Value | str = "constant",
        beta: float = 1.0,
        resample_at: Sequence[int] | Literal["every", "ess"] | None = None,
        ess_below: float = 0.5,
        resampling: str = "multinomial",
        select: Literal["max_weight", "sample", "oracle"] = "max_weight",
        style: Literal["plain", "thought"] = "plain",
        instructions: bool = True,
        history: int | None = None,
        reasoning: Literal["keep", "drop"] = "keep",
    ) -> None:
        if n < 1 or not beta > 0:
            raise ConfigError(f"n is {n} and beta is {beta}; n must be at least 1 and beta above 0")
        if select not in ("max_weight", "sample", "oracle"):
            raise ConfigError(f"select is {select!r}; it must be max_weight, sample or oracle")
        if isinstance(resample_at, str) and resample_at not in ("every", "ess"):
            raise ConfigError(f"resample_at is {resample_at!r}; it must be turns, every, ess or null")
        self.n, self.beta, self.select = n, beta, select
        self.resample_at, self.ess_below = resample_at, ess_below
        self.value = make_value(value) if isinstance(value, str) else value
        self.resampler: Resampler = resampler(resampling)
        self.policy = ReActPolicy(model, style, instructions, history, reasoning)
        oracle = select == "oracle" or self.value.oracle
        self.privileges: tuple[str, ...] = ("oracle",) if oracle else ()

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Propose, weigh, resample, until every particle has ended; weigh once more at the end."""
        schedule = self._schedule(env, task)
        cloud = Cloud.start(start_many(env, task, rng, self.n))
        turn = 0
        while cloud.live:
            self._propose(cloud)
            turn += 1
            if cloud.live and schedule.weigh(turn):
                self._weigh(cloud)
                if schedule.resample(cloud.weights):
                    self._resample(cloud, turn, rng, env)
        self._weigh(cloud)
        return self._population(cloud, rng, env)

    def _propose(self, cloud: Cloud) -> None:
        """Sample an action for each live particle, in one batch, and play it."""
        for particle, move in zip(cloud.live, self.policy.act(cloud.live), strict=True):
            particle.advance(move)

    def _weigh(self, cloud: Cloud) -> None:
        """Eq. 4, telescoped since the last weighting. A failed particle is dropped."""
        if cloud.lost:
            return
        worth = self._worth(cloud)
        factors = [
            -math.inf if particle.failure else (now - before) / self.beta
            for particle, now, before in zip(cloud.particles, worth, cloud.worth, strict=True)
        ]
        cloud.weights, cloud.worth = cloud.weights.times(factors), worth

    def _worth(self, cloud: Cloud) -> list[float]:
        """Rewards so far plus the future value, which is 0 for a particle that has ended."""
        live = cloud.live
        futures = dict(zip(map(id, live), self.value.future(live) if live else (), strict=True))
        if not all(map(math.isfinite, futures.values())):
            raise ConfigError(f"the value function returned {list(futures.values())}")
        rewards = (math.fsum(turn.reward for turn in p.turns) for p in cloud.particles)
        return [r + futures.get(id(p), 0.0) for r, p in zip(rewards, cloud.particles, strict=True)]

    def _resample(self, cloud: Cloud, turn: int, rng: np.random.Generator, mine: TextEnv) -> None:
        """Draw N parents by weight; the first child of a parent is the parent, the others fork it."""
        if cloud.lost:
            return
        parents = [int(k) for k in self.resampler(cloud.weights.normalised, rng)]
        cloud.resamplings.append(Resampling(turn, tuple(parents), cloud.weights.logs))
        cloud.log_evidence += cloud.weights.log_mean
        gone = [p for k, p in enumerate(cloud.particles) if k not in parents]
        cloud.discarded += finish_all(gone, mine)
        first = {parent: child for child, parent in reversed(list(enumerate(parents)))}
        old = cloud.particles
        cloud.particles = [
            old[parent] if first[parent] == child else old[parent].fork()
            for child, parent in enumerate(parents)
        ]
        cloud.worth = [cloud.worth[parent] for parent in parents]
        cloud.weights = Weights.uniform(self.n)

    def _population(self, cloud: Cloud, rng: np.random.Generator, mine: TextEnv) -> Population:
        paths = finish_all(cloud.particles, mine)
        return Population(
            paths,
            0 if cloud.lost else self._choose(paths, cloud.weights, rng),
            cloud.weights.logs,
            resamplings=tuple(cloud.resamplings),
            discarded=tuple(cloud.discarded),
            log_evidence=None if cloud.lost else cloud.log_evidence + cloud.weights.log_mean,
        )

    def _choose(self, paths: Sequence[Trajectory], weights: Weights, rng: np.random.Generator) -> int:
        match self.select:
            case "sample":
                return int(rng.choice(self.n, p=weights.normalised))
            case "oracle":
                scores = [-math.inf if path.failure else path.ret for path in paths]
                return int(np.argmax(scores))
        return int(np.argmax(weights.logs))

    def _schedule(self, env: TextEnv, task: Task) -> "Schedule":
        if self.resample_at == "every" or self.resample_at == "ess":
            below = math.inf if self.resample_at == "every" else self.ess_below * self.n
            return Schedule(None, below)
        default = PAPER_STEPS.get(task.env, (max(1, round(0.4 * env.max_turns)),))
        turns = default if self.resample_at is None else tuple(self.resample_at)
        if not all(0 < turn < env.max_turns for turn in turns):
            raise ConfigError(f"resample_at is {list(turns)}, but an episode has {env.max_turns} turns")
        return Schedule(turns, math.inf)


class Schedule(NamedTuple):
    """When to weigh (None: after every turn), and below which effective sample size to resample."""

    turns: tuple[int, ...] | None
    ess_below: float

    def weigh(self, turn: int) -> bool:
        """Whether to weigh after this many turns."""
        return self.turns is None or turn in self.turns

    def resample(self, weights: Weights) -> bool:
        """Whether these weights call for resampling."""
        return weights.ess < self.ess_below
