"""ToolSet: tools by their schemas. Looks up names, checks arguments, shows tools as text.

A tool is described by an OpenAI schema, `{"type": "function", "function": {"name", "description",
"parameters": JSON Schema}}`.
"""

import difflib
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

from turnbench.envs.record import Json
from turnbench.envs.toolcall import JSON_TYPES, MAX_DEPTH, Call, kind


class ToolSet:
    """Some tools, by their schemas: looks up names, checks arguments, shows itself as text.

    Neither a ToolSet nor its schemas change; what is visible changes by taking another one.
    """

    def __init__(self, schemas: Iterable[Json]) -> None:
        self.schemas: tuple[Json, ...] = tuple(schemas)
        self._parameters: dict[str, Json] = {}
        for schema in self.schemas:
            function = schema["function"]
            self._parameters[function["name"]] = function.get("parameters") or {}

    @property
    def names(self) -> Collection[str]:
        """The tools' names, in order."""
        return self._parameters.keys()

    def without(self, names: Collection[str]) -> "ToolSet":
        """These tools but for some."""
        return ToolSet(s for s in self.schemas if s["function"]["name"] not in names)

    def bind(self, call: Call, *, check: bool = True) -> Call | str:
        """`call` with all arguments named and, if `check`, fit for the schema; else "Error: ..."."""
        if call.error:
            return call.error
        schema = self._parameters.get(call.name)
        if schema is None:
            return f"Error: {unknown('tool', call.name, self.names)}"
        properties = schema.get("properties", {})
        if call.positional:
            named = _named(call, list(properties))
            if isinstance(named, str):
                return f"Error: {call.name}: {named}"
            call = named
        why = object_problem(call.arguments, schema, schema) if check else ""
        return f"Error: {call.name}: {why}" if why else call

    @cached_property
    def compact(self) -> str:
        """One signature a line: `name(argument: type, optional?: type): what it does`."""
        return "\n".join(_signature(schema["function"]) for schema in self.schemas)


def is_schema(value: Any) -> bool:
    """Whether a value is a tool's schema, as far as it must be to be shown and called."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    parameters = function.get("parameters") or {}
    return isinstance(parameters, dict) and isinstance(parameters.get("properties", {}), dict)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """In words, that there is no such name, and its neighbours."""
    known = sorted(known)
    near = difflib.get_close_matches(name[:60], known, n=3, cutoff=0.5)
    if near:
        return f"unknown {what} {name[:60]!r}; did you mean {', '.join(near)}?"
    rest = f" ({len(known)} in all)" if len(known) > 8 else ""
    return f"unknown {what} {name[:60]!r}; known: {', '.join(known[:8]) or 'none'}{rest}"


def _named(call: Call, order: Sequence[str]) -> Call | str:
    if len(call.positional) > len(order):
        return f"takes at most {len(order)} arguments, {len(call.positional)} are given"
    arguments = dict(zip(order, call.positional, strict=False))
    twice = arguments.keys() & call.arguments.keys()
    if twice:
        return f"argument {min(twice)!r} is given twice"
    return call._replace(arguments=arguments | call.arguments, positional=())


_SIMPLE = {str: "string", int: "integer", bool: "boolean"}
"""Types that need no second look, where a schema has no enum."""


def problem(value: Any, schema: Any, root: Json, name: str = "the value", depth: int = MAX_DEPTH) -> str:
    """In words, why `value` doesn't fit a JSON Schema; "" if it does. `root` holds the `$defs`.

    Looks at type, enum, anyOf, $ref, items, properties, required and additionalProperties.
    """
    if not isinstance(schema, dict) or depth == 0:
        return ""
    if "$ref" in schema:
        return problem(value, _resolve(schema["$ref"], root), root, name, depth - 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        whys = [problem(value, choice, root, name, depth - 1) for choice in choices]
        return "" if "" in whys else whys[0]
    wanted = schema.get("type")
    if wanted is not None:
        names = wanted if isinstance(wanted, list) else [wanted]
        if not any(type(value) in JSON_TYPES.get(one, (type(value),)) for one in names):
            return f"{name} must be of type {' or '.join(names)}, not {kind(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{name} must be one of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, list) and "items" in schema:
        whys = [problem(one, schema["items"], root, f"an item of {name}", depth - 1) for one in value]
        return next(filter(None, whys), "")
    if isinstance(value, dict) and "properties" in schema:
        return object_problem(value, schema, root, f" of {name}", depth)
    return ""


def object_problem(
    values: Json, schema: Json, root: Json, where: str = "", depth: int = MAX_DEPTH
) -> str:
    """In words, why named values don't fit an object's schema; "" if they do."""
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in values:
            return f"argument {name!r}{where} is missing"
    for name, value in values.items():
        wanted = properties.get(name)
        if wanted is None:
            if schema.get("additionalProperties"):
                continue
            return unknown(f"argument{where}", name, properties)
        if isinstance(wanted, dict) and _SIMPLE.get(type(value)) == wanted.get("type", ""):
            if "enum" not in wanted:
                continue
        why = problem(value, wanted, root, f"argument {name!r}{where}", depth - 1)
        if why:
            return why
    return ""


def _resolve(reference: str, root: Json) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


# --- showing ------------------------------------------------------------------------------------------

HOW_TO_CALL = """\
To call a tool, your action is one JSON object {"name": ..., "arguments": {...}} and nothing else; for \
several calls, a list of them. Any other action is a message, and no tool is called."""


def _signature(function: Json) -> str:
    schema = function.get("parameters") or {}
    required = schema.get("required", ())
    parts = [
        f"{name}{'' if name in required else '?'}: {_type_name(wanted)}"
        for name, wanted in schema.get("properties", {}).items()
    ]
    description = " ".join(str(function.get("description", "")).split())
    return f"{function['name']}({', '.join(parts)})" + (f": {description}" if description else "")


def _type_name(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"[{_type_name(schema.get('items'))}]"
    name = schema.get("type", "any")
    return "|".join(name) if isinstance(name, list) else str(name)
