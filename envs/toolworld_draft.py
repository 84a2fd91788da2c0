"""How requests are drawn in ToolWorld: what a request is, the draft of a task, the register of templates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from turnbench.envs.record import Json
from turnbench.envs.toolworld_state import State
from turnbench.envs.toolworld_tools import TOOLS

Plan = tuple[str, Json]
"""A call that is to be made: a tool's name and its arguments."""
MOST_REFUNDED = 200


@dataclass(frozen=True, slots=True)
class Request:
    """What the user wants: in words, and as calls. `answers` must be told to the user.

    `vague` and `detail`, where a template has them, are the words without the one thing that can't be
    guessed, and that thing. `source` is the record (table, id, field) whose text the calls show.
    """

    text: str
    calls: tuple[Plan, ...]
    source: tuple[str, str, str]
    answers: tuple[str, ...] = ()
    vague: str = ""
    detail: str = ""


@dataclass(slots=True)
class Draft:
    """A task in the making: its random generator, the state at first, the state after the requests so
    far, and what these have taken."""

    rng: Random
    first: State
    state: State
    taken: set[tuple[str, str]] = field(default_factory=set)

    def pick(self, table: str, fits: Callable[[Json], bool] = lambda record: True) -> tuple[str, Json]:
        """A record of the first state that fits and that nobody has taken. Raises Exhausted."""
        free = [
            (key, record)
            for key, record in self.state[table].items()
            if key in self.first[table] and (table, key) not in self.taken and fits(record)
        ]
        if not free:
            raise Exhausted(table)
        found = self.rng.choice(free)
        self.taken.add((table, found[0]))
        return found

    def order(self, status: str, fits: Callable[[Json], bool] = lambda record: True) -> "Ordered":
        """An order in a status, its customer's name, and the calls that find it."""
        key, order = self.pick("orders", lambda record: record["status"] == status and fits(record))
        email = order["customer"]
        name = next(name for name, one in self.state["contacts"].items() if one["email"] == email)
        finding = (("find_contact", {"name": name}), ("find_orders", {"customer": email}))
        return Ordered(key, order, f"{name}'s {status} order of the {order['product']}", finding)


class Ordered(NamedTuple):
    """An order, as `Draft.order` finds it."""

    id: str
    order: Json
    words: str
    finding: tuple[Plan, ...]


class Exhausted(Exception):
    """The draft's world has nothing left that a template needs. Never leaves the generator."""


class Template(NamedTuple):
    """A kind of request. `held_out` ones are met in the test split alone; `vague` ones can be asked
    without a detail; `forbidden` ones break the policy."""

    name: str
    draw: Callable[[Draft], Request]
    held_out: bool
    vague: bool
    final: bool
    forbidden: bool


REGISTERED: dict[str, Template] = {}
"""Filled by `template`; toolworld_requests.TEMPLATES is the whole."""


def template(
    *, held_out: bool = False, vague: bool = False, final: bool = False, forbidden: bool = False
) -> Callable[[Callable[[Draft], Request]], Callable[[Draft], Request]]:
    """Register a template."""

    def register(draw: Callable[[Draft], Request]) -> Callable[[Draft], Request]:
        name = draw.__name__.strip("_")
        REGISTERED[name] = Template(name, draw, held_out, vague, final, forbidden)
        return draw

    return register


def run(state: State, calls: tuple[Plan, ...]) -> list[Any]:
    """Make calls that are known to work; their results."""
    return [TOOLS[name].run(state, **arguments) for name, arguments in calls]
