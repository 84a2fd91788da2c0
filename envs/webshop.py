"""WebShop: find and buy the product that an instruction describes, by text (Yao et al., 2022).

The pages, actions and rewards are those of the published shop as AgentGym serves it, to the byte
(docs/webshop.md has the details), without its web server, Java search engine and tagger. The catalogue
is generated (webshop_synth.py) or read from the official files (webshop_files.py).
"""

from collections.abc import Sequence
from typing import Self

from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.webshop_catalogue import Catalogue
from turnbench.envs.webshop_goals import Goal, reward
from turnbench.envs.webshop_nouns import noun_rule
from turnbench.envs.webshop_open import open_catalogue
from turnbench.envs.webshop_pages import MODES, SUB_PAGES, Page, clickables, observe, parse

INSTRUCTIONS = """\
You are shopping in a web store. You are given an instruction that says what to buy: the kind of \
product, its features, options such as colour and size, and often an upper bound for the price. After \
each action you see a page of the store. You have two actions: "search[keywords]" looks for products, \
and "click[value]" clicks on something the page shows, such as a product's code, an option's value, \
"Next >", "< Prev", "Back to Search", "Description", "Features" or "Buy Now". Choose the options that \
the instruction asks for before you click "Buy Now" on the product's page, which ends the task. An \
action that the page doesn't allow changes nothing."""
LISTED = " The actions that are possible are listed below each page."


class WebShop(TextEnv):
    """Buy what the instruction asks for. Reward in [0, 1] at "Buy Now", which ends the episode.

    `catalogue`: "synthetic" (generated; nothing to download), "1k" or "full" (the official files, in
    the folder `data` or, where that is None, in the one named by TURNBENCH_WEBSHOP_DATA).
    `goals`: "human" or "synthetic" instructions; None takes "synthetic" for "1k", as AgentGym does,
    and "human" otherwise. `products`: the size of a synthetic catalogue.
    `observation`: "text", "text_rich" or "url". `list_actions` appends the possible actions.
    `nouns`: "simple", or the name of a spaCy pipeline. `verify` refuses official files whose
    checksum is known to be another.

    `info["success"]` tells whether the reward is 1; `info["reward"]` holds its parts.
    """

    splits = ("train", "dev", "test")
    default_turns = 10
    has_success = True
    return_range = (0.0, 1.0)

    def __init__(
        self,
        *,
        catalogue: str = "synthetic",
        data: str | None = None,
        goals: str | None = None,
        products: int = 1000,
        observation: str = "text",
        list_actions: bool = False,
        nouns: str = "simple",
        verify: bool = True,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if observation not in MODES:
            raise ConfigError(f"observation is {observation!r}; it must be one of {', '.join(MODES)}")
        self.catalogue: Catalogue = open_catalogue(catalogue, data, goals, products, verify)
        self.mode, self.list_actions = observation, list_actions
        self.instructions = INSTRUCTIONS + LISTED * list_actions
        self.page = Page()
        self.goal: Goal | None = None
        self._nouns = noun_rule(nouns)

    def tasks(self, split: str) -> Sequence[str]:
        """Goal numbers of a split; "all" has every goal."""
        return self.catalogue.tasks(split)

    def data_digest(self) -> str:
        """Digest of the catalogue and of the kind of its goals."""
        return self.catalogue.digest

    @property
    def instruction(self) -> str:
        """What to buy, as the pages show it."""
        return "" if self.goal is None else self.goal.text

    def available_actions(self) -> dict[str, bool | list[str]]:
        """What the page allows, in the published form: `has_search_bar` and `clickables`."""
        return {"has_search_bar": self.page.place == "search", "clickables": clickables(self.page)}

    def example_actions(self) -> Sequence[str]:
        """A search for the instruction's words, and a click on everything that can be clicked.

        What a hurried shopper does comes first: search, take the first product, buy it.
        """
        search, clicks = f"search[{self.instruction}]", [f"click[{n}]" for n in clickables(self.page)]
        if self.page.place == "search":
            return [search, *clicks]
        shown = (
            [product.asin.lower() for product in self.page.shown] if self.page.product is None else []
        )
        hurried = {f"click[{name}]" for name in (*shown, "buy now")}
        return [*sorted(clicks, key=lambda click: click not in hurried), search]

    def solution(self) -> Sequence[str]:
        """Find the product by its title, choose what the goal names, buy."""
        if self.goal is None:
            return ()
        clicks = [self.goal.product.asin.lower(), *self.goal.values, "buy now"]
        return [f"search[{self.goal.product.title}]", *(f"click[{name}]" for name in clicks)]

    def fork(self) -> Self:
        """A copy, in constant time."""
        return self._shallow_copy()

    def _reset(self, task: str) -> str:
        count = len(self.catalogue.goals)
        number = int(task) if task.isascii() and task.isdigit() and len(task) < 12 else -1
        if not (0 <= number < count and str(number) == task):
            raise UnknownName("WebShop task", task, ["0", "1", str(count - 1)])
        self.goal = self.catalogue.goal(number, self.seed)
        self.page = Page()
        return self._observation()

    def _step(self, action: str) -> Step:
        name, argument = parse(action)
        if name == "search":
            self.page = self._search(argument)
        elif name == "click" and argument != "search" and argument in clickables(self.page):
            if argument == "buy now":
                return self._buy()
            self.page = self._click(self.page, argument)
        return Step(self._observation())

    def _search(self, keywords: str) -> Page:
        """Works on every page."""
        hits = self.catalogue.search(keywords)
        return Page("results", keywords, hits, visited=self.page.visited)

    def _click(self, page: Page, target: str) -> Page:
        """The page behind something that can be clicked. Names of buttons go before option values."""
        if target == "back to search":
            return Page()
        if page.place == "results":
            return _click_result(page, target)
        if target == "< prev":
            if page.place == "sub":
                return page._replace(place="item", sub="")
            return page._replace(place="results", product=None, options=())
        sub = next((name for name in SUB_PAGES if name.lower() == target), "")
        return page._replace(place="sub", sub=sub) if sub else _choose(page, target)

    def _buy(self) -> Step:
        assert self.goal is not None and self.page.product is not None
        chosen = [value for _, value in self.page.options]
        paid = reward(self.goal, self.page.product, chosen, self.seed, self._nouns)
        self.page = self.page._replace(place="done", score=paid.total)
        info = {"success": paid.total == 1.0, "reward": paid._asdict()}
        return Step(self._observation(), paid.total, True, info)

    def _observation(self) -> str:
        text = observe(self.page, self.instruction, self.task, self.mode)
        if not self.list_actions or self.page.place == "done":
            return text
        actions = [f"click[{name}]" for name in clickables(self.page) if name != "search"]
        return f"{text}\n\nPossible actions: {', '.join(['search[keywords]', *actions])}"


def _click_result(page: Page, target: str) -> Page:
    if target in ("next >", "< prev"):
        return page._replace(number=page.number + (1 if target == "next >" else -1))
    product = next(product for product in page.shown if product.asin.lower() == target)
    return page._replace(place="item", product=product, visited=page.visited | {product.asin})


def _choose(page: Page, value: str) -> Page:
    """Options are found by their value: where two share one, the last has it."""
    assert page.product is not None
    name = next(name for name, values in reversed(page.product.options) if value in values)
    return page._replace(options=tuple({**dict(page.options), name: value}.items()))
