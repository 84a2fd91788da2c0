"""The checks of check.py, in the order in which they run; a new one is a function and one entry below.

A check plays the world through its Probe, returns if all is well, and raises Broken otherwise.
"""

import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check

from turnbench.envs import probe as p
from turnbench.envs.core import MAX_SEED, PlainEnv, TextEnv
from turnbench.envs.errors import EpisodeOver
from turnbench.envs.probe import Episode, Probe


class Broken(Exception):
    """A check failed; the message says how."""


class Skipped(Exception):
    """A check doesn't apply; the message says why."""


class Check(NamedTuple):
    """One point of the contract: its promise, the remedy where it is broken, what it rests on."""

    name: str
    run: Callable[[Probe], None]
    promise: str
    remedy: str
    needs: tuple[str, ...] = ()


def _make(probe: Probe) -> None:
    with probe.env() as env:
        if env.max_turns != p.TURNS:
            raise Broken(f"max_turns={p.TURNS} was passed, but the environment has {env.max_turns}")


def _tasks(probe: Probe) -> None:
    with probe.env() as env, probe.env() as other:
        for split in env.splits:
            tasks = list(env.tasks(split))
            _check_list(split, tasks, list(env.tasks(split)), list(other.tasks(split)))
            probe.tasks += tasks[:: max(1, len(tasks) // 2)][:3]
        for k in probe.rounds(len(probe.tasks)):
            p.start(env, probe.tasks[k], seed=k)


def _check_list(split: str, tasks: list[str], again: list[str], elsewhere: list[str]) -> None:
    if not tasks:
        raise Broken(f"split {split!r} is empty")
    odd = [t for t in tasks if not isinstance(t, str)]
    if odd:
        raise Broken(f"split {split!r} has an id that isn't text: {odd[0]!r}")
    if len(set(tasks)) < len(tasks):
        twice = next(t for t in tasks if tasks.count(t) > 1)
        raise Broken(f"split {split!r} lists {twice!r} more than once")
    if not tasks == again == elsewhere:
        raise Broken(f"split {split!r} lists other tasks, or another order, when asked again")


def _play(probe: Probe) -> None:
    p.explore(probe)


def _values(probe: Probe) -> None:
    if probe.bad_value:
        raise Broken(probe.bad_value)


def _any_text(probe: Probe) -> None:
    if probe.raised:
        raise Broken(probe.raised)
    for k in probe.rounds(len(probe.episodes)):
        with probe.env() as env:
            _pester(env, probe.episodes[k], probe)


def _pester(env: TextEnv, episode: Episode, probe: Probe) -> None:
    """Odd texts and spoilt commands, after ever longer stretches of an episode."""
    p.start(env, episode.task, episode.seed)
    commands = dict.fromkeys([*p.examples(env)[:8], *episode.actions])
    texts = [*p.ODD_TEXTS, *p.mangled(list(commands))]
    for k in probe.rounds(len(texts)):
        if env.over:
            p.start(env, episode.task, episode.seed)
            p.follow(env, episode.actions[: k % p.TURNS])
        if not env.over:
            _try(env, episode, texts[k])


def _try(env: TextEnv, episode: Episode, text: str) -> None:
    before = list(env.history)
    try:
        p.act(env, text)
    except Exception as error:
        raise Broken(p.blame(episode.task, episode.seed, before, text, error)) from error


def _global_rng(probe: Probe) -> None:
    before = _global_state()
    for k in probe.rounds(2):
        with probe.env() as env:
            rows = p.replay(env, probe.episodes[k % len(probe.episodes)])
            with suppress(Exception):  # whether it can be forked is a check of its own
                env.fork()
        for name, was, now in zip(("random", "numpy.random"), before, _global_state(), strict=True):
            if was != now:
                raise Broken(f"{name} was used or seeded in an episode of {len(rows) - 1} turns")


def _global_state() -> tuple[object, object]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


@contextmanager
def _global_seeds(seed: int) -> Iterator[None]:
    """The global generators in another state for a while."""
    state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def _same(episode: Episode, rows: Any, how: str, first: int = 0) -> None:
    fault = p.difference(episode, rows, first)
    if fault:
        raise Broken(f"{how}: {fault}")


DECLARED = "the world declares itself non-deterministic, so no two answers can be compared"


def _seed(probe: Probe) -> None:
    with probe.env() as env:
        if env.nondeterministic:
            raise Skipped(DECLARED)
    for number in probe.rounds(8):
        with _global_seeds(number):
            for episode in probe.episodes:
                _same(episode, probe.play(episode), "played again in a new environment")


def _processes(probe: Probe) -> None:
    if probe.origin is None:
        raise Skipped("another process can't make it: give an id or a class it can import, and JSON")
    with probe.env() as env:
        tasks = {split: list(env.tasks(split)) for split in env.splits}
    try:
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(partial(p.in_another_process, probe), (1, 2)))
    except LookupError as error:
        raise Skipped(f"another process doesn't know it ({error}): name it as module:Name") from error
    for hash_seed, found in enumerate(both, start=1):
        how = f"in a process with PYTHONHASHSEED={hash_seed}"
        for split, listed in tasks.items():
            if found.tasks[split] != listed:
                raise Broken(f"{how}: split {split!r} lists other tasks, or another order")
        for episode, rows in zip(probe.episodes, found.rows, strict=True):
            _same(episode, rows, how)


def _fork(probe: Probe) -> None:
    for k in probe.rounds(len(probe.episodes)):
        episode = probe.episodes[k]
        for played in sorted({0, len(episode.actions) // 2, len(episode.actions)}):
            with probe.env() as env:
                p.start(env, episode.task, episode.seed)
                p.follow(env, episode.actions[:played])
                with closing(env.fork()) as twin:
                    rest = p.follow(twin, episode.actions[played:])
            _same(episode, rest, f"a fork made after {played} turns", played + 1)


def _aliasing(probe: Probe) -> None:
    for k in probe.rounds(len(probe.episodes)):
        episode, other = probe.episodes[k], probe.episodes[(k + 1) % len(probe.episodes)]
        detour = (*reversed(episode.actions), *other.actions)
        half = len(episode.actions) // 2
        with probe.env() as env:
            p.start(env, episode.task, episode.seed)
            p.follow(env, episode.actions[:half])
            first, second = env.fork(), env.fork()
            p.follow(first, detour)
            rest = p.follow(env, episode.actions[half:])
            _same(episode, rest, "a world after its fork had moved on", half + 1)
            rest = p.follow(second, episode.actions[half:])
            _same(episode, rest, "a fork after its parent and sibling had moved on", half + 1)
            first.close()
            second.close()


def _reset(probe: Probe) -> None:
    with probe.env() as env:
        for k in probe.rounds(len(probe.episodes)):
            episode = probe.episodes[k]
            _same(episode, p.replay(env, episode), "after the end of another episode")
            p.start(env, episode.task, episode.seed + MAX_SEED // 2)
            p.follow(env, episode.actions[: len(episode.actions) // 2])
            _same(episode, p.replay(env, episode), "after a reset in the middle of an episode")


def _truncation(probe: Probe) -> None:
    episode = max(probe.episodes, key=lambda e: len(e.actions))
    for limit in (1, 2):
        with probe.env(max_turns=limit) as env:
            p.start(env, episode.task, episode.seed)
            rows = p.follow(env, episode.actions[: limit + 1])
            if len(rows) > limit or not (rows[-1].terminated or rows[-1].truncated):
                raise Broken(f"with max_turns={limit} the episode goes on after turn {limit}")
            try:
                env.step(episode.actions[0])
            except EpisodeOver:
                continue
            raise Broken("step() after the end of the episode is answered")


def _concurrency(probe: Probe) -> None:
    _interleaved(probe)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(probe.play, e) for e in probe.episodes for _ in range(2)]
            rows = [job.result() for job in jobs]
    finally:
        sys.setswitchinterval(interval)
    for k, found in enumerate(rows):
        _same(probe.episodes[k // 2], found, "played in threads")


def _interleaved(probe: Probe) -> None:
    """Two worlds alive at once, a turn here and a turn there."""
    one, two = probe.episodes[0], probe.episodes[-1]
    with probe.env() as left, probe.env() as right:
        rows = ([p.start(left, one.task, one.seed)], [p.start(right, two.task, two.seed)])
        for turn in range(p.TURNS):
            rows[0].extend(p.follow(left, one.actions[turn : turn + 1]))
            rows[1].extend(p.follow(right, two.actions[turn : turn + 1]))
    _same(one, rows[0], "played beside another instance")
    _same(two, rows[1], "played beside another instance")


COPIES = 3


def _close(probe: Probe) -> None:
    """Growth that is at least one per copy is a leak; less may be shared and kept on purpose."""
    before, closed = p.held(), []
    for k in range(COPIES):
        env = probe.make(max_turns=p.TURNS)
        closed.append(env)  # alive, so that the collector doesn't close what close() should
        p.replay(env, probe.episodes[k % len(probe.episodes)])
        env.close()
        env.close()
    deadline = time.monotonic() + 1.0
    while leaks := [name for name, n in p.held().items() if n - before[name] >= COPIES]:
        if time.monotonic() > deadline:
            raise Broken(f"after {COPIES} environments were closed there are more {' and '.join(leaks)}")
        time.sleep(0.02)


NOT_FOR_TEXT = {
    "Not able to test alternative render modes": "only environments made by gymnasium.make have a spec",
}


def _gymnasium(probe: Probe) -> None:
    with probe.env() as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check(_raw(env), skip_close_check=True)
        except (AssertionError, gymnasium.error.Error) as error:
            raise Broken(" ".join(str(error).split())) from error
    texts = [str(w.message) for w in caught if "WARN: " in str(w.message)]
    apply = [t for t in texts if not any(part in t for part in NOT_FOR_TEXT)]
    if apply:
        raise Broken(" ".join(apply[0].removesuffix("\x1b[0m").partition("WARN: ")[2].split()))


def _raw(env: TextEnv) -> gymnasium.Env[str, str]:
    """What to show to Gymnasium: a wrapped world itself, where it declares its spaces."""
    if not isinstance(env, PlainEnv):
        return env
    spaces = hasattr(env.inner, "observation_space") and hasattr(env.inner, "action_space")
    return env.inner if spaces else env


DRAW = (
    "Draw only from self.rng (TextEnv) or, after super().reset(seed=seed), from self.np_random "
    "(gymnasium.Env)"
)
CHECKS = (
    Check("make", _make, "it can be made", "Take max_turns and pass it to super().__init__"),
    Check(
        "tasks",
        _tasks,
        "each split lists its tasks, always the same, and they start",
        "tasks(split) must give the same texts in the same order, each of which reset() can start",
        ("make",),
    ),
    Check(
        "play", _play, "it can be played", "reset() and step() must answer in finite time", ("tasks",)
    ),
    Check(
        "values",
        _values,
        "observations are text and rewards finite numbers",
        "Return str observations and float rewards that are neither infinite nor NaN",
        ("play",),
    ),
    Check(
        "any_text",
        _any_text,
        "any text is answered",
        "Answer what isn't an action with an observation that says why; never raise",
        ("play", "values"),
    ),
    Check("global_rng", _global_rng, "the global random generators are left alone", DRAW, ("values",)),
    Check(
        "seed",
        _seed,
        "the same task, seed and actions give the same answers",
        f"{DRAW}; use no clock, no id() and no hash()",
        ("values", "global_rng"),
    ),
    Check(
        "processes",
        _processes,
        "the same in other processes, whatever PYTHONHASHSEED",
        "Sort sets before anything depends on their order, and use no hash() of a text",
        ("seed",),
    ),
    Check(
        "concurrency",
        _concurrency,
        "several instances, and threads, don't disturb each other",
        "Keep what changes on the instance: not on the class, in the module or in a default argument",
        ("seed",),
    ),
    Check(
        "fork",
        _fork,
        "a fork goes on as the original would",
        "fork() must copy the whole state, the random generator too; or leave it out: the inherited "
        "one replays",
        ("concurrency",),
    ),
    Check(
        "aliasing",
        _aliasing,
        "forks and their parent don't touch each other",
        "Copy every list, dict and object that changes in an episode",
        ("fork",),
    ),
    Check(
        "reset",
        _reset,
        "reset starts afresh at any time",
        "Set in reset() everything that step() changes",
        ("seed",),
    ),
    Check(
        "truncation",
        _truncation,
        "the episode ends after max_turns turns",
        "Leave step() to TextEnv and write _step()",
        ("play", "values"),
    ),
    Check(
        "close",
        _close,
        "close releases all, and may be called twice",
        "Close files and sockets, join threads and wait for child processes in close()",
        ("play", "values"),
    ),
    Check(
        "gymnasium",
        _gymnasium,
        "Gymnasium's own checker is content",
        "The words are Gymnasium's. Spaces of a text world: turnbench.envs.core.UnicodeText(), or none",
        ("any_text", "seed", "truncation"),
    ),
)
