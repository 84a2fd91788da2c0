"""TextCraft: craft a Minecraft item from base items, by text (Prasad et al., ADaPT, 2024).

The rules, messages and task numbers are those of the published game as AgentGym serves it. The
recipes are read from the data of the `textcraft` distribution; its module is not imported.

The published game's command list depends on the order of directory entries and on PYTHONHASHSEED;
here it depends on nothing but the goal and the seed.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from typing import NamedTuple, Self

from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import UnknownName
from turnbench.envs.textcraft_recipes import (
    Ingredient,
    Recipe,
    RecipeBook,
    item_id,
    plain,
    recipe_book,
)

DISTRACTORS = 10

# AgentGym's ids, as inclusive ranges over the goals sorted by depth.
TEST = ((0, 30), (140, 180), (420, 444), (533, 535))
TRAIN = (
    *((31, 139), (181, 183), (185, 194), (196, 215), (217, 222), (224, 228), (230, 238)),
    *((240, 242), (244, 253), (255, 264), (266, 286), (288, 301), (303, 322), (324, 361)),
    *((363, 375), (377, 380), (383, 384), (386, 403), (405, 419), (445, 446), (448, 452)),
    *((455, 455), (459, 459), (462, 464), (466, 466), (469, 472), (475, 475), (477, 477)),
    *((480, 482), (484, 484), (489, 489), (491, 492), (495, 496), (501, 502), (504, 504)),
    *((506, 506), (510, 511), (513, 514), (517, 518), (520, 520), (523, 523), (528, 528)),
    *((531, 532), (537, 537)),
)

INSTRUCTIONS = """\
You are playing a crafting game with Minecraft's recipes. At the start you are shown crafting \
commands of the form "craft [target] using [ingredients]" and a goal. After each action you are told \
what happened. You have three actions: "craft ... using ..." makes an item from what you carry, \
"get [count] [item]" takes items that can't be crafted, and "inventory" lists what you carry. \
Always say how many of each ingredient, as in "craft 4 stick using 2 oak planks". You may only use \
the crafting commands shown, but where one names a generic ingredient, such as "planks", a special \
kind of it, such as "oak planks", will do."""


# --- the game ---------------------------------------------------------------------------------------

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_MARKER = re.compile(r"Action:\s*(.*?)(?=\n|$)")
SINGLE_ACTION = (
    "Error: Only one 'Action' is allowed per response. Please adjust your response."  # AgentGym's words
)
READABLE, REMEMBERED = 200, 4096  # longest action whose reading is remembered, and how many are
MAX_DIGITS = 9  # an upper bound on counts, which the published game lacks


class TextCraft(TextEnv):
    """Craft the goal. Reward 1 when it is made, which ends the episode; else 0.

    Task k is the k-th goal by depth, in AgentGym's numbering. `min_depth` and `max_depth` keep only
    goals whose recipe tree has that depth. Splits: AgentGym's `train` and `test`; `train-policy` and
    `train-value` part the train goals two to one, so that a value function can learn on goals that
    the policy did not; `all`.
    """

    splits = ("train", "test", "train-policy", "train-value", "all")
    default_turns = 20
    instructions = INSTRUCTIONS
    has_success = True
    return_range = (0.0, 1.0)
    reply_format = "single-action"

    def __init__(
        self,
        *,
        min_depth: int = 0,
        max_depth: int = 99,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.depths = (min_depth, max_depth)
        self.book = recipe_book()
        self.goal = self.page = ""
        self.inventory: dict[str, int] = {}

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the split's goals whose depth is within the bounds."""
        low, high = self.depths
        return [t for t in split_tasks(split) if low <= self._depth(t) <= high]

    def _depth(self, task: str) -> int:
        return self.book.depths[self.book.goals[int(task)]]

    def example_actions(self) -> Sequence[str]:
        """The commands on the page, and a `get` for whatever they need that is found."""
        commands = [line for line in self.page.splitlines() if line.startswith("craft ")]
        parts = dict.fromkeys(p for c in commands for p in c.partition(" using ")[2].split(", "))
        found = [p for p in parts if not self.book.craftable(item_id(p.partition(" ")[2]))]
        return ["inventory", *commands, *(f"get {part}" for part in found)]

    def solution(self) -> Sequence[str]:
        """A plan as short as the planner finds one."""
        from turnbench.envs.textcraft_plan import plan  # which plans with what is defined here

        return plan(self.goal, book=self.book)

    def _reset(self, task: str) -> str:
        if task not in _task_set():
            raise UnknownName("TextCraft task", task, _task_set())
        self.inventory = {}
        self.goal = self.book.goals[int(task)]
        self.page = opening(self.goal, self.seed)
        return self.page

    def data_digest(self) -> str:
        """Digest of all commands in the order in which the game knows them."""
        return _commands_digest()

    def fork(self) -> Self:
        """A copy, in constant time."""
        twin = self._shallow_copy()
        twin.inventory = self.inventory.copy()
        return twin

    def _step(self, action: str) -> Step:
        said = self.book.readings.get(action) or read(self.book, action)
        if type(said) is Craft:
            return self._craft(said)
        if type(said) is Get:
            return Step(self._get(said))
        return Step(said if type(said) is str else self._inventory())

    def _get(self, get: "Get") -> str:
        if not get.known:
            return f"Could not find {get.words}"
        self.inventory[get.item] = self.inventory.get(get.item, 0) + get.quantity
        return f"Got {get.quantity} {get.words}"

    def _inventory(self) -> str:
        if not self.inventory:
            return "Inventory: You are not carrying anything."
        return "Inventory: " + "".join(f"[{plain(i)}] ({n}) " for i, n in self.inventory.items())

    def _craft(self, craft: "Craft") -> Step:
        carried = self.inventory
        for item, count in craft.paid:
            if carried.get(item, -1) < count or item in self.book.tags:
                named = None if craft.is_tag else craft.wanted
                return Step(f"Could not find enough items to craft {named}")
        recipe = craft.recipe
        if recipe is None:
            return Step(_no_recipe(craft.wanted, craft.is_tag, craft.quantity))
        self._exchange(craft.paid, recipe)
        made = f"Crafted {recipe.count} {recipe.output}"
        return Step(made, 1.0, True, {"success": True}) if recipe.output == self.goal else Step(made)

    def _exchange(self, paid: Sequence[tuple[str, int]], recipe: Recipe) -> None:
        for item, count in paid:
            self.inventory[item] -= count
            if self.inventory[item] == 0:
                del self.inventory[item]
        self.inventory[recipe.output] = self.inventory.get(recipe.output, 0) + recipe.count


# --- reading actions: the same few are played again and again, so what they say is remembered ---------


class Get(NamedTuple):
    """`quantity` of `item`, which can be taken if it is `known`."""

    words: str
    item: str
    quantity: int
    known: bool


class Craft(NamedTuple):
    """Make `wanted` from what is `paid`; `recipe` is the one that takes exactly that."""

    wanted: str
    is_tag: bool
    quantity: int
    paid: tuple[tuple[str, int], ...]
    recipe: Recipe | None


class Look(NamedTuple):
    """List what is carried, since an action began with `word`."""

    word: str = "inventory"


def read(book: RecipeBook, action: str) -> Get | Craft | Look | str:
    """What an action says in the light of a recipe book: a command, or the answer to what is none."""
    said = _read(book, action)
    if len(action) <= READABLE:
        if len(book.readings) >= REMEMBERED:
            book.readings.clear()
        book.readings[action] = said
    return said


def _read(book: RecipeBook, action: str) -> Get | Craft | Look | str:
    if action.startswith("craft ") and (match := _CRAFT.match(action)):
        return _read_craft(book, match[1], match[2])
    if match := _GET.match(action):
        return _read_get(book, match[1], match[2])
    if action.startswith("inventory"):
        return Look()
    return SINGLE_ACTION if len(_MARKER.findall(action)) > 1 else f"Could not execute {action}"


def _read_get(book: RecipeBook, count: str, words: str) -> Get:
    name = item_id(words)
    known = name in book.items and not (name in book.tags or book.craftable(name))
    if not known or len(count) > MAX_DIGITS:
        return Get(words, name, 0, False)
    return Get(words, name, int(count), True)


def _read_craft(book: RecipeBook, target: str, ingredients: str) -> Craft | str:
    counted = _COUNTED.match(target)
    number, words = (counted[1], counted[2]) if counted else ("1", target)
    paid: list[tuple[str, int]] = []
    for part in ingredients.split(","):
        match = _COUNTED.match(part.strip())
        if match is None or len(match[1]) > MAX_DIGITS or len(number) > MAX_DIGITS:
            return f"Wrong item format: {part.strip()}"
        paid.append((item_id(match[2]), int(match[1])))
    wanted = item_id(words)
    is_tag = wanted in book.tags
    recipe = None if is_tag else _matching(book, wanted, paid)
    return Craft(wanted, is_tag, int(number), tuple(paid), recipe)


def _matching(book: RecipeBook, wanted: str, paid: list[tuple[str, int]]) -> Recipe | None:
    """The first recipe for `wanted` that takes exactly what is paid."""
    for recipe in book.by_item.get(wanted, ()):
        left = paid.copy()
        for ingredient in recipe.inputs:
            found = next((one for one in left if _fits(book, one[0], ingredient)), None)
            if found is None or found[1] != ingredient.quantity:
                break
            left.remove(found)
        else:
            if not left:
                return recipe
    return None


def _fits(book: RecipeBook, item: str, ingredient: Ingredient) -> bool:
    if ingredient.is_tag:
        return book.tag_of.get(item) == ingredient.name
    return item == ingredient.name


def _no_recipe(wanted: str, is_tag: bool, count: int) -> str:
    tag, item = (repr(wanted), None) if is_tag else (None, repr(wanted))
    of = f"ItemTagWithCount(item_tag=ItemTag(tag={tag}, item_id={item}), count={count})"
    return f"Could not find a valid recipe for {of}"


# --- the first observation ---------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def opening(goal: str, seed: int) -> str:
    """The first observation: the commands that lead to the goal, up to ten others, and the goal.

    The others use what the goal's recipes need. Which they are, and in what order all are shown, is
    read off the digits of one hash of (seed, goal): the same everywhere.
    """
    plan = _plan(goal)
    digits = _hash(f"{seed}|{goal}", 64)
    uses = dict.fromkeys(plan.always)
    for ring, size in plan.rings:
        digits, start = divmod(digits, size)
        uses.update(dict.fromkeys(ring[start : start + DISTRACTORS]))
    others = [command for command in uses if command not in plan.needed]
    digits = _shuffle(others, DISTRACTORS, digits)
    shown = [*plan.needed, *others[:DISTRACTORS]]
    _shuffle(shown, len(shown), digits)
    lines = "\n".join(shown)
    return f"Crafting commands:\n{lines}\n\nGoal: craft {plain(goal)}."


class _Plan(NamedTuple):
    """What the openings of a goal have in common.

    `needed`: the commands that lead to it. Of the ten or fewer uses of a thing that these take all
    may be shown (`always`); of more uses, ten neighbours on a ring (which starts again at its end).
    """

    needed: dict[str, None]
    always: tuple[str, ...]
    rings: tuple[tuple[tuple[str, ...], int], ...]


@cache
def _plan(goal: str) -> _Plan:
    book = recipe_book()
    recipes = book.closure(goal)
    always: dict[str, None] = {}
    rings = []
    for name in dict.fromkeys(i.name for recipe in recipes for i in recipe.inputs):
        uses = sorted({recipe.command for recipe in book.uses.get(name, ())}, key=_hash)
        if len(uses) <= DISTRACTORS:
            always.update(dict.fromkeys(uses))
        else:
            rings.append((tuple(uses + uses[:DISTRACTORS]), len(uses)))
    return _Plan(dict.fromkeys(recipe.command for recipe in recipes), tuple(always), tuple(rings))


def _shuffle(items: list[str], count: int, digits: int) -> int:
    """Draw the first `count` items at random, in place; returns the digits that are left."""
    size = len(items)
    for k in range(min(count, size - 1)):
        digits, jump = divmod(digits, size - k)
        items[k], items[k + jump] = items[k + jump], items[k]
    return digits


def _hash(text: str, size: int = 8) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "big")


# --- tasks ------------------------------------------------------------------------------------------


@cache
def split_tasks(split: str) -> tuple[str, ...]:
    """Task ids of a split, in order of depth. Every third train goal is kept for value functions."""
    train = _spread(TRAIN)
    known = {
        "train": train,
        "test": _spread(TEST),
        "train-policy": tuple(t for k, t in enumerate(train) if k % 3 != 2),
        "train-value": tuple(t for k, t in enumerate(train) if k % 3 == 2),
        "all": tuple(str(k) for k in range(len(recipe_book().goals))),
    }
    if split not in known:
        raise UnknownName("TextCraft split", split, known)
    return known[split]


def _spread(ranges: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(str(k) for low, high in ranges for k in range(low, high + 1))


@cache
def _commands_digest() -> str:
    lines = [recipe.command for recipes in recipe_book().by_item.values() for recipe in recipes]
    return blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


@cache
def _task_set() -> frozenset[str]:
    return frozenset(split_tasks("all"))
