"""Tool calls in text: the one parser, and how calls and their results are written.

`parse` reads what a model wrote, in this order: an OpenAI message or its `tool_calls`; one
`{"name", "arguments"}` or a list of them; `<tool_call>` blocks that hold either; Python calls with
literal arguments (never evaluated). All else is plain text. What is wrong with a call is data: a text
that begins "Error:" and goes back to whoever called. toolset.py knows the tools and their arguments.
"""

import ast
import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from turnbench.envs.core import clean
from turnbench.envs.record import Json

MAX_TEXT = 100_000
MAX_DEPTH = 32
MAX_CALLS = 64
MAX_NAME = 200
LARGE = 2**63
"""Numbers must be smaller: what computes with larger ones can take for ever."""


class Call(NamedTuple):
    """One tool call. `positional` are a Python call's unnamed arguments, until a ToolSet names them.

    `error`, where it isn't "", says why this is no call that could be made.
    """

    id: str
    name: str
    arguments: Json
    positional: tuple[Any, ...] = ()
    error: str = ""


class Said(NamedTuple):
    """What an action says: `calls` in order and the text beside them, or plain text alone."""

    calls: tuple[Call, ...]
    text: str


class Malformed(Exception):
    """What was read is no proper call; the message is for whoever wrote it. Never leaves this module."""


def parse(text: str, names: Collection[str] = ()) -> Said:
    """The calls in `text`, or `text` as it is. Never raises; takes time linear in `text`.

    `names` are the known tools: text that begins like a call of one of them, but can't be read, is a
    call with an error rather than plain text.
    """
    if len(text) > MAX_TEXT:
        return _wrong(f"the action has {len(text)} characters; at most {MAX_TEXT} are read")
    body = _unfenced(text.strip())
    try:
        said = _read(body, names)
    except Malformed as error:
        return _wrong(str(error))
    except (RecursionError, MemoryError):
        return _wrong(TOO_DEEP)
    if said is None:
        return Said((), text)
    if len(said.calls) > MAX_CALLS:
        return _wrong(f"{len(said.calls)} calls in one action; at most {MAX_CALLS} are made")
    return said


TOO_DEEP = f"values are nested deeper than {MAX_DEPTH}"


def _wrong(why: str) -> Said:
    return Said((Call("call_1", "", {}, (), f"Error: {why}"),), "")


def _unfenced(text: str) -> str:
    """What stands in a Markdown fence, where the whole text is one."""
    first, newline, rest = text.partition("\n")
    if newline and first.startswith("```") and rest.endswith("```"):
        return rest[:-3].strip()
    return text


def _read(text: str, names: Collection[str]) -> Said | None:
    if text.startswith(("{", "[")):
        said = _read_json(text)
        if said is not None:
            return said
    if "<tool_call>" in text:
        return _read_blocks(text)
    head = _PYTHON.match(text)
    return None if head is None else _read_python(text, head[1] in names)


# --- JSON -------------------------------------------------------------------------------------------


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode
_BRACKET = re.compile(r"[\[\]{}]")
MAX_OPEN = 200


def _json(text: str) -> Any:
    """A JSON value. What Python's decoder would reach its own limit on is refused beforehand, since
    that limit depends on who calls."""
    if text.count("[") + text.count("{") > MAX_OPEN:
        opened = 0
        for found in _BRACKET.finditer(text):
            opened += 1 if found[0] in "[{" else -1
            if opened > MAX_OPEN:
                raise Malformed(TOO_DEEP)
    return _decode(text)


def _read_json(text: str) -> Said | None:
    """The calls of a whole JSON text; None where it is JSON of another kind, or Python."""
    try:
        value = _json(text)
    except ValueError as error:
        if text.startswith("[") and not _BROKEN_LIST.match(text):
            return None
        raise Malformed(f"not valid JSON: {error}; write one object, or a list of them") from error
    if isinstance(value, dict) and "role" in value and not value.get("tool_calls"):
        content = value.get("content")
        return Said((), clean(content) if isinstance(content, str) else "")
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        content = value.get("content")
        calls = _calls(value["tool_calls"])
        return Said(calls, clean(content) if isinstance(content, str) else "")
    rows = value if isinstance(value, list) else [value]
    if not rows or not all(_is_call(row) for row in rows):
        return None
    return Said(_calls(rows), "")


_BROKEN_LIST = re.compile(r"\[\s*\{")


def _is_call(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    return isinstance(row.get("function"), dict) or (
        "name" in row and ("arguments" in row or "parameters" in row)
    )


def _calls(rows: Sequence[Any]) -> tuple[Call, ...]:
    return tuple([_call(row, f"call_{k}") for k, row in enumerate(rows[: MAX_CALLS + 1], start=1)])


def _call(row: Any, number: str) -> Call:
    """One call of a JSON object; a faulty one carries its error, so that the others can be made."""
    if not isinstance(row, dict):
        return Call(number, "", {}, (), "Error: a tool call must be a JSON object")
    given = row.get("id")
    call_id = clean(given[:MAX_NAME]) if isinstance(given, str) and given else number
    inner = row.get("function")
    if isinstance(inner, dict):
        row = inner
    name = row.get("name")
    if not isinstance(name, str) or not name:
        return Call(call_id, "", {}, (), 'Error: a tool call needs a "name" that is text')
    name = clean(name[:MAX_NAME])
    try:
        arguments = _arguments(row["arguments"] if "arguments" in row else row.get("parameters"))
    except Malformed as error:
        return Call(call_id, name, {}, (), f"Error: {error}")
    return Call(call_id, name, arguments)


def _arguments(given: Any) -> Json:
    if isinstance(given, str):
        try:
            given = _json(given) if given.strip() else None
        except ValueError as error:
            raise Malformed(f'"arguments" is text that is not valid JSON: {error}') from error
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise Malformed(f'"arguments" must be a JSON object, not {kind(given)}')
    for value in given.values():
        if type(value) is not str or not value.isascii():
            break
    else:
        if all(map(str.isascii, given)):
            return given
    return _settled(given, MAX_DEPTH)  # type: ignore[no-any-return]


def _settled(value: Any, depth: int) -> Any:
    """`value` with text that UTF-8 can hold; refuses what is infinite or nested too deep."""
    if isinstance(value, str):
        return value if value.isascii() else clean(value)
    if isinstance(value, int | float) and not -LARGE < value < LARGE:
        raise Malformed("a number is too large")
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        raise Malformed(TOO_DEEP)
    if isinstance(value, list):
        return [_settled(one, depth - 1) for one in value]
    return {_settled(name, 0): _settled(one, depth - 1) for name, one in value.items()}


JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def kind(value: Any) -> str:
    """The JSON type of a value."""
    return next((name for name, types in JSON_TYPES.items() if type(value) in types), "unknown")


# --- <tool_call> blocks -----------------------------------------------------------------------------


def _read_blocks(text: str) -> Said:
    """A block that isn't closed reaches to the end: models are often stopped at the closing tag."""
    calls: list[Call] = []
    beside, _, rest = text.partition("<tool_call>")
    while rest and len(calls) <= MAX_CALLS:
        block, _, after = rest.partition("</tool_call>")
        calls += _read_block(block.strip(), len(calls))
        between, _, rest = after.partition("<tool_call>")
        beside += between
    if not calls:
        raise Malformed("the <tool_call> block is empty")
    return Said(tuple(calls), beside.strip())


def _read_block(block: str, before: int) -> list[Call]:
    number = f"call_{before + 1}"
    try:
        value = _json(block)
    except ValueError as error:
        why = f"what stands in <tool_call> is not valid JSON: {error}"
        return [Call(number, "", {}, (), f"Error: {why}")]
    if value == []:
        return [Call(number, "", {}, (), "Error: the list of calls in <tool_call> is empty")]
    rows = value if isinstance(value, list) else [value]
    return [_call(row, f"call_{before + k}") for k, row in enumerate(rows[: MAX_CALLS + 1], start=1)]


# --- Python calls -----------------------------------------------------------------------------------

_PYTHON = re.compile(r"\[?\s*([A-Za-z_][\w.]*)\(")
_ESCAPE = re.compile(r"\\(?:([\\'\"abfnrtv0-7xNuU\n])|(.))", re.DOTALL)
_RAW = re.compile(r"(?<!\w)[bBfFuU]?[rR][bBfFuU]?['\"]")
_NAMES = {"true": True, "false": False, "null": None}


def _read_python(text: str, known: bool) -> Said | None:
    """Calls separated by lines, or in a list. `known`: whether what isn't readable is an error."""
    try:
        tree = ast.parse(_plain_escapes(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if known:
            raise Malformed(f"not a Python call that can be read: {_reason(error)}") from error
        return None
    found = _python_calls(tree.body)
    if found is None and known:
        raise Malformed("write nothing but calls, each with literal arguments")
    if found is None:
        return None
    calls = [_python_call(node, f"call_{k}") for k, node in enumerate(found[: MAX_CALLS + 1], start=1)]
    return Said(tuple(calls), "")


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    return str(error) if isinstance(error, ValueError) else TOO_DEEP


def _plain_escapes(text: str) -> str:
    """Backslashes that escape nothing doubled: they mean themselves, and Python would warn."""
    if "\\" not in text or _RAW.search(text):
        return text
    return _ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\" + m[2], text)


def _python_calls(body: Iterable[ast.stmt]) -> list[ast.Call] | None:
    calls: list[ast.Call] = []
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        for node in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if not isinstance(node, ast.Call):
                return None
            calls.append(node)
    return calls or None


def _python_call(node: ast.Call, number: str) -> Call:
    name = ""
    try:
        name = _dotted(node.func)
        positional = tuple([_literal(value, MAX_DEPTH) for value in node.args])
        arguments: Json = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Malformed("arguments can't be unpacked with **")
            arguments[keyword.arg] = _literal(keyword.value, MAX_DEPTH)
    except Malformed as error:
        return Call(number, name, {}, (), f"Error: {error}")
    return Call(number, name, arguments, positional)


def _dotted(node: ast.expr, depth: int = MAX_DEPTH) -> str:
    if isinstance(node, ast.Name):
        return node.id[:MAX_NAME]
    if isinstance(node, ast.Attribute) and depth:
        return f"{_dotted(node.value, depth - 1)}.{node.attr}"[:MAX_NAME]
    raise Malformed("a call must begin with the tool's name")


def _literal(node: ast.expr, depth: int) -> Any:
    """The value of a literal, as JSON has it; JSON's own words for true, false and null will do."""
    if depth == 0:
        raise Malformed(TOO_DEEP)
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return _settled(value, depth)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as value)
        ):
            return _settled(-value if isinstance(node.op, ast.USub) else value, depth)
        case ast.List() | ast.Tuple():
            return [_literal(one, depth - 1) for one in node.elts]
        case ast.Dict():
            return dict(_item(*pair, depth - 1) for pair in zip(node.keys, node.values, strict=True))
    raise Malformed("arguments must be literals: text, numbers, true or false, lists and dicts of them")


def _item(name: ast.expr | None, value: ast.expr, depth: int) -> tuple[str, Any]:
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        raise Malformed("the keys of a dict must be text")
    return clean(name.value), _literal(value, depth)


# --- writing ------------------------------------------------------------------------------------------


def call_text(name: str, /, **arguments: Any) -> str:
    """An action that makes one call."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def calls_text(calls: Sequence[tuple[str, Json]]) -> str:
    """An action that makes several calls, in order."""
    rows = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return json.dumps(rows[0] if len(rows) == 1 else rows, ensure_ascii=False)


def results_text(calls: Sequence[Call], results: Sequence[str]) -> str:
    """The observation after calls: one result as it is, several as a JSON list with ids."""
    if len(results) == 1:
        return results[0]
    rows = [
        {"id": call.id, "name": call.name, "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return json.dumps(rows, ensure_ascii=False)
