"""What one optimizer step is made of: the batch and its weights, the loss, optimizers, learning rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from turnbench.algorithms.demos import Examples
from turnbench.algorithms.muon import Muon
from turnbench.algorithms.tokenizer import Encoded, encode

Row = tuple[Encoded, frozenset[int]]  # a conversation, and which of its turns are wrong


def draw_row(examples: Examples, tokenizer: Any, context: int, index: int, step: int = 0) -> Row:
    """Example `index` in tokens, without what is beyond the context."""
    told = examples.draw(index, step)
    return encode(tokenizer, told.messages).cut(context), told.wrong


class Learner(torch.nn.Module):
    """The loss of a batch; a module, so that several processes can average its gradients."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sum of weighted negative log-likelihoods (nats). `ids`, `weights`: [batch, tokens];
        `weights[i, t]` is that of predicting token t. Padding comes last, with weight 0.
        """
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        wanted = weights[:, 1:] > 0
        logits = self.model.get_output_embeddings()(hidden[wanted]).float()
        losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
        return (losses * weights[:, 1:][wanted]).sum()


def collate(rows: Sequence[Row], other_weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, weights), both [batch, tokens], padded on the right.

    Weights of action tokens add up to 1, those of other tokens to `other_weight`; a wrong action's
    and each first token's are 0.
    """
    ids = pad_sequence([torch.from_numpy(e.ids) for e, _ in rows], batch_first=True)
    turns = [np.where(np.isin(e.turn, list(wrong)), -2, e.turn) for e, wrong in rows]
    turn = pad_sequence([torch.from_numpy(t) for t in turns], batch_first=True, padding_value=-2)
    action, other = (turn >= 0).float(), (turn == -1).float()
    action[:, 0] = other[:, 0] = 0
    return ids, action / action.sum().clamp(min=1) + other_weight * other / other.sum().clamp(min=1)


def make_optimizers(model: Any, kind: str, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters; or "muon" for the matrices of the layers and AdamW for the others.
    Vectors do not decay.
    """
    params = list(model.parameters())
    found: list[torch.optim.Optimizer] = []
    if kind == "muon":
        outer = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        inner = [p for p in params if p.ndim == 2 and id(p) not in outer]
        found.append(Muon(inner, rate, decay))
        params = [p for p in params if p.ndim != 2 or id(p) in outer]
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [*found, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-9)]


def schedule(step: int, steps: int, warmup: int, decay: int) -> float:
    """Share of the highest learning rate at `step`: linear rise, level, linear fall to nearly 0."""
    return min(1.0, (step + 1) / (warmup + 1), (steps - step) / (decay + 1))
