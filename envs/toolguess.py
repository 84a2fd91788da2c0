"""Calls made up by somebody who knows no task: each tool once, its arguments taken from what was seen."""

import re
from collections.abc import Sequence
from itertools import count
from typing import Any

from turnbench.envs.record import Json
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolset import ToolSet

MAX_SEEN = 20_000
_TELLING = re.compile(r"[^\s\"'(),:;<>\[\]{}]*[\d@_/][^\s\"'(),:;<>\[\]{}]*")
_WORD = re.compile(r"\w+")


def guesses(tools: ToolSet, seen: str) -> list[str]:
    """One call of each tool with all required arguments, by type.

    Texts are, in turn, the words of `seen` that hold a digit or a sign of addresses and paths, or any
    words where there are none; other values are the same each time.
    """
    seen = seen[:MAX_SEEN]
    words = list(dict.fromkeys(_TELLING.findall(seen) or _WORD.findall(seen))) or ["text"]
    number = count()
    calls = []
    for schema in tools.schemas:
        function = schema["function"]
        parameters = function.get("parameters") or {}
        properties = parameters.get("properties", {})
        made = {
            name: _value(properties.get(name), words, next(number))
            for name in parameters.get("required", ())
        }
        calls.append(call_text(function["name"], **made))
    return calls


_FIXED: Json = {"integer": 1, "number": 1.0, "boolean": True, "object": {}, "null": None}


def _value(schema: Any, words: Sequence[str], number: int) -> Any:
    if not isinstance(schema, dict):
        return words[number % len(words)]
    if schema.get("enum"):
        return schema["enum"][number % len(schema["enum"])]
    for wanted in schema.get("anyOf", ())[:1]:
        return _value(wanted, words, number)
    if schema.get("type") == "array":
        return [_value(schema.get("items"), words, number)]
    wanted = schema.get("type")
    return _FIXED.get(wanted) if wanted in _FIXED else words[number % len(words)]
