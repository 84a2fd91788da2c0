"""Agentic Monte Carlo: sequential Monte Carlo over a black-box model's trajectories.

Hwang et al., "Agentic Monte Carlo" (ICML 2026), algorithm 1. Particles are rollouts, the proposal is
the model itself, and the target tilts it by exp(return / beta). With R(s) the estimated return of
the whole episode (rewards so far plus the future value, in units of reward), a particle's weight
between two weightings at turns j < t grows by (eq. 4, telescoped)

    log w += ( R(s_t) - R(s_j) ) / beta

so the value function is asked at weightings only. R is the true return where an episode has ended,
and 0 at the start, where it is the same for all. Differences from the released code: accumulated
weights are kept when no resampling happens, the last weighting is never left out, weights stay
logarithms, and every copy is an environment of its own.

All particles play the same task under the same seed, so they share the world's luck. Were each to
have its own, the posterior would tilt that as well, and be the KL-optimal policy's no longer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from turnbench.agents.core import Population, Resampling
from turnbench.agents.model import Model
from turnbench.agents.react import ReActPolicy
from turnbench.agents.resampling import Resampler, Weights, resampler
from turnbench.agents.rollout import Rollout, finish_all, start_many
from turnbench.agents.values import Value, estimates, make_value
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task, Trajectory

# Turns after which the paper resamples, cross-validated there (section 5; its horizon is 10 or 20).
PAPER_STEPS = {
    "turnbench/WebShop-v0": (6,),
    "turnbench/ScienceWorld-v0": (4, 12),
    "turnbench/TextCraft-v0": (4,),
}
STRIP = "value at weightings [reward]"  # on the run's page
SELECT = ("max_weight", "max_value", "sample", "oracle")


@dataclass(slots=True)
class Cloud:
    """The particles, their weights, and the return each was estimated at when it was last weighed."""

    particles: list[Rollout]
    weights: Weights
    returns: list[float]
    log_evidence: float = 0.0
    resamplings: list[Resampling] = field(default_factory=list)
    discarded: list[Trajectory] = field(default_factory=list)

    @classmethod
    def start(cls, particles: list[Rollout]) -> "Cloud":
        """Equal weights; the return that all expect at the start is taken as 0."""
        return cls(particles, Weights.uniform(len(particles)), [0.0] * len(particles))

    @property
    def live(self) -> list[Rollout]:
        """The particles that can be played on."""
        return [particle for particle in self.particles if not particle.over]

    @property
    def lost(self) -> bool:
        """Whether no particle is left that says anything about the model."""
        return all(particle.missing for particle in self.particles)


class AMC:
    """N particles, steered by a value function.

    `value`: the name or folder of a value function (agents/values.py), or its mapping. `beta`: how
    sharply returns tilt the model, in units of reward: small is sharp. `resample_at`: turns after
    which to weigh and resample; "every" turn; "ess" for whenever the effective sample size falls below
    `ess_below` x N; None for the paper's turns. `rewards`: "true" weighs an ended path by its true
    return, as the paper does (an oracle); "estimated" leaves that to the value function as well.
    `select`: which particle is submitted: that of the largest weight, that of the highest estimated
    return, one drawn by weight, or (an oracle) that of the highest true return. A particle whose
    environment or model failed is dropped: it keeps its place and cause, without weight. Other
    options are ReActPolicy's.
    """

    def __init__(
        self,
        model: Model,
        *,
        n: int = 15,
        value: Value | str | Mapping[str, Any] = "constant",
        beta: float = 1.0,
        resample_at: Sequence[int] | Literal["every", "ess"] | None = None,
        ess_below: float = 0.5,
        resampling: str = "multinomial",
        rewards: Literal["true", "estimated"] = "true",
        select: Literal["max_weight", "max_value", "sample", "oracle"] = "max_weight",
        style: Literal["plain", "thought"] = "plain",
        instructions: bool = True,
        history: int | None = None,
        reasoning: Literal["keep", "drop"] = "keep",
    ) -> None:
        if n < 1 or not beta > 0:
            raise ConfigError(f"n is {n} and beta is {beta}; n must be at least 1 and beta above 0")
        if not 0 < ess_below <= 1:
            raise ConfigError(f"ess_below is {ess_below}; it must be above 0 and at most 1")
        for name, given, known in (
            ("select", select, SELECT),
            ("rewards", rewards, ("true", "estimated")),
        ):
            if given not in known:
                raise ConfigError(f"{name} is {given!r}; it must be one of {', '.join(known)}")
        self.n, self.beta, self.rewards, self.select = n, beta, rewards, select
        self.resample_at, self.ess_below = _resample_at(resample_at), ess_below
        self.value = make_value(value, model)
        self.resampler: Resampler = resampler(resampling)
        self.policy = ReActPolicy(model, style, instructions, history, reasoning)
        oracle = rewards == "true" or select == "oracle" or self.value.oracle
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
        live = cloud.live
        for particle, move in zip(live, self.policy.act(live), strict=True):
            particle.advance(move)

    def _weigh(self, cloud: Cloud) -> None:
        """Eq. 4, telescoped since the last weighting. A missing particle is dropped."""
        if cloud.lost:
            return
        returns = self._returns(cloud)
        factors = [
            -math.inf if particle.missing else self._log_factor(now - before)
            for particle, now, before in zip(cloud.particles, returns, cloud.returns, strict=True)
        ]
        cloud.weights, cloud.returns = cloud.weights.times(factors), returns
        for particle, number in zip(cloud.particles, returns, strict=True):
            if not particle.missing:
                particle.note(STRIP, number)

    def _log_factor(self, gain: float) -> float:
        if not math.isfinite(gain / self.beta):
            raise ConfigError(f"beta is {self.beta:g}: too small for a change of {gain:g} in the return")
        return gain / self.beta

    def _returns(self, cloud: Cloud) -> list[float]:
        """The true return of what has ended, unless it is to be estimated; estimates for the rest."""
        asked = [
            particle
            for particle in cloud.particles
            if not (particle.missing or (particle.over and self.rewards == "true"))
        ]
        known = dict(zip(map(id, asked), estimates(self.value, asked), strict=True))
        return [known.get(id(particle), particle.ret) for particle in cloud.particles]

    def _resample(self, cloud: Cloud, turn: int, rng: np.random.Generator, mine: TextEnv) -> None:
        """Draw N parents by weight; the first child of a parent is the parent, the others fork it."""
        if cloud.lost:
            return
        parents = [int(k) for k in self.resampler(cloud.weights.normalised, rng)]
        cloud.resamplings.append(Resampling(turn, tuple(parents), cloud.weights.logs))
        cloud.log_evidence += cloud.weights.log_mean
        old, first = cloud.particles, {parent: k for k, parent in reversed(list(enumerate(parents)))}
        gone = [particle for k, particle in enumerate(old) if k not in first]
        cloud.discarded += finish_all(gone, mine, others=[old[k] for k in first])
        cloud.particles = [
            old[parent] if first[parent] == k else old[parent].fork() for k, parent in enumerate(parents)
        ]
        cloud.returns = [cloud.returns[parent] for parent in parents]
        cloud.weights = Weights.uniform(self.n)

    def _population(self, cloud: Cloud, rng: np.random.Generator, mine: TextEnv) -> Population:
        paths = finish_all(cloud.particles, mine)
        scores = [-math.inf if p.missing else r for p, r in zip(paths, cloud.returns, strict=True)]
        true = self.rewards == "true" and not cloud.lost
        return Population(
            paths,
            0 if cloud.lost else self._choose(paths, cloud.weights, scores, rng),
            cloud.weights.logs,
            tuple(scores),
            self.value.usage,
            tuple(cloud.resamplings),
            tuple(cloud.discarded),
            cloud.log_evidence + cloud.weights.log_mean if true else None,
            self.value.fallbacks,
        )

    def _choose(
        self,
        paths: Sequence[Trajectory],
        weights: Weights,
        scores: Sequence[float],
        rng: np.random.Generator,
    ) -> int:
        match self.select:
            case "sample":
                return int(rng.choice(self.n, p=weights.normalised))
            case "oracle":
                return int(np.argmax([-math.inf if path.missing else path.ret for path in paths]))
            case "max_value":
                return int(np.argmax(scores))
        return int(np.argmax(weights.logs))

    def _schedule(self, env: TextEnv, task: Task) -> "Schedule":
        """When to weigh and resample in this world; refuses what can't be played at all."""
        self.value.check(task.env)
        schedule = self._wanted(env, task)
        if schedule.turns and self.n > 1:
            refuse_unforkable(env, task)
        return schedule

    def _wanted(self, env: TextEnv, task: Task) -> "Schedule":
        horizon = env.max_turns
        match self.resample_at:
            case None:
                fitting = [turn for turn in PAPER_STEPS.get(task.env, ()) if turn < horizon]
                return Schedule(fitting or [turn for turn in (round(0.4 * horizon),) if turn], math.inf)
            case "every":
                return Schedule(range(1, horizon), math.inf)
            case "ess":
                return Schedule(range(1, horizon), self.ess_below * self.n)
        if not all(turn < horizon for turn in self.resample_at):
            raise ConfigError(
                f"resample_at is {list(self.resample_at)}, but an episode of {task.env} has {horizon} "
                "turns, the last of which is always weighed"
            )
        return Schedule(self.resample_at, math.inf)


class Schedule(NamedTuple):
    """After which turns to weigh, and below which effective sample size to resample then."""

    turns: Sequence[int]
    ess_below: float

    def weigh(self, turn: int) -> bool:
        """Whether to weigh after this many turns."""
        return turn in self.turns

    def resample(self, weights: Weights) -> bool:
        """Whether these weights call for resampling."""
        return weights.ess < self.ess_below


def refuse_unforkable(env: TextEnv, task: Task) -> None:
    """Raise ConfigError where search by copies isn't possible."""
    if not env.can_fork:
        raise ConfigError(
            f"{task.env} can't be forked (its can_fork is False), which this agent needs: "
            "take best_of_n, or n: 1"
        )


def _resample_at(given: Any) -> tuple[int, ...] | Literal["every", "ess"] | None:
    if given is None or given == "every" or given == "ess":
        return given  # type: ignore[no-any-return]
    if isinstance(given, str) or not all(type(turn) is int and turn > 0 for turn in given):
        raise ConfigError(f"resample_at is {given!r}; it must be a list of turns, every, ess or null")
    return tuple(given)
