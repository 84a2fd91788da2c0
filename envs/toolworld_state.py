"""ToolWorld's state and how tools are made: the register, and what tools share.

A state maps a table's name to the table, and that an id to a record. Neither tables nor records ever
change: a write puts new ones in their place, so that a copy of the state is a copy of the world. Money
is whole euros.
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from turnbench.envs.record import Json

Record = Json
State = dict[str, dict[str, Record]]

OWNER = "robin@valeshop.example"
MAX_CONTENT = 20_000
SHOWN = 200
PREFIX = {"mail": "M", "events": "E", "orders": "O", "payments": "T", "refusals": "R"}


class ToolError(Exception):
    """A tool refuses; the message is for whoever called it. Never leaves the world."""


class Tool(NamedTuple):
    """A tool: what runs, its schema, whether it changes the state and whether that can be undone."""

    run: Callable[..., Any]
    schema: Json
    writes: bool
    final: bool


REGISTERED: dict[str, Tool] = {}
"""Filled by `tool`; toolworld_tools.TOOLS is the whole."""
_TYPES = {str: "string", int: "integer"}


def tool(
    *, writes: bool = False, final: bool = False, **hints: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of the state and typed arguments; its docstring describes it to an assistant,
    and `hints` describe single arguments."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(run).parameters.values())[1:]
        properties = {p.name: _property(p.annotation, hints.get(p.name, "")) for p in parameters}
        required = [p.name for p in parameters if p.default is p.empty]
        schema = {"type": "object", "properties": properties, "required": required}
        function = {"name": run.__name__, "description": run.__doc__, "parameters": schema}
        described = {"type": "function", "function": function}
        REGISTERED[run.__name__] = Tool(run, described, writes or final, final)
        return run

    return register


def _property(annotation: Any, hint: str) -> Json:
    described = {"description": hint} if hint else {}
    if get_origin(annotation) is list:
        return {"type": "array", "items": {"type": "string"}, **described}
    if get_origin(annotation) is Literal:
        return {"type": "string", "enum": list(get_args(annotation)), **described}
    return {"type": _TYPES[annotation], **described}


# --- what tools share ---------------------------------------------------------------------------------


def record_of(state: State, table: str, key: str, what: str) -> Record:
    """A record. Raises ToolError where there is none."""
    found = state[table].get(key)
    if found is None:
        raise ToolError(f"there is no {what} {key[:60]!r}")
    return found


def put(state: State, table: str, key: str, record: Record) -> None:
    """Write a record."""
    state[table] = {**state[table], key: record}


def drop(state: State, table: str, key: str, what: str) -> None:
    """Delete a record. Raises ToolError where there is none."""
    record_of(state, table, key, what)
    state[table] = {k: record for k, record in state[table].items() if k != key}


def add(state: State, table: str, record: Record) -> str:
    """Write a record under a new id, which is returned."""
    count = state["next"][table]["id"]
    put(state, "next", table, {"id": count + 1})
    key = f"{PREFIX[table]}-{count}"
    put(state, table, key, record)
    return key


def having(
    table: dict[str, Record], words: str, fields: Collection[str]
) -> Iterator[tuple[str, Record]]:
    """The records with these words in one of the fields."""
    words = words.lower()
    for key, record in table.items():
        if any(words in record[name].lower() for name in fields):
            yield key, record


def rows(found: Iterator[tuple[str, Record]], fields: Collection[str]) -> list[Json]:
    """What a tool lists: id and some fields of each, at most SHOWN of them."""
    rows = []
    for (key, record), _ in zip(found, range(SHOWN), strict=False):
        rows.append({"id": key, **{name: record[name] for name in fields}})
    return rows


def check_positive(amount: int, what: str) -> None:
    """Refuse amounts below 1."""
    if amount < 1:
        raise ToolError(f"the {what} must be at least 1, not {amount}")


def check_email(email: str) -> None:
    """Refuse what is no email address."""
    if "@" not in email:
        raise ToolError(f"{email[:60]!r} is no email address; find_contact gives it")


def check_date(date: str) -> None:
    """Refuse what is no date."""
    parts = date.split("-")
    if [len(part) for part in parts] != [4, 2, 2] or not date.replace("-", "").isdecimal():
        raise ToolError(f"{date[:20]!r} is no date as YYYY-MM-DD")


def check_time(start: str) -> None:
    """Refuse what is no time of day."""
    hours, _, minutes = start.partition(":")
    good = len(hours) == len(minutes) == 2 and (hours + minutes).isdecimal()
    if not good or int(hours) > 23 or int(minutes) > 59:
        raise ToolError(f"{start[:20]!r} is no time as HH:MM")


def bounded(text: str) -> str:
    """The text, unless it is too long."""
    if len(text) > MAX_CONTENT:
        raise ToolError(f"the text is longer than {MAX_CONTENT} characters")
    return text
