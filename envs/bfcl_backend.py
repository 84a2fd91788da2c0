"""The simulated APIs behind BFCL's multi-turn tasks: the published classes, kept from harm.

The published executor evaluates model text and keeps its objects in a module for good. Here a call is
a name and arguments, and each `Backend` owns its objects. What is added: bounds on arguments that
would compute for minutes, a fixed clock, and the process's number precision left as it was.
"""

import copy
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import localcontext
from functools import cache
from itertools import islice
from typing import Any, Self

from turnbench.envs.wheels import load

CONFIG = "bfcl_eval.constants.executable_backend_config"
NOW = datetime(2026, 3, 23, 12)
"""The date of the benchmark's version: the age of a traveller depends on it."""
MAX_BITS = 14_300
"""Of an integer power: beyond, Python refuses to write the number."""
MAX_DIGITS = 1000
MAX_NODES, MAX_DEPTH = 10_000, 200
MAX_TEXT = 500_000
_LOCK = threading.Lock()  # around what the classes share: number precision, the weather, the clock


class Backend:
    """The objects of one episode, by class name, and the calls that they answer."""

    def __init__(self, instances: dict[str, Any]) -> None:
        self.instances = instances
        self.methods: dict[str, str] = {
            name: owner
            for owner, instance in instances.items()
            for name in dir(type(instance))
            if not name.startswith("_") and callable(getattr(type(instance), name))
        }

    @classmethod
    def start(cls, classes: Sequence[str], config: Mapping[str, Any], long_context: bool) -> Self:
        """Fresh objects in a task's initial state, sharing nothing with any others."""
        official = load(CONFIG)
        made: dict[str, Any] = {}
        for name in classes:
            made[name] = getattr(load(official.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in official.STATELESS_CLASSES:
                made[name]._load_scenario(copy.deepcopy(config.get(name, {})), long_context=long_context)
        return cls(_copied(made))  # long contexts put parts of module globals into their state

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call as the published executor writes it; a failure is a text as well."""
        owner = self.methods.get(name)
        if owner is None:
            return f"Error during execution: name '{name}' is not defined"
        instance = self.instances[owner]
        refused = CLAMPS[name](instance, arguments) if name in CLAMPS else None
        if refused:
            return f"Error during execution: {refused}"
        with _LOCK, _untouched():
            try:
                text = _text(getattr(instance, name)(**arguments))
            except Exception as error:  # whatever a simulated API raises is its answer
                return f"Error during execution: {str(error)[:1000]}"
        if len(text) > MAX_TEXT:
            return f"Error during execution: the result has {len(text)} characters, over {MAX_TEXT}"
        return text

    def copy(self) -> "Backend":
        """An independent copy. Raises RecursionError for very deep folders."""
        twin = copy.copy(self)
        twin.instances = _copied(self.instances)
        return twin


def _copied(instances: dict[str, Any]) -> dict[str, Any]:
    """A deep copy; the random generators apart, whose 625 numbers would take most of the time."""
    memo: dict[int, Any] = {}
    for instance in instances.values():
        generator = getattr(instance, "_random", None)
        if generator is not None:
            memo[id(generator)] = twin = random.Random(0)
            twin.setstate(generator.getstate())
    return copy.deepcopy(instances, memo)


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError, RecursionError):
            pass
    return str(result)


@cache
def _shared() -> tuple[Any, Any]:
    return load("mpmath"), load(f"{load(CONFIG).BACKEND_PATH_PREFIX}.travel_booking")


class _Clock(datetime):
    @classmethod
    def today(cls) -> Self:
        return cls.fromisoformat(NOW.isoformat())


@contextmanager
def _untouched() -> Iterator[None]:
    """Precision of mpmath and decimal as before, and a clock that stands, for as long as this lasts."""
    mpmath, travel = _shared()
    precision, clock = mpmath.mp.dps, travel.datetime
    travel.datetime = _Clock
    try:
        with localcontext():
            yield
    finally:
        mpmath.mp.dps, travel.datetime = precision, clock


# --- bounds: why a call is refused, or None ---------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _power(_: Any, arguments: Mapping[str, Any]) -> str | None:
    base, exponent = arguments.get("base"), arguments.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * abs(exponent) > MAX_BITS:
            return f"the power would have more than {MAX_BITS} bits"
    return None


def _precision(_: Any, arguments: Mapping[str, Any]) -> str | None:
    precision = arguments.get("precision", 0)
    if not _is_number(precision) or not 0 <= precision <= MAX_DIGITS:
        return f"precision must be a number from 0 to {MAX_DIGITS}"
    odd = [key for key in ("value", "base", "number") if not _is_number(arguments.get(key, 0))]
    return f"{odd[0]} must be a number" if odd else None  # a text like 1e999999999 takes for ever


def _places(_: Any, arguments: Mapping[str, Any]) -> str | None:
    places = arguments.get("decimal_places", 0)
    if isinstance(places, int) and abs(places) > MAX_DIGITS:
        return f"decimal_places must be from {-MAX_DIGITS} to {MAX_DIGITS}"
    return None


def _walk(files: Any, _: Mapping[str, Any]) -> str | None:
    """Copied and moved folders share what they hold, so that few calls make a tree of millions."""
    level, nodes = [files.root], 1
    for _depth in range(MAX_DEPTH):
        below = (item for folder in level for item in getattr(folder, "contents", {}).values())
        level = list(islice(below, MAX_NODES))
        nodes += len(level)
        if not level:
            return None
        if nodes > MAX_NODES:
            break
    return f"the folders hold more than {MAX_NODES} items or are deeper than {MAX_DEPTH}"


CLAMPS: dict[str, Callable[[Any, Mapping[str, Any]], str | None]] = {
    "power": _power,
    "logarithm": _precision,
    "square_root": _precision,
    "round_number": _places,
    "find": _walk,
    "du": _walk,
}
