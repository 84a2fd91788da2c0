"""run(suite): play every episode that the log doesn't hold yet, in threads, and append it.

Everything an episode needs is derived from its key, so neither the number of workers nor a crash
changes what is played. Whatever goes wrong inside an episode becomes its outcome; only a wrong
configuration, a full disk or the user stops a run.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnbench.agents import agent_class, make_model
from turnbench.agents.core import Population, failed
from turnbench.agents.model import Budget, Metered, Model
from turnbench.envs.core import Counts, TextEnv, mix
from turnbench.envs.errors import ConfigError, LogError, ModelError
from turnbench.envs.record import Failure, Outcome, Task, Usage
from turnbench.leaderboards.log import Key, LogWriter, has_log, read_done, read_header, unfinished
from turnbench.leaderboards.provenance import provenance
from turnbench.leaderboards.suite import Suite, episodes_of, make_env

GRACE = 30.0  # seconds past its limit after which an episode is given up and its thread left behind


# What a run must have in common with the log that it goes on with.
SAME = {
    "suite": "another suite",
    "code": "another version of turnbench's code",
    "worlds": "other data behind its environments",
    "checkpoints": "other checkpoints",
}


class Played(NamedTuple):
    """What a worker hands to the runner."""

    key: Key
    population: Population
    seconds: float


class Watcher:
    """What a run tells while it goes on; every method may be left as it is (progress.py shows)."""

    def begin(self, total: int, done: int) -> None:
        """`total` episodes, of which `done` are in the log already."""

    def played(self, episode: Played) -> None:
        """One more episode is in the log."""

    def say(self, message: str) -> None:
        """Something a person should read."""

    def end(self) -> None:
        """The run is over, however it ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended. It is complete when no episode is left and none is missing."""

    total: int
    done: int
    missing: int
    interrupted: bool

    @property
    def complete(self) -> bool:
        """Whether every episode has an outcome that counts."""
        return self.done == self.total and not self.missing


def run(suite: Suite, out: Path, *, workers: int = 16, watcher: Watcher | None = None) -> Report:
    """Play what is left of `suite` into the folder `out`.

    Raises ConfigError, LogError, ModelError, OSError; whatever was played before is in the log.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; at least 1 is needed")
    keys = [Key(*episode) for episode in episodes_of(suite)]
    done = prepare_folder(suite, out)
    again = unfinished(done)
    todo = [key for key in keys if key not in done or key in again]
    watcher = watcher or Watcher()
    watcher.begin(len(keys), len(keys) - len(todo))
    outcomes = dict(done)
    interrupted = False
    try:
        if todo:
            with LogWriter(out, header_of(suite)) as log, Crew(suite, todo, workers, watcher) as crew:
                interrupted = _collect(crew, log, outcomes, watcher)
    finally:
        watcher.end()
    counted = [outcomes[key] for key in keys if key in outcomes]
    missing = len(unfinished({key: outcomes[key] for key in keys if key in outcomes}))
    return Report(len(keys), len(counted), missing, interrupted)


def prepare_folder(suite: Suite, out: Path) -> dict[Key, Outcome]:
    """What the folder's log holds already; empty for a new folder. Raises LogError, ConfigError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".lock").touch()
    except OSError as error:
        raise ConfigError(f"can't write to {out}: {error.strerror or error}") from error
    if not has_log(out):
        return {}
    header, wanted = read_header(out), header_of(suite)
    for part, what in SAME.items():
        if header.get(part) != wanted[part]:
            where = difference(header.get(part), wanted[part], part)
            raise LogError(
                f"{out} holds a run with {what}: {where}. "
                "Choose another folder with --out, or delete this one."
            )
    return read_done(out)


def header_of(suite: Suite) -> dict[str, Any]:
    """The first line of a log: what is run, and with what."""
    header = {"suite": suite.model_dump(mode="json"), "digest": suite.digest, **provenance(suite)}
    return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # tuples become lists


def difference(old: Any, new: Any, at: str = "") -> str:
    """Where two configurations first differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            if old.get(key) != new.get(key):
                return difference(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
    return f"{at} is {old!r:.80} there and {new!r:.80} here"


def _collect(crew: "Crew", log: LogWriter, outcomes: dict[Key, Outcome], watcher: Watcher) -> bool:
    """Write down what the crew plays. True if the user interrupted it."""
    interrupted = False
    while crew.busy:
        try:
            episode = crew.next(timeout=0.2)
            if episode is not None:
                log.write(episode.key, episode.population, episode.seconds)
                outcomes[episode.key] = episode.population.best.outcome
                watcher.played(episode)
        except KeyboardInterrupt:
            if interrupted:
                log.sync()
                watcher.end()
                os._exit(130)  # workers may hang in a call that can't be interrupted
            interrupted = True
            crew.stop()
            watcher.say(
                f"Stopping: {crew.in_flight} episodes in flight are played to their ends. "
                "Press Ctrl-C again to leave at once; the same command goes on where this one stopped."
            )
    return interrupted


# --- the crew: threads that play ------------------------------------------------------------------


class Crew:
    """Worker threads, the models they share, and a watchdog over both."""

    def __init__(self, suite: Suite, todo: Sequence[Key], workers: int, watcher: Watcher) -> None:
        self.suite, self.watcher = suite, watcher
        self.models = _models(suite, {key.agent for key in todo})
        self._todo = deque(todo)
        self._lock = threading.Lock()
        self._watched = time.monotonic()
        self._results: queue.SimpleQueue[Played | BaseException] = queue.SimpleQueue()
        self._playing: dict[int, tuple[Key, float]] = {}
        self._warned: set[Key] = set()
        self._stopping = threading.Event()
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
            left = bool(self._todo) and not self._stopping.is_set()
            return left or bool(self._playing) or not self._results.empty()

    def stop(self) -> None:
        """Hand out no more episodes."""
        self._stopping.set()

    def next(self, timeout: float) -> Played | None:
        """The next finished episode, if one ends in time. Raises what stops a run."""
        if time.monotonic() - self._watched > 1:
            self._watch()
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(result, BaseException):
            self.stop()
            raise result
        return result

    def _hire(self) -> None:
        threading.Thread(target=self._work, daemon=True, name="turnbench-worker").start()

    def _work(self) -> None:
        worlds: dict[int, TextEnv] = {}
        me = threading.get_ident()
        while key := self._take(me):
            started = time.monotonic()
            try:
                population = self._play(key, worlds)
                result: Played | BaseException = Played(key, population, time.monotonic() - started)
            except BaseException as error:
                result = error
            with self._lock:
                if self._playing.pop(me, None) is None:
                    break  # given up by the watchdog, which has written this episode off
                self._results.put(result)
        for world in worlds.values():
            with suppress(Exception):
                world.close()

    def _take(self, thread: int) -> Key | None:
        with self._lock:
            if self._stopping.is_set() or not self._todo:
                return None
            key = self._todo.popleft()
            self._playing[thread] = (key, time.monotonic())
            return key

    def _play(self, key: Key, worlds: dict[int, TextEnv]) -> Population:
        spec, system = self.suite.envs[key.env], self.suite.agents[key.agent]
        task = Task(spec.id, key.task, spec.split, key.seed)
        limits = self.suite.limits
        model = None
        if system.model is not None:
            model = Metered(self.models[system.model], Budget(limits.model_calls, limits.seconds))
        counts = Counts()
        try:
            if key.env not in worlds:
                worlds[key.env] = make_env(spec)
            env = worlds[key.env]
            env.counts = counts
        except (ConfigError, MemoryError):
            raise
        except Exception as error:
            return failed(task, Failure.of(error, Outcome.ENV_ERROR))
        population = self._solve(key, task, env, model)
        if population.best.missing:
            with suppress(Exception):
                worlds.pop(key.env).close()
        return replace(population, usage=_bill(model, counts))

    def _solve(self, key: Key, task: Task, env: TextEnv, model: Metered | None) -> Population:
        rng = np.random.default_rng(mix(key.seed, task.env, key.task, key.agent))
        try:
            agent = make_agent(self.suite, key.agent, model)
            population: Population = agent.solve(env, task, rng)
            return population
        except (ConfigError, ModelError, MemoryError):
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f" (at {Path(last.filename).name}:{last.lineno})"
            failure = Failure.of(error, Outcome.AGENT_ERROR)
            return failed(task, replace(failure, message=failure.message + place))

    def _watch(self) -> None:
        """Name the episodes past their limit; give those up that don't come back."""
        now = self._watched = time.monotonic()
        limit = self.suite.limits.seconds
        with self._lock:
            for thread, (key, started) in list(self._playing.items()):
                late = now - started - limit
                if late > 0 and key not in self._warned:
                    self._warned.add(key)
                    place = _place(thread)
                    self.watcher.say(f"{_named(self.suite, key)} is past its {limit:g} s, {place}")
                if late > GRACE:
                    del self._playing[thread]
                    self.watcher.say(f"{_named(self.suite, key)} is given up")
                    self._results.put(Played(key, self._given_up(key), now - started))
                    self._hire()

    def _given_up(self, key: Key) -> Population:
        spec = self.suite.envs[key.env]
        message = f"no answer {GRACE:g} s past the limit of {self.suite.limits.seconds:g} s"
        task = Task(spec.id, key.task, spec.split, key.seed)
        return failed(task, Failure(Outcome.TIMEOUT, message))


def make_agent(suite: Suite, name: str, model: Model | None) -> Any:
    """The agent of a row, with its model and options. Raises ConfigError."""
    spec = suite.agents[name]
    given = {} if model is None else {"model": model}
    try:
        return agent_class(spec.agent)(**given, **spec.options)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise ConfigError(f"agent {name!r}: {error}") from error
        raise ConfigError(f"agent {name!r}: {' '.join(str(error).split())}") from error


def _models(suite: Suite, agents: set[str]) -> dict[str, Model]:
    """The models that these rows need; also makes each agent once, to find its mistakes early."""
    wanted = sorted({suite.agents[a].model for a in agents} - {None})  # type: ignore[type-var]
    models: dict[str, Model] = {}
    try:
        for name in wanted:
            models[str(name)] = make_model({"name": name, **suite.models[str(name)]})
        for agent in agents:
            model = suite.agents[agent].model
            make_agent(suite, agent, None if model is None else models[model])
    except BaseException:
        for model_ in models.values():
            model_.close()
        raise
    return models


def _bill(model: Metered | None, counts: Counts) -> Usage:
    usage = Usage() if model is None else model.usage
    return replace(usage, env_steps=counts.steps, replayed_steps=counts.replayed, forks=counts.forks)


def _named(suite: Suite, key: Key) -> str:
    return f"{key.agent} on {suite.envs[key.env].id} task {key.task} seed {key.seed}"


def _place(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "its thread is gone"
    stack = traceback.extract_stack(frame)
    ours = [f for f in stack if "turnbench" in f.filename] or stack
    last, inner = ours[-1], stack[-1]
    return f"in {last.name} ({Path(last.filename).name}:{last.lineno}), waiting in {inner.name}"
