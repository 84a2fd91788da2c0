"""YAML in and out: safe, without duplicate keys, with the line of every value at hand for errors."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from turnbench.envs.errors import ConfigError, UnknownName

MAX_BYTES = 1_000_000
MAX_DEPTH = 50
Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping, where it came from, and the line on which each value starts."""

    data: dict[str, Any]
    source: str
    lines: dict[Location, int] = field(default_factory=dict)

    def known(self, location: Location) -> Location:
        """The innermost part of `location` that stands in the file."""
        while location and location not in self.lines:
            location = location[:-1]
        return location

    def where(self, location: Location) -> str:
        """ "FILE line N" of a value, or of the nearest thing around it that has a line."""
        return f"{self.source} line {self.lines.get(self.known(location), 1)}"

    def error(self, location: Location, message: str) -> ConfigError:
        """A ConfigError that says where."""
        return ConfigError(f"{self.where(location)}: {message}")

    def validate(self, model: type[Model]) -> Model:
        """The data as a pydantic model. Raises ConfigError."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            raise self.explain(error, model) from error

    def explain(self, error: ValidationError, model: type[BaseModel] | None = None) -> ConfigError:
        """What pydantic found wrong, one line a fault, each with its line in the file.

        With `model`, the model that was validated, an unknown key's line names its neighbours. A
        fault may say where it is by `at` in its context.
        """
        found: dict[str, None] = {}
        for fault in error.errors(include_url=False, include_input=False):
            at = tuple(fault.get("ctx", {}).get("at", fault["loc"]))
            found[f"{self.where(at)}: {self._fault(fault, at, model)}"] = None
        return ConfigError("\n".join(found))

    def _fault(self, fault: Any, at: Location, model: type[BaseModel] | None) -> str:
        if fault["type"] == "extra_forbidden":
            return str(UnknownName("key", str(at[-1]), _keys(model, at)))
        if fault["type"] == "missing":
            return f"the key {'.'.join(map(str, at))!r} is missing"
        name = ".".join(map(str, self.known(at)))
        message = fault["msg"].removeprefix("Value error, ")
        return f"{name}: {message}" if name else message


def _keys(model: type[BaseModel] | None, at: Location) -> list[str]:
    """The keys that may stand beside the last one of `at`."""
    for name in at[:-1]:
        if model is not None and isinstance(name, str) and name in model.model_fields:
            model = next(_models_in(model.model_fields[name].annotation), None)
    return [] if model is None else list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


# --- reading --------------------------------------------------------------------------------------


def read_yaml(path: Path) -> Document:
    """The mapping in a YAML file. Raises ConfigError, with the line, for anything else."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes")
    try:
        return parse_yaml(content.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} line {line}: not UTF-8 text ({error.reason})") from error


def parse_yaml(text: str, source: str) -> Document:
    """The mapping in a YAML text; `source` names it in errors. Raises ConfigError."""
    lines: dict[Location, int] = {}
    try:
        node = yaml.compose(text, _Loader)
        if node is None:
            raise ConfigError(f"{source} is empty")
        if not isinstance(node, yaml.MappingNode):
            raise _fault(node, "a mapping (key: value lines) is wanted at the top")
        return Document(_value(node, (), lines), source, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        told = ", ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        raise ConfigError(f"{source}{line}: {told}") from error
    except yaml.reader.ReaderError as error:
        line = str(text.count("\n", 0, error.position) + 1)
        raise ConfigError(f"{source} line {line}: a character that YAML doesn't allow") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested more than {MAX_DEPTH} deep") from error


class _Loader(yaml.SafeLoader):
    """Reads plain words as YAML 1.2 does - `on` and `2026-01-01` are text, `1e-3` is a number - and
    refuses aliases, by which a small file can grow without bound.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) aren't allowed", mark)
        return super().compose_node(parent, index)


_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_PLAIN = {  # a kind of plain word, how it looks, and with what it may start
    "null": (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    "int": (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), list("-+0123456789")),
    "float": (_FLOAT, list("-+.0123456789")),
}
for _kind, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern.pattern})\\Z"), _first)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _text(text: str) -> str:
    text.encode("utf-8")
    return text


_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": _finite,
    "str": _text,
}


def _fault(node: yaml.Node, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)


def _value(node: yaml.Node, at: Location, lines: dict[Location, int]) -> Any:
    """The value of a node; `lines` learns where it and all within it stand."""
    if len(at) > MAX_DEPTH:
        raise _fault(node, f"nested more than {MAX_DEPTH} deep")
    lines.setdefault(at, node.start_mark.line + 1)
    kind = node.tag.removeprefix(_TAG)
    match node:
        case yaml.MappingNode() if kind == "map":
            return _mapping(node, at, lines)
        case yaml.SequenceNode() if kind == "seq":
            return [_value(item, (*at, k), lines) for k, item in enumerate(node.value)]
        case yaml.ScalarNode() if kind in _SCALARS:
            return _scalar(node, kind)
    raise _fault(node, f"the tag {node.tag.replace(_TAG, '!!')} isn't allowed")


def _scalar(node: yaml.ScalarNode, kind: str) -> Any:
    try:
        return _SCALARS[kind](node.value)
    except (ValueError, KeyError) as error:
        wanted = {"str": "UTF-8 text", "float": "finite number"}.get(kind, kind)
        raise _fault(node, f"{node.value[:80]!a} is no {wanted}") from error


def _mapping(node: yaml.MappingNode, at: Location, lines: dict[Location, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.removeprefix(_TAG) not in _SCALARS:
            raise _fault(key_node, "a key must be a plain word or number")
        _scalar(key_node, "str")
        if key in found:
            raise _fault(key_node, f"the key {key!r} appears twice")
        lines[(*at, key)] = key_node.start_mark.line + 1
        found[key] = _value(value_node, (*at, key), lines)
    return found


# --- writing --------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as people write them; quotes text that looks like a number."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_TAG + "float", re.compile(f"(?:{_FLOAT.pattern})\\Z"), _PLAIN["float"][1])


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML in its own key order, innermost lists on one line."""
    return yaml.dump(
        _plain(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
    return value


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` at once: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
