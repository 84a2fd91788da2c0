"""Probe: plays a world and writes down what it answered, so that check.py can compare.

Actions are drawn from what a newcomer could try: phrases of the observations, small numbers, odd
texts, what the world lists in `info["available_actions"]`, what its optional attribute
`example_actions` offers (a sequence of texts, or a method that returns one for the present state),
and its own solution.
"""

import gc
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import registry

from turnbench.envs import make
from turnbench.envs.core import PlainEnv, TextEnv
from turnbench.envs.errors import BadStep, UnknownName
from turnbench.envs.record import Json

EPISODES = 6
TURNS = 12
Maker = Callable[..., gymnasium.Env[str, str]]

ODD_TEXTS = (
    "",
    " ",
    "\n\t\r\n",
    "\x00\x07\x1b[31m",
    "\ud800 half a surrogate pair \udfff",
    "naïve 漢字 🙂 \u202e \u0301",
    "0",
    "-1",
    "nan",
    "1e309",
    "9" * 5000,
    "{} {0} {x!r} %s %n %d ${HOME}",
    "[" * 2000 + "]" * 1999,
    '{"action": ["unclosed',
    "<think>",
    "Action: a\nAction: b",
    "../../../etc/passwd",
    "None",
    "word " * 20_000,
)


class Row(NamedTuple):
    """What the world answered to `reset` or to one action; `info` in a form that can be compared."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: str = "{}"


@dataclass(frozen=True, slots=True)
class Episode:
    """Actions played from a task and seed, and all answers: one for the reset, one for each action."""

    task: str
    seed: int
    actions: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(slots=True)
class Probe:
    """What all checks of one world share. `make(**kwargs)` gives a new environment.

    `origin` tells another process how to make it (None: it can't). `raised` and `bad_value` are the
    first exception and the first answer that was no text or number, met while exploring.
    `deadline` bounds a check; it is `seconds`, or more where the world proved to be slow.
    """

    make: Callable[..., TextEnv]
    origin: Json | None
    seconds: float
    deadline: float = 0.0
    tasks: list[str] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    raised: str = ""
    bad_value: str = ""

    @contextmanager
    def env(self, **kwargs: Any) -> Iterator[TextEnv]:
        """A new environment, closed afterwards (whether that works is a check of its own)."""
        env = self.make(**{"max_turns": TURNS, **kwargs})
        try:
            yield env
        finally:
            with suppress(Exception):
                env.close()

    def rounds(self, most: int, least: int = 1) -> Iterator[int]:
        """Counts to `most`; a slow world, which has used its share before, gets `least`."""
        started = time.monotonic()
        for number in range(most):
            if number >= least and time.monotonic() - started > self.seconds / 20:
                return
            yield number

    def play(self, episode: Episode) -> tuple[Row, ...]:
        """The answers to an episode's actions in a new environment."""
        with self.env() as env:
            return replay(env, episode)


def start(env: TextEnv, task: str, seed: int) -> Row:
    """Reset, and the answer to that."""
    observation, info = env.reset(seed=seed, options={"task": task})
    return Row(observation, info=canonical(info))


def act(env: TextEnv, action: str) -> Row:
    """One turn, and the answer."""
    observation, reward, terminated, truncated, info = env.step(action)
    return Row(observation, reward, terminated, truncated, canonical(info))


def replay(env: TextEnv, episode: Episode) -> tuple[Row, ...]:
    """Reset `env` and play an episode's actions."""
    first = start(env, episode.task, episode.seed)
    return (first, *follow(env, episode.actions))


def follow(env: TextEnv, actions: Sequence[str]) -> list[Row]:
    """The answers to `actions`, as far as the episode goes."""
    rows: list[Row] = []
    for action in actions:
        if env.over:
            break
        rows.append(act(env, action))
    return rows


def canonical(info: Any) -> str:
    """Text that is equal for equal infos, whatever the order of dictionaries and sets."""
    return json.dumps(_plain(info))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return sorted(canonical(v) for v in value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def difference(episode: Episode, rows: Sequence[Row], first: int = 0) -> str:
    """In words, the first of `rows` that isn't the episode's (from row `first` on); "" if none."""
    wanted = episode.rows[first:]
    for turn, (old, new) in enumerate(zip(wanted, rows, strict=False), start=first):
        for name, before, after in zip(Row._fields, old, new, strict=True):
            if before != after:
                where = f"turn {turn} ({_short(episode.actions[turn - 1])})" if turn else "the start"
                return f"{_name(episode)}, {where}: {name} {_short(before)} became {_short(after)}"
    same = len(wanted) == len(rows)
    return "" if same else f"{_name(episode)}: {len(wanted)} answers became {len(rows)}"


def _name(episode: Episode) -> str:
    return f"task {episode.task}, seed {episode.seed}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-17:]}"


# --- exploring --------------------------------------------------------------------------------------


def explore(probe: Probe) -> None:
    """Play a few episodes with mixed actions and keep them in `probe.episodes`."""
    for number in probe.rounds(EPISODES, least=2):
        task = probe.tasks[number % len(probe.tasks)]
        with probe.env() as env:
            probe.episodes.append(_explore_one(probe, env, task, seed=number + 1))


def _explore_one(probe: Probe, env: TextEnv, task: str, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    rows, actions = [start(env, task, seed)], list[str]()
    while not env.over and len(actions) < TURNS:
        action = choose(env, rows, rng)
        try:
            row = act(env, action)
        except BadStep as error:
            probe.bad_value = probe.bad_value or str(error)
            break
        except Exception as error:
            probe.raised = probe.raised or blame(task, seed, actions, action, error)
            break
        actions.append(action)
        rows.append(row)
    return Episode(task, seed, tuple(actions), tuple(rows))


def blame(task: str, seed: int, before: Sequence[str], action: str, error: Exception) -> str:
    """Where and how an action made the world raise."""
    text = " ".join(str(error).split())[:200]
    return (
        f"task {task}, seed {seed}, after {len(before)} actions: {_short(action)} "
        f"raised {type(error).__name__}: {text}"
    )


def choose(env: TextEnv, rows: Sequence[Row], rng: np.random.Generator) -> str:
    """An action worth trying."""
    offered = [*examples(env), *_available(rows[-1])]
    kind = rng.random()
    if kind < 0.3:
        offered = list(env.solution()) or offered
    if offered and kind < 0.6:
        return offered[int(rng.integers(len(offered)))]
    if kind < 0.7:
        return ODD_TEXTS[int(rng.integers(len(ODD_TEXTS)))]
    if kind < 0.8:
        return str(rng.integers((10, 100, 1000)[int(rng.integers(3))]))
    return _phrase("\n".join(row.observation for row in rows), rng)


def examples(env: TextEnv) -> list[str]:
    """What the world's optional `example_actions` offers now."""
    offered = getattr(getattr(env, "inner", env), "example_actions", ())
    return list(offered() if callable(offered) else offered)


def _available(row: Row) -> list[str]:
    found = dict(json.loads(row.info)).get("available_actions", []) if row.info != "{}" else []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _phrase(text: str, rng: np.random.Generator) -> str:
    """A line, or some words in a row, of what was seen."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["look"]
    line = lines[int(rng.integers(len(lines)))]
    words = re.findall(r"[\w'-]+", line) or [line]
    first, length = int(rng.integers(len(words))), int(rng.integers(1, 6))
    return line if length == 5 else " ".join(words[first : first + length])


def mangled(commands: Sequence[str]) -> list[str]:
    """Commands spoilt in the ways models spoil them."""
    spoils: list[Callable[[str], str]] = [
        str.upper,
        str.title,
        lambda c: f"  {c} \n",
        lambda c: f"{c}, {c}",
        lambda c: c[: len(c) // 2],
        lambda c: c.replace(" ", ""),
        lambda c: " ".join(reversed(c.split())),
        lambda c: re.sub(r"\d+", "9" * 5000, c),
        lambda c: re.sub(r"\d+", "-1", c),
        lambda c: re.sub(r"\d+", "٣", c),  # a digit to Python, but not an ASCII one
        lambda c: f"Thought: I {c}.\nAction: {c}",
    ]
    return [spoil(command) for command in commands for spoil in spoils]


# --- making the world, here and in another process ----------------------------------------------------


def maker(env: str | Maker, kwargs: Json) -> Callable[..., TextEnv]:
    """What makes the environment named `env`, or made by calling `env`."""
    if isinstance(env, str):
        return lambda **more: make(env, **{**kwargs, **more})
    plain = not (isinstance(env, type) and issubclass(env, TextEnv))
    build: Callable[..., Any] = partial(PlainEnv, env) if plain else env
    return lambda **more: build(**{**kwargs, **more})


def origin(env: str | Maker, kwargs: Json) -> Json | None:
    """How another process can make the same environment, as JSON; None where it can't."""
    try:
        json.dumps(kwargs)
    except TypeError:
        return None
    if isinstance(env, str):
        entry = registry[env].entry_point if env in registry else None
        module = entry.split(":")[0] if isinstance(entry, str) else None
        return {"id": env, "module": module, "kwargs": kwargs}
    home, name = getattr(env, "__module__", "__main__"), getattr(env, "__qualname__", "<locals>")
    if home == "__main__" or "<" in name:
        return None
    return {"id": None, "module": home, "name": name, "kwargs": kwargs}


class Elsewhere(NamedTuple):
    """What another process found: each split's tasks, and the answers to each episode's actions."""

    tasks: dict[str, list[str]]
    rows: list[list[Row]]


def in_another_process(probe: Probe, hash_seed: int) -> Elsewhere:
    """Play the probe's episodes in a new interpreter with that PYTHONHASHSEED.

    Raises LookupError where it can't make the world, RuntimeError where it fails otherwise.
    """
    request = {
        "origin": probe.origin,
        "episodes": [[e.task, e.seed, e.actions] for e in probe.episodes],
    }
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "request.json").write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from turnbench.envs.probe import answer; answer()", folder],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=probe.deadline * 0.95,
        )
        if done.returncode == UNKNOWN:
            raise LookupError(done.stderr.decode("utf-8", "replace").strip()[-300:])
        if done.returncode:
            raise RuntimeError(done.stderr.decode("utf-8", "replace").strip()[-500:])
        reply = json.loads(Path(folder, "reply.json").read_text(encoding="utf-8"))
    return Elsewhere(reply["tasks"], [[Row(*row) for row in rows] for rows in reply["rows"]])


UNKNOWN = 3


def answer() -> None:
    """The other process: read the folder's request, play, write the reply."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        probe = Probe(_remake(request["origin"]), None, 600.0)
        with probe.env() as env:
            tasks = {split: list(env.tasks(split)) for split in env.splits}
    except (UnknownName, ImportError, AttributeError) as error:
        sys.stderr.write(str(error))
        sys.exit(UNKNOWN)
    episodes = [Episode(task, seed, tuple(actions), ()) for task, seed, actions in request["episodes"]]
    reply = {"tasks": tasks, "rows": [probe.play(episode) for episode in episodes]}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def _remake(origin: Json) -> Callable[..., TextEnv]:
    module = importlib.import_module(origin["module"]) if origin["module"] else None
    if origin["id"]:
        return maker(origin["id"], origin["kwargs"])
    found: Any = module
    for name in origin["name"].split("."):
        found = getattr(found, name)
    return maker(found, origin["kwargs"])


# --- what the process holds --------------------------------------------------------------------------


def held() -> dict[str, int]:
    """What this process holds: open files and sockets, threads, child processes."""
    gc.collect()
    held = {"threads": threading.active_count()}
    if Path("/proc/self/fd").is_dir():
        held["open files"] = len(os.listdir("/proc/self/fd"))
        held["threads"] = len(os.listdir("/proc/self/task"))
        held["child processes"] = _children()
    return held


def _children() -> int:
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        count += int(fields[1]) == os.getpid()
    return count
