"""Measure: what a network says of given tokens - their log-probs, and how sure it was there.

Only the positions of actions reach the network's head, a bounded number of them at once; what several
paths begin with is computed once where the network's attention allows it and it pays (trees.py).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from turnbench.agents.lanes import PREFILL_ELSEWHERE, PREFILL_TOKENS
from turnbench.agents.spans import Ids, hosts_of
from turnbench.agents.threads import limit_threads, share_threads
from turnbench.agents.trees import Node, Price, trees

LOGITS = 2**22
"""Logits held at once (16 MB in float32)."""
TOP = 20
"""The most probable tokens that `top` averages over, as DeepConf and servers' log-probs do."""
SPREAD = 4
"""How many times as many tokens as are computed at once may be attended to, shared ones repeated."""
BRANCH = {"cpu": 64}
"""Tokens that cost as much as a pass of its own, by device."""
BRANCH_ELSEWHERE = 512
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


Found = list[dict[str, list[float]]]
States = list[tuple[Tensor, Tensor]]
"""Each layer's keys and values, of shape (1, heads, tokens, head size)."""


class _Pass(NamedTuple):
    """Nodes that are computed together. They start alike, behind tokens whose states are known."""

    nodes: list[Node]
    states: States

    @property
    def start(self) -> int:
        return self.nodes[0].start


class Measurer:
    """Measures given tokens under a network. `share`: its attention is plain, so that beginnings can
    be shared. Not for use by two threads at once.
    """

    def __init__(self, network: Any, *, share: bool) -> None:
        self.network, self.threads = network, torch.get_num_threads()
        self.share, self.config = share, network.config.get_text_config()
        self.bulk = PREFILL_TOKENS.get(network.device.type, PREFILL_ELSEWHERE)
        self.branch = BRANCH.get(network.device.type, BRANCH_ELSEWHERE)
        self.step = max(1, LOGITS // self.config.vocab_size)

    @cached_property
    def price(self) -> Price | None:
        """What computing costs; None where every sequence has to be read by itself."""
        if not self.share or self.head is None:
            return None
        on_cpu = self.network.device.type == "cpu"
        return Price(self.branch, 1 / (PAIRS * self.config.hidden_size) if on_cpu else 0)

    @torch.inference_mode()
    def measure(self, sequences: Sequence[tuple[Ids, Ids]], names: Sequence[str]) -> Found:
        """For each pair (prompt ids, ids): `logprob` and the named measures of every second id, after
        all that precedes it, in nats at temperature 1.
        """
        found = [{n: [math.nan] * len(ids) for n in ("logprob", *names)} for _, ids in sequences]
        hosts = hosts_of([((*prompt, *ids), len(prompt)) for prompt, ids in sequences])
        workers, threads = share_threads(self.network, len(hosts), self.threads)
        settle = None if threads is None else partial(limit_threads, threads)
        with ThreadPoolExecutor(workers, initializer=settle) as pool:
            self._read_all(pool, workers, list(self._passes(trees(hosts, self.price), [])), found)
        return found

    def _read_all(
        self, pool: ThreadPoolExecutor, workers: int, stack: list[_Pass], found: Found
    ) -> None:
        """Read passes and what follows them, depth first, as open nodes hold memory, by several workers."""
        running = set[Future[list[_Pass]]]()
        while stack or running:
            while stack and len(running) < workers:
                running.add(pool.submit(self._read, stack.pop(), found))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                stack += future.result()

    @torch.inference_mode()
    def _read(self, part: _Pass, found: Found) -> list[_Pass]:
        """Write down what the pass tells of spans; gives back the passes that follow."""
        wanted = _wanted(part.nodes)
        places = [key[:2] for key in wanted]
        at = torch.tensor(places, dtype=torch.long, device=self.network.device).reshape(-1, 2)
        logits_at, following = self._logits(part, at)
        names = found[0].keys() - {"logprob"}
        keys = list(wanted)
        for first in range(0, len(keys), self.step):
            some = keys[first : first + self.step]
            tokens = torch.tensor([token for _, _, token in some], device=self.network.device)
            logits = logits_at(first, first + self.step).float()
            norm = logits.logsumexp(-1)
            columns = {name: MEASURES[name](logits, norm).tolist() for name in names}
            columns["logprob"] = (logits.gather(1, tokens[:, None])[:, 0] - norm).tolist()
            for name, values in columns.items():
                for key, value in zip(some, values, strict=True):
                    for index, place in wanted[key]:
                        found[index][name][place] = value
        return following

    def _logits(self, part: _Pass, at: Tensor) -> tuple[Callable[[int, int], Tensor], list[_Pass]]:
        """What gives the logits [n, V] of a range of the places `at` [N, 2] (row, column), and the passes
        that follow."""
        ids = _padded([node.ids for node in part.nodes], self.network.device)
        if (head := self.head) is not None:
            hidden, following = self._hidden(part, ids)
            hidden = hidden[at[:, 0], at[:, 1]]
            return lambda a, b: head(hidden[a:b]), following
        columns: Tensor = torch.unique(at[:, 1])
        whole = self.network(input_ids=ids, use_cache=False, logits_to_keep=columns).logits
        places = torch.searchsorted(columns, at[:, 1].contiguous())
        return lambda a, b: whole[at[a:b, 0], places[a:b]], []

    def _hidden(self, part: _Pass, ids: Tensor) -> tuple[Tensor, list[_Pass]]:
        """Last hidden states [B, T, H]. What stands behind a causal network's token doesn't reach it,
        so that padding on the right needs no mask."""
        trunk, going_on = self.network.base_model, any(node.next for node in part.nodes)
        if not part.start and not going_on:
            return trunk(input_ids=ids, use_cache=False).last_hidden_state, []
        cache = DynamicCache(config=self.network.config)
        for layer, (keys, values) in enumerate(part.states):
            cache.update(keys.expand(len(ids), -1, -1, -1), values.expand(len(ids), -1, -1, -1), layer)
        hidden = trunk(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
        following = [
            later
            for row, node in enumerate(part.nodes)
            if node.next
            for later in self._passes(node.next, _states(cache, row, node.end))
        ]
        return hidden, following

    def _passes(self, nodes: Sequence[Node], states: States) -> Iterator[_Pass]:
        """Nodes that start alike in passes of at most `bulk` tokens, padding included, or of one node; a
        pass of its own is better than more padding than it costs."""
        batch: list[Node] = []
        for node in sorted(nodes, key=lambda n: n.end):
            rows = len(batch) + 1
            if batch and (
                (node.end - node.start) * rows > self.bulk
                or node.end * rows > SPREAD * self.bulk
                or (node.end - batch[-1].end) * len(batch) > self.branch
            ):
                yield _Pass(batch, states)
                batch = []
            batch.append(node)
        if batch:
            yield _Pass(batch, states)

    @cached_property
    @torch.inference_mode()
    def head(self) -> Callable[[Tensor], Tensor] | None:
        """What gives the network's logits from last hidden states: its head, maybe with a cap (tried out).

        None where neither does, as with scaled logits: whole logits of a pass are kept then, and
        beginnings aren't shared.
        """
        head, trunk = self.network.get_output_embeddings(), self.network.base_model
        if head is None or trunk is self.network:
            return None
        probe = torch.tensor([[3, 1, 4, 1]], device=self.network.device)
        probe %= self.config.vocab_size
        hidden = trunk(input_ids=probe, use_cache=False).last_hidden_state
        whole = self.network(input_ids=probe, use_cache=False).logits
        cap = getattr(self.config, "final_logit_softcapping", None)
        ways = [head, *([] if cap is None else [lambda h: torch.tanh(head(h) / cap) * cap])]
        for way in ways:
            mine = way(hidden)
            if mine.shape == whole.shape and torch.allclose(mine, whole, atol=1e-4, rtol=1e-4):
                return way  # type: ignore[no-any-return]
        return None


def _wanted(nodes: Sequence[Node]) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
    """What nodes tell of spans: for each row, column and token that follows there, which ids of which
    sequences it is."""
    wanted = defaultdict[tuple[int, int, int], list[tuple[int, int]]](list)
    for row, node in enumerate(nodes):
        for host in node.hosts:
            for index, start, end in host.spans:
                for place in range(max(start, node.start + 1), min(end, node.end + 1)):
                    key = row, place - 1 - node.start, host.ids[place]
                    wanted[key].append((index, place - start))
    return wanted


def _states(cache: DynamicCache, row: int, end: int) -> States:
    """A row's states of its first `end` tokens."""
    layers: Any = cache.layers
    return [(one.keys[row : row + 1, :, :end], one.values[row : row + 1, :, :end]) for one in layers]


def _padded(rows: Sequence[Ids], device: Any) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([(*row, *(0,) * (width - len(row))) for row in rows], device=device)
