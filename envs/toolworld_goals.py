"""What must be true at the end of a ToolWorld task: differences of two states, as goals."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from turnbench.envs.record import Json
from turnbench.envs.toolworld_state import PREFIX, Record, State

FREE = frozenset({"body", "content", "subject", "title"})
"""Fields written in an assistant's own words: they must hold what is wanted, and may hold more."""


class Goal(NamedTuple):
    """One thing to be achieved: a record with these fields.

    `key` "" is a new record under any id, `fields` None one that is gone. In table "answer", `key` is
    the number of the user's turn in which the fact must be told.
    """

    table: str
    key: str
    fields: Json | None

    def __str__(self) -> str:
        what = "is gone" if self.fields is None else ", ".join(self.fields)
        return f"{self.table} {self.key or 'new'}: {what}"


class Verdict(NamedTuple):
    """Which goals are met, and how many changes nobody asked for there are."""

    met: tuple[bool, ...]
    stray: int


Changes = dict[tuple[str, str], Record | None]


def changes(before: State, after: State) -> Changes:
    """The records that differ, as they are afterwards (None: gone)."""
    found: Changes = {}
    for name, old in before.items():
        new = after[name]
        if name == "next" or old is new:
            continue
        for key in old.keys() | new.keys():
            if old.get(key) is not new.get(key) and old.get(key) != new.get(key):
                found[name, key] = new.get(key)
    return dict(sorted(found.items()))


def goals_between(before: State, after: State) -> list[Goal]:
    """What leads from one state to the other."""
    goals = []
    for (table, key), record in changes(before, after).items():
        old = before[table].get(key, {})
        fields = record and {name: v for name, v in record.items() if old.get(name) != v or not old}
        goals.append(Goal(table, "" if not old and table in PREFIX else key, fields))
    return goals


def judge(before: State, after: State, goals: Sequence[Goal], heard: Sequence[str]) -> Verdict:
    """Compare a final state, and what was said in each of the user's turns, with the goals."""
    actual = changes(before, after)
    met, stray = [], 0
    for goal in goals:
        if goal.table == "answer":
            turn = int(goal.key)
            met.append(turn < len(heard) and _told(str((goal.fields or {})["fact"]), heard[turn]))
        elif goal.key == "" and goal.fields is not None:
            met.append(_take_new(goal.table, goal.fields, actual, before))
        else:
            place = (goal.table, goal.key)
            good = place in actual and _fits(goal.fields, actual[place])
            stray += _went_further(
                goal.fields, before[goal.table].get(goal.key), actual.pop(place, None)
            )
            met.append(good)
    return Verdict(tuple(met), stray + len(actual))


def _take_new(table: str, fields: Json, actual: Changes, before: State) -> bool:
    """Whether a new record fits; it then serves for no other goal."""
    for place, record in actual.items():
        if place[0] == table and place[1] not in before[table] and _fits(fields, record):
            del actual[place]
            return True
    return False


def _fits(fields: Json | None, record: Record | None) -> bool:
    if fields is None or record is None:
        return fields is record
    return all(_equal(name, value, record.get(name)) for name, value in fields.items())


def _equal(name: str, wanted: object, value: object) -> bool:
    if name in FREE and isinstance(wanted, str) and isinstance(value, str):
        return _plain(wanted) in _plain(value)
    return wanted == value


def _went_further(fields: Json | None, old: Record | None, new: Record | None) -> bool:
    """Whether more of a record was changed than was wanted."""
    if old is None or new is None:
        return False
    return any(old.get(name) != value and name not in (fields or ()) for name, value in new.items())


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _told(fact: str, text: str) -> bool:
    """Whether a text holds a fact as a word of its own, whatever the case and commas in numbers."""
    spoken = re.sub(r"(?<=\d),(?=\d)", "", text.lower())
    return re.search(rf"(?<![\w.]){re.escape(fact.lower())}(?!\w|\.\d)", spoken) is not None
