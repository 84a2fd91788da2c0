"""WebShop's goals, prices and reward (Yao et al., WebShop, 2022, section 3.2), oddities included."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from rapidfuzz import fuzz, utils

from turnbench.envs.webshop_nouns import NounRule
from turnbench.envs.webshop_product import Product

GOAL_SEED = 233  # the published shop's, for the price bounds and for the order of the goals
NO_BOUND = 1_000_000.0
CLOSE = 85  # a token set ratio above this is a match

# The published list, in its order: the first that occurs in a value stands for it.
COLORS = tuple(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown "
    "burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac "
    "copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite "
    "grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light "
    "lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural "
    "navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire "
    "seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet "
    "walnut wheat white wine yellow".split()
)

Option = str | tuple[str, str]


class Instruction(NamedTuple):
    """What goals are made from: a text about a product.

    `options` None stands for one goal for each combination of the product's options (the synthetic
    goals of the published shop); otherwise it is the one goal's option values (the human goals).
    `pick` says which of the price bounds above the price is used (see `price_bound`).
    """

    row: int
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None
    pick: int


@dataclass(frozen=True, slots=True)
class Goal:
    """What to buy. `options` are values (human goals) or (name, value) pairs (synthetic goals)."""

    product: Product
    text: str
    attributes: tuple[str, ...]
    options: tuple[Option, ...]
    price_upper: float

    @property
    def values(self) -> tuple[str, ...]:
        """The values of its options."""
        return tuple(option if isinstance(option, str) else option[1] for option in self.options)


# --- goals --------------------------------------------------------------------------------------------


def bounds_above(price: float) -> list[float]:
    """The price bounds a goal may have: the first four multiples of 10 above the price, up to 990."""
    first = math.floor(price / 10) * 10 + 10
    return [float(bound) for bound in range(max(first, 10), 1000, 10)][:4]


def draw_pick(price: float, rng: Random) -> int:
    """Which of `bounds_above(price)` is the bound: the larger of two drawn without replacement.

    -1 for none, where there are fewer than two; then nothing is drawn.
    """
    count = len(bounds_above(price))
    return max(rng.sample(range(count), 2)) if count >= 2 else -1


def price_bound(price: float, pick: int) -> float:
    """The bound for a product at that price. `pick` was drawn for its lowest price."""
    bounds = bounds_above(price)
    return bounds[min(pick, len(bounds) - 1)] if pick >= 0 and len(bounds) >= 2 else NO_BOUND


def combinations(product: Product) -> int:
    """How many ways there are to choose one value of each option."""
    return math.prod(len(values) for _, values in product.options)


def make_goal(instruction: Instruction, product: Product, combination: int, seed: int) -> Goal:
    """The goal of that number among the instruction's, with the prices of an episode's seed."""
    bound = price_bound(product.price(seed), instruction.pick)
    priced = f", and price lower than {bound:.2f} dollars" if bound < NO_BOUND else ""
    if instruction.options is not None:
        text = instruction.text.strip(".") + priced
        return Goal(product, text, instruction.attributes, instruction.options, bound)
    chosen = _combination(product, combination)
    wanted = ", and ".join(f"{name}: {value}" for name, value in chosen)
    text = instruction.text + (f" with {wanted}" if wanted else "") + priced
    return Goal(product, text, instruction.attributes, chosen, bound)


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """The combination of that number, option names in alphabetical order, the last one fastest."""
    chosen = []
    for name, values in sorted(product.options, reverse=True):
        number, place = divmod(number, len(values))
        chosen.append((name, values[place]))
    return tuple(reversed(chosen))


def shuffled(count: int) -> "array[int]":
    """The order of `count` goals in the published shop, as 32-bit integers."""
    order = array("i", range(count))
    Random(GOAL_SEED).shuffle(order)
    return order


# --- reward -------------------------------------------------------------------------------------------


class Reward(NamedTuple):
    """A purchase's reward and its parts; each part is a share in [0, 1]."""

    total: float
    type: float
    attributes: float
    options: float
    price: float


def reward(goal: Goal, bought: Product, chosen: Sequence[str], seed: int, nouns: NounRule) -> Reward:
    """The reward for buying a product with the option values `chosen`.

    total = type * (matched attributes + matched options + [price within bound]) / (their number + 1).
    """
    kind = type_reward(goal.product, bought, nouns)
    attributes = sum(_has_attribute(bought, wanted) for wanted in goal.attributes)
    options = sum(_has_option(chosen, wanted) for wanted in goal.options)
    price = bought.price(seed) <= goal.price_upper
    count = len(goal.attributes) + len(goal.options) + 1
    total = (attributes + options + price) / count * kind
    share = options / len(goal.options) if goal.options else 1.0
    return Reward(total, kind, attributes / max(len(goal.attributes), 1), share, float(price))


def type_reward(wanted: Product, bought: Product, nouns: NounRule) -> float:
    """How far the product is of the wanted kind, by query, category path and nouns of the title."""
    names, own = nouns(wanted.title), set(nouns(bought.title))
    score = len(own.intersection(names)) / len(names) if names else 0.2
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    shared = len(_parts(wanted.path) & _parts(bought.path))
    return 1.0 if wanted.query == bought.query or shared >= 2 or score > 0.2 else 0.5


def _parts(path: str) -> set[str]:
    return {part.strip() for part in path.split("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}")}


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(similarity(attribute, wanted) > CLOSE for attribute in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in texts)


def _has_option(chosen: Sequence[str], wanted: Option) -> bool:
    """A pair is compared as the published code does: as Python would print the tuple."""
    goal = str(plain_color(wanted))
    return any(similarity(str(plain_color(value)), goal) > CLOSE for value in chosen)


def plain_color(option: Option) -> Option:
    """The first colour word found in a value; in a pair only a part that *is* a colour word counts."""
    return next((color for color in COLORS if color in option), option)


@lru_cache(maxsize=2**16)
def similarity(left: str, right: str) -> int:
    """thefuzz's token_set_ratio, 0 to 100: it deletes Latin-1 letters beyond ASCII beforehand."""
    one, two = left.translate(_LATIN_1), right.translate(_LATIN_1)
    return round(fuzz.token_set_ratio(one, two, processor=utils.default_process))


_LATIN_1: dict[int, Any] = dict.fromkeys(range(128, 256))
