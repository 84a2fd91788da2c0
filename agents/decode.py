"""Decoder: draws completions and scores given ones, many at a time, with a network of transformers."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turnbench.agents.lanes import Row, make_lanes
from turnbench.agents.model import common_prefix
from turnbench.envs.record import Failure, Outcome

SCORE_LOGITS = 2**25
"""Logits held at once when sequences are scored (128 MB in float32)."""

Stopped = Callable[[Sequence[int], Sequence[str]], bool]


class Decoder:
    """Steps all live rows by one token at a time. Not for use by two threads at once.

    `ends` are the ids that end a completion, `stopped` tells whether ids complete a stop string.
    """

    def __init__(
        self, network: Any, ends: frozenset[int], stopped: Stopped, *, max_rows: int, cache_bytes: int
    ) -> None:
        self.network, self.ends, self.stopped, self.max_rows = network, ends, stopped, max_rows
        with torch.inference_mode():
            self.lanes = make_lanes(network, cache_bytes, max_rows)

    @property
    def live(self) -> list[Row]:
        """The rows being decoded."""
        return self.lanes.rows

    def room(self) -> int:
        """How many rows can be admitted now."""
        if self.live and not self.lanes.joins:
            return 0
        return self.max_rows - len(self.live)

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> None:
        """Read the rows' prompts and draw their first tokens."""
        first = len(self.live)
        logits = self.lanes.add(rows)
        self._take(self.live[first:], logits)

    @torch.inference_mode()
    def step(self) -> None:
        """Draw one more token for each live row."""
        self._take(self.live.copy(), self.lanes.step())

    def reset(self) -> None:
        """Let all rows go."""
        self.lanes.reset()

    def forget(self) -> None:
        """Let all rows and all that is kept of past ones go, as after a change of the weights."""
        self.lanes.forget()

    def _take(self, rows: Sequence[Row], logits: Tensor) -> None:
        drawn = list(zip(rows, *draw(logits, rows), strict=True))
        for row, token, logprob in reversed(drawn):
            if math.isfinite(logprob):
                row.ids.append(token)
                row.logprobs.append(logprob)
                row.finish = self._finish(row)
            else:
                row.failure = Failure(Outcome.INFRA_ERROR, "the model's probabilities are not finite")
        self._release([row for row in reversed(rows) if row.finish or row.failure])

    def _finish(self, row: Row) -> Any:
        if row.ids[-1] in self.ends:
            return "stop"
        if row.sampling.stop and self.stopped(row.ids, row.sampling.stop):
            return "stop"
        return "length" if len(row.ids) == row.limit else None

    def _release(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.lanes.drop(row)
        for row in rows:
            row.done.set_result(row)

    @torch.inference_mode()
    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """The natural log-prob of each of the second ids of each pair, after all that precedes it.

        A sequence that starts another one, as a turn starts the next, is scored along with it.
        """
        scores: list[list[float]] = [[] for _ in sequences]
        hosts = _hosts([((*prompt, *ids), len(prompt)) for prompt, ids in sequences])
        for batch in _batches(hosts, self.network.config.get_text_config().vocab_size):
            for host, row in zip(batch, self._score(batch), strict=True):
                for index, start, end in host.spans:
                    scores[index] = row[start - host.first : end - host.first]
        return scores

    def _score(self, hosts: Sequence["_Host"]) -> list[list[float]]:
        """The log-probs of all ids from each host's first span on."""
        first, width = min(h.first for h in hosts), max(len(h.ids) for h in hosts)
        padded = [(*host.ids, *(0,) * (width - len(host.ids))) for host in hosts]
        ids = torch.tensor(padded, device=self.network.device)
        # What stands behind a causal network's token doesn't reach it: no mask is needed.
        logits = self.network(
            input_ids=ids, use_cache=False, logits_to_keep=torch.arange(first - 1, width - 1)
        ).logits
        found = logits.gather(2, ids[:, first:, None])[..., 0].float()
        found = found - torch.stack([row.float().logsumexp(-1) for row in logits])
        return [row[host.first - first :] for row, host in zip(found.tolist(), hosts, strict=True)]


def draw(logits: Tensor, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """The next token of each row and its log-prob at temperature 1, from logits (rows, vocabulary).

    The token is where the row's own uniform number falls among the cumulated probabilities, in the
    order of the ids: so it doesn't depend on what else is in the batch.
    """
    logprobs = logits.float().log_softmax(-1)
    temperatures = [row.sampling.temperature for row in rows]
    if any(temperatures):
        tokens = _sample(logprobs, rows)
        if not all(temperatures):
            cold = torch.tensor(temperatures, device=logits.device) == 0
            tokens = torch.where(cold, logprobs.argmax(-1), tokens)
    else:
        tokens = logprobs.argmax(-1)
    found = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), found.tolist()


def _sample(logprobs: Tensor, rows: Sequence[Row]) -> Tensor:
    """Tokens by inversion of the tempered and truncated distribution; any where it is cold."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logprobs.device)[:, None]

    heats = [row.sampling.temperature or 1.0 for row in rows]
    if any(heat != 1 for heat in heats):
        logprobs = (logprobs / column(heats).float()).log_softmax(-1)
    weights = logprobs.exp()
    if any(row.sampling.top_p < 1 for row in rows):
        weights = _nucleus(weights, column([row.sampling.top_p for row in rows]))
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    uniforms = column([float(row.uniforms[len(row.ids)]) for row in rows])
    tokens = torch.searchsorted(cumulated, uniforms * cumulated[:, -1:], right=True)
    return tokens[:, 0].clamp(max=logprobs.shape[1] - 1)


def _nucleus(weights: Tensor, mass: Tensor) -> Tensor:
    """Zero for all but the fewest most probable tokens that hold `mass` (ties are kept together)."""
    ranked = weights.sort(-1, descending=True).values
    before = ranked.cumsum(-1, dtype=torch.float64) - ranked
    smallest = ranked.masked_fill((before >= mass) & (mass < 1), math.inf).amin(-1, keepdim=True)
    return weights.where(weights >= smallest, 0.0)


class _Host(NamedTuple):
    """A sequence, and the spans (index, start, end) of it whose log-probs are wanted."""

    ids: tuple[int, ...]
    spans: list[tuple[int, int, int]]

    @property
    def first(self) -> int:
        return min(start for _, start, _ in self.spans)


def _hosts(sequences: Sequence[tuple[tuple[int, ...], int]]) -> list[_Host]:
    """Sequences of which none starts another; those that did are spans of their hosts."""
    hosts: list[_Host] = []
    for index in sorted(range(len(sequences)), key=lambda k: sequences[k][0], reverse=True):
        ids, start = sequences[index]
        if start == len(ids):
            continue
        if not hosts or common_prefix(ids, hosts[-1].ids) < len(ids):
            hosts.append(_Host(ids, []))
        hosts[-1].spans.append((index, start, len(ids)))
    return sorted(hosts, key=lambda host: len(host.ids))


def _batches(hosts: Sequence[_Host], vocabulary: int) -> Iterator[list[_Host]]:
    """Neighbours in length, as many as the bound on logits allows."""
    batch: list[_Host] = []
    for host in hosts:
        first = min(h.first for h in [*batch, host])
        if batch and (len(batch) + 1) * (len(host.ids) - first) * vocabulary > SCORE_LOGITS:
            yield batch
            batch = []
        batch.append(host)
    if batch:
        yield batch
