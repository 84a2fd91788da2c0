"""The log of a run: `log.jsonl`, a header and then one line per finished episode.

    {"turnbench_log": 1, "suite": {...}, "digest": ..., ...}
    {"key": [agent, env index, task, seed], "outcome": "ok", "seconds": 1.2, "population": {...}}

Lines are only ever appended. An episode that is played again (because its first outcome was
missing) gets a second line, and the last one counts. Only the last line may be torn.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.envs.errors import LogError
from turnbench.envs.record import MISSING, Outcome

VERSION = 1
NAME = "log.jsonl"
_KEY = b'{"key": '
_decoder = json.JSONDecoder()


class Key(NamedTuple):
    """What an episode is known by: the suite's row, the index of its environment, task and seed."""

    agent: str
    env: int
    task: str
    seed: int


class Episode(NamedTuple):
    """One finished episode as the log holds it."""

    key: Key
    outcome: Outcome
    seconds: float
    population: Population


class LogWriter:
    """Appends to the log of a run folder, which it locks against other runs until closed."""

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.path = folder / NAME
        self._lock = _lock(folder)
        try:
            self._mend()
            fresh = not self.path.exists()
            self._file: IO[bytes] = self.path.open("ab")
            if fresh:
                self._append(json.dumps({"turnbench_log": VERSION, **header}, ensure_ascii=False))
        except BaseException:
            self._lock.close()
            raise
        self._synced = time.monotonic()

    def write(self, key: Key, population: Population, seconds: float) -> None:
        """Append one episode; it is in the file when this returns, and on the disk a second later."""
        row = {
            "key": key,
            "outcome": population.best.outcome.value,
            "seconds": round(seconds, 3),
            "population": population_to_json(population),
        }
        self._append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        if time.monotonic() - self._synced > 1:
            self.sync()

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _append(self, line: str) -> None:
        # One write a line: what a crash can leave is a torn last line, which `_mend` removes.
        self._file.write(line.encode("utf-8") + b"\n")
        self._file.flush()

    def _mend(self) -> None:
        """Cut a torn last line off, so that the next one starts on a line of its own."""
        if not self.path.exists():
            return
        whole = _length_of_whole_lines(self.path)
        if whole == 0:
            self.path.unlink()  # not even the header was finished
        else:
            os.truncate(self.path, whole)

    def close(self) -> None:
        """Sync and unlock."""
        try:
            self.sync()
        finally:
            self._file.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(folder: Path) -> IO[bytes]:
    lock = (folder / ".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LogError(f"{folder}: another run is writing to this folder") from error
    return lock


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
    """Whether a run has begun in this folder."""
    path = folder / NAME
    return path.exists() and _length_of_whole_lines(path) > 0


def read_header(folder: Path) -> dict[str, Any]:
    """The log's first line. Raises LogError."""
    path = folder / NAME
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    header = _json(line, path, 1)
    if "turnbench_log" not in header:
        raise LogError(f"{path} is not a log of turnbench")
    if header["turnbench_log"] != VERSION:
        raise LogError(
            f"{path} has log version {header['turnbench_log']}; this turnbench reads version {VERSION}: "
            f"use the turnbench that wrote it ({header.get('versions', {}).get('turnbench', 'unknown')})"
        )
    return header


def read_done(folder: Path) -> dict[Key, Outcome]:
    """Key and outcome of every episode in the log, without reading the episodes. Raises LogError."""
    done: dict[Key, Outcome] = {}
    path = folder / NAME
    for number, line in _episode_lines(path):
        try:
            text = line[:4096].decode("utf-8", "ignore")
            key, end = _decoder.raw_decode(text, len(_KEY))
            outcome, _ = _decoder.raw_decode(text, text.index(":", end) + 1 + 1)
            done[Key(*key)] = Outcome(outcome)
        except (ValueError, TypeError) as error:
            raise LogError(f"{path} line {number} is damaged") from error
    return done


def read_episodes(folder: Path) -> Iterator[Episode]:
    """The episodes that count: of several lines with one key the last. Raises LogError."""
    path = folder / NAME
    last: dict[Key, int] = {}
    for number, line in _episode_lines(path):
        last[_key(line, path, number)] = number
    for number, line in _episode_lines(path):
        row = _json(line, path, number)
        key = Key(*row["key"])
        if last[key] != number:
            continue
        try:
            population = population_from_json(row["population"])
            yield Episode(key, Outcome(row["outcome"]), row["seconds"], population)
        except (KeyError, TypeError, ValueError) as error:
            raise LogError(f"{path} line {number} is damaged: {error!r}") from error


def unfinished(done: dict[Key, Outcome]) -> set[Key]:
    """Keys in the log whose episodes say nothing about the agent and are to be played again."""
    return {key for key, outcome in done.items() if outcome in MISSING}


def _episode_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return  # torn by a crash: this episode was never finished
            if not (line.startswith(_KEY) and line.endswith(b"}\n")):
                raise LogError(f"{path} line {number} is damaged: it isn't an episode")
            yield number, line


def _key(line: bytes, path: Path, number: int) -> Key:
    try:
        key, _ = _decoder.raw_decode(line[:4096].decode("utf-8", "ignore"), len(_KEY))
        return Key(*key)
    except (ValueError, TypeError) as error:
        raise LogError(f"{path} line {number} is damaged") from error


def _json(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row, dict):
            return row
    except (ValueError, RecursionError):
        pass
    raise LogError(f"{path} line {number} is damaged: it isn't a JSON object")
