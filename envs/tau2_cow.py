"""Copies of tau2's databases that cost what was touched, not what there is (retail has 2.8 MB, airline 7).

A database is a pydantic model. Its large tables become `Table`s: views of a shared one that copy a row
when it is asked for by key. The published tools change only rows that they got so; what they find by
going through a table they read.
"""

import copy
import json
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from datetime import date, datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

ATOMS = (str, int, float, bool, type(None), date, datetime)


class Table(MutableMapping[str, Any]):
    """A view of `base` with rows of its own: those that were asked for, and new ones.

    `kept` are rows as they were when the table was copied, shared by the copies and changed by none.
    """

    __slots__ = ("base", "gone", "kept", "own")

    def __init__(self, base: Mapping[str, Any]) -> None:
        self.base = base
        self.kept: dict[str, Any] = {}
        self.own: dict[str, Any] = {}
        self.gone: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            self.own[key] = cloned(self.peek(key))
        return self.own[key]

    def __setitem__(self, key: str, row: Any) -> None:
        self.gone -= {key}
        self.own[key] = row

    def __delitem__(self, key: str) -> None:
        self.peek(key)
        self.own.pop(key, None)
        self.gone |= {key}

    def __contains__(self, key: object) -> bool:
        known = key in self.own or key in self.kept or key in self.base
        return known and key not in self.gone

    def __iter__(self) -> Iterator[str]:
        return (key for key in {**self.base, **self.kept, **self.own} if key not in self.gone)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def peek(self, key: str) -> Any:
        """A row to be read only. Raises KeyError."""
        if key in self.gone:
            raise KeyError(key)
        for layer in (self.own, self.kept):
            if key in layer:
                return layer[key]
        return self.base[key]

    def items(self) -> ItemsView[str, Any]:
        """All rows, to be read only."""
        return {key: self.peek(key) for key in self}.items()

    def values(self) -> ValuesView[Any]:
        """All rows, to be read only."""
        return {key: self.peek(key) for key in self}.values()

    @property
    def touched(self) -> set[str]:
        """Keys of all rows that may differ from the base's."""
        return {*self.own, *self.kept, *self.gone}

    def copy(self) -> "Table":
        """An independent copy; both copy a row again when they next ask for it."""
        self.kept, self.own = {**self.kept, **self.own}, {}
        twin = Table(self.base)
        twin.kept, twin.gone = self.kept, self.gone
        return twin


def cloned(value: Any) -> Any:
    """A deep copy of a tree of models, lists and dicts; much faster than the general one."""
    kind = type(value)
    if kind in ATOMS or isinstance(value, Enum):
        return value
    if kind is dict:
        return {key: cloned(one) for key, one in value.items()}
    if kind is list:
        return [cloned(one) for one in value]
    if isinstance(value, Table):
        return value.copy()
    return _model(value) if isinstance(value, BaseModel) else copy.deepcopy(value)


def _model(value: BaseModel) -> BaseModel:
    twin = type(value).__new__(type(value))
    put = object.__setattr__  # past the validation, as pydantic's own copy does
    put(twin, "__dict__", cloned(value.__dict__))
    put(twin, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
    put(twin, "__pydantic_extra__", copy.deepcopy(value.__pydantic_extra__))
    put(twin, "__pydantic_private__", copy.deepcopy(value.__pydantic_private__))
    return twin


def view(database: BaseModel) -> BaseModel:
    """A database whose tables are views of `database`, which from now on must not change."""
    fields: dict[str, Any] = {
        name: Table(value) if isinstance(value, dict) else cloned(value)
        for name, value in database.__dict__.items()
    }
    return type(database).model_construct(**fields)


def differences(one: BaseModel, other: BaseModel) -> list[str]:
    """ "table/key" of each row that differs between two views of one database.

    Rows are compared as the published hash sees them: as sorted JSON, so that 1 is not 1.0.
    """
    found: list[str] = []
    for name, left in one.__dict__.items():
        right = other.__dict__[name]
        if not isinstance(left, Table) or not isinstance(right, Table):
            found += [name] if written(left) != written(right) else []
            continue
        keys = sorted(left.touched | right.touched)
        found += [f"{name}/{key}" for key in keys if _row(left, key) != _row(right, key)]
    return found


def _row(table: Table, key: str) -> str | None:
    return written(table.peek(key)) if key in table else None


def written(value: Any) -> str:
    """A model, or lists and dicts of them, as sorted JSON; what JSON doesn't have as its text."""
    return json.dumps(plain(value), sort_keys=True, default=str)


def plain(value: Any) -> Any:
    """Models as dicts, without pydantic's warnings about values that a tool stored unchecked."""
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
