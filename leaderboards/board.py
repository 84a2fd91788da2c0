"""Board: the entries of a suite and the ranking made from them, as YAML.

`boards/SUITE/ENTRY.yaml` holds what one system (agent and model) did; `boards/SUITE.yaml` is made
from all entries, one table for each protocol, and is never edited by hand.
"""

import fcntl
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnbench.envs.errors import BoardError, ConfigError
from turnbench.leaderboards.entry import Entry, rank_key
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml, write_atomically


def write_entries(entries: Iterable[Entry], boards: Path) -> list[Path]:
    """Write entries and make their suites' rankings anew, under a lock. Returns the files written."""
    written: list[Path] = []
    try:
        boards.mkdir(parents=True, exist_ok=True)
        with _locked(boards):
            suites = set()
            for entry in entries:
                name = entry["suite"]["name"]
                path = boards / name / f"{entry['entry']}.yaml"
                write_atomically(path, dump_yaml(entry))
                written.append(path)
                suites.add(name)
            for name in sorted(suites):
                written.append(boards / f"{name}.yaml")
                write_atomically(written[-1], dump_yaml(ranking(name, boards)))
    except OSError as error:
        raise BoardError(f"can't write to {boards}: {error.strerror or error}") from error
    return written


def ranking(suite: str, boards: Path) -> Entry:
    """The ranking of a suite's entries: one table for each protocol, newest version first.

    Raises BoardError for an entry that is damaged.
    """
    tables: dict[tuple[int, str], list[Entry]] = defaultdict(list)
    for path in sorted((boards / suite).glob("*.yaml")):
        entry = _read_entry(path)
        tables[entry["suite"]["version"], entry["suite"]["digest"]].append(entry)
    return {
        "suite": suite,
        "note": "Made from the entries beside it by `turnbench board --write`; don't edit.",
        "tables": [
            {"version": version, "digest": digest, "rows": _rows(entries)}
            for (version, digest), entries in sorted(tables.items(), reverse=True)
        ],
    }


def _rows(entries: Iterable[Entry]) -> list[Entry]:
    """One row an entry; equal scores share a rank, and what is incomplete has none."""
    rows: list[Entry] = []
    for place, entry in enumerate(sorted(entries, key=rank_key), start=1):
        tied = bool(rows) and entry["score"] is not None and _mean(rows[-1]) == _mean(entry)
        rank = (rows[-1]["rank"] if tied else place) if entry["complete"] else None
        rows.append({"rank": rank, **_row(entry)})
    return rows


def _mean(entry: Entry) -> float | None:
    return entry["score"] and entry["score"]["mean"]  # type: ignore[no-any-return]


def _row(entry: Entry) -> Entry:
    compute = entry["compute"]
    return {
        "entry": entry["entry"],
        "agent": entry["system"]["name"],
        "model": (entry["system"]["model"] or {}).get("name"),
        "score": entry["score"],
        "privileges": entry["privileges"],
        "complete": entry["complete"],
        "model_calls": compute["model_calls"],
        "tokens": compute["prompt_tokens"] + compute["completion_tokens"],
        "cost": compute["cost"],
        "date": entry["date"],
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _SuiteRef(_Part):
    name: str
    version: int
    digest: str


class _System(_Part):
    name: str
    model: dict[str, Any] | None


class _Score(_Part):
    mean: float
    ci95: list[float]


class _Compute(_Part):
    model_calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


class _Ranked(_Part):
    """What the ranking needs of an entry."""

    schema_: Literal["turnbench-entry/1"] = Field(alias="schema")
    entry: str
    suite: _SuiteRef
    date: str
    system: _System
    privileges: list[str]
    complete: bool
    score: _Score | None
    compute: _Compute


def _read_entry(path: Path) -> Entry:
    try:
        document = read_yaml(path)
        document.validate(_Ranked)
    except ConfigError as error:
        raise BoardError(str(error)) from error
    return document.data


@contextmanager
def _locked(boards: Path) -> Iterator[None]:
    with (boards / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
