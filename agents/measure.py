"""Measure: what a network says of given tokens - their log-probs, and how sure it was there.

Only the positions of actions reach the network's head, a bounded number of them at once; what all
paths of a task begin with is computed once where the network's attention allows it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from turnbench.agents.lanes import PREFILL_ELSEWHERE, PREFILL_TOKENS
from turnbench.agents.model import common_prefix
from turnbench.agents.spans import Host, Ids, hosts_of
from turnbench.agents.threads import limit_threads, workers_for

LOGITS = 2**22
"""Logits held at once (16 MB in float32)."""
TOP = 20
"""The most probable tokens that `top` averages over, as DeepConf and servers' log-probs do."""
SPREAD = 4
"""How many times as many tokens as are computed at once may be attended to, shared ones repeated."""
SHARED = 32
"""Tokens that sequences must begin alike with to be worth a common pass."""
PAIRS = 5
"""Pairs of tokens whose attention costs a CPU as much as a token does elsewhere, for each hidden unit."""


def _entropy(logits: Tensor, norm: Tensor) -> Tensor:
    return norm - (torch.exp(logits - norm[:, None]) * logits).sum(-1)


def _certainty(logits: Tensor, norm: Tensor) -> Tensor:
    """KL(uniform || p) = -log V - mean_j log p_j (Kang et al. 2025)."""
    size = torch.tensor(float(logits.shape[-1]), device=logits.device)
    return norm - logits.mean(-1) - size.log()


def _top(logits: Tensor, norm: Tensor) -> Tensor:
    return logits.topk(min(TOP, logits.shape[-1]), -1).values.mean(-1) - norm


MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "entropy": _entropy,
    "certainty": _certainty,
    "top": _top,
}
"""By name: a function of logits [n, V] and their log-sum-exp [n], giving nats [n]."""


class _Pass(NamedTuple):
    """Sequences that go through together; the first `start` tokens are the same in all."""

    start: int
    hosts: list[Host]


class Measurer:
    """Measures given tokens under a network. `share`: its attention is plain, so that beginnings can
    be shared. Not for use by two threads at once.
    """

    def __init__(self, network: Any, *, share: bool) -> None:
        self.network, self.workers = network, workers_for(network)
        self.bulk = PREFILL_TOKENS.get(network.device.type, PREFILL_ELSEWHERE)
        hidden = network.config.get_text_config().hidden_size
        worth = PAIRS * hidden if network.device.type == "cpu" else math.inf
        self.pairs = worth if share else None
        self._split: bool | None = None

    @torch.inference_mode()
    def measure(
        self, sequences: Sequence[tuple[Ids, Ids]], names: Sequence[str]
    ) -> list[dict[str, list[float]]]:
        """For each pair (prompt ids, ids): `logprob` and the named measures of every second id, after
        all that precedes it, in nats at temperature 1.
        """
        found: list[dict[str, list[float]]] = [{n: [] for n in ("logprob", *names)} for _ in sequences]
        hosts = hosts_of([((*prompt, *ids), len(prompt)) for prompt, ids in sequences])
        passes = list(_passes(hosts, self.bulk, self.pairs))
        for part, columns in zip(passes, self._read_all(passes, names), strict=True):
            at = 0
            for host in part.hosts:
                for index, start, end in host.spans:
                    for name, values in columns.items():
                        found[index][name] = values[at : at + end - start]
                    at += end - start
        return found

    def _read_all(self, passes: Sequence[_Pass], names: Sequence[str]) -> list[dict[str, list[float]]]:
        """Each pass's measures; several workers take them side by side, with a CPU thread each."""
        if self._split is None:
            self._split = self._can_split()
        if self.workers == 1 or len(passes) == 1:
            return [self._read(part, names) for part in passes]
        with ThreadPoolExecutor(self.workers, initializer=limit_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda part: self._read(part, names), passes))

    @torch.inference_mode()
    def _read(self, part: _Pass, names: Sequence[str]) -> dict[str, list[float]]:
        """The measures of the pass's spans, one after the other."""
        places = [
            (row, place)
            for row, host in enumerate(part.hosts)
            for _, start, end in host.spans
            for place in range(start, end)
        ]
        device = self.network.device
        tokens = torch.tensor([part.hosts[row].ids[place] for row, place in places], device=device)
        at = torch.tensor(places, device=device) - torch.tensor([0, part.start + 1], device=device)
        logits_at = self._logits(part, at)
        columns: dict[str, list[float]] = {name: [] for name in ("logprob", *names)}
        step = max(1, LOGITS // self.network.config.get_text_config().vocab_size)
        for first in range(0, len(places), step):
            logits = logits_at(first, first + step).float()
            norm = logits.logsumexp(-1)
            chosen = logits.gather(1, tokens[first : first + step, None])[:, 0] - norm
            columns["logprob"] += chosen.tolist()
            for name in names:
                columns[name] += MEASURES[name](logits, norm).tolist()
        return columns

    def _logits(self, part: _Pass, at: Tensor) -> Callable[[int, int], Tensor]:
        """Gives the logits [n, V] of a range of the places `at` [N, 2] (row, column)."""
        ids = _padded([host.ids[part.start :] for host in part.hosts], self.network.device)
        if self._split:
            hidden = self._hidden(part, ids)[at[:, 0], at[:, 1]]
            head = self.network.get_output_embeddings()
            return lambda a, b: head(hidden[a:b])
        columns: Tensor = torch.unique(at[:, 1])
        whole = self.network(input_ids=ids, use_cache=False, logits_to_keep=columns).logits
        places = torch.searchsorted(columns, at[:, 1].contiguous())
        return lambda a, b: whole[at[a:b, 0], places[a:b]]

    def _hidden(self, part: _Pass, ids: Tensor) -> Tensor:
        """Last hidden states [B, T, H]. What stands behind a causal network's token doesn't reach it,
        so that padding on the right needs no mask."""
        trunk = self.network.base_model
        if not part.start:
            return trunk(input_ids=ids, use_cache=False).last_hidden_state  # type: ignore[no-any-return]
        cache = DynamicCache(config=self.network.config)
        begin = torch.tensor([part.hosts[0].ids[: part.start]], device=ids.device)
        trunk(input_ids=begin, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(ids))
        return trunk(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state  # type: ignore[no-any-return]

    def _can_split(self) -> bool:
        """Whether the head of the last hidden states, alone, gives the network's logits (tried out);
        else, as with scaled or capped logits, beginnings aren't shared."""
        head, trunk = self.network.get_output_embeddings(), self.network.base_model
        if head is None or trunk is self.network:
            return False
        probe = torch.tensor([[3, 1, 4, 1]], device=self.network.device)
        probe %= self.network.config.get_text_config().vocab_size
        mine = head(trunk(input_ids=probe, use_cache=False).last_hidden_state)
        whole = self.network(input_ids=probe, use_cache=False).logits
        return mine.shape == whole.shape and bool(torch.allclose(mine, whole, atol=1e-4, rtol=1e-4))


def _padded(rows: Sequence[Ids], device: Any) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([(*row, *(0,) * (width - len(row))) for row in rows], device=device)


def _passes(hosts: Sequence[Host], bulk: int, pairs: float | None) -> Iterator[_Pass]:
    """Sequences in passes of at most `bulk` tokens, padding included, or of one sequence.

    What several begin with is computed once where that saves more than it costs (see `_worth`); never
    if `pairs` is None.
    """
    if pairs is None:
        yield from (_Pass(0, part) for part in _cut(hosts, 0, bulk))
        return
    alone: list[Host] = []
    for family in _families(hosts):
        start = _shared_length(family)
        for part in _cut(family, start, bulk):
            if _worth(part, start, pairs):
                yield _Pass(start, part)
            else:
                alone += part
    yield from (_Pass(0, part) for part in _cut(alone, 0, bulk))


def _worth(part: Sequence[Host], start: int, pairs: float) -> bool:
    """Whether the tokens that aren't computed again outweigh the attention that is computed in vain: behind
    a common beginning attention goes through a mask, and all pairs are computed instead of half of them."""
    width = max(len(host.ids) for host in part) - start
    saved, vain = (len(part) - 1) * start, len(part) * (width**2 - start**2) / 2
    return len(part) > 1 and start >= SHARED and saved * pairs > vain


def _families(hosts: Sequence[Host]) -> Iterator[list[Host]]:
    """Sequences that have most of the shorter one's opening in common with their neighbour."""
    family: list[Host] = []
    for host in sorted(hosts, key=lambda h: h.ids):
        if family:
            alike = common_prefix(family[0].ids, host.ids)
            if alike < SHARED or 2 * alike < min(family[0].first, host.first):
                yield family
                family = []
        family.append(host)
    if family:
        yield family


def _shared_length(family: Sequence[Host]) -> int:
    """How many tokens all have in common, short of the one that the first action is read from."""
    alike = common_prefix(family[0].ids, family[-1].ids)
    return min(alike, min(host.first for host in family) - 1)


def _cut(hosts: Sequence[Host], start: int, bulk: int) -> Iterator[list[Host]]:
    batch: list[Host] = []
    for host in sorted(hosts, key=lambda h: len(h.ids)):
        rows = len(batch) + 1
        if batch and ((len(host.ids) - start) * rows > bulk or len(host.ids) * rows > SPREAD * bulk):
            yield batch
            batch = []
        batch.append(host)
    if batch:
        yield batch
