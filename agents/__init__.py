"""Agents: how one acts at test time, and the models they ask.

`AGENTS` and `BACKENDS` map a name to "module:Class", so that listing imports nothing. A new agent is
one file here and one line below; a suite may also name "module:Class" of any installed package.
"""

import importlib
import inspect
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnbench.envs.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from turnbench.agents.model import Model, Sampling

AGENTS: dict[str, str] = {
    "amc": "turnbench.agents.amc:AMC",
    "baseline": "turnbench.agents.baseline:Baseline",
    "best_of_n": "turnbench.agents.best_of_n:BestOfN",
    "fleet": "turnbench.agents.fleet:Fleet",
    "monitor": "turnbench.agents.monitor:Monitor",
    "react": "turnbench.agents.react:ReAct",
}

BACKENDS: dict[str, str] = {
    "api": "turnbench.agents.api:ApiModel",
    "hf": "turnbench.agents.hf:HfModel",
}

EXTRAS = {"hf": "local"}  # what to install for a backend that the core doesn't bring

SHIPPED = "turnbench/"  # a checkpoint path that starts so names one that comes with the package


def agent_class(name: str) -> Any:
    """The class registered as `name`, or named as "module:Class". Raises UnknownName, ConfigError."""
    return find("agent", name, AGENTS)


def make_model(spec: Mapping[str, Any] | str) -> "Model":
    """The model that a suite describes: `backend`, sampling keys, and the backend's own arguments.

    A backend's constructor also takes `name` and `sampling`. "hf:FOLDER" and "api:MODEL" do as well.
    Raises UnknownName, ConfigError, ModelError.
    """
    spec = model_spec(spec) if isinstance(spec, str) else spec
    cls, arguments = model_arguments(spec)
    try:
        return cls(**arguments)  # type: ignore[no-any-return]
    except ImportError as error:
        raise _not_installed("backend", spec["backend"], error, EXTRAS.get(spec["backend"])) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"model {spec!r}: {' '.join(str(error).split())}") from error


def model_arguments(spec: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class that a model's specification names and the checked arguments to make it with.

    Raises UnknownName, ConfigError.
    """
    from turnbench.agents.model import Sampling

    options = dict(spec)
    backend = options.pop("backend", None)
    if not isinstance(backend, str):
        raise ConfigError(f"a model needs the key 'backend': one of {', '.join(BACKENDS)}")
    cls = find("backend", backend, BACKENDS, EXTRAS.get(backend))
    sampling = {name: options.pop(name) for name in Sampling.__slots__ if name in options}
    known = [*inspect.signature(cls).parameters, *Sampling.__slots__]
    check_options(f"backend {backend!r}", cls, options, given={"sampling"}, also=known)
    return cls, {**options, "sampling": _sampling(sampling)}


def _sampling(options: dict[str, Any]) -> "Sampling":
    from turnbench.agents.model import Sampling

    for name, value in options.items():
        if name == "stop":
            stop = [value] if isinstance(value, str) else value
            if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
                raise ConfigError(f"stop is {value!r}; a text or a list of texts is wanted")
            options[name] = tuple(stop)
            continue
        kind = int if name == "max_tokens" else int | float
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{name} is {value!r}; a number of the right kind is wanted")
    try:
        return Sampling(**options)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def model_spec(short: str) -> dict[str, Any]:
    """The specification that "hf:FOLDER" or "api:MODEL" stands for. Raises UnknownName."""
    backend, colon, target = short.partition(":")
    targets = {"hf": "path", "api": "model"}
    if not (colon and target) or backend not in targets:
        raise UnknownName("model", short, [f"{name}:{what.upper()}" for name, what in targets.items()])
    return {"backend": backend, targets[backend]: target}


def checkpoint_folder(spec: Mapping[str, Any]) -> Path | None:
    """The folder of a model's checkpoint; None where the model isn't loaded from one."""
    path = spec.get("path")
    return shipped_path(path) if isinstance(path, str) else None


def shipped_path(path: str) -> Path:
    """`path` as a folder; "turnbench/NAME" is the checkpoint NAME that comes with the package."""
    shipped = Path(str(files("turnbench.agents") / "data" / path.removeprefix(SHIPPED)))
    return shipped if path.startswith(SHIPPED) and shipped.is_dir() else Path(path)


def check_options(
    what: str,
    cls: type[Any],
    options: Mapping[str, Any],
    given: Collection[str] = (),
    also: Collection[str] = (),
) -> None:
    """Refuse options that the constructor of `cls` doesn't take, and demand those that it must have.

    `given` are arguments that come from elsewhere, `also` further names for the error to suggest.
    Raises UnknownName, ConfigError.
    """
    parameters = inspect.signature(cls).parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {
        *given
    }
    for name in options:
        if name not in names and not open_ended:
            raise UnknownName(f"option of {what}", name, {*names, *also} - {*given})
    for p in parameters:
        if p.name in names and p.default is p.empty and p.name not in options:
            raise ConfigError(f"{what} needs the option {p.name!r}")


def find(kind: str, name: str, registry: Mapping[str, str], extra: str | None = None) -> Any:
    """What is registered as `name`, or named as "module:attribute".

    `extra`: the extra of turnbench that brings what a registered one needs. Raises UnknownName, or ConfigError
    where it can't load.
    """
    module, colon, attribute = registry.get(name, name).partition(":")
    if not (colon and module and not module.startswith(".")):
        raise UnknownName(kind, name, registry)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        if name not in registry and error.name and f"{module}.".startswith(f"{error.name}."):
            raise UnknownName(kind, name, registry) from error
        raise _not_installed(kind, name, error, extra if name in registry else None) from error
    if not callable(found):
        raise UnknownName(kind, name, registry)
    return found


def _not_installed(kind: str, name: str, error: ImportError, extra: str | None) -> ConfigError:
    """The error for what needs a package, with how to install it where an extra brings it."""
    hint = f" (pip install 'turnbench[{extra}]')" if extra else ""
    return ConfigError(f"{kind} {name!r} can't be loaded: {error}{hint}")
