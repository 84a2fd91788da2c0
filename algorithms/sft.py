"""Supervised fine-tuning: a causal LM learns the assistant's turns of conversations.

The conversations are demonstrations in an environment or lines of a file. The loss is the mean
negative log-likelihood of action tokens (with their end-of-turn token), plus a share of that of
all other tokens, which fades out: predicting what the world says teaches a small model to look up
and copy. A run can be killed at any moment and started again: it ends with the same weights.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, model_validator
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from turnbench.agents import shipped_path
from turnbench.algorithms import checkpoint
from turnbench.algorithms.demos import Examples, Source
from turnbench.algorithms.evaluation import Evaluation, evaluate
from turnbench.algorithms.learner import Learner, Row, collate, draw_row, make_optimizers, schedule
from turnbench.algorithms.new_model import NewModel, new_model
from turnbench.algorithms.progress import Progress
from turnbench.algorithms.settings import checked, claim
from turnbench.envs.errors import ConfigError

FREE = ("steps", "evaluation", "save_every")  # what a run may go on with another value of
BUCKET = 8  # batches that are drawn together and cut by length, so that little is padding


class Config(BaseModel):
    """Everything that decides what a run of supervised fine-tuning makes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Literal["sft"] = Field("sft", description="Name of the trainer.")
    checkpoint: Path | None = Field(
        None, description="Model folder to start from, or a shipped model's name."
    )
    model: NewModel | None = Field(None, description="Model to train from scratch instead.")
    data: tuple[Source, ...] = Field(description="What to learn from, as a mixture.")
    evaluation: Evaluation | None = Field(None, description="What to measure on the way.")
    steps: int = Field(ge=1, description="Optimizer steps.")
    batch: int = Field(32, ge=1, description="Conversations a step, over all processes.")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="Muon moves the matrices of the layers; AdamW the rest, or everything."
    )
    lr: float = Field(3e-3, gt=0, description="Highest learning rate.")
    warmup: int = Field(100, ge=0, description="Steps over which the learning rate rises from 0.")
    decay: int = Field(0, ge=0, description="Last steps, over which it falls to 0.")
    weight_decay: float = Field(0.1, ge=0, description="Decay of matrices.")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    other_weight: float = Field(0.0, ge=0, description="Weight of the loss on tokens not of actions.")
    other_steps: int = Field(1, ge=1, description="Steps over which that weight fades to 0.")
    precision: Literal["no", "bf16"] = Field("no", description="Autocast type; weights stay float32.")
    export: Literal["float32", "bfloat16"] = Field("bfloat16", description="Type of the final weights.")
    save_every: int = Field(200, ge=1, description="Steps between two checkpoints.")
    seed: int = Field(0, ge=0, description="Seed of weights and data.")

    @model_validator(mode="after")
    def _one_start(self) -> "Config":
        if (self.checkpoint is None) == (self.model is None):
            raise ValueError("name either checkpoint (a model folder) or model (a new one)")
        return self


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Train as `config` says (fields of `Config`) in the run folder `out`; returns `out/model`.

    Where `out` holds a run of the same config, it goes on from its newest checkpoint; what is
    measured, how often it is saved and `steps` may differ. Raises ConfigError.
    """
    settings = read_config(config)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # there is a bar for the run itself
    return _Run(settings, out).run()


def read_config(config: Mapping[str, Any]) -> Config:
    """The checked config. Raises ConfigError that names each wrong field."""
    return checked(Config, config)


class _Run:
    def __init__(self, settings: Config, out: Path) -> None:
        self.settings, self.out = settings, out
        self.accelerator = Accelerator(mixed_precision=settings.precision)
        with self.accelerator.main_process_first():
            claim(out, settings, free=FREE)
        self.examples = Examples(settings.data, settings.seed)
        found = checkpoint.newest(out)
        self.step = checkpoint.step_of(found) if found else 0
        self.raw, self.tokenizer = _start(settings, found)
        self.context = int(self.raw.config.max_position_embeddings)
        optimizers = make_optimizers(self.raw, settings.optimizer, settings.lr, settings.weight_decay)
        if found:
            checkpoint.load_optimizers(found, optimizers)
        self.learner, *self.optimizers = self.accelerator.prepare(Learner(self.raw), *optimizers)
        self.bucket: tuple[int, list[list[Row]]] = (-1, [])

    def run(self) -> Path:
        with Progress(self.out, self.step, self.settings.steps, self.accelerator.is_main_process) as bar:
            while self.step < self.settings.steps:
                bar.row(self.step + 1, **self.update())
                self.step += 1
                self.pause(bar)
        self.save(final=True)
        return self.out / "model"

    def update(self) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        started, settings = time.perf_counter(), self.settings
        rows = self.rows(self.step)
        rate = settings.lr * schedule(self.step, settings.steps, settings.warmup, settings.decay)
        other = settings.other_weight * max(0.0, 1 - self.step / settings.other_steps)
        loss, norm = self.descend(rate, *collate(rows, other))
        tokens = sum(len(encoded) for encoded, _ in rows)
        seconds = time.perf_counter() - started
        return {"loss": loss, "lr": rate, "grad_norm": norm, "tokens": tokens, "seconds": seconds}

    def descend(self, rate: float, *batch: torch.Tensor) -> tuple[float, float]:
        """Step down the gradient of a batch, of which each process takes its share: (loss, norm)."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        ids, weights = (t[rank::world].to(self.accelerator.device) for t in batch)
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            group["lr"] = rate
        self.learner.train()
        with self.accelerator.autocast():
            loss = self.learner(ids, weights) * world  # as gradients are averaged over processes
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.learner.parameters(), self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return float(self.accelerator.reduce(loss.detach(), "mean")), float(norm)

    def rows(self, step: int) -> list[Row]:
        """The examples of a step: a bucket of several batches, sorted by length and cut."""
        number, size = step // BUCKET, self.settings.batch
        if self.bucket[0] != number:
            first, begun = number * BUCKET * size, number * BUCKET
            drawn = [self.row(first + k, begun) for k in range(BUCKET * size)]
            drawn.sort(key=lambda row: len(row[0]))
            order = np.random.default_rng([self.settings.seed, number]).permutation(BUCKET)
            self.bucket = (number, [drawn[k * size : (k + 1) * size] for k in order])
        return self.bucket[1][step % BUCKET]

    def row(self, index: int, step: int) -> Row:
        return draw_row(self.examples, self.tokenizer, self.context, index, step)

    def pause(self, bar: Progress) -> None:
        """What is done between two steps: save and measure."""
        last, todo = self.step == self.settings.steps, self.settings.evaluation
        if last or self.step % self.settings.save_every == 0:
            self.save()
        if todo and (last or self.step % todo.every == 0):
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                bar.row(self.step, **evaluate(self.raw, self.tokenizer, todo, self.context))

    def save(self, final: bool = False) -> None:
        """Write a checkpoint; at the end the model alone, in the type it is exported in."""
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        if not final:
            checkpoint.save(self.out, self.step, self.raw, self.tokenizer, self.optimizers)
            return
        exported = self.raw.to(getattr(torch, self.settings.export))

        def fill(folder: Path) -> None:
            exported.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        checkpoint.write_folder(self.out / "model", fill)


def _start(settings: Config, found: Path | None) -> tuple[Any, Any]:
    """(model in float32, tokenizer): resumed, loaded or new."""
    if found is None and settings.model is not None:
        return new_model(settings.model, settings.seed)
    folder = found or shipped_path(str(settings.checkpoint))
    if not (folder / "config.json").is_file():
        raise ConfigError(f"checkpoint {folder} is not a model folder: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"checkpoint {folder} can't be loaded: {error}") from error
