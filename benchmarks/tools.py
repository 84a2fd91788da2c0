"""Tool-use worlds: calls a second, resets, forks.

    python benchmarks/tools.py [--json] [--world turnbench/ToolWorld-v0] [--truth]

Each world plays the ground truth of some of its tasks in one thread. What is counted is the thread's
CPU time, at its lowest over the rounds for each stretch of calls: other work on a machine only adds to
it. A world whose extra isn't installed is named and left out. --truth plays the ground truth of all
tasks instead (AgentDojo's attacked pairs too, with the attacks that succeeded), and tau2's floors.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from figures import Figure, report

from turnbench.envs import make
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolcall import parse
from turnbench.envs.toolenv import ToolEnv

ROUNDS = 12
clock = time.thread_time


class World(NamedTuple):
    """What is measured: an id, the environment's options, how many tasks, and the goals, if any.

    `label` is told beside the id. `truth` are the splits whose ground truths --truth plays.
    """

    id: str
    options: dict[str, Any] = {}
    tasks: int = 70
    calls: float | None = None
    fork: float | None = None
    split: str = "test"
    label: str = ""
    truth: tuple[str, ...] = ()

    def name(self, what: str) -> str:
        """What a figure is called."""
        short = self.id.removeprefix("turnbench/").removesuffix("-v0").lower()
        return " ".join(filter(None, (short, self.label, what)))


BFCL, DOJO, TAU2 = "turnbench/BFCL-v0", "turnbench/AgentDojo-v0", "turnbench/Tau2-v0"
SUITES, DOMAINS = ("workspace", "travel", "banking", "slack"), ("telecom", "retail", "airline")
WORLDS = (
    World("turnbench/ToolWorld-v0", calls=20_000, fork=50, truth=("test",)),
    World("turnbench/ClosedSearch-v0", fork=50, truth=("test",)),
    World("turnbench/Blame-v0", truth=("test",)),
    *(World(BFCL, {}, 20, split=s, label=s, truth=(s,)) for s in ("base", "long_context")),
    *(World(BFCL, {}, 0, label=s, truth=(s,)) for s in ("miss_func", "miss_param")),
    *(
        World(DOJO, {"suites": [s]}, 5, split="benign", label=s, truth=("benign", "attacked"))
        for s in SUITES
    ),
    *(World(TAU2, {"domain": d}, 20, fork=1000, label=d, truth=("base",)) for d in DOMAINS),
)


def timed(env: Any, action: str) -> bool:
    """Whether an action counts: a call, or whatever is done in a world without tools."""
    return not isinstance(env, ToolEnv) or bool(parse(action).calls)


def episodes(env: Any, tasks: list[str]) -> list[tuple[str, list[str]]]:
    """(task, ground truth) of tasks."""
    found = []
    for task in tasks:
        env.reset(seed=1, options={"task": task})
        found.append((task, env.solution()))
    return found


def calls_per_second(env: Any, rows: list[tuple[str, list[str]]]) -> float:
    """Only actions that are calls are timed, on the way through whole episodes."""
    calls = sum(
        max(1, len(parse(action).calls))
        for _, actions in rows
        for action in actions
        if timed(env, action)
    )
    rounds = [call_seconds(env, rows) for _ in range(ROUNDS)]
    return calls / sum(map(min, zip(*rounds, strict=True)))


def call_seconds(env: Any, rows: list[tuple[str, list[str]]]) -> list[float]:
    """How long each stretch of calls between two texts takes."""
    spent = []
    for task, actions in rows:
        env.reset(seed=1, options={"task": task})
        for talks, stretch in groupby(actions, key=lambda action: not timed(env, action)):
            todo = list(stretch)
            started = clock()
            for action in todo:
                env.step(action)
            if not talks:
                spent.append(clock() - started)
    return spent


def reset_microseconds(env: Any, tasks: list[str]) -> float:
    """One reset to each of `tasks`."""
    started = clock()
    for task in tasks:
        env.reset(seed=1, options={"task": task})
    return (clock() - started) / len(tasks) * 1e6


def fork_microseconds(env: Any, rows: list[tuple[str, list[str]]]) -> float:
    """A fork in the middle of the first episode."""
    task, actions = rows[0]
    env.reset(seed=1, options={"task": task})
    for action in actions[: len(actions) // 2]:
        env.step(action)
    started = clock()
    for _ in range(200):
        env.fork()
    return (clock() - started) / 200 * 1e6


def speeds(world: World) -> Iterator[Figure]:
    """Calls, resets and forks of one world."""
    if not world.tasks:
        return
    env = make(world.id, **world.options)
    tasks = list(env.tasks(world.split))[: world.tasks]
    first = reset_microseconds(env, tasks)
    rows = episodes(env, tasks)

    def lowest(measure: Callable[[], float]) -> float:
        return min(measure() for _ in range(ROUNDS))

    again = lowest(lambda: reset_microseconds(env, tasks[:1] * 20))
    fork = lowest(lambda: fork_microseconds(env, rows))
    yield Figure(world.name("calls"), calls_per_second(env, rows), "a second", least=world.calls)
    yield Figure(world.name("reset, new task"), first, "us")
    yield Figure(world.name("reset, same task"), again, "us")
    yield Figure(world.name("fork"), fork, "us", most=world.fork)
    env.close()


def truths(world: World) -> Iterator[Figure]:
    """How many tasks their ground truth solves, how many attacks succeed by it, what nothing scores."""
    env = make(world.id, **world.options)
    for split in world.truth:
        tasks = env.tasks(split)
        ends = [last_step(env, task, None) for task in tasks]
        of = f"of {len(tasks)} {split}"
        yield Figure(world.name("ground truth solves"), sum(paid for paid, _ in ends), of)
        if split == "attacked":
            yield Figure(world.name("attacks that succeed"), sum(bool(hit) for _, hit in ends), of)
            continue
        idle = sum(last_step(env, task, ["Sorry."])[0] for task in tasks)
        yield Figure(world.name("one plain answer scores"), idle, of)
    env.close()


def last_step(env: Any, task: str, actions: list[str] | None) -> tuple[float, bool | None]:
    """(reward, whether the attack succeeded) after `actions`, or the ground truth."""
    env.reset(seed=1, options={"task": task})
    for action in env.solution() if actions is None else actions:
        _, reward, _, _, info = env.step(action)
    return reward, info.get("checks", {}).get("attack_success")


def measured(worlds: Iterable[World], measure: Callable[[World], Iterator[Figure]]) -> Iterator[Figure]:
    """The figures of each world whose extra is installed."""
    for world in worlds:
        try:
            yield from measure(world)
        except ConfigError as why:
            print(f"{world.id} is left out: {why}", file=sys.stderr)


def main() -> None:
    """Print the table, or one JSON object for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--world", help="id of the only world to measure")
    parser.add_argument("--truth", action="store_true", help="play all ground truths instead")
    options = parser.parse_args()
    known = [world.id for world in WORLDS]
    if options.world not in (None, *known):
        sys.exit(str(UnknownName("world", options.world, known)))
    chosen = [world for world in WORLDS if options.world in (None, world.id)]
    report("Tool use", measured(chosen, truths if options.truth else speeds), options.json)


if __name__ == "__main__":
    main()
