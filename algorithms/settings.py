"""Configs of trainers: checked, explained where they are wrong, and tied to a run folder."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from turnbench.algorithms import checkpoint
from turnbench.envs.errors import ConfigError, ConfigFaults

C = TypeVar("C", bound=BaseModel)


def checked(kind: type[C], config: Mapping[str, Any]) -> C:
    """The config as a `kind`. Raises ConfigError that names each wrong field."""
    try:
        return kind.model_validate(dict(config))
    except ValidationError as error:
        faults = [_fault(kind, e["loc"], e["msg"], e["type"]) for e in error.errors()]
        raise ConfigFaults(faults) from error


def _fault(kind: type[BaseModel], where: tuple[int | str, ...], message: str, what: str) -> ConfigError:
    found = ConfigError(_explain(kind, where, message, what))
    found.at = where
    return found


def _explain(kind: type[BaseModel], where: tuple[int | str, ...], message: str, what: str) -> str:
    place = ".".join(map(str, where)) or "config"
    message = message.removeprefix("Value error, ")
    if what != "extra_forbidden":
        return f"{place}: {message}"
    for name in where[:-1]:
        kind = _section(kind, str(name)) or kind
    return f"{place}: unknown key; known: {', '.join(sorted(kind.model_fields))}"


def _section(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = kind.model_fields.get(name)
    options = () if field is None else (field.annotation, *get_args(field.annotation))
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def claim(out: Path, settings: BaseModel, *, free: Collection[str] = ("steps",)) -> None:
    """Mark the run folder as this config's. Raises ConfigError where it is another's; the keys in
    `free` may differ, and one that wasn't recorded, as it is newer than the run, had its default.
    A folder that holds nothing else yet, as that run failed at its start, is free."""
    mine = settings.model_dump(mode="json")
    path = out / "config.json"
    out.mkdir(parents=True, exist_ok=True)
    if path.exists() and len(list(out.iterdir())) > 1:
        theirs = _completed(settings, json.loads(path.read_text(encoding="utf-8")))
        keys = [key for key in {**mine, **theirs} if key not in free]
        differing = [key for key in keys if mine.get(key) != theirs.get(key)]
        if differing:
            raise ConfigError(
                f"{out} holds a run with another {', '.join(differing)}: name a new folder"
            )
    checkpoint.write_text(path, json.dumps(mine, indent=2))


def _completed(mine: Any, theirs: Any) -> Any:
    """What was recorded of `mine`, with the keys that it lacks at their defaults, in sections too."""
    if isinstance(mine, BaseModel) and isinstance(theirs, dict):
        told = {key: _completed(getattr(mine, key, None), value) for key, value in theirs.items()}
        return {**_defaults(type(mine)), **told}
    if isinstance(mine, list | tuple) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [_completed(*pair) for pair in zip(mine, theirs, strict=True)]
    return theirs


def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """The defaults of the keys that may be left out, as JSON has them."""
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


def reread(kinds: Mapping[str, type[C]], path: Path) -> C:
    """The settings that `claim` wrote, of the kind that their algorithm names. Raises ConfigError."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        kind = kinds[told["algorithm"]]
    except (ValueError, LookupError, TypeError) as error:
        names = ", ".join(sorted(kinds))
        raise ConfigError(f"{path} is no config of one of: {names}") from error
    plain = _defaults(kind)
    return checked(kind, {k: v for k, v in told.items() if k not in plain or plain[k] != v})
