"""Plans of shared computing: every sequence is read whole, and nothing is cheaper."""

import os
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.spans import Host, hosts_of
from turnbench.agents.trees import TOGETHER, Node, Price, trees

ids = st.lists(st.integers(0, 2), min_size=2, max_size=9).map(tuple)
several = st.lists(ids, min_size=1, max_size=7)
prices = st.builds(Price, st.sampled_from([0, 1, 4]), st.sampled_from([0, 0.1, 2]))


def hosts(sequences: Sequence[tuple[int, ...]]) -> list[Host]:
    return hosts_of([(sequence, 1) for sequence in sequences])


def readings(node: Node, before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """The sequences that a tree reads, one a leaf."""
    assert node.start == len(before) and all(host.ids[: node.start] == before for host in node.hosts)
    read = before + node.ids
    if not node.next:
        yield read
    for child in node.next:
        yield from readings(child, read)


def total(nodes: Sequence[Node], price: Price) -> float:
    return sum(price.of(node) + total(node.next, price) for node in nodes)


@given(several, prices)
def test_every_sequence_is_read_once_and_whole(sequences, price) -> None:
    wanted = hosts(sequences)
    read = [one for node in trees(wanted, price) for one in readings(node)]
    assert sorted(read) == sorted(host.ids for host in wanted)


@given(several)
def test_where_branches_are_free_no_token_is_computed_twice(sequences) -> None:
    prefixes = {one[:k] for one in sequences for k in range(1, len(one) + 1)}
    assert total(trees(hosts(sequences), Price(0, 0)), Price(0, 0)) == len(prefixes)


def plans(rows: Sequence[Host], start: int) -> Iterator[tuple[Node, ...]]:
    """All ways to read sequences that are alike up to `start`: the first one joins any of the others."""
    if not rows:
        yield ()
        return
    first, others = rows[0], rows[1:]
    for picked in range(2 ** len(others)):
        family = (first, *(h for k, h in enumerate(others) if picked >> k & 1))
        rest = [h for k, h in enumerate(others) if not picked >> k & 1]
        for node in _ways(family, start):
            for more in plans(rest, start):
                yield node, *more


def _ways(family: tuple[Host, ...], start: int) -> Iterator[Node]:
    if len(family) == 1:
        yield Node(family, start, len(family[0].ids))
        return
    alike = len(os.path.commonprefix([host.ids for host in family]))
    for end in range(start + 1, alike + 1):
        for below in plans(family, end):
            if len(below) > 1:
                yield Node(family, start, end, below)


@given(st.lists(ids, min_size=1, max_size=4), prices)
def test_no_plan_is_cheaper(sequences, price) -> None:
    wanted = hosts(sequences)
    cheapest = min(total(plan, price) for plan in plans(wanted, 0))
    assert total(trees(wanted, price), price) == pytest.approx(cheapest)


def test_a_beginning_is_shared_where_that_saves_more_than_it_costs() -> None:
    def shared(price: Price | None, tail: int) -> list[tuple[int, int]]:
        rows = [(*range(200), 1000 + k, *range(tail)) for k in range(4)]
        return [(node.end, len(node.next)) for node in trees(hosts(rows), price)]

    assert shared(None, 50) == [(251, 0)] * 4
    assert shared(Price(0, 1 / 64), 50) == [(200, 4)]
    assert shared(Price(2000, 1 / 64), 50) == [(251, 0)] * 4
    assert shared(Price(0, 1 / 64), 1500) == [(1701, 0)] * 4  # masked attention of long tails costs more
    assert shared(Price(0, 0), 1500) == [(200, 4)]


def test_without_a_price_each_is_alone() -> None:
    wanted = hosts([(1, 2, 3), (1, 2, 4)])
    assert [(node.end, node.next) for node in trees(wanted, None)] == [(3, ()), (3, ())]


@pytest.mark.parametrize("count", [TOGETHER, 3 * TOGETHER])
def test_a_long_chain_of_branches(count) -> None:
    """Each leaves the last one's way a token later: as many branches in each other as there can be."""
    wanted = hosts([(*[0] * k, 1, 2) for k in range(count)])
    read = [one for node in trees(wanted, Price(0, 0)) for one in readings(node)]
    assert sorted(read) == sorted(host.ids for host in wanted)
