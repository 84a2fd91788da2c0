"""Crew: the threads that play a run's episodes, the models they share, and a watchdog over both."""

import queue
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from turnbench.agents import agent_class, make_model
from turnbench.agents.core import Population, failed
from turnbench.agents.model import Budget, Metered, Model
from turnbench.envs.core import Counts, TextEnv, mix
from turnbench.envs.errors import ConfigError, EpisodeOver, ModelError, TurnbenchError, Unscored
from turnbench.envs.record import Failure, Outcome, Task, Usage
from turnbench.leaderboards.log import Key, episode_line
from turnbench.leaderboards.suite import Suite, make_env

GRACE = 30.0  # seconds past its limit after which an episode is given up and its thread left behind
_LIBRARY = (sysconfig.get_paths()["stdlib"], "<frozen")


class Played(NamedTuple):
    """One finished episode, with its line for the log."""

    key: Key
    population: Population
    line: bytes


@dataclass(slots=True)
class Attempt:
    """An episode while it is played."""

    key: Key
    task: Task
    started: float
    model: Metered | None
    counts: Counts
    privileges: tuple[str, ...] = ()

    def bill(self, population: Population) -> Population:
        """`population` with what was used, besides what its agent has billed itself."""
        counts = self.counts
        usage = population.usage + (Usage() if self.model is None else self.model.usage)
        steps = Usage(env_steps=counts.steps, replayed_steps=counts.replayed, forks=counts.forks)
        return replace(population, usage=usage + steps)

    def close(self, population: Population) -> Played:
        """The finished episode. What JSON can't hold makes it a failure of the agent."""
        fork = ("fork",) if self.counts.forks else ()
        told = (*self.privileges, *fork), time.monotonic() - self.started
        try:
            line = episode_line(self.key, population, *told)
        except (TypeError, ValueError, RecursionError) as error:
            failure = Failure.of(error, Outcome.AGENT_ERROR)
            population = failed(self.task, failure, population.usage)
            line = episode_line(self.key, population, *told)
        return Played(self.key, population, line)


class Crew:
    """Plays episodes in threads. `next` hands out what they finish, until nothing is `busy`.

    `error` is what stopped the crew, if anything did: the episodes in flight are still finished.
    """

    def __init__(self, suite: Suite, todo: Sequence[Key], workers: int, say: Any) -> None:
        self.suite, self.say = suite, say
        self.models = _models(suite, {key.agent for key in todo})
        self.error: BaseException | None = None
        self._todo = deque(todo)
        self._lock = threading.Lock()
        self._watched = time.monotonic()
        self._results: queue.SimpleQueue[Played | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(2 * workers)  # so that a slow disk doesn't fill the memory
        self._playing: dict[int, Attempt] = {}
        self._warned: set[Key] = set()
        self._stopping = False
        for _ in range(min(workers, len(self._todo))):
            self._hire()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for model in self.models.values():
            with suppress(Exception):
                model.close()

    @property
    def in_flight(self) -> int:
        """How many episodes are being played."""
        return len(self._playing)

    @property
    def busy(self) -> bool:
        """Whether anything is still being played, waiting to be, or to be collected."""
        with self._lock:
            left = bool(self._todo) and not self._stopping
            return left or bool(self._playing) or not self._results.empty()

    def stop(self) -> None:
        """Hand out no more episodes."""
        self._stopping = True

    def next(self, timeout: float) -> Played | None:
        """The next finished episode, if one ends in time (seconds)."""
        if time.monotonic() - self._watched > 1:
            self._watch()
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        self._room.release()
        if isinstance(result, Played):
            return result
        if self.error is None:
            self.error = result
            self.say(
                f"Stopping: {str(result) or type(result).__name__}. "
                f"{self.in_flight} episodes in flight are played to their ends."
            )
        return None

    def _hire(self) -> None:
        threading.Thread(target=self._work, daemon=True, name="turnbench-worker").start()

    def _work(self) -> None:
        worlds: dict[int, TextEnv] = {}
        me = threading.get_ident()
        while attempt := self._take(me):
            try:
                result: Played | BaseException = attempt.close(self._play(attempt, worlds))
            except BaseException as error:
                result = error
            self._room.acquire()
            with self._lock:
                if self._playing.pop(me, None) is None:
                    return  # given up by the watchdog, which has written this episode off
                self._stopping = self._stopping or not isinstance(result, Played)
                self._results.put(result)
        for world in worlds.values():
            with suppress(Exception):
                world.close()

    def _take(self, thread: int) -> Attempt | None:
        with self._lock:
            if self._stopping or not self._todo:
                return None
            attempt = self._playing[thread] = self._attempt(self._todo.popleft())
            return attempt

    def _attempt(self, key: Key) -> Attempt:
        spec, limits = self.suite.envs[key.env], self.suite.limits
        task = Task(spec.id, key.task, spec.split, key.seed)
        name = self.suite.agents[key.agent].model
        budget = Budget(limits.model_calls, limits.seconds)
        model = None if name is None else Metered(self.models[name], budget)
        return Attempt(key, task, time.monotonic(), model, Counts())

    def _play(self, attempt: Attempt, worlds: dict[int, TextEnv]) -> Population:
        index = attempt.key.env
        try:
            if index not in worlds:
                worlds[index] = make_env(self.suite.envs[index])
            worlds[index].counts = attempt.counts
        except MemoryError:
            raise
        except Exception as error:
            return failed(attempt.task, Failure.of(error, Outcome.ENV_ERROR))
        population = self._solve(attempt, worlds[index])
        if any(path.outcome is Outcome.ENV_ERROR for path in population.trajectories):
            with suppress(Exception):
                worlds.pop(index).close()
        return attempt.bill(population)

    def _solve(self, attempt: Attempt, env: TextEnv) -> Population:
        key, task = attempt.key, attempt.task
        rng = np.random.default_rng(mix(key.seed, task.env, key.task, key.agent))
        try:
            agent = make_agent(self.suite, key.agent, attempt.model)
            population = agent.solve(env, task, rng)
            attempt.privileges = tuple(getattr(agent, "privileges", ()))
            return _checked(population, task)
        except Unscored as error:
            return failed(task, Failure(Outcome.INFRA_ERROR, str(error)))
        except (ConfigError, ModelError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
            outcome = Outcome.AGENT_ERROR if isinstance(error, EpisodeOver) else blame(frames)
            failure = Failure.of(error, outcome or Outcome.AGENT_ERROR)
            line = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{failure.message} (at {Path(line.filename).name}:{line.lineno})"
            return failed(task, replace(failure, message=told))

    def _watch(self) -> None:
        """Name the episodes past their limit; give those up that don't come back."""
        now = self._watched = time.monotonic()
        limit = self.suite.limits.seconds
        with self._lock:
            for thread, attempt in list(self._playing.items()):
                late = now - attempt.started - limit
                if late > 0 and attempt.key not in self._warned:
                    self._warned.add(attempt.key)
                    self.say(f"{named(attempt)} is past its {limit:g} s, {place(frames_of(thread))}")
                if late > GRACE:
                    del self._playing[thread]
                    self._results.put(self._given_up(attempt, frames_of(thread)))
                    self._hire()

    def _given_up(self, attempt: Attempt, frames: Sequence[FrameType]) -> Played:
        limit = self.suite.limits.seconds
        message = f"no answer {GRACE:g} s past the limit of {limit:g} s, {place(frames)}"
        self.say(f"{named(attempt)} is given up: {message}")
        failure = Failure(blame(frames) or Outcome.TIMEOUT, message)
        return attempt.close(attempt.bill(failed(attempt.task, failure)))


def _checked(population: Any, task: Task) -> Population:
    if not isinstance(population, Population):
        raise TypeError(f"solve() returned {type(population).__name__}, not a Population")
    if any(path.task != task for path in population.trajectories):
        raise ValueError("solve() returned paths of another task")
    return population


def make_agent(suite: Suite, name: str, model: Model | None) -> Any:
    """The agent of a row, with its model and options."""
    spec = suite.agents[name]
    given = {} if model is None else {"model": model}
    return agent_class(spec.agent)(**given, **spec.options)


def _models(suite: Suite, agents: set[str]) -> dict[str, Model]:
    """The models that these rows need; also makes each agent once, to find its mistakes early."""
    models: dict[str, Model] = {}
    try:
        for name in sorted(agents):
            model = suite.agents[name].model
            if model is not None and model not in models:
                models[model] = make_model({"name": model, **suite.models[model]})
            _try_agent(suite, name, None if model is None else models[model])
    except BaseException:
        for made in models.values():
            made.close()
        raise
    return models


def _try_agent(suite: Suite, name: str, model: Model | None) -> None:
    try:
        make_agent(suite, name, model)
    except Exception as error:
        kind = "" if isinstance(error, TurnbenchError) else f"{type(error).__name__}: "
        wrong = ConfigError(f"agents.{name}: {kind}{' '.join(str(error).split())}")
        wrong.at = ("agents", name)
        raise wrong from error


# --- whose fault, and where -----------------------------------------------------------------------


def blame(frames: Iterable[FrameType]) -> Outcome | None:
    """Whether the world or the model was at work, from frames, innermost first; None for neither."""
    for frame in frames:
        me = frame.f_locals.get("self")
        if isinstance(me, TextEnv):
            return Outcome.ENV_ERROR
        if isinstance(me, Metered):
            return Outcome.INFRA_ERROR
    return None


def frames_of(thread: int) -> list[FrameType]:
    """What a thread is doing now, innermost first; empty if it is gone."""
    frame = sys._current_frames().get(thread)
    return [] if frame is None else [inner for inner, _ in traceback.walk_stack(frame)]


def place(frames: Sequence[FrameType]) -> str:
    """The innermost place outside Python's own library, in words."""
    if not frames:
        return "its thread is gone"
    outside = (f for f in frames if not f.f_code.co_filename.startswith(_LIBRARY))
    frame = next(outside, frames[0])
    return f"in {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def named(attempt: Attempt) -> str:
    """Which episode it is, in words."""
    key = attempt.key
    return f"{key.agent} on {attempt.task.env} task {key.task} seed {key.seed}"
