"""Fitting a network to rollouts until it gets no better on held-out tasks: what value regression and reward
models have in common."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from turnbench.algorithms.progress import Progress
from turnbench.algorithms.rollouts import Rollouts
from turnbench.envs.errors import ConfigError

E = TypeVar("E")


class Fitting(Rollouts):
    """How a network is fitted to rollouts."""

    backbone: str = Field("turnbench/tiny", description="Checkpoint folder whose trunk is fitted.")
    epochs: int = Field(5, ge=1, description="Passes over the training examples at most.")
    patience: int = Field(
        2, ge=1, description="Epochs without a better figure on held-out tasks before it stops."
    )
    batch: int = Field(16, ge=1, description="Examples a step.")
    lr: float = Field(3e-4, gt=0, description="Highest learning rate (AdamW).")
    warmup: float = Field(
        0.1, ge=0, le=1, description="Part of all steps in which the rate rises from 0."
    )
    weight_decay: float = Field(0.01, ge=0, description="Decay of weights.")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")


class Fitted(NamedTuple):
    """How many epochs it took, and which one's weights were kept, counted from 1."""

    epochs: int
    kept: int


def fit(
    network: torch.nn.Module,
    examples: Sequence[E],
    settings: Fitting,
    out: Path,
    *,
    loss: Callable[[Sequence[E]], Tensor],
    tokens: Callable[[E], int],
    measure: Callable[[], dict[str, Any]],
    better: Sequence[str],
) -> Fitted:
    """Fit, and leave the network with the weights of its best epoch.

    After each epoch `measure` looks at the held-out tasks; the figures named `better`, the first one first,
    tell which epoch is the best, of equals the later one. Where held-out tasks tell none of them, that is the last.
    Raises ConfigError for a loss that is no number.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay)
    length = math.ceil(len(examples) / settings.batch)
    steps = length * settings.epochs
    best: tuple[float, ...] = ()
    state, kept, epoch = _state(network), 0, 0
    with Progress(out, 0, steps, True) as bar:
        for epoch in range(settings.epochs):
            order = np.random.default_rng([settings.seed, 2, epoch]).permutation(len(examples))
            network.train()
            losses = []
            for number in range(length):
                step = epoch * length + number + 1
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * _schedule(step / (steps + 1), settings.warmup)
                chosen = order[number * settings.batch : (number + 1) * settings.batch]
                batch = [examples[k] for k in chosen]
                started = time.perf_counter()
                losses.append(_descend(loss(batch), trained, optimizer, settings.clip))
                seconds, read = time.perf_counter() - started, sum(map(tokens, batch))
                bar.row(step, loss=losses[-1], tokens=read, seconds=seconds)
            told = measure()
            bar.row(step, epoch=epoch, epoch_loss=float(np.mean(losses)), **told)
            quality = tuple(-math.inf if told[name] is None else told[name] for name in better)
            if quality >= best:
                best, state, kept = quality, _state(network), epoch
            if epoch - kept >= settings.patience:
                break
    network.load_state_dict(state, strict=False)
    return Fitted(epoch + 1, kept + 1)


def _descend(
    loss: Tensor, trained: Sequence[Tensor], optimizer: torch.optim.Optimizer, clip: float
) -> float:
    """One step down a loss, which is returned."""
    if not torch.isfinite(loss):
        raise ConfigError(
            f"the loss is {loss.item()}: lower lr, and where the config has one, raise beta"
        )
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(trained, clip)
    optimizer.step()
    return float(loss.detach())


def _state(network: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of what is trained."""
    wanted = {name for name, value in network.named_parameters() if value.requires_grad}
    return {k: v.detach().clone() for k, v in network.state_dict().items() if k in wanted}


def _schedule(part: float, warmup: float) -> float:
    """Linear rise, then a cosine to 0."""
    if part < warmup:
        return part / warmup
    return 0.5 * (1 + math.cos(math.pi * (part - warmup) / max(1e-9, 1 - warmup)))
