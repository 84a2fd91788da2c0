"""Replay: play recorded actions again from their seeds, in parallel, and compare what the world says."""

import json
import multiprocessing
import resource
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from turnbench.envs.core import TextEnv
from turnbench.envs.errors import LogError
from turnbench.envs.record import Outcome, Trajectory
from turnbench.leaderboards.suite import EnvSpec, make_env
from turnbench.leaderboards.trajectories import parse_episode

CHUNK_LINES, CHUNK_BYTES = 32, 4 * 2**20
MEMORY = 4 * 2**30  # bytes that a process may have: actions that blow a world up end as its fault


class Replayed(NamedTuple):
    """How much was played again, and the first thing that differed from the record."""

    paths: int
    steps: int
    fault: str | None


class Job(NamedTuple):
    """An episode's line; which of its paths to replay: None for all it ended with, else the numbers
    of discarded ones.
    """

    line: bytes
    discarded: tuple[int, ...] | None = None


def replay_path(env: TextEnv, path: Trajectory, *, whole: bool = True) -> str | None:
    """Where a recorded path differs from what `env` does now; None where it agrees to the byte.

    A path that isn't `whole` was given up on the way: its end is not compared.
    """
    task = path.task
    if not path.turns and not path.final:
        return None  # an episode that failed before its first turn has nothing to replay
    seen, _ = env.reset(seed=task.seed, options={"task": task.id})
    over = truncated = False
    info: dict[str, object] = {}
    for number, turn in enumerate(path.turns):
        if over:
            return f"turn {number} was played after the end"
        if seen != turn.observation:
            return f"turn {number}: {_apart('observation', turn.observation, seen)}"
        seen, reward, over, truncated, info = env.step(turn.action)
        over = over or truncated
        if reward != turn.reward:
            return f"turn {number}: the recorded reward is {turn.reward!r}, the world pays {reward!r}"
    if seen != path.final:
        return f"the end: {_apart('observation', path.final, seen)}"
    return _end_fault(env, path, over, truncated, info) if whole else None


def _end_fault(
    env: TextEnv, path: Trajectory, over: bool, truncated: bool, info: dict[str, object]
) -> str | None:
    """Whether a path ended as it says. Failures can happen at any turn that isn't the last."""
    ended = Outcome.TRUNCATED if truncated else Outcome.OK
    claimed = path.outcome
    if path.failure is None and (not over or claimed is not ended):
        said = ended.value if over else "not over"
        return f"the end: the record says {claimed.value}, the world is {said}"
    if path.failure is not None and (over or claimed is Outcome.OK):
        return f"the end: the record says {claimed.value} by a failure, the world ended by itself"
    success = bool(info.get("success")) if env.has_success else None
    if success != path.success:
        return f"the end: the recorded success is {path.success}, the world says {success}"
    for name in env.recorded:
        if json.loads(json.dumps(info.get(name))) != path.info.get(name):
            return f"the end: the recorded {name} are not the world's"
    return None


def _apart(what: str, recorded: str, seen: str) -> str:
    pairs = zip(recorded, seen, strict=False)
    at = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(recorded), len(seen)))
    return (
        f"the {what}s differ at character {at}: {recorded[at : at + 40]!a} recorded, "
        f"{seen[at : at + 40]!a} replayed"
    )


class Replayer:
    """Worlds of a suite, made when they are needed, that replay lines of a log."""

    def __init__(self, specs: Sequence[EnvSpec]) -> None:
        self.specs = specs
        self.worlds: dict[int, TextEnv] = {}

    def close(self) -> None:
        """Release the worlds."""
        for world in self.worlds.values():
            with suppress(Exception):
                world.close()

    def replay(self, job: Job) -> Replayed:
        """Play the chosen paths of one line. What a world raises is a fault too."""
        episode = parse_episode(job.line, "the log")
        key, population = episode.key, episode.population
        paths = population.trajectories
        if job.discarded is not None:
            paths = tuple(population.discarded[k] for k in job.discarded)
        steps = 0
        for number, path in enumerate(paths):
            steps += len(path.turns)
            try:
                fault = replay_path(self._world(key.env), path, whole=job.discarded is None)
            except Exception as error:
                fault = f"the world failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                self.worlds.pop(key.env, None)
            if fault:
                where = f"task {key.task} seed {key.seed} path {number}"
                return Replayed(number + 1, steps, f"{where}, {fault}")
        return Replayed(len(paths), steps, None)

    def _world(self, index: int) -> TextEnv:
        if index not in self.worlds:
            self.worlds[index] = make_env(self.specs[index])
        return self.worlds[index]


def replay_all(
    specs: Sequence[EnvSpec], jobs: Iterable[Job], *, workers: int, seconds: float
) -> Replayed:
    """Replay jobs until one shows a fault. `workers` 0 plays in this process.

    Raises TimeoutError after `seconds`; in this process that is looked at between episodes only.
    """
    deadline = time.monotonic() + seconds
    paths = steps = 0
    results = _here(specs, jobs) if workers == 0 else _pool(specs, jobs, workers, deadline)
    for result in results:
        paths, steps = paths + result.paths, steps + result.steps
        if result.fault is not None or time.monotonic() > deadline:
            results.close()
            if result.fault is None:
                raise TimeoutError
            return Replayed(paths, steps, result.fault)
    return Replayed(paths, steps, None)


def _here(specs: Sequence[EnvSpec], jobs: Iterable[Job]) -> Generator[Replayed, None, None]:
    replayer = Replayer(specs)
    try:
        yield from map(replayer.replay, jobs)
    finally:
        replayer.close()


_replayer: Replayer | None = None  # of a worker process


def _begin(specs: str) -> None:
    global _replayer
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if most < 0 else min(MEMORY, most), most))
    _replayer = Replayer([EnvSpec.model_validate(spec) for spec in json.loads(specs)])


def _work(jobs: list[Job]) -> Replayed:
    assert _replayer is not None
    paths = steps = 0
    for job in jobs:
        result = _replayer.replay(job)
        paths, steps = paths + result.paths, steps + result.steps
        if result.fault:
            return Replayed(paths, steps, result.fault)
    return Replayed(paths, steps, None)


def _pool(
    specs: Sequence[EnvSpec], jobs: Iterable[Job], workers: int, deadline: float
) -> Generator[Replayed, None, None]:
    """Results of chunks as they come. Processes start afresh (a fork would share a JVM), and no more
    chunks are unpacked than the workers can soon take.
    """
    told = json.dumps([spec.model_dump(mode="json") for spec in specs])
    room = threading.Semaphore(4 * workers)
    left = iter(_chunks(jobs))
    trouble: list[LogError] = []

    def feed() -> Iterator[list[Job]]:
        try:
            for chunk in left:
                room.acquire()
                yield chunk
        except LogError as error:  # the pool would lose it
            trouble.append(error)

    pool = multiprocessing.get_context("spawn").Pool(workers, _begin, (told,))
    try:
        results = pool.imap_unordered(_work, feed())
        while True:
            try:
                result = results.next(timeout=max(0.0, deadline - time.monotonic()))
            except StopIteration:
                break
            except multiprocessing.TimeoutError as error:
                raise TimeoutError from error
            room.release()
            yield result
    finally:
        for _ in range(4 * workers):
            room.release()
        pool.terminate()
        pool.join()
    if trouble:
        raise trouble[0]


def _chunks(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    chunk: list[Job] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(job.line)
        if len(chunk) == CHUNK_LINES or size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
