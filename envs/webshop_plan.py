"""Demonstrations in WebShop: a shopper who searches in the instruction's words and knows what fits."""

import numpy as np

from turnbench.envs.core import TextEnv
from turnbench.envs.demonstrate import guided
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task, Trajectory
from turnbench.envs.webshop import WebShop

PAGES = 2  # of results that the shopper looks through


def demonstrate(env: TextEnv, task: Task, rng: np.random.Generator, mistakes: float = 0.0) -> Trajectory:
    """Play `task` (see `guided`): search for what it says before the price, open the wanted product, choose
    what the goal names, buy.

    Unlike the world's own solution, which searches for a title that no shopper knows, every action
    follows from the pages. It ends without a purchase where the product isn't among the first results.
    Mistakes are other products and other options, which are then made good.
    """
    if not isinstance(env, WebShop):
        raise ConfigError(f"this demonstrator plays WebShop, not {type(env).__name__}")
    return guided(env, task, rng, mistakes, lambda: _Shopper(env))


class _Shopper:
    def __init__(self, env: WebShop) -> None:
        assert env.goal is not None
        self.env, self.goal = env, env.goal

    def right(self) -> str | None:
        page, wanted = self.env.page, self.goal.product
        if page.place == "search":
            return f"search[{self.goal.text.partition(', and price')[0]}]"
        if page.place == "results":
            if wanted in page.shown:
                return f"click[{wanted.asin}]"
            return "click[next >]" if page.number < PAGES else None
        if page.product != wanted or page.place == "sub":
            return "click[< prev]"
        chosen = {value for _, value in page.options}
        missing = [value for value in self.goal.values if value not in chosen]
        return f"click[{missing[0]}]" if missing else "click[buy now]"

    def wrong(self, rng: np.random.Generator) -> str | None:
        page, wanted = self.env.page, self.goal.product
        if page.place == "results":
            others = [product.asin for product in page.shown if product != wanted]
        elif page.place == "item" and page.product == wanted:
            values = {value for _, several in wanted.options for value in several}
            others = sorted(values - set(self.goal.values))
        else:
            return None
        return f"click[{others[int(rng.integers(len(others)))]}]" if others else None

    def moved(self, action: str, observation: str, astray: bool) -> None:
        """What is right is seen from the page."""
