"""Product: what WebShop's pages and rewards need to know of an item of the official files.

A product of the official file `items_shuffle*.json` is a mapping with `asin`, `name`, `category`,
`query`, `product_category`, `pricing` ("$a" or "$a - $b"), `small_description`, `full_description`
and `customization_options`. The rules that turn it into a `Product` are those of the published shop.
"""

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import Any

from turnbench.envs.errors import ConfigError

DEFAULT_PRICE = 100.0  # of products without a price
NO_ATTRIBUTES = ("DUMMY_ATTR",)  # what the published shop puts where the attribute file has no entry
_NOT_NUMBER = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """An item for sale. `prices` holds one price, or the lowest and the highest; US dollars.

    Products are equal only if they are the same object, which makes them cheap to look up by.
    """

    asin: str
    title: str
    category: str
    query: str
    path: str
    prices: tuple[float, ...]
    description: str
    bullets: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]

    @property
    def price_tag(self) -> str:
        """The price as the pages show it."""
        return " to ".join(f"${price}" for price in self.prices)

    def price(self, seed: int) -> float:
        """What it costs in an episode with this seed.

        A ranged price is low + u * (high - low), with u in [0, 1) from a hash of seed and asin, so it
        depends on nothing else. (The published shop draws it unseeded when its server starts.)
        """
        low, high = self.prices[0], self.prices[-1]
        if low == high:
            return low
        digest = blake2b(f"{seed}|{self.asin}".encode(), digest_size=8).digest()
        return low + (high - low) * (int.from_bytes(digest, "big") / 2**64)

    @property
    def document(self) -> str:
        """The text that search looks into."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return f"{self.title} {self.description} {self.bullets[0]} {options}".lower()

    def to_json(self) -> list[Any]:
        """All fields, in order."""
        return list(astuple(self))


def product_from_json(row: list[Any]) -> Product:
    """Inverse of `Product.to_json`, after JSON made lists of its tuples."""
    asin, title, category, query, path, prices, description, bullets, options, attributes = row
    shown = tuple((name, tuple(values)) for name, values in options)
    return Product(
        *(asin, title, category, query, path, tuple(prices), description),
        *(tuple(bullets), shown, tuple(attributes)),
    )


def is_listed(item: Mapping[str, Any]) -> bool:
    """Whether the published shop takes the item: it skips asins that are none."""
    return item["asin"] != "nan" and len(item["asin"]) <= 10


def product_from_item(item: Mapping[str, Any], attributes: tuple[str, ...] | None) -> Product:
    """A product from an official item and its attributes. Raises ConfigError naming what is wrong."""
    try:
        return Product(
            asin=_text(item, "asin"),
            title=_text(item, "name"),
            category=_text(item, "category"),
            query=_text(item, "query").lower().strip(),
            path=_text(item, "product_category"),
            prices=_prices(item.get("pricing")),
            description=_text(item, "full_description"),
            bullets=_bullets(item["small_description"]),
            options=_options(item["customization_options"]),
            attributes=NO_ATTRIBUTES if attributes is None else attributes,
        )
    except KeyError as error:
        why = f"it lacks {error}"
    except (TypeError, ValueError, AttributeError) as error:
        why = str(error)
    raise ConfigError(f"product {item.get('asin')!r} is not in the official form: {why}")


def _text(item: Mapping[str, Any], key: str) -> str:
    if not isinstance(item[key], str):
        raise ValueError(f"{key} is {item[key]!r:.80}, not text")
    return str(item[key])


def _bullets(raw: Any) -> tuple[str, ...]:
    bullets = raw if isinstance(raw, list) else [raw]
    if not bullets or not all(isinstance(bullet, str) for bullet in bullets):
        raise ValueError(f"small_description is {raw!r:.80}; texts are wanted, at least one")
    return tuple(bullets)


def _prices(pricing: str | None) -> tuple[float, ...]:
    if not pricing:
        return (DEFAULT_PRICE,)
    prices = tuple(float(_NOT_NUMBER.sub("", price)) for price in pricing.split("$")[1:3])
    if not prices:
        raise ValueError(f"pricing is {pricing!r:.80}; '$1.20' or '$1.20 - $3' is wanted")
    return prices


def _options(raw: Mapping[str, Any] | str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(raw, Mapping):
        return ()
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in raw.items():
        if contents is not None:
            options[name.lower()] = tuple(shown_value(content["value"]) for content in contents)
    return tuple(options.items())


def shown_value(value: str) -> str:
    """An option's value as the shop shows it."""
    return value.strip().replace("/", " | ").lower()
