"""Lanes: sequences decoded side by side, each with the keys and values of what it has read so far.

`Lanes` lets sequences come and go between any two steps and reuses what a KVStore holds; it serves
networks with plain full attention. `PaddedLanes` serves all others: one batch from start to end.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from turnbench.agents.kv import BLOCK, KVStore
from turnbench.agents.model import Sampling
from turnbench.envs.record import Failure

PREFILL_TOKENS = {"cpu": 2048}
"""Tokens, padding included, that are computed at once when prompts are read, by device. On a CPU, what
fits its caches is up to a third faster than everything at once."""
PREFILL_ELSEWHERE = 16_384


@dataclass(eq=False, slots=True)
class Row:
    """One completion in the making.

    `uniforms` are `limit` random numbers, one a step; `cached` of the prompt's tokens were not computed
    anew; `lane` and `fed` (tokens read so far) belong to the lanes. `done` resolves to this row.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    limit: int
    uniforms: NDArray[np.float64]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    failure: Failure | None = None
    cached: int = 0
    lane: int = 0
    fed: int = 0
    done: "Future[Row]" = field(default_factory=Future)

    def restart(self) -> None:
        """Forget what was sampled; the same numbers will draw it again."""
        self.ids, self.logprobs, self.finish = [], [], None


class Decoding(Protocol):
    """What the decoder needs of either kind of lanes. `rows` is in the order of the logits."""

    rows: list[Row]
    joins: bool

    def add(self, rows: Sequence[Row]) -> Tensor:
        """Read the prompts of new rows, which become the last ones: logits (new rows, vocabulary)."""
        ...

    def step(self) -> Tensor:
        """Read the newest token of every row: logits (rows, vocabulary)."""
        ...

    def drop(self, row: Row) -> None:
        """Let a row go. Of several, the last goes first."""
        ...

    def reset(self) -> None:
        """Let all rows go, whatever state an error has left."""
        ...

    def forget(self) -> None:
        """Let all rows go, and what is kept of past ones."""
        ...


class LaneCache(Cache):
    """Keys and values of many sequences, one a lane, each kept gapless from column 0.

    `data` has shape (2 x layers, lanes, heads, columns, head size), keys at even indices. The last
    column is never attended to: padding is written there. `aim` says where the next tokens go.
    """

    def __init__(self, layers: int) -> None:
        make: Any = DynamicLayer
        super().__init__(layers=[make() for _ in range(layers)])
        self.data: Tensor | None = None
        self._first = self._seen = 0
        self._rows = self._columns = torch.empty(0, dtype=torch.long)

    def aim(self, first: int, columns: Tensor, seen: int) -> None:
        """The next tokens are those of the lanes from `first` on, at `columns` (lanes, tokens);
        they attend to the first `seen` columns."""
        self._first, self._columns, self._seen = first, columns, seen
        self._rows = torch.arange(len(columns), device=columns.device)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's states (lanes, heads, tokens, head size); give back all that is seen."""
        if self.data is None:
            raise RuntimeError("no room has been made")
        both = []
        for offset, states in ((0, key_states), (1, value_states)):
            lanes = self.data[2 * layer_idx + offset, self._first : self._first + len(states)]
            lanes[self._rows, :, self._columns] = states.transpose(1, 2)
            both.append(lanes[:, :, : self._seen])
        return both[0], both[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in use before the tokens to come."""
        return self._seen - self._columns.shape[-1]

    def make_room(self, lanes: int, columns: int, like: Tensor) -> Tensor:
        """Have at least so many lanes and columns, and keep what there is.

        `like` has the shape (2 x layers, heads, 0, head size), the type and device of the states.
        """
        old = self.data
        if old is not None and old.shape[1] >= lanes and old.shape[3] > columns:
            return old
        if old is not None:
            lanes = max(lanes, old.shape[1])
            columns = columns if old.shape[3] > columns else columns + columns // 4
        width = max(-(-(columns + 33) // 64) * 64, 0 if old is None else old.shape[3])
        depth, heads, _, size = like.shape
        # Zeros, as even a masked column spoils the sum where it holds a NaN.
        self.data = like.new_zeros((depth, lanes, heads, width, size))
        if old is not None:
            self.data[:, : old.shape[1], :, : old.shape[3]] = old
        return self.data


class Lanes:
    """Lanes without gaps: lane k is row k, and its columns are filled from 0 on."""

    joins = True

    def __init__(self, network: Any, layers: Tensor, store: KVStore, max_rows: int) -> None:
        """`layers` of shape (2 x layers, heads, 0, head size) tells the states' shape and type."""
        self.network, self.like, self.store, self.max_rows = network, layers, store, max_rows
        self.bulk = PREFILL_TOKENS.get(layers.device.type, PREFILL_ELSEWHERE)
        self.reset()

    def reset(self) -> None:
        """Let all rows go."""
        self.rows: list[Row] = []
        self.cache = LaneCache(len(self.like) // 2)

    def forget(self) -> None:
        """Let all rows go, and the states of past ones."""
        self.reset()
        self.store = KVStore(self.store.limit)

    def add(self, rows: Sequence[Row]) -> Tensor:
        """Read new prompts; each distinct one is read once, and only what the store doesn't hold."""
        first = len(self.rows)
        known = [(row, *self.store.find(row.prompt)) for row in rows]
        for row, length, _ in known:
            row.cached, row.fed = min(length, len(row.prompt) - 1), len(row.prompt)
        known.sort(key=lambda item: (item[0].cached - item[0].fed, item[0].prompt))
        originals: dict[tuple[int, ...], Row] = {}
        for row, _, _ in known:
            originals.setdefault(row.prompt, row)
        twins = [row for row, _, _ in known if originals[row.prompt] is not row]
        self._place([*originals.values(), *twins])
        data = self._room(max(row.fed for row in rows))
        for row, _, states in known:
            if states is not None and originals[row.prompt] is row:
                data[:, row.lane, :, : row.cached] = states[:, :, : row.cached]
        logits = [self._read(group) for group in _groups(list(originals.values()), self.bulk)]
        for row in twins:
            source = originals[row.prompt]
            data[:, row.lane, :, : row.fed] = data[:, source.lane, :, : row.fed]
        found = torch.cat(logits)
        return found[[originals[row.prompt].lane - first for row in self.rows[first:]]]

    def _place(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.lane = len(self.rows)
            self.rows.append(row)

    def _room(self, columns: int) -> Tensor:
        used = 0 if self.cache.data is None else self.cache.data.shape[1]
        lanes = len(self.rows)
        if lanes > used:
            lanes = max(lanes, min(self.max_rows, 2 * used))
        return self.cache.make_room(lanes, columns, self.like)

    def _read(self, rows: Sequence[Row]) -> Tensor:
        """Prefill of rows in neighbouring lanes, padded on the left; logits (rows, vocabulary)."""
        new = [row.prompt[row.cached :] for row in rows]
        width = max(map(len, new))
        device = self.like.device
        ids = torch.tensor([(0,) * (width - len(part)) + part for part in new], device=device)
        ends = torch.tensor([row.fed for row in rows], device=device)[:, None]
        starts = torch.tensor([row.cached for row in rows], device=device)[:, None]
        positions = torch.arange(-width, 0, device=device) + ends
        columns = torch.where(positions >= starts, positions, -1)
        return self._forward(ids, positions.clamp(min=0), columns, rows[0].lane, int(ends.max()))

    def step(self) -> Tensor:
        """Read the newest token of every row."""
        device = self.like.device
        seen = max(row.fed for row in self.rows) + 1
        self._room(seen)
        ids = torch.tensor([[row.ids[-1]] for row in self.rows], device=device)
        positions = torch.tensor([[row.fed] for row in self.rows], device=device)
        logits = self._forward(ids, positions, positions, 0, seen)
        for row in self.rows:
            row.fed += 1
        return logits

    def _forward(self, ids: Tensor, positions: Tensor, columns: Tensor, first: int, seen: int) -> Tensor:
        self.cache.aim(first, columns, seen)
        visible = torch.arange(seen, device=ids.device) <= positions[:, None, :, None]
        return self.network(  # type: ignore[no-any-return]
            input_ids=ids,
            position_ids=positions,
            attention_mask=visible,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def drop(self, row: Row) -> None:
        """Let a row go: the store gets its states, the last row its lane."""
        data = self.cache.data
        assert data is not None
        if row.failure is not None:
            data[:, row.lane] = 0.0  # a NaN must spoil neither the store nor the lane's next row
        elif self.store.limit:
            ids = (*row.prompt, *row.ids)[: row.fed]
            self.store.put(ids, data[:, row.lane, :, : row.fed].clone())
        last = self.rows.pop()
        if last is not row:
            data[:, row.lane, :, : last.fed] = data[:, last.lane, :, : last.fed]
            self.rows[row.lane], last.lane = last, row.lane


def _groups(rows: Sequence[Row], bulk: int) -> Iterator[list[Row]]:
    """Neighbours of similar length, as padding costs as much as text; at most `bulk` tokens each."""
    group: list[Row] = []
    for row in rows:
        new = row.fed - row.cached
        longest = group[0].fed - group[0].cached if group else 0
        if group and (2 * new + BLOCK < longest or longest * (len(group) + 1) > bulk):
            yield group
            group = []
        group.append(row)
    yield group


class PaddedLanes:
    """One batch, padded on the left, with the cache that the network's own code makes."""

    joins = False

    def __init__(self, network: Any) -> None:
        self.network = network
        self.reset()

    def reset(self) -> None:
        """Let all rows go."""
        self.rows: list[Row] = []
        self._lanes: list[Row] = []
        self._cache: Any = None
        self._mask = torch.empty(0, dtype=torch.long)

    def forget(self) -> None:
        """Let all rows go; nothing is kept of past ones."""
        self.reset()

    def add(self, rows: Sequence[Row]) -> Tensor:
        """Read the prompts. Only a batch that has ended can be followed by another."""
        self.rows, self._lanes = list(rows), list(rows)
        width, device = max(len(row.prompt) for row in rows), self.network.device
        pads = [width - len(row.prompt) for row in rows]
        ids = torch.tensor([(0,) * p + r.prompt for p, r in zip(pads, rows, strict=True)], device=device)
        self._mask = torch.tensor([[0] * p + [1] * (width - p) for p in pads], device=device)
        self._cache = DynamicCache(config=self.network.config)
        return self._forward(ids)

    def step(self) -> Tensor:
        """Read the newest token of every row."""
        if len(self.rows) < len(self._lanes):
            left = [k for k, row in enumerate(self._lanes) if row in self.rows]
            keep = torch.tensor(left, device=self._mask.device)
            self._cache.reorder_cache(keep)
            self._mask, self._lanes = self._mask[keep], list(self.rows)
        ids = torch.tensor([[row.ids[-1]] for row in self.rows], device=self._mask.device)
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=1)
        return self._forward(ids)

    def _forward(self, ids: Tensor) -> Tensor:
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.network(  # type: ignore[no-any-return]
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def drop(self, row: Row) -> None:
        """Let a row go; the next step takes it out of the batch."""
        self.rows.remove(row)


PROBE = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)


def make_lanes(network: Any, cache_bytes: int, max_rows: int) -> Decoding:
    """Lanes where the network's attention allows them, as is tried out here; else PaddedLanes."""
    layers = _layers(network)
    if layers is None:
        return PaddedLanes(network)
    lanes = Lanes(network, layers, KVStore(0), max_rows)
    rows = [Row(PROBE[:size], Sampling(), 1, np.zeros(1)) for size in (3, len(PROBE))]
    try:
        lanes.add(rows)
        for row in rows:
            row.ids.append(PROBE[3])
        found = lanes.step()
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return PaddedLanes(network)
    wanted = [network(torch.tensor([[*r.prompt, *r.ids]], device=layers.device)) for r in lanes.rows]
    exact = torch.stack([w.logits[0, -1] for w in wanted]).float()
    tolerance = float(exact.std() * (0.05 if layers.dtype.itemsize < 4 else 1e-3))
    if not (math.isfinite(tolerance) and torch.allclose(found.float(), exact, rtol=0, atol=tolerance)):
        return PaddedLanes(network)
    lanes.reset()
    lanes.store = KVStore(cache_bytes)
    return lanes


def _layers(network: Any) -> Tensor | None:
    """An empty tensor shaped (2 x layers, heads, 0, head size), if all layers attend plainly."""
    if network.config._attn_implementation != "sdpa":
        return None
    cache: Any = DynamicCache(config=network.config)
    network(torch.tensor([PROBE], device=network.device), past_key_values=cache, use_cache=True)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None
    states = [s for layer in cache.layers for s in (layer.keys, layer.values)]
    if len({s.shape for s in states}) != 1:
        return None
    return torch.stack([s[0, :, :0] for s in states])
