"""WebShop's catalogue: products, search and goals, shared by all environments of a process."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, overload

import numpy as np

from turnbench.envs.analyzer import analyze
from turnbench.envs.bm25 import Index, IndexBuilder, open_index, save_index
from turnbench.envs.errors import UnknownName
from turnbench.envs.store import Rows, RowsWriter, load_array, to_row
from turnbench.envs.webshop_goals import (
    GOAL_SEED,
    Goal,
    Instruction,
    combinations,
    draw_pick,
    make_goal,
    shuffled,
)
from turnbench.envs.webshop_product import Product, product_from_json

HITS = 50  # products that a search finds at most
KEPT = 1000  # characters of keywords whose results are remembered
KINDS = ("human", "synthetic")

Array = np.ndarray[Any, Any]


class Draft(NamedTuple):
    """An instruction for a product, as its file has it: see `webshop_goals.Instruction`."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None


class Entry(NamedTuple):
    """A product and what it is asked for by: drafts of each of KINDS."""

    product: Product
    drafts: tuple[tuple[Draft, ...], tuple[Draft, ...]]


class Numbers(Sequence[str]):
    """Task ids: the numbers of an array, as text."""

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        found = self.numbers[index]
        return [str(n) for n in found] if isinstance(index, slice) else str(found)


@dataclass(frozen=True, slots=True, eq=False)
class Goals:
    """All goals of one kind, in task order.

    Goal k is number `order[k]` of the goals that the instructions give one after another;
    instruction i gives those from `starts[i]` up to `starts[i + 1]`. `rows` are their products.
    """

    instructions: Sequence[Instruction]
    rows: Array
    starts: Array
    order: Array

    def __len__(self) -> int:
        return len(self.order)

    def find(self, goals: Any) -> Any:
        """The numbers of the instructions that give these goals (an integer or an array)."""
        return np.searchsorted(self.starts, self.order[goals], side="right") - 1


SplitOf = Callable[[Goals], Array]  # the split's name for each goal, in task order


class Catalogue:
    """Products, their index, and the goals of one kind with their splits. Never changes."""

    def __init__(
        self,
        products: Sequence[Product],
        index: Index,
        goals: Goals,
        split_of: "SplitOf",
        digest: str,
    ) -> None:
        self.products, self.index, self.goals = products, index, goals
        self.split_of, self.digest = split_of, digest
        self._rows = lru_cache(maxsize=4096)(self._find)
        self._tasks = lru_cache(maxsize=None)(self._split)

    def search(self, keywords: str) -> tuple[Product, ...]:
        """The products that fit the keywords best, the best first."""
        rows = self._rows(keywords) if len(keywords) <= KEPT else self._find(keywords)
        return tuple([self.products[row] for row in rows])

    def _find(self, keywords: str) -> tuple[int, ...]:
        return self.index.search(analyze(keywords), HITS)

    def goal(self, number: int, seed: int) -> Goal:
        """A goal, with the prices of an episode's seed."""
        place = int(self.goals.find(number))
        instruction = self.goals.instructions[place]
        combination = int(self.goals.order[number] - self.goals.starts[place])
        return make_goal(instruction, self.products[instruction.row], combination, seed)

    def tasks(self, split: str) -> Sequence[str]:
        """The goal numbers of a split, ascending; "all" has every one. Raises UnknownName."""
        return self._tasks(split)

    def _split(self, split: str) -> Sequence[str]:
        known = ("train", "dev", "test", "all")
        if split not in known:
            raise UnknownName("WebShop split", split, known)
        numbers = np.arange(len(self.goals))
        return Numbers(numbers if split == "all" else numbers[self.split_of(self.goals) == split])


# --- in memory ------------------------------------------------------------------------------------------


def build(entries: Iterable[Entry], kind: str, split_of: SplitOf, digest: str) -> Catalogue:
    """A catalogue in memory, with the goals of a kind."""
    products: list[Product] = []
    builder, goals = IndexBuilder(), _GoalsBuilder()
    instructions: list[Instruction] = []
    for row, (product, drafts) in enumerate(entries):
        products.append(product)
        builder.add(product.asin, analyze(product.document))
        instructions += goals.add(row, product, drafts[KINDS.index(kind)])
    return Catalogue(products, builder.finish(), goals.finish(instructions), split_of, digest)


class _GoalsBuilder:
    """Counts the goals of one kind and draws their price bounds, product by product."""

    def __init__(self) -> None:
        self._rng = Random(GOAL_SEED)
        self._rows: list[int] = []
        self._counts: list[int] = []

    def add(self, row: int, product: Product, drafts: Iterable[Draft]) -> list[Instruction]:
        found = []
        for text, attributes, options in drafts:
            pick = draw_pick(product.prices[0], self._rng)
            self._rows.append(row)
            self._counts.append(combinations(product) if options is None else 1)
            found.append(Instruction(row, text, attributes, options, pick))
        return found

    def finish(self, instructions: Sequence[Instruction]) -> Goals:
        starts = np.array([0, *accumulate(self._counts)], dtype=np.int64)
        order = np.array(shuffled(int(starts[-1])), dtype=np.int32)
        return Goals(instructions, np.array(self._rows, dtype=np.int32), starts, order)


# --- on disk --------------------------------------------------------------------------------------------


def build_into(folder: Path, entries: Iterable[Entry]) -> None:
    """Write a catalogue with the goals of both kinds; memory stays bounded by the vocabulary."""
    builder = IndexBuilder(spill=folder)
    goals = [_GoalsBuilder() for _ in KINDS]
    with (
        RowsWriter(folder, "products") as products,
        RowsWriter(folder, "human") as human,
        RowsWriter(folder, "synthetic") as synthetic,
    ):
        for row, (product, drafts) in enumerate(entries):
            products.add(to_row(product.to_json()))
            builder.add(product.asin, analyze(product.document))
            for of_kind, some, writer in zip(goals, drafts, (human, synthetic), strict=True):
                for instruction in of_kind.add(row, product, some):
                    writer.add(to_row(instruction))
    save_index(builder.finish(folder), folder)
    for kind, of_kind in zip(KINDS, goals, strict=True):
        made = of_kind.finish(())
        for name in ("rows", "starts", "order"):
            np.save(folder / f"{kind}.goal_{name}.npy", getattr(made, name))


def open_built(folder: Path, kind: str, split_of: SplitOf, digest: str) -> Catalogue:
    """A catalogue that `build_into` wrote, with the goals of a kind; nothing large is read."""
    products = Rows(folder, "products", lambda row: product_from_json(json.loads(row)))
    instructions = Rows(folder, kind, _instruction)
    rows, starts, order = (
        load_array(folder / f"{kind}.goal_{name}.npy") for name in ("rows", "starts", "order")
    )
    goals = Goals(instructions, rows, starts, order)
    return Catalogue(products, open_index(folder), goals, split_of, digest)


def _instruction(row: str) -> Instruction:
    number, text, attributes, options, pick = json.loads(row)
    wanted = None if options is None else tuple(options)
    return Instruction(number, text, tuple(attributes), wanted, pick)
