"""The log of a run: `log.jsonl`, a header and then one line per finished episode.

    {"turnbench_log": 1, "suite": {...}, "digest": ..., ...}
    {"key": [agent, env index, task, seed], "outcome": "ok", "seconds": 1.2, "privileges": [...],
     "population": {...}}

Lines are only ever appended. An episode that is played again (because its first outcome was
missing) gets a second line, and the last one counts. Only the last line may be torn.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import Outcome

VERSION = 1
NAME = "log.jsonl"
# What a run must have in common with the log that it goes on with.
SAME = {
    "suite": "another suite",
    "code": "another version of turnbench's code",
    "modules": "another version of your own modules",
    "worlds": "other data behind its environments",
    "checkpoints": "other checkpoints",
}
_HEADER = b'{"turnbench_log": '
_KEY = b'{"key": '
_AFTER_HEAD = b', "seconds": '  # can't stand in a JSON text, where quotes are escaped


class Key(NamedTuple):
    """What an episode is known by: the suite's row, the index of its environment, task and seed."""

    agent: str
    env: int
    task: str
    seed: int


class Episode(NamedTuple):
    """One finished episode as the log holds it; `privileges` is what it used beyond playing."""

    key: Key
    outcome: Outcome
    seconds: float
    privileges: tuple[str, ...]
    population: Population


def episode_line(key: Key, population: Population, privileges: Sequence[str], seconds: float) -> bytes:
    """An episode's line. Raises TypeError or ValueError for what JSON can't hold."""
    row = {
        "key": key,
        "outcome": population.best.outcome.value,
        "seconds": round(seconds, 3),
        "privileges": privileges,
        "population": population_to_json(population),
    }
    return json_line(row)


def json_line(row: Any) -> bytes:
    """A value as one line of JSON. Raises TypeError or ValueError for what JSON can't hold."""
    # A model's text may hold half a surrogate pair, which UTF-8 can't.
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


class LogWriter:
    """Appends to the log of a run folder, which it locks against other runs until closed.

    `done` holds the outcome of every episode that is in the log already. Raises ConfigError for a
    folder that can't be written to, LogError for a damaged log or one of another run.
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.path, self.header = folder / NAME, header
        self._file: IO[bytes] | None = None
        self._dirty, self._synced = False, time.monotonic()
        self._lock = _lock(folder)
        try:
            self.done = self._resume()
        except BaseException:
            self._lock.close()
            raise

    def _resume(self) -> dict[Key, Outcome]:
        if not has_log(self.path.parent):
            return {}
        header = read_header(self.path.parent)
        for part, what in SAME.items():
            if header.get(part) != self.header.get(part):
                where = difference(header.get(part), self.header.get(part), part)
                raise LogError(
                    f"{self.path.parent} holds a run with {what}: {where}. "
                    "Choose another folder with --out, or delete this one."
                )
        return read_done(self.path.parent)

    def write(self, line: bytes) -> None:
        """Append an episode's line; it is in the file when this returns. Raises LogError."""
        if self._file is None:
            self._file = self._open()
        self._append(self._file, line)

    def _open(self) -> IO[bytes]:
        """The log, without a torn last line and with a header."""
        try:
            if self.path.exists():
                os.truncate(self.path, _length_of_whole_lines(self.path))
            file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise self._lost(error) from error
        if file.tell() == 0:
            self._append(file, json_line({"turnbench_log": VERSION, **self.header}))
        return file

    def _append(self, file: IO[bytes], line: bytes) -> None:
        size = file.tell()
        left = memoryview(line)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(size)
            raise self._lost(error) from error
        self._dirty = True

    def _lost(self, error: OSError) -> LogError:
        return LogError(
            f"{self.path}: {error.strerror or error}. What it holds is safe; once that is mended, the "
            "same command goes on from there."
        )

    def sync(self, every: float = 0.0) -> None:
        """Force what was written to the disk, at most once in `every` seconds. Raises LogError."""
        now = time.monotonic()
        if self._file is None or not self._dirty or now - self._synced < every:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._lost(error) from error
        self._dirty, self._synced = False, now

    def close(self) -> None:
        """Sync and unlock."""
        try:
            self.sync()
        finally:
            if self._file is not None:
                self._file.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("wb")
    except OSError as error:
        raise ConfigError(f"can't write to {folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LogError(f"{folder}: another run is writing to this folder") from error
    return lock


def difference(old: Any, new: Any, at: str) -> str:
    """Where two configurations first differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            if old.get(key) != new.get(key):
                return difference(old.get(key), new.get(key), f"{at}.{key}")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        k = next(k for k, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
        return difference(old[k], new[k], f"{at}.{k}")
    return f"{at} is {old!r:.80} there and {new!r:.80} here"


def _length_of_whole_lines(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as file:
        while size > 0:
            start = max(0, size - 65536)
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            size = start
    return 0


# --- reading --------------------------------------------------------------------------------------


def has_log(folder: Path) -> bool:
    """Whether a run has begun in this folder. Raises LogError for a file that isn't ours."""
    path = folder / NAME
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    if not line.endswith(b"\n") and (line.startswith(_HEADER) or _HEADER.startswith(line)):
        return False  # torn before the header was whole
    return True


def existing(path: Path) -> Path:
    """`path`, if anything is there. Raises LogError."""
    if not path.exists():
        raise LogError(f"{path}: No such file or directory")
    return path


def read_header(folder: Path) -> dict[str, Any]:
    """The log's first line. Raises LogError."""
    path = existing(folder) / NAME
    if not has_log(folder):
        raise LogError(f"{folder} holds no run: there is no {NAME}, or nothing in it")
    with path.open("rb") as file:
        line = file.readline()
    return parse_header(line, path)


def parse_header(line: bytes, path: Path) -> dict[str, Any]:
    """A log's first line, which stands in `path`. Raises LogError."""
    if not line.startswith(_HEADER):
        raise LogError(f"{path} is not a log of turnbench")
    header = _json(line, path, 1)
    if header["turnbench_log"] != VERSION:
        raise LogError(
            f"{path} has log version {header['turnbench_log']}; this turnbench reads version {VERSION}: "
            f"use the turnbench that wrote it ({_writer(header)})"
        )
    return header


def _writer(header: dict[str, Any]) -> str:
    versions = header.get("versions")
    return str(versions.get("turnbench", "unknown")) if isinstance(versions, dict) else "unknown"


def read_done(folder: Path) -> dict[Key, Outcome]:
    """Key and outcome of every episode in the log, without reading the episodes. Raises LogError."""
    return {key: outcome for _, key, outcome in _heads(folder / NAME)}


def read_episodes(folder: Path) -> Iterator[Episode]:
    """The episodes that count: of several lines with one key the last. Raises LogError."""
    return (episode for _, episode in read_lines(folder))


def read_lines(folder: Path) -> Iterator[tuple[bytes, Episode]]:
    """The same, each with its line."""
    for number, _, line in _counted(folder / NAME):
        yield line, _episode(line, folder / NAME, number)


def read_places(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the episodes that count, unread, each with the byte at which it starts."""
    return ((start, line) for _, start, line in _counted(folder / NAME))


def _counted(path: Path) -> Iterator[tuple[int, int, bytes]]:
    last = {key: number for number, key, _ in _heads(path)}
    wanted = set(last.values())
    return (place for place in _episode_lines(path) if place[0] in wanted)


def _episode(line: bytes, path: Path, number: int) -> Episode:
    row = _json(line, path, number)
    try:
        population = population_from_json(row["population"])
        outcome, privileges = Outcome(row["outcome"]), tuple(row["privileges"])
        if not all(isinstance(name, str) for name in privileges):
            raise TypeError("privileges are names")
        return Episode(_key(row), outcome, float(row["seconds"]), privileges, population)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise LogError(f"{path} line {number} is damaged: {error!r}") from error


def _heads(path: Path) -> Iterator[tuple[int, Key, Outcome]]:
    """Number, key and outcome of every line, from its start alone, however long the rest is."""
    for number, _, line in _episode_lines(path):
        head = line[: line.find(_AFTER_HEAD)] + b"}"
        row = _json(head, path, number)
        try:
            yield number, _key(row), Outcome(row["outcome"])
        except (LookupError, TypeError, ValueError) as error:
            raise LogError(f"{path} line {number} is damaged: {error!r}") from error


def _key(row: dict[str, Any]) -> Key:
    agent, env, task, seed = row["key"]
    return Key(str(agent), index(env), str(task), index(seed))


def _episode_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, first byte and content of every line but the header."""
    with path.open("rb") as file:
        start = len(file.readline())
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return  # torn by a crash: this episode was never finished
            if not (line.startswith(_KEY) and line.endswith(b"}\n")):
                raise LogError(f"{path} line {number} is damaged: it isn't an episode")
            yield number, start, line
            start += len(line)


def _json(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row, dict):
            return row
    except (ValueError, RecursionError):
        pass
    raise LogError(f"{path} line {number} is damaged: it isn't a JSON object")
