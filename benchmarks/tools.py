"""Tool-use worlds: calls a second, resets, forks.

    python benchmarks/tools.py [--json] [--world turnbench/ToolWorld-v0]

Each world plays the ground truth of some of its tasks in one thread. What is counted is the thread's
CPU time, at its lowest over the rounds for each stretch of calls: other work on a machine only adds to
it. A world whose extra isn't installed is named and left out.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

from turnbench.envs import make
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolcall import parse
from turnbench.envs.toolenv import ToolEnv

ROUNDS = 12
clock = time.thread_time


class World(NamedTuple):
    """What is measured: an id, the environment's options, how many tasks, and the goals, if any."""

    id: str
    options: dict[str, Any] = {}
    tasks: int = 70
    calls: float | None = None
    fork: float | None = None


WORLDS = (World("turnbench/ToolWorld-v0", calls=20_000, fork=50),)


def episodes(env: ToolEnv, count: int) -> list[tuple[str, list[str]]]:
    """(task, ground truth) of the first test tasks."""
    found = []
    for task in env.tasks("test")[:count]:
        env.reset(seed=1, options={"task": task})
        found.append((task, env.ground_truth()))
    return found


def calls_per_second(env: ToolEnv, rows: list[tuple[str, list[str]]]) -> float:
    """Only actions that are calls are timed, on the way through whole episodes."""
    calls = sum(len(parse(action).calls) for _, actions in rows for action in actions)
    rounds = [call_seconds(env, rows) for _ in range(ROUNDS)]
    return calls / sum(map(min, zip(*rounds, strict=True)))


def call_seconds(env: ToolEnv, rows: list[tuple[str, list[str]]]) -> list[float]:
    """How long each stretch of calls between two texts takes."""
    spent = []
    for task, actions in rows:
        env.reset(seed=1, options={"task": task})
        for talks, stretch in groupby(actions, key=lambda action: not parse(action).calls):
            todo = list(stretch)
            started = clock()
            for action in todo:
                env.step(action)
            if not talks:
                spent.append(clock() - started)
    return spent


def reset_microseconds(env: ToolEnv, tasks: list[str]) -> float:
    """One reset to each of `tasks`."""
    started = clock()
    for task in tasks:
        env.reset(seed=1, options={"task": task})
    return (clock() - started) / len(tasks) * 1e6


def fork_microseconds(env: ToolEnv, rows: list[tuple[str, list[str]]]) -> float:
    """A fork in the middle of the first episode."""
    task, actions = rows[0]
    env.reset(seed=1, options={"task": task})
    for action in actions[: len(actions) // 2]:
        env.step(action)
    started = clock()
    for _ in range(200):
        env.fork()
    return (clock() - started) / 200 * 1e6


def figures(world: World) -> list[tuple[str, float, str, float | None, bool]]:
    """(what, value, unit, goal, whether more is better) of one world."""
    env = make(world.id, **world.options)
    assert isinstance(env, ToolEnv)
    tasks = list(env.tasks("test"))[: world.tasks]
    first = reset_microseconds(env, tasks)
    rows = episodes(env, world.tasks)

    def lowest(measure: Callable[[], float]) -> float:
        return min(measure() for _ in range(ROUNDS))

    found = [
        ("calls", calls_per_second(env, rows), "a second", world.calls, True),
        ("reset, new task", first, "microseconds", None, False),
        (
            "reset, same task",
            lowest(lambda: reset_microseconds(env, tasks[:1] * 20)),
            "microseconds",
            None,
            False,
        ),
        ("fork", lowest(lambda: fork_microseconds(env, rows)), "microseconds", world.fork, False),
    ]
    env.close()
    return found


def main() -> None:
    """Print the table, or one JSON object for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--world", help="id of the only world to measure")
    options = parser.parse_args()
    known = [world.id for world in WORLDS]
    if options.world not in (None, *known):
        sys.exit(str(UnknownName("world", options.world, known)))
    for world in WORLDS:
        if options.world in (None, world.id):
            report(world, options.json)


def report(world: World, as_json: bool) -> None:
    try:
        rows = figures(world)
    except ConfigError as why:
        print(f"{world.id} is left out: {why}", file=sys.stderr)
        return
    for what, value, unit, goal, at_least in rows:
        name = f"{world.id.removeprefix('turnbench/').removesuffix('-v0').lower()} {what}"
        if as_json:
            print(
                json.dumps({"name": name, "value": round(value, 2), "unit": unit, "goal": goal}),
                flush=True,
            )
            continue
        met = (
            "" if goal is None else "met" if (value >= goal if at_least else value <= goal) else "MISSED"
        )
        sign = "at least" if at_least else "at most"
        wanted = f" (goal: {sign} {goal:g}; {met})" if goal is not None else ""
        print(f"{name:32} {value:10.1f} {unit:14}{wanted}", flush=True)


if __name__ == "__main__":
    main()
