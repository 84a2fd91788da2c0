"""Trees: how to read sequences that begin alike with the least computing.

Attempts at one task, and particles after a resampling, branch off from each other. What several of them
begin with can be computed once, and what follows then attends to it from a cache.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from turnbench.agents.model import common_prefix
from turnbench.agents.spans import Host

TOGETHER = 128
"""Sequences that are planned for at once: plans may take the square of their number, and nest as deep."""


class Node(NamedTuple):
    """Tokens `start` to `end` of sequences that are alike up to there, and what follows them."""

    hosts: tuple[Host, ...]
    start: int
    end: int
    next: "tuple[Node, ...]" = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens to compute."""
        return self.hosts[0].ids[self.start : self.end]


class Price(NamedTuple):
    """What computing costs, in tokens: a pass of its own, and a pair of tokens under attention."""

    branch: float
    pair: float

    def of(self, node: Node) -> float:
        """The price of a node's own tokens.

        At the start attention is causal and takes half of all pairs. Behind a cache it goes through a mask,
        and pairs that are masked are computed all the same.
        """
        length = node.end - node.start
        pairs = length * node.end if node.start else length * length / 2
        return length + pairs * self.pair + self.branch * bool(node.next)


def trees(hosts: Sequence[Host], price: Price | None) -> list[Node]:
    """The cheapest trees for sequences of which none starts another; without a price each is alone."""
    if price is None:
        return [Node((host,), 0, len(host.ids)) for host in hosts]
    rows = sorted(hosts, key=lambda host: host.ids)
    return [
        node
        for first in range(0, len(rows), TOGETHER)
        for node in _plan(rows[first : first + TOGETHER], price)[1]
    ]


def _plan(hosts: Sequence[Host], price: Price) -> tuple[float, tuple[Node, ...]]:
    alike = [common_prefix(a.ids, b.ids) for a, b in zip(hosts, hosts[1:], strict=False)]

    def families(first: int, last: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges of the sequences `first` to `last` that are alike beyond `end`."""
        for k in range(first, last):
            if k + 1 == last or alike[k] <= end:
                yield first, k + 1
                first = k + 1

    @cache
    def best(first: int, last: int, start: int) -> tuple[float, tuple[Node, ...]]:
        """The cheapest nodes for a family of which `start` tokens are computed already."""
        if first + 1 == last:
            leaf = Node((hosts[first],), start, len(hosts[first].ids))
            return price.of(leaf), (leaf,)
        end = min(alike[first : last - 1])
        parts = list(families(first, last, end))
        apart = _sum(best(*part, start) for part in parts)
        if end == start:
            return apart
        below = _sum(best(*part, end) for part in parts)
        node = Node(tuple(hosts[first:last]), start, end, below[1])
        shared = price.of(node) + below[0]
        return (shared, (node,)) if shared < apart[0] else apart

    return best(0, len(hosts), 0)


def _sum(plans: Iterator[tuple[float, tuple[Node, ...]]]) -> tuple[float, tuple[Node, ...]]:
    costs, nodes = zip(*plans, strict=True)
    return sum(costs), tuple(node for several in nodes for node in several)
