"""Demonstrations in ToolWorld: the ground truth, with mistakes that do no harm."""

import json

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.demonstrate import guided
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Json, Task, Trajectory
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolworld import UNAVAILABLE, ToolWorld


def demonstrate(env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float = 0.0) -> Trajectory:
    """Play `task` by its ground truth (see `guided`). Mistakes are calls that change nothing, so the
    plan stays as it is.
    """
    if not isinstance(env, ToolWorld):
        raise ConfigError(f"this demonstrator plays ToolWorld, not {type(env).__name__}")
    return guided(env, task, rng, mistakes, lambda: _Clerk(env))


class _Clerk:
    def __init__(self, env: ToolWorld) -> None:
        self.env, self.todo, self.done = env, env.plan(), list[str]()

    def right(self) -> str:
        return self.todo[0]

    def wrong(self, rng: np.random.Generator) -> str | None:
        if not self.todo[0].startswith("{"):
            return None
        return _mistake(self.env, json.loads(self.todo[0]), self.done, rng)

    def moved(self, action: str, observation: str, astray: bool) -> None:
        self.done.append(action)
        if not astray and observation != UNAVAILABLE:
            self.todo = self.todo[1:]


def _mistake(env: ToolWorld, call: Json, done: list[str], rng: np.random.Generator) -> str:
    """A wrong call such as a learner makes: misspelt, incomplete, with a made-up id, or needless."""
    name, arguments = call["name"], dict(call["arguments"])
    looked = [action for action in done if action.startswith(('{"name": "find', '{"name": "sea'))]
    kind = rng.integers(4)
    if kind == 0 and looked:
        return looked[int(rng.integers(len(looked)))]
    if kind == 1:
        arguments.pop(list(arguments)[int(rng.integers(len(arguments)))])
        return call_text(name, **arguments)
    if kind == 2 and "id" in arguments:
        known = {key for table in env.state.values() for key in table}
        prefix = arguments["id"].partition("-")[0]
        made_up = next(k for k in map(int, rng.permutation(900)) if f"{prefix}-{k + 100}" not in known)
        return call_text(name, **{**arguments, "id": f"{prefix}-{made_up + 100}"})
    k = int(rng.integers(len(name)))
    return call_text(name[:k] + name[k + 1 :] + "s" * (rng.random() < 0.5), **arguments)
