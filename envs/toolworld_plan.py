"""Demonstrations in ToolWorld: the ground truth, with mistakes that do no harm."""

import json

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Json, Outcome, Task, Trajectory, Turn
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolworld import UNAVAILABLE, ToolWorld


def demonstrate(env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float = 0.0) -> Trajectory:
    """Play `task` by its ground truth. With probability `mistakes` a call is a wrong one instead; the
    numbers of these turns are in `info["mistakes"]`. They change nothing, so the plan stays as it is.
    """
    if not isinstance(env, ToolWorld):
        raise ConfigError(f"this demonstrator plays ToolWorld, not {type(env).__name__}")
    observation, _ = env.reset(seed=task.seed, options={"task": task.id})
    todo = env.plan()
    turns: list[Turn] = []
    wrong: list[int] = []
    truncated, success = False, False
    while not env.over:
        astray = rng.random() < mistakes and todo[0].startswith("{")
        action = _mistake(env, json.loads(todo[0]), turns, rng) if astray else todo[0]
        if astray:
            wrong.append(len(turns))
        seen, reward, _, truncated, info = env.step(action)
        turns.append(Turn(observation, action, reward))
        observation, success = seen, bool(info.get("success"))
        if not astray and seen != UNAVAILABLE:
            todo = todo[1:]
    outcome = Outcome.TRUNCATED if truncated else Outcome.OK
    return Trajectory(
        task, tuple(turns), observation, outcome, success=success, info={"mistakes": wrong}
    )


def _mistake(env: ToolWorld, call: Json, turns: list[Turn], rng: np.random.Generator) -> str:
    """A wrong call such as a learner makes: misspelt, incomplete, with a made-up id, or needless."""
    name, arguments = call["name"], dict(call["arguments"])
    looked = [
        turn.action for turn in turns if turn.action.startswith(('{"name": "find', '{"name": "sea'))
    ]
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
