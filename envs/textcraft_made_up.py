"""TextCraft with made-up recipes: the same rules, words and messages, but a new recipe book each time.

Nothing about it can be known by heart: the commands must be read. It serves to teach that, and
to tell reading from remembering. Goals are never named like one of TextCraft's test or
train-value goals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from turnbench.envs.core import mix
from turnbench.envs.errors import UnknownName
from turnbench.envs.textcraft import TextCraft, split_tasks
from turnbench.envs.textcraft_recipes import Ingredient, Recipe, RecipeBook, plain, recipe_book

MADE = (1, 1, 1, 1, 2, 3, 4, 4, 6, 8)  # counts that a command makes, as frequent as in the game
NEEDED = (1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9)  # counts of an ingredient that is found
TASKS = 1000


class MadeUpTextCraft(TextCraft):
    """Craft the goal by recipes made up from (task, seed), `depth` levels deep or less.

    `others` is the largest number of commands shown that lead nowhere. Tasks are "0" to "999", the
    same for every split.
    """

    def __init__(
        self,
        *,
        depth: int = 3,
        others: int = 8,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.depth, self.others = depth, others

    def tasks(self, split: str) -> Sequence[str]:
        """Task ids "0" to "999"."""
        self.check_split(split)
        return [str(number) for number in range(TASKS)]

    def _reset(self, task: str) -> str:
        if not task.isdecimal() or int(task) >= TASKS:
            raise UnknownName("made-up TextCraft task", task, ["0", str(TASKS - 1)])
        rng = np.random.default_rng(mix(self.seed, task))
        author = _Author(rng)
        self.inventory = {}
        self.goal = author.goal(int(rng.integers(1, self.depth + 1)))
        for _ in range(int(rng.integers(self.others + 1))):
            author.distract()
        self.book = author.book
        lines = [recipe.command for recipes in self.book.by_item.values() for recipe in recipes]
        rng.shuffle(lines)
        text = "\n".join(lines)
        self.page = f"Crafting commands:\n{text}\n\nGoal: craft {plain(self.goal)}."
        return self.page


@dataclass(slots=True)
class _Author:
    """Writes a recipe book, with names drawn from the game's items and each used for one thing."""

    rng: np.random.Generator
    book: RecipeBook = field(default_factory=RecipeBook)
    known: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        items = _names()
        self.names = [items[k] for k in self.rng.choice(len(items), 80, replace=False)]

    def goal(self, depth: int) -> str:
        """An item that takes `depth` levels of crafting, with all it needs."""
        free = _free_goals()
        name = free[int(self.rng.integers(len(free)))]
        self.names = [other for other in self.names if other != name]
        self._make(name, depth)
        return name

    def distract(self) -> None:
        """A command that makes something else, mostly from what the goal needs too."""
        size = int(self.rng.integers(1, 4))
        pool = [*sorted(self.book.items), *self.names[:4]]
        chosen = [pool[int(self.rng.integers(len(pool)))] for _ in range(size)]
        inputs = [self._needed(name, NEEDED) for name in dict.fromkeys(chosen)]
        self._write(self.names.pop(), inputs)

    def _make(self, name: str, depth: int) -> None:
        size = 1 + int(self.rng.binomial(2, 0.4))
        deepest = int(self.rng.integers(size))
        inputs = []
        for k in range(size):
            below = (
                depth - 1 if k == deepest else int(self.rng.integers(depth)) * (self.rng.random() < 0.4)
            )
            if below:
                inputs.append(self._needed(self.names.pop(), (1, 1, 2, 3)))
                self._make(inputs[-1].name, below)
            elif (found := self._name(0.2)) not in [i.name for i in inputs]:
                inputs.append(self._needed(found, NEEDED))
        self._write(name, inputs)

    def _name(self, again: float) -> str:
        """A name, with probability `again` one that is in the book already."""
        if not self.known or self.rng.random() >= again:
            self.known.append(self.names.pop())
            return self.known[-1]
        return self.known[int(self.rng.integers(len(self.known)))]

    def _needed(self, name: str, counts: Sequence[int]) -> Ingredient:
        return Ingredient(name, counts[int(self.rng.integers(len(counts)))], False)

    def _write(self, output: str, inputs: list[Ingredient]) -> None:
        made = MADE[int(self.rng.integers(len(MADE)))]
        self.book.by_item[output] = [Recipe(output, made, None, tuple(inputs))]
        self.book.items |= {output, *(i.name for i in inputs)}


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(recipe_book().items))


@cache
def _free_goals() -> tuple[str, ...]:
    kept = {recipe_book().goals[int(t)] for split in ("test", "train-value") for t in split_tasks(split)}
    return tuple(name for name in _names() if name not in kept)
