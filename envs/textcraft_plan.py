"""A planner for TextCraft, and demonstrations made with it.

A plan works depth first through the goal's recipe, ingredient by ingredient in the order of the
command: everything one ingredient needs is taken and crafted before the next one is begun. So each
action follows from the commands, the goal and what was done last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.demonstrate import guided
from turnbench.envs.errors import ConfigError, EnvError
from turnbench.envs.record import Task, Trajectory
from turnbench.envs.textcraft import TextCraft
from turnbench.envs.textcraft_recipes import Ingredient, Recipe, RecipeBook, plain, recipe_book

MAX_STEPS = 300  # the longest plan has far fewer; a search that passes this has gone astray


def plan(
    goal: str, carried: Mapping[str, int] | None = None, book: RecipeBook | None = None
) -> list[str]:
    """The actions that make the item `goal` ("minecraft:...") from what is carried.

    Leftovers are used, an item is taken once for all its uses, and where several recipes make
    something, the choice is improved one item at a time until no change makes the plan shorter.
    Raises EnvError where no recipe makes the goal.
    """
    book = book or recipe_book()
    if goal not in book.by_item:
        raise EnvError(f"no recipe makes {plain(goal)}")
    best = _Sketch.of(book, goal, carried or {}, {})
    improved = True
    while improved:
        improved = False
        for name in list(best.used):
            for recipe in book.recipes(name):
                trial = _Sketch.of(book, goal, carried or {}, {**best.choices, name: recipe})
                if len(trial.actions) < len(best.actions):
                    best, improved = trial, True
    return best.actions


@dataclass(slots=True)
class _Sketch:
    """A plan under construction: what would be carried, and which recipe serves for what."""

    book: RecipeBook
    carried: dict[str, int]
    choices: dict[str, Recipe]
    used: dict[str, None] = field(default_factory=dict)
    steps: list[str | tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, book: RecipeBook, goal: str, carried: Mapping[str, int], choices: dict[str, Recipe]
    ) -> "_Sketch":
        sketch = cls(book, dict(carried), choices)
        sketch.craft(sketch.recipe(goal), 1)
        return sketch

    @property
    def actions(self) -> list[str]:
        """The actions in words; all that is taken of one item is taken the first time."""
        totals: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, tuple):
                totals[step[0]] = totals.get(step[0], 0) + step[1]
        words = []
        for step in self.steps:
            if isinstance(step, str):
                words.append(step)
            elif count := totals.pop(step[0], 0):
                words.append(f"get {count} {plain(step[0])}")
        return words

    def craft(self, recipe: Recipe, runs: int) -> None:
        """Run the recipe so many times, after securing all its ingredients."""
        while lacking := next((i for i in recipe.inputs if not self.held(i, runs)), None):
            self.obtain(lacking.name, runs * lacking.quantity)
        for _ in range(runs):
            self.run(recipe)

    def recipe(self, name: str) -> Recipe:
        self.used[name] = None
        known = self.book.recipes(name)
        return self.choices.get(name) or min(known, key=lambda recipe: self.book.depth(recipe.output))

    def held(self, need: Ingredient, runs: int = 1) -> str | None:
        """The carried item that serves `runs` times as the ingredient."""
        wanted = need.quantity * runs
        if not need.is_tag:
            return need.name if self.carried.get(need.name, 0) >= wanted else None
        fitting = (
            i for i, n in self.carried.items() if n >= wanted and self.book.tag_of.get(i) == need.name
        )
        return next(fitting, None)

    def obtain(self, name: str, count: int) -> None:
        """Carry `count` of an item, or of one item of a group."""
        if len(self.steps) > MAX_STEPS:
            raise EnvError(f"no plan of at most {MAX_STEPS} steps was found")
        if not self.book.craftable(name):
            self.steps.append((name, count - self.carried.get(name, 0)))
            self.carried[name] = count
            return
        recipe = self.recipe(name)
        lacking = count - self.carried.get(recipe.output, 0)
        self.craft(recipe, -(-lacking // recipe.count))

    def run(self, recipe: Recipe) -> None:
        """Craft once from what is carried."""
        paid = [(self.held(i) or i.name, i.quantity) for i in recipe.inputs]
        for item, quantity in paid:
            self.carried[item] -= quantity
        self.carried[recipe.output] = self.carried.get(recipe.output, 0) + recipe.count
        parts = ", ".join(f"{n} {plain(item)}" for item, n in paid)
        self.steps.append(f"craft {recipe.count} {plain(recipe.output)} using {parts}")


# --- demonstrations ---------------------------------------------------------------------------------


def demonstrate(env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float = 0.0) -> Trajectory:
    """Play `task` by plan (see `guided`); after a mistake the plan is made anew."""
    if not isinstance(env, TextCraft):
        raise ConfigError(f"this planner plays TextCraft, not {type(env).__name__}")
    return guided(env, task, rng, mistakes, lambda: _Planner(env))


class _Planner:
    def __init__(self, env: TextCraft) -> None:
        self.env, self.todo = env, plan(env.goal, book=env.book)

    def right(self) -> str:
        return self.todo[0]

    def wrong(self, rng: np.random.Generator) -> str:
        return _mistake(self.env, self.todo, rng)

    def moved(self, action: str, observation: str, astray: bool) -> None:
        env = self.env
        if not env.over:
            self.todo = plan(env.goal, env.inventory, env.book) if astray else self.todo[1:]


def _mistake(env: TextCraft, todo: list[str], rng: np.random.Generator) -> str:
    """A wrong action such as a learner makes: too early, misread, too little, or not to be had."""
    closure = env.book.closure(env.goal)
    recipe = closure[int(rng.integers(len(closure)))]
    needed = recipe.inputs[int(rng.integers(len(recipe.inputs)))]
    crafts = [action for action in todo if action.startswith("craft")]
    kind = rng.integers(6)
    if kind == 0 and crafts[-1] != todo[0]:  # too early
        return crafts[int(rng.integers(len(crafts)))]
    if kind == 1 and todo[0].startswith("get"):  # too little, or too much
        return f"get {int(rng.integers(1, 9))} {todo[0].split(' ', 2)[2]}"
    if kind == 2:  # a wrong count
        head, using, tail = crafts[int(rng.integers(len(crafts)))].rpartition(" using ")
        return f"{head}{using}{int(rng.integers(1, 9))} {tail.split(' ', 1)[1]}"
    if kind == 3 and recipe.output != env.goal:  # another recipe, with groups by name
        return recipe.command
    return f"get {int(rng.integers(1, 9))} {plain(recipe.output if kind == 4 else needed.name)}"
