"""A store of past sequences' keys and values, so that a later turn only computes what is new."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from turnbench.agents.model import common_prefix

BLOCK = 16
"""Tokens per step of the index."""
CANDIDATES = 8
"""How many sequences that share all whole blocks are compared token by token."""


@dataclass(eq=False, slots=True)
class _Entry:
    ids: tuple[int, ...]
    kv: Tensor
    blocks: list[int]


class KVStore:
    """Keys and values of sequences of token ids, found again by their longest common prefix.

    States have the shape (2 x layers, heads, tokens, head size), keys at even indices. Holds at most
    `limit` bytes; what was used least recently goes first.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self._index: dict[int, dict[_Entry, None]] = {}

    def find(self, ids: tuple[int, ...]) -> tuple[int, Tensor | None]:
        """The length of the longest stored prefix of `ids`, and states of at least that length."""
        entry, length = self._match(ids)
        if entry is None:
            return 0, None
        self._entries.move_to_end(entry.ids)
        return length, entry.kv

    def put(self, ids: tuple[int, ...], kv: Tensor) -> None:
        """Keep the states of a sequence of at least a block. One that it extends is given up for it."""
        size = kv.numel() * kv.element_size()
        entry, length = self._match(ids)
        # Of many sequences alike only some are compared, so that `ids` itself may not be among them.
        known = ids in self._entries or (entry is not None and length == len(ids))
        if known or size > self.limit or len(ids) < BLOCK:
            return
        if entry is not None and length == len(entry.ids):
            self._drop(entry)
        while self.bytes + size > self.limit:
            self._drop(next(iter(self._entries.values())))
        entry = _Entry(ids, kv, list(_blocks(ids)))
        self._entries[ids] = entry
        self.bytes += size
        for block in entry.blocks:
            self._index.setdefault(block, {})[entry] = None

    def _match(self, ids: tuple[int, ...]) -> tuple[_Entry | None, int]:
        found: dict[_Entry, None] = {}
        for block in _blocks(ids):
            if block not in self._index:
                break
            found = self._index[block]
        near = [(common_prefix(ids, entry.ids), entry) for entry in islice(reversed(found), CANDIDATES)]
        length, best = max(near, key=lambda pair: pair[0], default=(0, None))
        return best, length

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.ids]
        self.bytes -= entry.kv.numel() * entry.kv.element_size()
        for block in entry.blocks:
            del self._index[block][entry]
            if not self._index[block]:
                del self._index[block]


def _blocks(ids: tuple[int, ...]) -> Iterator[int]:
    """A running hash after each whole block of ids."""
    running = 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        running = hash((running, ids[start : start + BLOCK]))
        yield running
