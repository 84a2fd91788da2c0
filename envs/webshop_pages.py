"""WebShop's pages: what they show, what can be clicked, and how both become text.

A `Page` says where the shopper is. `nodes` lists what that page shows, in order; the observation of
each mode and the list of clickable things are read off from it.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from turnbench.envs.webshop_product import Product

PAGE_SIZE = 10
HOST = "http://127.0.0.1:3000"
SUB_PAGES = ("Description", "Features", "Reviews")
MODES = ("text", "text_rich", "url")
Place = Literal["search", "results", "item", "sub", "done"]
_BLANK = " \n\t\f\r"


class Page(NamedTuple):
    """Where the shopper is. Immutable, so that copies of an episode share it.

    `hits` are the found products, of which `number` (from 1) tells the page; `product` is the one
    looked at, `sub` the name of its sub-page, `options` the values chosen so far by option name, in
    the order of the first choice; `visited` the asins of products looked at since the last start.
    """

    place: Place = "search"
    keywords: str = ""
    hits: tuple[Product, ...] = ()
    number: int = 1
    product: Product | None = None
    sub: str = ""
    options: tuple[tuple[str, str], ...] = ()
    visited: frozenset[str] = frozenset()
    score: float = 0.0

    @property
    def shown(self) -> tuple[Product, ...]:
        """The products on this page of the results."""
        return self.hits[(self.number - 1) * PAGE_SIZE : self.number * PAGE_SIZE]


class Node(NamedTuple):
    """A piece of text on a page, and what it is."""

    text: str
    kind: Literal["text", "button", "link", "option"] = "text"


BACK, PREV, NEXT = (Node(text, "button") for text in ("Back to Search", "< Prev", "Next >"))


def nodes(page: Page, instruction: str) -> list[Node]:
    """What the page shows, in order."""
    return _PAGES[page.place](page, instruction)


def _visible(*shown: Node) -> list[Node]:
    """Those that a browser's text holds. Empty texts have no node there; blank ones with a line break
    in them are dropped by the published code, while other blank ones stay as empty fields."""
    return [n for n in shown if n.text.strip(_BLANK) or (n.text and "\n" not in n.text)]


def _search(page: Page, instruction: str) -> list[Node]:
    return [
        *(Node("WebShop"), Node("Instruction: "), *_visible(Node(instruction))),
        Node("Search", "button"),
    ]


def _head(instruction: str) -> list[Node]:
    return [Node("Instruction:"), *_visible(Node(instruction)), BACK]


def _results(page: Page, instruction: str) -> list[Node]:
    shown = [*_head(instruction), Node(f"Page {page.number} (Total results: {len(page.hits)})")]
    shown += [PREV, NEXT] if page.number > 1 else [NEXT]
    for product in page.shown:
        shown += _offer(product)
    return shown


@lru_cache(maxsize=4096)
def _offer(product: Product) -> list[Node]:
    """A product among the results."""
    return _visible(Node(product.asin, "link"), Node(product.title), Node(product.price_tag))


def _item(page: Page, instruction: str) -> list[Node]:
    assert page.product is not None
    return [*_head(instruction), PREV, *_card(page.product)]


@lru_cache(maxsize=1024)
def _card(product: Product) -> list[Node]:
    """A product on its own page."""
    shown = []
    for name, values in product.options:
        shown += [Node(name), *(Node(value, "option") for value in values)]
    shown += [Node(product.title), Node(f"Price: {product.price_tag}"), Node("Rating: N.A.")]
    return _visible(*shown, *(Node(sub, "button") for sub in SUB_PAGES), Node("Buy Now", "button"))


def _sub(page: Page, instruction: str) -> list[Node]:
    assert page.product is not None
    shown = [*_head(instruction), PREV]
    if page.sub == "Description":
        shown += _visible(Node(page.product.description))
    elif page.sub == "Features":
        shown += _visible(*(Node(f" {bullet}") for bullet in page.product.bullets))
    return shown


def _done(page: Page, instruction: str) -> list[Node]:
    """The published page, whose fields about the goal are never filled in."""
    assert page.product is not None
    texts = [
        *("Thank you for shopping with us!", "Your code: ", "None"),
        *(" (Paste it in your MTurk interface.)", "Purchased", "asin", page.product.asin),
        *("options", _options_json(page.options), "attrs", "None", "category", "None"),
        *("query", "None", "product category", "None", "Target", "asin", "options", "attrs"),
        *("price upper", "instuction text", "category", "product category", "query"),
        *("Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)", str(page.score)),
        *("Reward Details ", "None"),
    ]
    return [Node(text) for text in texts]


def _options_json(options: Sequence[tuple[str, str]]) -> str:
    """The chosen options as Flask prints JSON inside of HTML: keys sorted, four signs escaped."""
    text = json.dumps(dict(options), sort_keys=True)
    for sign in "<>&'":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


_PAGES: dict[Place, Callable[[Page, str], list[Node]]] = {
    "search": _search,
    "results": _results,
    "item": _item,
    "sub": _sub,
    "done": _done,
}


# --- what can be done -----------------------------------------------------------------------------------


def clickables(page: Page) -> list[str]:
    """What `click[...]` takes on this page: buttons and links in small letters, then options."""
    shown = nodes(page, "")
    first = [node.text.lower() for node in shown if node.kind in ("button", "link")]
    return list(dict.fromkeys(first + [node.text for node in shown if node.kind == "option"]))


def parse(action: str) -> tuple[str, str]:
    """(name, argument) of an action, the argument in small letters; ("", "") where it is none.

    This reads the first line as the pattern `(.+)\\[(.+)\\]` does, in linear time.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else ("", "")


# --- observations ---------------------------------------------------------------------------------------


def observe(page: Page, instruction: str, session: str, mode: str) -> str:
    """The page as text, in one of MODES. `session` is only part of the url."""
    if mode == "url":
        return url(page, session)
    if mode == "text_rich":
        return _rich(page, instruction, session)
    return " [SEP] ".join([node.text.strip() for node in nodes(page, instruction)])


def url(page: Page, session: str) -> str:
    """The page's address in the published shop."""
    if page.place == "search":
        return f"{HOST}/{session}"
    keywords = page.keywords.replace(" ", "+")
    if page.place == "results":
        return f"{HOST}/search_results/{session}/{keywords}/{page.number}"
    assert page.product is not None
    asin, options = page.product.asin, dict(page.options)
    if page.place == "done":
        return f"{HOST}/done/{session}/{asin}/{options}"
    if page.place == "sub":
        return f"{HOST}/item_sub_page/{session}/{asin}/{keywords}/{page.number}/{page.sub}/{options}"
    return f"{HOST}/item_page/{session}/{asin}/{keywords}/{page.number}/{json.dumps(options)}"


def _rich(page: Page, instruction: str, session: str) -> str:
    """Buttons are marked, and so is what was clicked: a value counts as clicked where the address
    holds it in quotes, as in the published code."""
    address = url(page, session)
    text = ""
    for node in nodes(page, instruction):
        if node.kind == "option":
            clicked = f'"{node.text}"' in address
            text = f"You have clicked {node.text}.\n{text}" if clicked else text
            text += f"  {_button(node.text, clicked)}\n"
        elif node.kind == "link":
            text += f"\n{_button(node.text, node.text in page.visited)}\n"
        else:
            text += f"{_button(node.text, False) if node.kind == 'button' else node.text}\n"
    return text


def _button(text: str, clicked: bool) -> str:
    return f"[clicked button] {text} [clicked button_]" if clicked else f"[button] {text} [button_]"
