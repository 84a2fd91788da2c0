"""Board: the entries of a suite and the ranking made from them, as YAML.

`boards/SUITE/ENTRY.yaml` holds what one system (agent and model) did; `boards/SUITE.yaml` is made
from all entries, one table for each protocol, and is never edited by hand. What `turnbench verify
--record` found stands in `boards/SUITE/verified/ENTRY.yaml`, which counts for exactly the entry whose
digest it names: an entry can't say of itself that it is verified.
"""

import fcntl
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnbench.envs.errors import BoardError, ConfigError, LogError
from turnbench.leaderboards import schema
from turnbench.leaderboards.entry import Entry, order_key
from turnbench.leaderboards.log import existing
from turnbench.leaderboards.schema import Hex16, Sha256
from turnbench.leaderboards.statistics import ranks
from turnbench.leaderboards.suite import Strict
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml, write_atomically


class Verification(Strict):
    """What a verification found, as a file beside the entry; only `turnbench verify` writes it."""

    entry: Sha256
    code: Hex16
    checks: dict[str, str]


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
            written += [_write_ranking(name, boards) for name in sorted(suites)]
    except OSError as error:
        raise BoardError(f"can't write to {boards}: {error.strerror or error}") from error
    return written


def write_ranking(suite: str, boards: Path) -> Path:
    """Make a suite's ranking anew, under the lock. Returns its file."""
    with _locked(boards):
        return _write_ranking(suite, boards)


def _write_ranking(suite: str, boards: Path) -> Path:
    path = boards / f"{suite}.yaml"
    write_atomically(path, dump_yaml(ranking(suite, boards)))
    return path


def ranking(suite: str, boards: Path) -> Entry:
    """The ranking of a suite's entries: one table for each protocol, newest version first.

    Raises BoardError for an entry that is damaged.
    """
    tables: dict[tuple[int, str], list[tuple[Entry, str]]] = defaultdict(list)
    for path in sorted((boards / suite).glob("*.yaml")):
        entry = read_entry(path)
        found = entry, status(entry, path)
        tables[entry["suite"]["version"], entry["suite"]["digest"]].append(found)
    return {
        "suite": suite,
        "note": "Made from the entries beside it by `turnbench board --write`; don't edit.",
        "tables": [
            {"version": version, "digest": digest, "rows": rows(entries)}
            for (version, digest), entries in sorted(tables.items(), reverse=True)
        ],
    }


def rows(entries: Iterable[tuple[Entry, str]]) -> list[Entry]:
    """One row for each entry and its status, best first. What can't be told apart shares a rank
    (statistics.ranks); what is incomplete has none.
    """
    ordered = sorted(entries, key=lambda pair: order_key(pair[0]))
    complete = [entry for entry, _ in ordered if entry["complete"]]
    try:
        places = iter(ranks([_values(entry) for entry in complete]))
    except ValueError as error:
        names = ", ".join(entry["entry"] for entry in complete)
        raise BoardError(f"one of these entries has other tasks than the rest: {names}") from error
    return [
        {"rank": next(places) if entry["complete"] else None, **_row(entry, status)}
        for entry, status in ordered
    ]


def _values(entry: Mapping[str, Any]) -> list[dict[str, list[float]]]:
    return [
        {str(k): [value] for k, value in enumerate(result["per_task"]) if value is not None}
        for result in entry["results"]
    ]


def _row(entry: Mapping[str, Any], status: str) -> Entry:
    compute = entry["compute"]
    return {
        "entry": entry["entry"],
        "agent": entry["system"]["name"],
        "model": (entry["system"]["model"] or {}).get("name"),
        "score": entry["score"],
        "track": entry["track"],
        "status": status,
        "privileges": entry["privileges"],
        "complete": entry["complete"],
        "model_calls": compute["model_calls"],
        "tokens": compute["prompt_tokens"] + compute["completion_tokens"],
        "cost": compute["cost"],
        "date": entry["date"],
    }


def read_entry(path: Path) -> Entry:
    """A valid entry from its file. Raises BoardError, with the line, for anything else."""
    try:
        if not existing(path).is_file():
            raise BoardError(f"{path} is no file: an entry, such as boards/SUITE/ENTRY.yaml, is wanted")
        if path.stat().st_size > schema.MAX_BYTES:
            raise BoardError(f"{path}: larger than {schema.MAX_BYTES:,} bytes")
        return schema.plain(read_yaml(path).validate(schema.Entry))
    except (ConfigError, LogError, OSError) as error:
        raise BoardError(str(error)) from error


def status(entry: Mapping[str, Any], path: Path) -> str:
    """ "verified" if a verification of exactly this file is recorded, "incomplete", or
    "self-reported", which is all that an entry can be where a world declares non-determinism.
    """
    record = verification_path(path)
    if record.is_file() and not nondeterministic(entry):
        try:
            found = read_yaml(record).validate(Verification)
        except ConfigError as error:
            raise BoardError(str(error)) from error
        if found.entry == entry_digest(path):
            return "verified"
    return "self-reported" if entry["complete"] else "incomplete"


def nondeterministic(entry: Mapping[str, Any]) -> list[str]:
    """The worlds of an entry that declare that a replay may differ."""
    return [result["env"] for result in entry["results"] if result.get("nondeterministic")]


def verification_path(entry: Path) -> Path:
    """Where the verification of an entry's file is recorded."""
    return entry.parent / "verified" / entry.name


def entry_digest(path: Path) -> str:
    """SHA-256 of an entry's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _locked(boards: Path) -> Iterator[None]:
    with (boards / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
