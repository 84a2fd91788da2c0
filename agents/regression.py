"""Trained value functions: a transformer with a regression head, read from a folder (extra `local`).

The folder holds `value.json` (the card), `backbone/` (a Hugging Face model with its tokenizer) and
`head.safetensors`. algorithms/value.py writes it. States from all threads are merged into few
passes; where the backbone is causal, states that begin alike share the computation of that beginning.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer, DynamicCache
from transformers.utils import logging

from turnbench.agents.gathering import Merger
from turnbench.agents.model import common_prefix
from turnbench.agents.rollout import Rollout
from turnbench.agents.sharing import shared
from turnbench.agents.threads import LOADING
from turnbench.agents.turn_scores import TurnScorer
from turnbench.agents.values import CARD, Value, state_text
from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Trajectory, Turn

PASS_TOKENS = 16_384
"""Tokens computed at once, padding included: bounds the memory of a pass."""


class Card(BaseModel):
    """What a trained value function is, and what it was trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["turnbench-value/1"] = "turnbench-value/1"
    env: str = Field(description="Environment it was trained for.")
    text: Literal["chat", "report"] = Field(description="How a state is written for the backbone.")
    history: int | None = Field(description="Past rounds that are shown; null for all.")
    max_tokens: int = Field(description="Longest text; older rounds are left out before it is cut.")
    pool: Literal["mean", "last"] = Field(description="Which hidden states the head reads.")
    predicts: Literal["return", "future"] = Field(description="Whole return, or what is still to come.")
    target: str = Field(description="What it was fitted to.")
    beta: float = Field(description="Temperature of a soft target, in units of reward.")
    low: float = Field(description="Return at which the network's output is 0.")
    high: float = Field(description="Return at which the network's output is 1.")
    trained: dict[str, Any] = Field({}, description="Data and quality on held-out tasks.")

    def returns(self, outputs: Tensor) -> Tensor:
        """The network's outputs as returns (or futures), in units of reward."""
        if self.target != "binary":
            return self.low + outputs * (self.high - self.low)
        return self.low + soft_binary(outputs, self.high - self.low, self.beta)


def soft_binary(logits: Tensor, prize: float, beta: float) -> Tensor:
    """beta log E exp(y / beta) for y = prize with probability sigmoid(logits), else 0."""
    won = torch.nn.functional.logsigmoid(logits) + prize / beta
    lost = torch.nn.functional.logsigmoid(-logits)
    return beta * torch.logaddexp(won, lost)


# --- states as tokens -----------------------------------------------------------------------------


class State(NamedTuple):
    """A path as far as it went: its turns, and what is seen now."""

    turns: Sequence[Turn]
    now: str


class Reader:
    """Writes states as token ids: as the conversation that a chat model knows, or as a report."""

    def __init__(
        self, tokenizer: Any, text: Literal["chat", "report"], history: int | None, max_tokens: int
    ) -> None:
        self.tokenizer, self.text, self.history, self.max_tokens = tokenizer, text, history, max_tokens
        if text == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ConfigError("the backbone's tokenizer has no chat template: set `text: report`")

    def ids(self, state: State) -> tuple[int, ...]:
        """The ids of a state; the oldest rounds are left out where it would be too long."""
        shown = len(state.turns) if self.history is None else min(self.history, len(state.turns))
        ids = self._encode(state, shown)
        while len(ids) > self.max_tokens and shown > 0:
            shown = shown // 2
            ids = self._encode(state, shown)
        return ids[-self.max_tokens :]

    def _encode(self, state: State, shown: int) -> tuple[int, ...]:
        if self.text == "report":
            return tuple(self.tokenizer.encode(state_text(*state, shown), verbose=False))
        rows = _conversation(state, shown)
        text = self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _conversation(state: State, shown: int) -> list[dict[str, str]]:
    turns, now = state
    rows = [{"role": "user", "content": turns[0].observation if turns else now}]
    seen = [turn.observation for turn in turns[1:]] + [now]
    for turn, after in list(zip(turns, seen, strict=False))[len(turns) - shown :]:
        rows += [
            {"role": "assistant", "content": turn.action},
            {"role": "user", "content": after},
        ]
    if turns and not shown:
        rows[0]["content"] += f"\n{now}"
    return rows


class Row(NamedTuple):
    """Token ids, and the lengths at which states end in them (more than one if they are nested)."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]


def nested(texts: Sequence[tuple[int, ...]]) -> list[Row]:
    """States of one path, with those of which each is the beginning of the next as a single row."""
    rows: list[Row] = []
    for text in texts:
        if rows and text[: len(rows[-1].ids)] == rows[-1].ids:
            rows[-1] = Row(text, (*rows[-1].ends, len(text)))
        else:
            rows.append(Row(text, (len(text),)))
    return rows


# --- the network ----------------------------------------------------------------------------------


class Regressor(torch.nn.Module):
    """A transformer trunk and a linear head on its pooled last hidden states."""

    def __init__(self, backbone: Any, pool: Literal["mean", "last"]) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        self.head = torch.nn.Linear(backbone.config.get_text_config().hidden_size, 1)
        self.causal = is_causal(backbone)

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """One output a state, shape [sum of the rows' ends], row by row."""
        ids = pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
        lengths = torch.tensor([len(row.ids) for row in rows])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        device = self.head.weight.device
        ids, mask = ids.to(device), mask.to(device)
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        at = torch.tensor(
            [(k, end - 1) for k, row in enumerate(rows) for end in row.ends], device=device
        )
        if self.pool == "mean":
            hidden = (hidden * mask[..., None]).cumsum(1)
        pooled = hidden[at[:, 0], at[:, 1]]
        if self.pool == "mean":
            pooled = pooled / (at[:, 1:] + 1)
        return self.head(pooled)[:, 0]  # type: ignore[no-any-return]

    def shared(self, start: Sequence[int], rests: Sequence[Sequence[int]]) -> Tensor:
        """The same for texts `start + rest`, where `start` is computed once (causal backbones)."""
        device = self.head.weight.device
        cache = DynamicCache(config=self.backbone.config)
        first = self.backbone(input_ids=torch.tensor([start], device=device), past_key_values=cache)
        cache.batch_repeat_interleave(len(rests))
        ids = pad_sequence([torch.tensor(rest) for rest in rests], batch_first=True).to(device)
        lengths = torch.tensor([len(rest) for rest in rests], device=device)
        mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
        whole = torch.cat([mask.new_ones(len(rests), len(start)), mask], 1)
        hidden = self.backbone(
            input_ids=ids, attention_mask=whole, past_key_values=cache
        ).last_hidden_state
        if self.pool == "last":
            return self.head(hidden[torch.arange(len(rests)), lengths - 1])[:, 0]  # type: ignore[no-any-return]
        total = first.last_hidden_state.sum(1) + (hidden * mask[..., None]).sum(1)
        return self.head(total / (len(start) + lengths)[:, None])[:, 0]  # type: ignore[no-any-return]


@torch.inference_mode()
def is_causal(backbone: Any) -> bool:
    """Whether a token's hidden state doesn't depend on what follows (tried out)."""
    training = backbone.training
    backbone.eval()
    pair = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=next(backbone.parameters()).device)
    one, other = backbone(input_ids=pair, attention_mask=torch.ones_like(pair)).last_hidden_state
    backbone.train(training)
    return bool(torch.allclose(one[:3], other[:3], atol=1e-5))


def load_backbone(folder: Path, device: str = "cpu") -> tuple[Any, Any]:
    """(tokenizer, trunk) of a Hugging Face checkpoint. Raises ModelError."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no checkpoint: it holds no config.json")
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a language model's head is left out, which is no news
    try:
        with LOADING:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            trunk = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except Exception as error:
        raise ModelError(f"{folder} can't be loaded: {' '.join(str(error).split())[:300]}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    return tokenizer, trunk.to(device).eval()


def save_value(folder: Path, card: Card, network: Regressor, tokenizer: Any) -> None:
    """Write a value function; the card comes last and makes the folder valid."""
    folder.mkdir(parents=True, exist_ok=True)
    network.backbone.save_pretrained(folder / "backbone")
    tokenizer.save_pretrained(folder / "backbone")
    head = {name: value.detach().cpu().contiguous() for name, value in network.head.state_dict().items()}
    save_file(head, folder / "head.safetensors")
    (folder / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_card(folder: Path) -> Card:
    """The card of a value folder. Raises ConfigError."""
    try:
        return Card.model_validate(json.loads((folder / CARD).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        lines = error.errors() if isinstance(error, ValidationError) else ()
        why = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in lines) or error
        raise ConfigError(f"{folder / CARD} is no card of a value function: {why}") from error


# --- asking ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Passes:
    """What has been computed, for the bill: states asked for, passes, tokens without padding."""

    states: int = 0
    passes: int = 0
    tokens: int = 0


class TrainedValue(Value, TurnScorer):
    """A value function from a folder. Also a scorer of paths, by what it says after each turn."""

    turn = "last"

    def __init__(self, folder: Path) -> None:
        self.card = read_card(folder)
        self.name, self.oracle = str(folder), self.card.predicts == "future"
        self.strip = f"value after the turn, {folder.name} [reward]"
        tokenizer, backbone = load_backbone(folder / "backbone")
        self.reader = Reader(tokenizer, self.card.text, self.card.history, self.card.max_tokens)
        self.network = Regressor(backbone, self.card.pool).eval()
        try:
            self.network.head.load_state_dict(load_file(folder / "head.safetensors"))
        except Exception as error:
            raise ModelError(f"{folder}: the head doesn't fit: {error}") from error
        self.passes = Passes()
        self._merged = Merger(self._compute)

    def check(self, env_id: str) -> None:
        """Raises ConfigError where it was trained for another environment."""
        if env_id != self.card.env:
            raise ConfigError(
                f"the value function in {self.name} was trained for {self.card.env}, not for {env_id}"
            )

    def returns(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Estimates from one pass or a few; the future of an ended path is 0 by definition."""
        return self._returns([(r.ret, r.over, State(r.turns, r.observation)) for r in rollouts])

    def _returns(self, rows: Sequence[tuple[float, bool, State]]) -> list[float]:
        """Estimates from rewards so far, whether a path has ended, and its state."""
        whole = self.card.predicts == "return"
        found = iter(self.estimate([state for _, over, state in rows if whole or not over]))
        if whole:
            return list(found)
        return [ret + (0.0 if over else next(found)) for ret, over, _ in rows]

    def turns(self, paths: Sequence[Trajectory]) -> list[list[float]]:
        """The return expected after each turn. Raises ConfigError for another environment."""
        self._check_all(paths)
        found = iter(self._returns([row for path in paths for row in _after_turns(path)]))
        return [[next(found) for _ in path.turns] for path in paths]

    def score(self, paths: Sequence[Trajectory], rng: np.random.Generator) -> list[float]:
        """The estimated return of each path at its end, which is all that is asked for.

        Raises ConfigError for another environment.
        """
        self._check_all(paths)
        if self.card.predicts == "future":
            raise ConfigError(f"{self.name} predicts the future, which is 0 for a finished path")
        return self.estimate([State(path.turns, path.final) for path in paths])

    def _check_all(self, paths: Sequence[Trajectory]) -> None:
        for env_id in {path.task.env for path in paths}:
            self.check(env_id)

    def estimate(self, states: Sequence[State]) -> list[float]:
        """What the network says of states, in units of reward."""
        return self._merged(list(states)) if states else []

    @torch.inference_mode()
    def _compute(self, states: list[State]) -> list[float]:
        texts = [self.reader.ids(state) for state in states]
        firsts = [state.turns[0].observation if state.turns else state.now for state in states]
        known: dict[tuple[int, ...], float] = {}
        for start, batch in _passes(texts, firsts, self.network.causal):
            known |= zip(batch, self._pass(start, batch), strict=True)
        self.passes.states += len(states)
        return [known[text] for text in texts]

    def _pass(self, start: int, texts: list[tuple[int, ...]]) -> list[float]:
        if start:
            outputs = self.network.shared(texts[0][:start], [text[start:] for text in texts])
        else:
            outputs = self.network([Row(text, (len(text),)) for text in texts])
        self.passes.passes += 1
        self.passes.tokens += start + sum(len(text) - start for text in texts)
        return [float(value) for value in self.card.returns(outputs.double())]


def _after_turns(path: Trajectory) -> Iterator[tuple[float, bool, State]]:
    """A path after each of its turns: the rewards so far, whether it had ended, its state."""
    seen = [*(turn.observation for turn in path.turns[1:]), path.final]
    for k, (_, now) in enumerate(zip(path.turns, seen, strict=False), start=1):
        played = path.turns[:k]
        yield math.fsum(turn.reward for turn in played), k == len(path.turns), State(played, now)


def _passes(
    texts: Sequence[tuple[int, ...]], firsts: Sequence[str], share: bool
) -> list[tuple[int, list[tuple[int, ...]]]]:
    """(tokens computed once, texts) of each pass. Equal texts are computed once; with `share` so is
    what all texts of one episode begin with (`firsts` tells the episodes apart)."""
    groups: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for text, first in zip(texts, firsts, strict=True):
        groups[first].add(text)
    made, single = [], set[tuple[int, ...]]()
    for group in map(sorted, groups.values()):
        start = min(common_prefix(group[0], group[-1]), min(map(len, group)) - 1)
        if share and len(group) > 1 and start > 0:
            made += [(start, batch) for batch in _cut(group)]
        else:
            single |= set(group)
    return made + [(0, batch) for batch in _cut(sorted(single))]


def _cut(texts: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Texts in batches of bounded size, the shortest first, so that little is padding."""
    batches: list[list[tuple[int, ...]]] = []
    for text in sorted(texts, key=len):
        if not batches or len(text) * (len(batches[-1]) + 1) > PASS_TOKENS:
            batches.append([])
        batches[-1].append(text)
    return batches


def trained_value(folder: Path) -> TrainedValue:
    """The value function of a folder, loaded once in a process. Raises ConfigError, ModelError."""
    return shared("value", str(folder), lambda: TrainedValue(folder))
