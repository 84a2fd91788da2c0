"""Value regression: from a model's own rollouts to a value function for AMC (its section 4.3).

Rollouts of a split's tasks are collected (and kept: a run that is started again goes on), each state
gets a target, and a transformer with a linear head is fitted to the text of states, until it gets no
better on held-out tasks. The run folder becomes a valid `value:` of a search agent and `scorer:` of
best-of-N.

Targets, with y the return of the rollout that the state is on:

    mean         E y, by squared error (eq. 7; the paper's, with `best_of_g`)
    best_of_g    the same, from the best rollout of each task alone, as the paper trains
    exponential  squared error weighted by exp(y / beta): E[y exp(y / beta)] / E[exp(y / beta)]
    linex        beta log E exp(y / beta), by the loss exp(d) - d - 1 with d = (y - f) / beta (eq. 5)
    binary       the same from P(success), for worlds that pay all or nothing
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformers.utils import logging

from turnbench.agents import shipped_path
from turnbench.agents.hf import context_of
from turnbench.agents.regression import Card, Reader, Regressor, load_backbone, save_value
from turnbench.agents.values import CARD
from turnbench.algorithms.fitting import Fitted, Fitting, fit
from turnbench.algorithms.rollouts import populations_of, split_tasks
from turnbench.algorithms.settings import checked, claim
from turnbench.algorithms.value_data import (
    Example,
    auroc,
    auroc_within,
    calibration,
    examples,
    pearson,
)
from turnbench.envs.errors import ConfigError

Target = Literal["mean", "best_of_g", "exponential", "linex", "binary"]


class Config(Fitting):
    """Everything that decides what a run of value regression makes."""

    algorithm: Literal["value"] = Field("value", description="Name of the trainer.")
    lora_rank: int = Field(0, ge=0, description="Rank of LoRA adapters (peft); 0 fits all weights.")
    text: Literal["chat", "report"] = Field("chat", description="How a state is written.")
    history: int | None = Field(None, ge=0, description="Past rounds that are shown; null for all.")
    max_tokens: int | None = Field(
        None,
        ge=16,
        description="Longest text of a state; null: the backbone's context. Where states are cut, "
        "those of a rollout can't be learned from in one pass.",
    )
    pool: Literal["mean", "last"] = Field("mean", description="Hidden states that the head reads.")
    predicts: Literal["return", "future"] = Field(
        "return", description="The whole return, or what is still to come (needs rewards at test time)."
    )
    target: Target = Field("mean", description="What the function is fitted to.")
    beta: float = Field(1.0, gt=0, description="Temperature of soft targets, in units of reward.")

    @model_validator(mode="after")
    def _paid_at_the_end(self) -> "Config":
        if self.target == "binary" and self.predicts == "future":
            raise ValueError("the binary target is a return: set predicts to return")
        return self


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Collect, fit and write a value function into the run folder `out`, which it returns.

    Rollouts collected by an interrupted run of the same config are used; the fit, of minutes, starts
    anew. Raises ConfigError, ModelError, LogError.
    """
    settings = read_config(config)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # there is a bar for the run itself
    claim(out, settings, free=Config.free())
    torch.manual_seed(settings.seed)
    return _Run(settings, out, populations_of(settings, out)).run()


def read_config(config: Mapping[str, Any]) -> Config:
    """The checked config. Raises ConfigError that names each wrong field."""
    return checked(Config, config)


# --- losses ---------------------------------------------------------------------------------------


def loss_of(outputs: Tensor, targets: Tensor, target: str, beta: float) -> Tensor:
    """Mean loss of network outputs against returns, both scaled to [0, 1]; `beta` is scaled alike.

    Its minimiser over the law of y given the state is named at the top of this file. For "binary" the
    outputs are logits of y = 1.
    """
    if target == "binary":
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)
    if target == "linex":
        d = (targets - outputs) / beta
        return (torch.exp(d) - d - 1).mean()
    weights = torch.exp((targets - 1) / beta) if target == "exponential" else torch.ones_like(targets)
    return (weights * (outputs - targets).square()).sum() / weights.sum()


class _Run:
    def __init__(self, settings: Config, out: Path, populations: Sequence[Any]) -> None:
        self.settings, self.out = settings, out
        self.tokenizer, trunk = load_backbone(shipped_path(settings.backbone))
        self.network = Regressor(_adapted(trunk, settings), settings.pool)
        limits = (settings.max_tokens, context_of(trunk.config))
        known = [length for length in limits if length is not None]
        longest = min(known, default=1024)
        self.reader = Reader(self.tokenizer, settings.text, settings.history, longest)
        returns = [p.ret for population in populations for p in population.trajectories if not p.missing]
        self.missing = sum(p.missing for population in populations for p in population.trajectories)
        if not returns or (settings.target == "binary" and len(set(returns)) > 2):
            raise ConfigError(
                f"target {settings.target!r} can't be fitted to returns {sorted(set(returns))[:5]}"
            )
        self.low, self.high = _range(returns)
        held = split_tasks([p.best.task for p in populations], settings.held_out, settings.seed)
        self.train_set = self._examples(populations, held, False)
        self.held_set = self._examples(populations, held, True)
        self.rates = sum(r == self.high for r in returns) / len(returns)

    def _examples(self, populations: Sequence[Any], held: set[str], want: bool) -> list[Example]:
        """Training takes the best of each group where that is the target; what is held out is judged on all."""
        return examples(
            [p for p in populations if (p.best.task.id in held) == want],
            self.reader,
            best_only=self.settings.target == "best_of_g" and not want,
            predicts=self.settings.predicts,
            merge=self.network.causal,
        )

    def card(self, **trained: Any) -> Card:
        """The card; the scale of outputs is the range of returns in the rollouts."""
        settings = self.settings
        return Card(
            env=settings.env,
            text=settings.text,
            history=settings.history,
            max_tokens=self.reader.max_tokens,
            pool=settings.pool,
            predicts=settings.predicts,
            target=settings.target,
            beta=settings.beta,
            low=self.low,
            high=self.high,
            trained=trained,
        )

    def run(self) -> Path:
        (self.out / CARD).unlink(missing_ok=True)  # an earlier fit's, which is being replaced
        fitted = fit(
            self.network,
            self.train_set,
            self.settings,
            self.out,
            loss=self._loss,
            tokens=lambda example: len(example.row.ids),
            measure=self.measure,
            better=("pearson",),
        )
        return self._write(fitted)

    def _loss(self, batch: Sequence[Example]) -> Tensor:
        outputs = self.network([example.row for example in batch])
        targets = torch.tensor([y for example in batch for y in example.targets]).to(outputs)
        span = self.high - self.low
        return loss_of(
            outputs, (targets - self.low) / span, self.settings.target, self.settings.beta / span
        )

    @torch.inference_mode()
    def measure(self) -> dict[str, Any]:
        """Quality on the held-out tasks: r, calibration and, for two outcomes, AUROC."""
        self.network.eval()
        card, size = self.card(), self.settings.batch
        batches = [self.held_set[k : k + size] for k in range(0, len(self.held_set), size)]
        outputs = torch.cat([self.network([e.row for e in batch]) for batch in batches])
        actual = np.array([y for e in self.held_set for y in e.targets])
        predicted = card.returns(outputs.double()).cpu().numpy()
        if card.target == "binary":  # judged as a probability; the soft value is a function of it
            predicted = self.low + torch.sigmoid(outputs.double()).cpu().numpy() * (self.high - self.low)
        gap, table = calibration(predicted, actual)
        row: dict[str, Any] = {"pearson": pearson(predicted, actual), "calibration_gap": gap}
        row |= {"mse": float(np.mean((predicted - actual) ** 2)), "calibration": table}
        if len(set(actual.tolist())) == 2:
            won = actual == actual.max()
            where = [(e.task, turn) for e in self.held_set for turn in e.turns]
            row |= {"auroc": auroc(predicted, won), "auroc_within": auroc_within(predicted, won, where)}
        return row

    def _write(self, fitted: Fitted) -> Path:
        quality = self.measure()
        settings = self.settings
        card = self.card(
            split=settings.split,
            rollouts={"share_best_return": self.rates, "missing": self.missing},
            texts={"train": len(self.train_set), "held_out": len(self.held_set)},
            policy=settings.model or str(settings.rollouts),
            backbone=settings.backbone,
            epochs=fitted.epochs,
            kept=fitted.kept,
            held_out=quality,
        )
        if settings.lora_rank:
            self.network.backbone = self.network.backbone.merge_and_unload()
        save_value(self.out, card, self.network, self.tokenizer)
        return self.out


def _adapted(trunk: Any, settings: Config) -> Any:
    """The trunk, with LoRA adapters on all linear layers if so wished (peft)."""
    if not settings.lora_rank:
        return trunk
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("lora_rank needs the package peft: pip install peft") from error
    rank = settings.lora_rank
    return get_peft_model(
        trunk, LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.1, target_modules="all-linear")
    )


def _range(returns: Sequence[float]) -> tuple[float, float]:
    low, high = min(returns), max(returns)
    if low == high:
        raise ConfigError(f"every rollout returned {low:g}: there is nothing to tell apart")
    return low, high
