"""Decoder: draws completions and scores given ones, many at a time, with a network of transformers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from turnbench.agents.lanes import Row, make_lanes
from turnbench.agents.measure import Measurer
from turnbench.agents.spans import Ids
from turnbench.envs.record import Failure, Outcome

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
        self.measurer = Measurer(network, share=self.lanes.joins)

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

    def score(
        self, sequences: Sequence[tuple[Ids, Ids]], measures: Sequence[str] = ()
    ) -> list[dict[str, list[float]]]:
        """`logprob` and other measures (measure.py) of the second ids of each pair, after all that
        precedes them.

        A sequence that starts another one, as a turn starts the next, is scored along with it.
        """
        return self.measurer.measure(sequences, measures)


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
            tokens = torch.where(cold, logits.argmax(-1), tokens)
    else:
        tokens = logits.argmax(-1)
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
