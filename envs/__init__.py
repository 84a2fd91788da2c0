"""Worlds: what happens when somebody acts.

`ENVS` maps an id to "module:Class", so that listing imports none of them. A new environment is one
file here and one line below. Other packages bring theirs through an entry point of the group
`turnbench.envs` (name: the id, value: "module:Class"), or by registering with Gymnasium.
"""

import importlib
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import register, registry

from turnbench.envs.errors import UnknownName

if TYPE_CHECKING:
    from turnbench.envs.core import TextEnv

ENVS: dict[str, str] = {
    "turnbench/TextCraft-v0": "turnbench.envs.textcraft:TextCraft",
    "turnbench/Toy-v0": "turnbench.envs.toy:Toy",
    "turnbench/ScienceWorld-v0": "turnbench.envs.sciworld:ScienceWorld",
}

for _id, _entry in ENVS.items():  # so that `gymnasium.make` knows them too
    if _id not in registry:
        register(id=_id, entry_point=_entry, disable_env_checker=True, order_enforce=False)


def make(env_id: str, **kwargs: Any) -> "TextEnv":
    """A new environment by id; what isn't a TextEnv is wrapped into one.

    `env_id` is one of `list_envs()`, or "module:Name-v0" for a module that registers it with
    Gymnasium. Keyword arguments go to the environment; all take `max_turns`. Raises UnknownName.
    """
    from turnbench.envs.core import PlainEnv, TextEnv

    factory = _factory(env_id, kwargs)
    if isinstance(factory, type) and issubclass(factory, TextEnv):
        return factory(**kwargs)
    return PlainEnv(factory, **kwargs)


def list_envs() -> list[str]:
    """The ids of turnbench's environments, then those that other packages brought."""
    return [*ENVS, *sorted({*_plugins(), *_registered()} - ENVS.keys())]


def _factory(env_id: str, kwargs: dict[str, Any]) -> Any:
    """What makes the environment: a TextEnv class, or anything else that returns a Gymnasium one."""
    entry = ENVS.get(env_id)
    if entry is not None:
        return _load(entry)
    if env_id in _plugins():
        return _plugins()[env_id].load()
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    spec = registry.get(name)
    if spec is None:
        raise UnknownName("environment", env_id, list_envs())
    if isinstance(spec.entry_point, str) and not spec.kwargs and _is_text_env(spec.entry_point):
        return _load(spec.entry_point)
    if spec.max_episode_steps is not None:
        kwargs.setdefault("max_turns", spec.max_episode_steps)
    return partial(gymnasium.make, name, disable_env_checker=True)


def _load(entry: str) -> Any:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_text_env(entry: str) -> bool:
    from turnbench.envs.core import TextEnv

    found = _load(entry)
    return isinstance(found, type) and issubclass(found, TextEnv)


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UnknownName("environment", env_id, list_envs()) from error


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="turnbench.envs")}


def _registered() -> list[str]:
    """Ids in Gymnasium's registry that are not its own examples."""
    own = ("gymnasium.", "shimmy.", "<function _raise_shimmy")
    return [name for name, spec in registry.items() if not str(spec.entry_point).startswith(own)]
