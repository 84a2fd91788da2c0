"""The response cache: what a model has answered once is never paid for twice.

A key is everything that decides an answer: model, endpoint, messages, tools, sampling, extra fields and the
sample's seed, so that N samples stay N samples. Only answers are kept, never failures. The file
`responses.sqlite3` may be used by many threads and processes at once; answers are written as they
arrive. It lies on a local disk: SQLite's write-ahead log doesn't work over a network.
"""

import hashlib
import json
import sqlite3
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Json

VERSION = 1
EXCERPT = 60


class ResponseCache:
    """Answers by request, in a folder. A request is a JSON object, an answer the server's own text.

    Entries are compressed, which also gives each a checksum: a damaged one is a miss, with a warning.
    Raises ConfigError where the folder can't be used or holds another version.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "responses.sqlite3"
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self.path, timeout=30, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"response cache {self.path}: {error}") from error
        try:
            self._open()
        except (ConfigError, sqlite3.Error) as error:
            self._db.close()
            raise ConfigError(f"response cache {self.path}: {error}; use another folder") from error

    def _open(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise ConfigError(f"version {version}, not {VERSION}")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, request BLOB, answer BLOB)"
        )
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def get(self, request: Json) -> str | None:
        """The answer stored for `request`; None if there is none, or none that can be read."""
        query = "SELECT answer FROM answers WHERE key = ?"
        try:
            with self._lock:
                row = self._db.execute(query, (_key(request),)).fetchone()
            return None if row is None else _unpack(row[0])
        except (sqlite3.DatabaseError, ValueError, zlib.error) as error:
            warnings.warn(f"response cache {self.path}: damaged entry: {error}", stacklevel=2)
            return None

    def put(self, request: Json, answer: str) -> None:
        """Store an answer. What can't be stored is a warning: the answer itself is not lost."""
        row = (_key(request), _pack(_canonical(request)), _pack(answer))
        try:
            with self._lock:
                self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            warnings.warn(f"response cache {self.path}: answer not stored: {error}", stacklevel=2)

    def explain(self, request: Json) -> str:
        """Why `request` is or isn't found: the nearest stored one and the fields that differ."""
        if self.get(request) is not None:
            return "stored: the next look-up is a hit"
        nearest, differences, count = None, len(request) + 1.0, 0
        for count, other in enumerate(self._requests(), start=1):  # noqa: B007
            distance = _distance(request, other)
            if distance < differences:
                nearest, differences = other, distance
        if nearest is None:
            return f"not stored: {self.path} is empty"
        if differences == 0:
            return "stored, but the answer is damaged"
        lines = "; ".join(_differences(request, nearest))
        return f"not stored: of {count} requests in {self.path} the nearest differs in {lines}"

    def close(self) -> None:
        """Close the file. No look-up may follow."""
        with self._lock:
            self._db.close()

    def _requests(self) -> Iterator[Json]:
        with self._lock:
            rows = self._db.execute("SELECT request FROM answers").fetchall()
        for (blob,) in rows:
            try:
                yield json.loads(_unpack(blob))
            except (ValueError, zlib.error):
                continue


def _canonical(request: Json) -> str:
    return json.dumps(request, sort_keys=True, separators=(",", ":"))


def _key(request: Json) -> bytes:
    return hashlib.sha256(_canonical(request).encode()).digest()


def _pack(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8"), level=1)


def _unpack(blob: Any) -> str:
    if not isinstance(blob, bytes):
        raise ValueError(f"{type(blob).__name__} instead of bytes")
    return zlib.decompress(blob).decode("utf-8")


# --- how requests differ ----------------------------------------------------------------------------


def _distance(asked: Json, stored: Json) -> float:
    """How many fields differ; messages that differ late are nearer than those that differ early."""
    distance = 0.0
    for field in asked.keys() | stored.keys():
        if field == "messages":
            left, right = asked.get(field) or [], stored.get(field) or []
            longest = max(len(left), len(right), 1)
            distance += 1 - _common(left, right) / longest
        else:
            distance += asked.get(field) != stored.get(field)
    return distance


def _differences(asked: Json, stored: Json) -> Iterator[str]:
    for field in sorted(asked.keys() | stored.keys()):
        left, right = asked.get(field), stored.get(field)
        if left == right:
            continue
        if field != "messages":
            yield f"{field} (asked {left!r}, stored {right!r})"
            continue
        index = _common(left or [], right or [])
        at = _common(_text(left, index), _text(right, index))
        start = max(0, at - EXCERPT // 3)
        yield (
            f"messages[{index}] from character {at} on (asked {_text(left, index)[start:][:EXCERPT]!r}, "
            f"stored {_text(right, index)[start:][:EXCERPT]!r})"
        )


def _common(left: Any, right: Any) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(left), len(right)))


def _text(messages: Any, index: int) -> str:
    """Message `index` as "role: content", empty where the conversation is shorter."""
    return ": ".join(messages[index]) if messages and index < len(messages) else ""
