"""YAML in and out: safe, without duplicate keys, with the line of every value at hand for errors."""

import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from turnbench.envs.errors import ConfigError, UnknownName

MAX_BYTES = 1_000_000
Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping, where it came from, and the line on which each value starts."""

    data: dict[str, Any]
    source: str
    lines: dict[Location, int] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """ "FILE line N" of a value, or of the nearest thing around it that has a line."""
        while location and location not in self.lines:
            location = location[:-1]
        return f"{self.source} line {self.lines.get(location, 1)}"

    def error(self, location: Location, message: str) -> ConfigError:
        """A ConfigError that says where."""
        return ConfigError(f"{self.where(location)}: {message}")

    def explain(self, error: ValidationError) -> ConfigError:
        """What pydantic found wrong, one line a fault, each with its line in the file."""
        return ConfigError("\n".join(self._faults(error)))

    def _faults(self, error: ValidationError) -> Iterator[str]:
        for fault in error.errors(include_url=False):
            location = tuple(fault["loc"])
            name = ".".join(map(str, location)) or "the file"
            if fault["type"] == "extra_forbidden":
                known = fault.get("ctx", {}).get("known", ())
                text = (
                    str(UnknownName("key", str(location[-1]), known))
                    if known
                    else f"unknown key {name!r}"
                )
            else:
                text = f"{name}: {fault['msg'].removeprefix('Value error, ')}"
            yield f"{self.where(location)}: {text}"


def read_yaml(path: Path) -> Document:
    """The mapping in a YAML file. Raises ConfigError, with the line, for anything else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Document:
    """The mapping in a YAML text; `source` names it in errors. Raises ConfigError."""
    lines: dict[Location, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{source}: a YAML mapping (key: value lines) is wanted at the top")
            data = _Reader(loader, source, lines).value(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{line}: {error.problem or error.context or 'not YAML'}") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error
    return Document(data, source, lines)


class _Reader:
    """Turns YAML nodes into values; refuses duplicate keys, tags, and aliases (which can explode)."""

    def __init__(self, loader: yaml.SafeLoader, source: str, lines: dict[Location, int]) -> None:
        self.loader, self.source, self.lines = loader, source, lines
        self.seen: set[int] = set()

    def value(self, node: yaml.Node, at: Location) -> Any:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            if id(node) in self.seen:
                raise ConfigError(f"{self.source} line {line}: aliases (*name) aren't allowed")
            self.seen.add(id(node))
        self.lines.setdefault(at, line)
        match node:
            case yaml.MappingNode():
                return self._mapping(node, at)
            case yaml.SequenceNode():
                return [self.value(item, (*at, k)) for k, item in enumerate(node.value)]
        return self.loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self.value(key_node, (*at, "key"))
            if not isinstance(key, str | int):
                raise ConfigError(f"{self.source} line {line}: {key!r} can't be a key")
            if str(key) in found:
                raise ConfigError(f"{self.source} line {line}: the key {key!r} appears twice")
            self.lines[(*at, str(key))] = line
            found[str(key)] = self.value(value_node, (*at, str(key)))
        return found


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML in its own key order; floats rounded to 6 digits, innermost lists on one line."""
    return yaml.dump(
        _tidy(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )


def _tidy(value: Any) -> Any:
    match value:
        case dict():
            return {str(k): _tidy(v) for k, v in value.items()}
        case list() | tuple():
            return [_tidy(v) for v in value]
        case float() if math.isfinite(value):
            return float(f"{value:.6g}")
    return value


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` at once: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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
