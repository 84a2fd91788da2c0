"""Worlds: what happens when somebody acts.

`ENVS` maps an id to "module:Class", so that listing imports none of them. A new environment is one
file here and one line below. Other packages bring theirs through an entry point of the group
`turnbench.envs` (name: the id, value: "module:Class"), or by registering with Gymnasium.
"""

import importlib
import inspect
from collections.abc import Collection, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import register, registry

from turnbench.envs.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from turnbench.envs.core import TextEnv

ENVS: dict[str, str] = {
    "turnbench/AgentDojo-v0": "turnbench.envs.agentdojo:AgentDojo",
    "turnbench/BFCL-v0": "turnbench.envs.bfcl:BFCL",
    "turnbench/Blame-v0": "turnbench.envs.blame:Blame",
    "turnbench/ClosedSearch-v0": "turnbench.envs.closedsearch:ClosedSearch",
    "turnbench/ScienceWorld-v0": "turnbench.envs.sciworld:ScienceWorld",
    "turnbench/Tau2-v0": "turnbench.envs.tau2:Tau2",
    "turnbench/TextCraft-v0": "turnbench.envs.textcraft:TextCraft",
    "turnbench/TextCraftMadeUp-v0": "turnbench.envs.textcraft_made_up:MadeUpTextCraft",
    "turnbench/ToolWorld-v0": "turnbench.envs.toolworld:ToolWorld",
    "turnbench/Toy-v0": "turnbench.envs.toy:Toy",
    "turnbench/WebShop-v0": "turnbench.envs.webshop:WebShop",
}

for _id, _entry in ENVS.items():  # so that `gymnasium.make` knows them too
    if _id not in registry:
        register(id=_id, entry_point=_entry, disable_env_checker=True, order_enforce=False)


def make(env_id: str, **kwargs: Any) -> "TextEnv":
    """A new environment by id; what isn't a TextEnv is wrapped into one.

    `env_id` is one of `list_envs()`, or "module:Name-v0" for a module that registers it with
    Gymnasium. Keyword arguments go to the environment; all take `max_turns`. Raises UnknownName, for
    an unknown argument too.
    """
    from turnbench.envs.core import PlainEnv, TextEnv, declared_nondeterministic

    factory = _factory(env_id, kwargs)
    if isinstance(factory, type) and issubclass(factory, TextEnv):
        _check_options(env_id, factory, kwargs)
        env = factory(**kwargs)
        spec = registry.get(env_id.rpartition(":")[2])
        env.nondeterministic = (
            env.nondeterministic
            or declared_nondeterministic(env)
            or bool(spec and spec.nondeterministic)
        )
        return env
    return PlainEnv(factory, **kwargs)


def with_turns(options: Mapping[str, Any], max_turns: int | None) -> dict[str, Any]:
    """Arguments of `make` from an environment's options and a number of turns named beside them.

    Raises ConfigError where both say how many turns there are.
    """
    if max_turns is None:
        return dict(options)
    if "max_turns" in options:
        raise ConfigError("max_turns stands beside the environment's options and in them: keep one")
    return {**options, "max_turns": max_turns}


def list_envs() -> list[str]:
    """The ids of turnbench's environments, then those that other packages brought."""
    return [*ENVS, *sorted({*_plugins(), *_registered()} - ENVS.keys())]


def _check_options(env_id: str, cls: type["TextEnv"], options: Collection[str]) -> None:
    """Refuse options that no constructor from `cls` up to TextEnv takes."""
    known: set[str] = set()
    for owner in cls.__mro__:
        if "__init__" in vars(owner):
            parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
            known |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    for name in options:
        if name not in known - {"self"}:
            raise UnknownName(f"option of {env_id}", name, known - {"self"})


def _factory(env_id: str, kwargs: dict[str, Any]) -> Any:
    """What makes the environment: a TextEnv class, or anything else that returns a Gymnasium one."""
    entry = ENVS.get(env_id)
    if entry is not None:
        return _load(entry)
    if env_id in _plugins():
        return _plugins()[env_id].load()
    module, _, name = env_id.rpartition(":")
    spec = None
    if not module.startswith("."):
        if module:
            _import(module, env_id)
        spec = registry.get(name)
    if spec is None:
        raise UnknownName("environment", env_id, list_envs())
    if not spec.kwargs and _is_text_env(spec.entry_point):
        return _load(spec.entry_point)
    if spec.max_episode_steps is not None:
        kwargs.setdefault("max_turns", spec.max_episode_steps)
    return partial(gymnasium.make, name, disable_env_checker=True)


def _load(entry: Any) -> Any:
    """What an entry point names; one that isn't text is the thing itself."""
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_text_env(entry: Any) -> bool:
    from turnbench.envs.core import TextEnv

    found = _load(entry)
    return isinstance(found, type) and issubclass(found, TextEnv)


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise UnknownName("environment", env_id, list_envs()) from error
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"environment {env_id!r} can't be loaded: {module} raises {told}") from error


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="turnbench.envs")}


def _registered() -> list[str]:
    """Ids in Gymnasium's registry that are not its own examples."""
    homes = {name: _home(spec.entry_point) for name, spec in registry.items()}
    return [name for name, home in homes.items() if home not in ("gymnasium", "shimmy")]


def _home(entry: Any) -> str:
    """The top package of an entry point, which may be text or a callable."""
    return str(entry if isinstance(entry, str) else getattr(entry, "__module__", "")).split(".")[0]
