"""A made-up catalogue in the official files' form, of any size, from a seed.

Products come in families of FAMILY: the first has four attributes, each of the others has one of them
replaced, so that only reading tells them apart. An instruction names what is particular to its product.
Families, not products, are dealt to the splits, so nothing asked for in one split is sold in another.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from turnbench.envs.webshop_catalogue import Array, Entry, Goals
from turnbench.envs.webshop_files import Record, make_entry
from turnbench.envs.webshop_product import shown_value

FAMILY = 5
VERSION = 1  # of what is generated


class Kind(NamedTuple):
    """A kind of product. `nouns`: as titles and as shoppers call it; `price`: lowest and highest, US$."""

    category: str
    path: str
    query: str
    nouns: tuple[str, str]
    uses: str
    attributes: str
    options: str
    price: tuple[int, int]


# Lists are written as text: "|" between their members, "name=pool" for options.
KINDS = (
    Kind(
        *("beauty", "Beauty & Personal Care|Skin Care|Body|Moisturizers", "body lotions"),
        ("Body Lotion", "moisturizer for the body"),
        "dry elbows|after the shower|winter days|sensitive skin",
        "alcohol free|paraben free|cruelty free|fragrance free|shea butter|coconut oil|tea tree|fast absorbing|"
        "hyaluronic acid|long lasting",
        *("scent=scent|size=ounce", (6, 45)),
    ),
    Kind(
        *("beauty", "Beauty & Personal Care|Hair Care|Shampoo & Conditioner|Shampoos", "shampoo"),
        ("Shampoo", "hair wash"),
        "daily washing|curly hair|the gym bag|an itchy scalp",
        "sulfate free|argan oil|color safe|damaged hair|dry scalp|anti dandruff|plant based|salt free|"
        "hair growth|keratin treated",
        *("scent=scent|size=ounce", (7, 40)),
    ),
    Kind(
        *(
            "beauty",
            "Beauty & Personal Care|Tools & Accessories|Makeup Brushes & Tools|Brush Sets",
            "makeup brushes",
        ),
        ("Makeup Brush Set", "set of brushes for makeup"),
        "foundation and powder|travel|beginners|eye shadow",
        "synthetic hair|bamboo handle|easy clean|storage case|high quality|non shedding|rose gold|"
        "hypoallergenic bristles|dense bristles|gift ready",
        *("color=color|style=pieces", (9, 70)),
    ),
    Kind(
        *("electronics", "Electronics|Headphones|Earbud Headphones", "earbuds"),
        ("Wireless Earbuds", "cordless earphones"),
        "running|long flights|phone calls|the office",
        "noise cancelling|fast charging|water resistant|hands free|stereo sound|touch control|deep bass|"
        "low latency|carrying case|long battery",
        *("color=color|style=pack", (18, 160)),
    ),
    Kind(
        *("electronics", "Electronics|Computers & Accessories|Cables|USB Cables", "usb cables"),
        ("USB C Cable", "charging cord"),
        "phones and tablets|the car|a power bank|the night table",
        "nylon braided|quick charge|gold plated|tangle free|high speed|heavy duty|right angle|led light|"
        "data transfer|reinforced plug",
        *("color=color|size=length", (6, 35)),
    ),
    Kind(
        *("electronics", "Electronics|Camera & Photo|Tripods & Monopods|Complete Tripods", "tripods"),
        ("Camera Tripod", "stand for a camera"),
        "video blogs|night photos|hiking|phones",
        "carbon fiber|quick release|light weight|easy carry|ball head|non slip|aluminum alloy|remote control|"
        "fluid pan|compact fold",
        *("color=color|size=inch", (22, 240)),
    ),
    Kind(
        *("fashion", "Clothing, Shoes & Jewelry|Women|Clothing|Dresses|Casual", "women's dresses"),
        ("Women's Dress", "dress for women"),
        "summer evenings|the beach|work|a wedding",
        "long sleeve|short sleeve|machine wash|hand wash|elastic waist|side pockets|floral print|polyester spandex|"
        "button front|tummy control",
        *("color=color|size=clothes", (15, 90)),
    ),
    Kind(
        *("fashion", "Clothing, Shoes & Jewelry|Men|Shoes|Fashion Sneakers", "men's sneakers"),
        ("Men's Sneakers", "trainers for men"),
        "walking|the gym|rainy days|everyday wear",
        "rubber sole|memory foam|arch support|slip resistant|lace up|breathable mesh|faux leather|wide toe|"
        "steel toe|reflective trim",
        *("color=color|size=shoe", (25, 140)),
    ),
    Kind(
        *("fashion", "Clothing, Shoes & Jewelry|Men|Clothing|Shirts|T-Shirts", "men's t-shirts"),
        ("Men's T-Shirt", "tee for men"),
        "hot days|layering|sport|the weekend",
        "moisture wicking|slim fit|classic fit|crew neck|tumble dry|cotton heather|quick drying|needle sleeve|"
        "tagless collar|stretch fabric",
        *("color=color|size=clothes|fit=fit", (9, 48)),
    ),
    Kind(
        *("garden", "Home & Kitchen|Furniture|Living Room Furniture|Tables|End Tables", "end tables"),
        ("End Table", "small side table"),
        "a reading corner|the bedroom|a narrow hall|the sofa",
        "solid wood|metal frame|easy assemble|storage shelf|marble top|drop leaf|space saving|charging station|"
        "adjustable feet|rustic finish",
        *("color=wood|size=inch", (30, 260)),
    ),
    Kind(
        *(
            "garden",
            "Home & Kitchen|Bedding|Decorative Pillows, Inserts & Covers|Throw Pillow Covers",
            "throw pillows",
        ),
        ("Throw Pillow Cover", "cushion cover"),
        "the couch|a patio chair|the guest room|a gift",
        "machine washable|double sided|hidden zipper|printing technology|super soft|exquisite workmanship|"
        "linen cotton|fade resistant|tassel edge|velvet fabric",
        *("color=color|size=square", (7, 38)),
    ),
    Kind(
        *(
            "garden",
            "Tools & Home Improvement|Lighting & Ceiling Fans|Lamps & Shades|Floor Lamps",
            "floor lamps",
        ),
        ("Floor Lamp", "standing light"),
        "reading|a dark corner|the living room|a home office",
        "bronze finish|brushed nickel|dimmable light|glass shade|remote switch|linen shade|eco friendly|foot pedal|"
        "adjustable arm|weighted base",
        *("color=wood|style=bulb", (28, 190)),
    ),
    Kind(
        *("grocery", "Grocery & Gourmet Food|Snack Foods|Bars|Granola", "granola bars"),
        ("Granola Bars", "cereal bars"),
        "the lunch box|hiking|breakfast|after training",
        "gluten free|nut free|dairy free|low sugar|high protein|non gmo|soy free|individually wrapped|whole grain|"
        "high fiber",
        *("flavor=flavor|size=count", (8, 42)),
    ),
    Kind(
        *("grocery", "Grocery & Gourmet Food|Beverages|Coffee|Ground Coffee", "ground coffee"),
        ("Ground Coffee", "coffee powder"),
        "filter machines|the office|cold brew|slow mornings",
        "dark roast|light roast|fair trade|single origin|caffeine free|usda organic|low acid|hand picked|"
        "small batch|shade grown",
        *("flavor=flavor|size=ounce", (9, 50)),
    ),
    Kind(
        *(
            "grocery",
            "Grocery & Gourmet Food|Herbs, Spices & Seasonings|Mixed Spices & Seasonings",
            "seasonings",
        ),
        ("Seasoning Blend", "spice mix"),
        "grilled meat|roast vegetables|popcorn|quick soups",
        "salt free|no additives|freshly ground|artificial flavors free|smoky taste|keto friendly|kosher certified|"
        "resealable bag|sugar free|hand mixed",
        *("flavor=spice|size=ounce", (5, 28)),
    ),
)

POOLS = {
    "scent": "Lavender Fields|Fresh Citrus|Vanilla Bean|Unscented|Green Tea|Coconut Dream|Rose Petal",
    "ounce": "2 Ounce (Pack of 1)|8 Ounce (Pack of 1)|12 Ounce (Pack of 1)|12 Ounce (Pack of 3)|16 Ounce (Pack of 2)",
    "color": "Black|White|Navy Blue|Wine Red|Army Green|Light Grey|Mustard|Teal|Hot Pink|Purple",
    "wood": "Espresso|Walnut|Natural Oak|Antique White|Matte Black|Rustic Brown",
    "pieces": "8 Pieces|12 Pieces|18 Pieces|24 Pieces",
    "pack": "Single|Pair With Case|Pair With Case And Strap",
    "length": "3ft|6ft|10ft|3ft/6ft/10ft",
    "inch": '16"|22"|48"|60"|72"',
    "clothes": "X-Small|Small|Medium|Large|X-Large|XX-Large",
    "shoe": "7|8|8.5|9.5|10|11 Wide|12",
    "fit": "Men|Youth|Tall Men",
    "square": '16" x 16"|18" x 18"|20" x 20"|24" x 24"',
    "bulb": "Warm Bulb|No Bulb|Smart Bulb",
    "flavor": "Dark Chocolate|Peanut Butter|Blueberry|Hazelnut|Salted Caramel|Maple|Original",
    "count": "6 Count (Pack of 1)|12 Count (Pack of 1)|12 Count (Pack of 2)|24 Count (Pack of 1)",
    "spice": "Garlic Pepper|Smoked Paprika|Lemon Herb|Chili Lime|Mild Curry",
}

SYLLABLES = "ba|bel|cor|da|el|fen|gra|hal|in|jo|ka|lum|mar|nor|o|pri|qua|ri|sol|ta|ul|ver|wen|zi".split(
    "|"
)
PRAISE = "Premium|Everyday|Classic|Modern|Original|Deluxe|Essential|Signature".split("|")

# How shoppers may put an attribute instead, in words that search can't match.
OTHER_WORDS = {
    "alcohol free": "made without any alcohol",
    "caffeine free": "fine to drink before bed",
    "cruelty free": "not tested on animals",
    "dimmable light": "possible to turn down",
    "easy assemble": "simple to put together",
    "fast charging": "full again after a few minutes",
    "gluten free": "safe for somebody who can't eat wheat",
    "light weight": "not heavy at all",
    "low sugar": "not too sweet",
    "machine wash": "fit for the washing machine",
    "machine washable": "fit for the washing machine",
    "moisture wicking": "good at keeping sweat away",
    "noise cancelling": "good at shutting out what goes on around me",
    "nut free": "safe for people who can't eat peanuts and the like",
    "slip resistant": "safe on wet floors",
    "space saving": "small enough for a tight corner",
    "sulfate free": "made without sulfates",
    "tangle free": "one that never ties itself in knots",
    "water resistant": "fine in the rain",
}
ASKS = (
    "i am looking for {what} for {use}{options}{also}.",
    "i need {what}{options}{also}.",
    "can you find me {what}{options}? i want it for {use}{also}.",
    "show me {what} for {use}{options}{also}",
    "please order {what}{options}{also}.",
)
AS_OPTION = {"color": "in {}", "size": "in size {}", "fit": "in the {} fit"}
SALES_TALK = (
    "{brand} has made {noun} for years, and it shows.",
    "A good choice for {use}, and a present that people keep.",
    "Looked over by hand before it is sent out.",
    "If you are not happy with it, write to us and we will find a way.",
    "Made with {use} in mind.",
    "Our customers come back for this {noun}.",
)


def entries(count: int, seed: int = 0) -> Iterator[Entry]:
    """The first `count` products of a seed's catalogue, with their instructions, one by one."""
    return (make_entry(*record) for record in records(count, seed))


def records(count: int, seed: int = 0) -> Iterator[Record]:
    """As `entries`, but in the form of the official files: item, attributes, human instructions."""
    for family in range(-(-count // FAMILY)):
        first = family * FAMILY
        yield from (_record(family, m, seed) for m in range(min(FAMILY, count - first)))


def split_of(goals: Goals) -> Array:
    """The split of each goal: of every ten families of a kind, seven train, one dev, two test."""
    family = goals.rows[goals.find(np.arange(len(goals)))] // FAMILY
    turn = (7 * family + 2 * (family // len(KINDS))) % 10  # meets every kind with every turn
    return np.where(turn < 2, "test", np.where(turn == 2, "dev", "train"))


class _Family(NamedTuple):
    kind: Kind
    brand: str
    praise: str
    attributes: tuple[str, ...]
    others: tuple[str, ...]
    options: dict[str, list[str]]
    price: float


@lru_cache(maxsize=2)
def _family(number: int, seed: int) -> _Family:
    rng = Random(f"{seed}|{number}")
    kind = KINDS[number % len(KINDS)]
    pool = kind.attributes.split("|")
    rng.shuffle(pool)
    brand = "".join(rng.choices(SYLLABLES, k=rng.choice((2, 2, 3)))).capitalize()
    options = {}
    for option in kind.options.split("|"):
        name, values = option.split("=")
        some = POOLS[values].split("|")
        kept = sorted(rng.sample(range(len(some)), rng.randint(2, len(some) - 1)))
        options[name.capitalize()] = [some[k] for k in kept]
    price = rng.uniform(*kind.price)
    return _Family(kind, brand, rng.choice(PRAISE), tuple(pool[:4]), tuple(pool[4:8]), options, price)


def _record(number: int, member: int, seed: int) -> Record:
    family = _family(number, seed)
    rng = Random(f"{seed}|{number}|{member}")
    attributes = list(family.attributes)
    if member:
        attributes[member - 1] = family.others[member - 1]
    shown = rng.sample(attributes, 4)
    kind, asin = family.kind, _asin(number * FAMILY + member, seed)
    use = rng.choice(kind.uses.split("|"))
    words = {"brand": family.brand, "noun": kind.nouns[0].lower(), "use": use}
    talk = [line.format(**words) for line in rng.sample(SALES_TALK, 4)]
    item: dict[str, Any] = {
        "asin": asin,
        "name": f"{family.brand} {family.praise} {kind.nouns[0]}, {shown[0].title()} and "
        f"{shown[1].title()}, for {use.title()}",
        "category": kind.category,
        "query": kind.query,
        "product_category": kind.path.replace("|", " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "),
        "pricing": _pricing(family.price * rng.uniform(0.8, 1.25), rng),
        "small_description": [talk[0], f"{shown[2].capitalize()}: {talk[1]}", f"For {use}, {shown[1]}."],
        "full_description": f"{talk[2]} {shown[3].capitalize()}. {talk[3]} Article {asin[2:7]}.",
        "customization_options": {
            name: [{"value": value} for value in values] for name, values in family.options.items()
        },
        "images": [],
    }
    asked = attributes if member == 0 else _asked(attributes, member, rng)
    found = f"Find me {', '.join(asked)} {kind.query}"
    info = {"attributes": shown, "instruction": found, "instruction_attributes": asked}
    return item, info, [_human(family, asked, use, rng)]


def _asked(attributes: list[str], member: int, rng: Random) -> list[str]:
    """What sets this member apart, and one or two attributes that it shares."""
    own = attributes[member - 1]
    shared = rng.sample([a for a in attributes if a != own], rng.choice((1, 2)))
    return rng.sample([own, *shared], len(shared) + 1)


def _human(family: _Family, asked: Sequence[str], use: str, rng: Random) -> dict[str, Any]:
    """An instruction in a shopper's words."""
    other = [a for a in asked if a in OTHER_WORDS and rng.random() < 0.4]
    plain = [a for a in asked if a not in other]
    name = family.kind.nouns[0].lower() if rng.random() < 0.6 else family.kind.nouns[1]
    what = f"{', '.join(plain)} {name}".strip()
    also = "".join(f", and it should be {OTHER_WORDS[a]}" for a in other)
    chosen = {n.lower(): shown_value(rng.choice(values)) for n, values in family.options.items()}
    options = "".join(
        ", " + AS_OPTION.get(n, "with {} as the " + n).format(v) for n, v in chosen.items()
    )
    text = rng.choice(ASKS).format(what=what, use=use, options=options, also=also)
    return {
        "instruction": text,
        "instruction_attributes": list(asked),
        "instruction_options": list(chosen.values()),
    }


def _asin(row: int, seed: int) -> str:
    """Ten characters, different for every row."""
    number, digits = (row * 1_000_000_007 + seed * 7_919 + 12_345_678_901) % 36**8, ""
    for _ in range(8):
        number, digit = divmod(number, 36)
        digits += "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit]
    return "B0" + digits


def _pricing(price: float, rng: Random) -> str:
    chance = rng.random()
    low = f"${int(price)}.99"
    if chance < 0.04:
        return ""
    return low if chance > 0.13 else f"{low} - ${int(price * rng.uniform(1.3, 2.2)) + 1}.49"
