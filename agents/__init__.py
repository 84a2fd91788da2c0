"""Agents: how one acts at test time, and the models that they ask.

`AGENTS` and `BACKENDS` map a name to "module:Class", so that listing imports nothing. A new agent or
backend is one file here and one line below; a suite may also name "module:Class" of any installed
package.
"""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from turnbench.envs.errors import ConfigError, ModelError, UnknownName

if TYPE_CHECKING:
    from turnbench.agents.model import Model

AGENTS: dict[str, str] = {
    "best_of_n": "turnbench.agents.best_of_n:BestOfN",
    "react": "turnbench.agents.react:ReAct",
}

BACKENDS: dict[str, str] = {
    "api": "turnbench.agents.api:ApiModel",
    "hf": "turnbench.agents.hf:HfModel",
}


def agent_class(name: str) -> type[Any]:
    """The class registered as `name`, or named as "module:Class". Raises UnknownName."""
    return _load("agent", name, AGENTS)


def make_model(spec: Mapping[str, Any] | str) -> "Model":
    """A model from "backend:MODEL", or from a mapping as a suite holds it.

    The mapping's `backend` is one of `BACKENDS` or "module:Class"; temperature, top_p, max_tokens and
    stop make its Sampling; all other keys are the class's own arguments. Raises UnknownName for a
    backend, ConfigError for a wrong, missing or unknown key, ModelError where the model can't be made.
    """
    spec = _spelled_out(spec) if isinstance(spec, str) else dict(spec)
    backend = spec.pop("backend", None)
    if not isinstance(backend, str):
        raise ConfigError(f"model: `backend` must be one of {', '.join(BACKENDS)}, or module:Class")
    made = _backend(backend)
    options = _options(backend, made, spec)
    try:
        return made(**options)  # type: ignore[no-any-return]
    except TypeError as error:
        raise ConfigError(f"model: {backend} with {options}: {error}") from error


def _load(kind: str, name: str, registry: Mapping[str, str]) -> type[Any]:
    entry = registry.get(name, name)
    module, colon, attribute = entry.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        missing = getattr(error, "name", None)  # a package that the module itself needs?
        foreign = isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{missing}.")
        if colon and (name in registry or foreign):
            raise
        raise UnknownName(kind, name, registry) from error


def _backend(name: str) -> type[Any]:
    try:
        return _load("backend", name, BACKENDS)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"backend {name} needs the package {error.name}, which is not installed; local models come "
            "with the extra turnbench[local]"
        ) from error


def _spelled_out(text: str) -> dict[str, Any]:
    backend, colon, model = text.partition(":")
    if not (colon and model and backend in BACKENDS):
        forms = " or ".join(f"{name}:MODEL" for name in BACKENDS)
        raise ConfigError(f"model {text!r}: {forms} wanted, or a mapping with `backend`")
    return {"backend": backend, _first_argument(_backend(backend)): model}


def _first_argument(made: type[Any]) -> str:
    return next(iter(inspect.signature(made).parameters))


def _options(backend: str, made: type[Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `made`, checked against its signature, with the sampling keys made one."""
    from turnbench.agents.model import Sampling

    parameters = dict(inspect.signature(made).parameters)
    parameters.pop("sampling", None)
    draws = [field.name for field in fields(Sampling)]
    known = [*parameters, *draws]
    for key in spec:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"model: {backend} has no {key!r}{hint}; it takes {', '.join(known)}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in spec:
            raise ConfigError(f"model: {backend} needs {key!r}")
    options = {key: value for key, value in spec.items() if key in parameters}
    sampling = {key: value for key, value in spec.items() if key in draws}
    return options | {"sampling": _sampling(sampling)} if sampling else options


def _sampling(values: dict[str, Any]) -> Any:
    from turnbench.agents.model import Sampling

    stop = values.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
        raise ConfigError(f"model: stop is {stop!r}, not a text or a list of texts")
    values["stop"] = tuple(stop)
    for key in values.keys() - {"stop"}:
        kind = int if key == "max_tokens" else int | float
        if not isinstance(values[key], kind) or isinstance(values[key], bool):
            raise ConfigError(f"model: {key} is {values[key]!r}, not a number of the right kind")
    try:
        return Sampling(**values)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
