"""BFCL's multi-turn tasks as its wheel holds them: entries, tool schemas, and the ground truth, played.

Its own readers are not used: importing them makes folders beside the installed packages.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from turnbench.envs.bfcl_backend import CONFIG, Backend
from turnbench.envs.errors import UnknownName
from turnbench.envs.record import Json
from turnbench.envs.toolcall import parse
from turnbench.envs.toolset import ToolSet
from turnbench.envs.wheels import load, require

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""What the published harness says in a turn that has no message of its own, with more tools."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One task. `truth` are its calls by turn, as text; `withheld` the names revealed at a turn."""

    id: str
    messages: tuple[str, ...]
    truth: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    withheld: Mapping[int, tuple[str, ...]]

    @property
    def long_context(self) -> bool:
        """Whether files and lists are padded."""
        return "long_context" in self.id

    def hidden(self, turn: int) -> frozenset[str]:
        """Names of the tools that are not yet offered at `turn`."""
        return frozenset(name for at, names in self.withheld.items() if at > turn for name in names)


def folder() -> Path:
    """The wheel's data. Raises ConfigError where it isn't installed."""
    require("bfcl-eval")
    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data"


@cache
def entries() -> dict[str, Entry]:
    """All 800 tasks by id, in the benchmark's order."""
    found: dict[str, Entry] = {}
    for category in CATEGORIES:
        file = f"BFCL_v4_multi_turn_{category}.json"
        truths = {row["id"]: row["ground_truth"] for row in _rows(folder() / "possible_answer" / file)}
        for row in _rows(folder() / file):
            found[row["id"]] = _entry(row, truths[row["id"]])
    return found


def entry(task: str) -> Entry:
    """A task by id. Raises UnknownName."""
    if task not in entries():
        raise UnknownName("BFCL task", task, entries())
    return entries()[task]


def _rows(path: Path) -> Iterator[Json]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _entry(row: Json, truth: list[list[str]]) -> Entry:
    withheld = {int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()}
    turns = ["\n\n".join(message["content"] for message in turn) for turn in row["question"]]
    return Entry(
        row["id"],
        tuple(MORE_TOOLS if turn in withheld else text for turn, text in enumerate(turns)),
        tuple(map(tuple, truth)),
        tuple(row["involved_classes"]),
        row["initial_config"],
        withheld,
    )


@cache
def digest() -> str:
    """Digest of the tasks, their ground truth and the descriptions of the tools."""
    files = sorted((folder() / "multi_turn_func_doc").glob("*.json"))
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        files += [folder() / name, folder() / "possible_answer" / name]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


# --- tools ------------------------------------------------------------------------------------------

_TYPES = {"dict": "object", "float": "number"}


@cache
def schemas(owner: str) -> tuple[Json, ...]:
    """OpenAI schemas of a class's methods, in the published order."""
    file = load(CONFIG).MULTI_TURN_FUNC_DOC_FILE_MAPPING[owner]
    return tuple(_schema(row) for row in _rows(folder() / "multi_turn_func_doc" / file))


def _schema(row: Json) -> Json:
    function = {"name": row["name"], "description": row["description"]}
    return {"type": "function", "function": function | {"parameters": _json_schema(row["parameters"])}}


def _json_schema(value: Any) -> Any:
    """BFCL's names of types are Python's in part."""
    if isinstance(value, list):
        return [_json_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: _json_schema(one) for name, one in value.items()}
    if isinstance(made.get("type"), str):
        made["type"] = _TYPES.get(made["type"], made["type"])
    return made


@lru_cache(maxsize=256)
def tools(classes: tuple[str, ...], hidden: frozenset[str]) -> ToolSet:
    """The tools of some classes but for hidden ones; the same object each time."""
    return ToolSet(s for owner in classes for s in schemas(owner)).without(hidden)


# --- the ground truth, played -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reference:
    """What the ground truth makes of one turn: its results, and the state after it (not to change)."""

    results: tuple[str, ...]
    instances: Mapping[str, Any]


@lru_cache(maxsize=32)
def references(task: str) -> tuple[Reference, ...]:
    """The ground truth of each turn of a task, played from the start."""
    known = entry(task)
    backend = Backend.start(known.classes, known.config, known.long_context)
    everything = tools(known.classes, frozenset())
    made: list[Reference] = []
    for turn in known.truth:
        results = [_play(text, everything, backend) for text in turn]
        made.append(Reference(tuple(results), backend.copy().instances))
    return tuple(made)


def _play(text: str, everything: ToolSet, backend: Backend) -> str:
    call = everything.bind(parse(text, everything.names).calls[0], check=False)
    assert not isinstance(call, str), call
    return backend.call(call.name, call.arguments)
