"""Monitor: another agent under watch. Each turn is scored as it is played, and where the running score
falls below a threshold the episode is flagged, or stopped. `turnbench threshold` chooses the threshold on
the train split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from turnbench.agents import agent_class, check_options
from turnbench.agents.core import Population
from turnbench.agents.model import Model
from turnbench.agents.readers import Spec
from turnbench.agents.rollout import Move, Policy, Rollout
from turnbench.agents.scorers import make_scorer
from turnbench.agents.turn_scores import AGGREGATES, NOT_SCORED, TurnScorer, aggregate, ask_apart, show
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, UnknownName, Unscored
from turnbench.envs.record import Failure, Outcome, Task, Trajectory, Turn, Usage

STOPPED = "stopped by the monitor"


def running(numbers: Sequence[float], how: str) -> list[float]:
    """The path's score after each turn, of the turns so far that have a number; not a number before the
    first of them."""
    found = []
    for k in range(1, len(numbers) + 1):
        judged = [number for number in numbers[:k] if math.isfinite(number)]
        found.append(aggregate(how, judged) if judged else math.nan)
    return found


def first_below(scores: Sequence[float], threshold: float, after: int = 1) -> int | None:
    """The first turn (from 0), not before `after` turns, at which the running score is below it."""
    return next((k for k, s in enumerate(scores) if k + 1 >= after and s < threshold), None)


class MonitoredPolicy:
    """Another policy, all of whose turns are scored before the next one is played. With `stops` it is asked
    only for rollouts whose running score is not below the threshold."""

    def __init__(self, policy: Policy, watch: "Watch", *, stops: bool) -> None:
        self.policy, self.watch, self.stops = policy, watch, stops

    def act(self, rollouts: Sequence[Rollout]) -> list[Move | Failure]:
        """The policy's moves; a Failure for whom the monitor stops."""
        stops = self.watch.stops([live(rollout) for rollout in rollouts])
        if not self.stops:
            return self.policy.act(rollouts)
        asked = [rollout for rollout, stop in zip(rollouts, stops, strict=True) if stop is None]
        moves = iter(self.policy.act(asked) if asked else [])
        return [next(moves) if stop is None else stop for stop in stops]


class Watch:
    """What is watched: by which scorer, how turns are put together, and from where on it is too low.

    A turn has the number that the scorer gave it when it was the last one, and keeps it, whatever is
    played behind it and in whatever forks.
    """

    def __init__(self, scorer: TurnScorer, threshold: float, running: str, after: int) -> None:
        self.scorer, self.threshold, self.running, self.after = scorer, threshold, running, after
        self._numbers: dict[int, tuple[Turn, float]] = {}  # by the turn's identity

    def forget(self) -> None:
        """An episode is over."""
        self._numbers.clear()

    def scores(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """Running scores; none of a path that can't be scored, whose info tells why."""
        new = [path for path in paths if any(id(turn) not in self._numbers for turn in path.turns)]
        for path, told in zip(new, ask_apart(self.scorer.turns, new) if new else [], strict=True):
            if isinstance(told, Unscored):
                path.info[NOT_SCORED] = str(told)
                continue
            for turn, number in zip(path.turns, told, strict=True):
                self._numbers.setdefault(id(turn), (turn, number))
        return [self._scores(path) for path in paths]

    def _scores(self, path: Trajectory) -> list[float]:
        known = [self._numbers[id(turn)][1] for turn in path.turns if id(turn) in self._numbers]
        return running(known, self.running) if len(known) == len(path.turns) else []

    def stops(self, paths: Sequence[Trajectory]) -> list[Failure | None]:
        """Why paths are to be stopped now, or None."""
        begun = [path for path in paths if path.turns]
        scores = iter(self.scores(begun) if begun else [])
        return [self._stop(next(scores)) if path.turns else None for path in paths]

    def _stop(self, scores: Sequence[float]) -> Failure | None:
        if first_below(scores, self.threshold, self.after) is None:
            return None
        why = f"{STOPPED}: {self.scorer.name} {scores[-1]:.4g} is below {self.threshold:.4g}"
        return Failure(Outcome.TRUNCATED, why)

    def note(self, path: Trajectory, scores: Sequence[float]) -> None:
        """Write what was seen into a path's info."""
        if scores:
            show(path, f"monitor: {self.scorer.strip or self.scorer.name}", scores)
        at = first_below(scores, self.threshold, self.after)
        path.info["monitor"] = {
            "threshold": self.threshold,
            "flagged_at": None if at is None else at + 1,
        }


def live(rollout: Rollout) -> Trajectory:
    """A rollout so far, as a record."""
    return Trajectory(rollout.task, tuple(rollout.turns), rollout.observation, Outcome.OK)


class Monitor:
    """An agent that plays by a policy (`react`, `best_of_n`, `amc`, ...), watched turn by turn.

    `watch`: a scorer that has a number a turn, with its options (scorers.py), which reads a path anew at
    each turn. `threshold`: in the scorer's unit, on the running score that `running` makes of the turns so
    far (mean, last, min, ...), from `after` turns on. `on_low`: "flag" writes the turn into the path's
    info, "stop" also ends the episode there, as truncated. Other options are the watched agent's.
    """

    def __init__(
        self,
        model: Model,
        *,
        watch: Spec | TurnScorer,
        threshold: float,
        watched: str = "react",
        running: str = "mean",
        after: int = 2,
        on_low: Literal["flag", "stop"] = "flag",
        **options: Any,
    ) -> None:
        if running not in AGGREGATES:
            raise UnknownName("aggregate", running, AGGREGATES)
        if on_low not in ("flag", "stop"):
            raise UnknownName("choice of on_low", on_low, ("flag", "stop"))
        if not math.isfinite(threshold) or after < 1:
            raise ConfigError("a monitor needs a finite threshold, and after at least 1")
        made: Any = make_scorer(watch, model) if isinstance(watch, str | Mapping) else watch
        if not isinstance(made, TurnScorer) or made.oracle:
            raise ConfigError("what a monitor watches must have a number a turn, and be no oracle")
        cls = agent_class(watched)
        check_options(f"agent {watched!r}", cls, options, given={"model"})
        self.agent: Any = cls(model, **options)
        if not hasattr(self.agent, "policy"):
            raise ConfigError(f"agent {watched!r} can't be watched: it has no policy")
        self.watch = Watch(made, threshold, running, after)
        self.agent.policy = MonitoredPolicy(self.agent.policy, self.watch, stops=on_low == "stop")
        self.privileges: tuple[str, ...] = self.agent.privileges

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Let the agent solve the task under watch; every path's info tells what was seen."""
        population: Population = self.agent.solve(env, task, rng)
        seen = [path for path in population.trajectories if path.turns and not path.missing]
        for path, scores in zip(seen, self.watch.scores(seen), strict=True):
            self.watch.note(path, scores)
        self.watch.forget()
        usage: Usage = getattr(self.watch.scorer, "usage", Usage())
        return replace(population, usage=population.usage + usage)
