"""Supervised fine-tuning: a causal LM learns the assistant's turns of conversations.

The conversations are demonstrations in an environment or lines of a file. The loss is the mean
negative log-likelihood of action tokens (with their end-of-turn token), plus a share of that of
all other tokens, which fades out: predicting what the world says teaches a small model to look up
and copy. A run can be killed at any moment and started again: it ends with the same weights.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config

from turnbench.agents.model import Sampling
from turnbench.agents.react import ReActPolicy
from turnbench.agents.rollout import Rollout, play
from turnbench.algorithms import checkpoint
from turnbench.algorithms.demos import Examples, Source
from turnbench.algorithms.policy import LivePolicy
from turnbench.algorithms.progress import Progress
from turnbench.algorithms.tokenizer import Encoded, encode, train_tokenizer
from turnbench.envs import make
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task

BUCKET = 8  # batches that are drawn together and cut by length, so that little is padding


class NewModel(BaseModel):
    """A model to be trained from scratch, with a tokenizer of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["llama", "qwen3"] = Field("llama", description="Architecture.")
    hidden: int = Field(128, ge=8, description="Width of the residual stream.")
    layers: int = Field(6, ge=1, description="Number of transformer layers.")
    heads: int = Field(4, ge=1, description="Number of attention heads; divides `hidden`.")
    ffn: int = Field(256, ge=8, description="Width of the feed-forward layers.")
    context: int = Field(1024, ge=16, description="Longest conversation, in tokens.")
    vocabulary: int = Field(3000, ge=300, description="Largest number of tokens.")
    text: tuple[Source, ...] = Field(description="Sources whose text the tokenizer is made from.")
    texts: int = Field(3000, ge=1, description="Number of conversations the tokenizer is made from.")

    @model_validator(mode="after")
    def _divides(self) -> "NewModel":
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden ({self.hidden}) must be a multiple of 2 * heads ({2 * self.heads})"
            )
        return self


class Evaluation(BaseModel):
    """What is measured on the way. Nothing here is learned from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source = Field(description="Held-out conversations; episodes are played on its tasks.")
    every: int = Field(200, ge=1, description="Steps between two measurements.")
    examples: int = Field(64, ge=1, description="Conversations for the held-out loss.")
    episodes: int = Field(0, ge=0, description="Episodes for the success rate, at temperature 1.")
    max_tokens: int = Field(32, ge=1, description="Longest action, in tokens.")


class Config(BaseModel):
    """Everything that decides what a run of supervised fine-tuning makes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Literal["sft"] = Field("sft", description="Name of the trainer.")
    checkpoint: Path | None = Field(None, description="Model folder to start from.")
    model: NewModel | None = Field(None, description="Model to train from scratch instead.")
    data: tuple[Source, ...] = Field(description="What to learn from, as a mixture.")
    evaluation: Evaluation | None = Field(None, description="What to measure on the way.")
    steps: int = Field(ge=1, description="Optimizer steps.")
    batch: int = Field(32, ge=1, description="Conversations a step, over all processes.")
    lr: float = Field(3e-3, gt=0, description="Highest learning rate (AdamW).")
    warmup: int = Field(100, ge=0, description="Steps over which the learning rate rises from 0.")
    decay: float = Field(0.5, ge=0, le=1, description="Last part of the run in which it falls to 0.")
    weight_decay: float = Field(0.1, ge=0, description="Decay of matrices.")
    clip: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    other_weight: float = Field(0.0, ge=0, description="Weight of the loss on tokens not of actions.")
    other_end: float = Field(0.7, gt=0, le=1, description="Part of the run in which it fades to 0.")
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

    Where `out` holds a run of the same config, it goes on from its newest checkpoint; `steps` may
    have grown. Raises ConfigError.
    """
    settings = read_config(config)
    _claim(out, settings)
    return _Run(settings, out).run()


def read_config(config: Mapping[str, Any]) -> Config:
    """The checked config. Raises ConfigError that names each wrong field."""
    try:
        return Config.model_validate(dict(config))
    except ValidationError as error:
        lines = [_explain(e["loc"], e["msg"], e["type"]) for e in error.errors()]
        raise ConfigError("; ".join(lines)) from error


def _explain(where: tuple[int | str, ...], message: str, kind: str) -> str:
    place = ".".join(map(str, where)) or "config"
    if kind != "extra_forbidden":
        return f"{place}: {message}"
    owner = {"model": NewModel, "evaluation": Evaluation, "data": Source}.get(str(where[0]), Config)
    if {"source", "text"} & set(where[:-1]):
        owner = Source
    return f"{place}: unknown key; known: {', '.join(sorted(owner.model_fields))}"


def _claim(out: Path, settings: Config) -> None:
    """Mark the run folder as this config's. Raises ConfigError where it is another's."""
    mine = settings.model_dump(mode="json")
    path = out / "config.json"
    out.mkdir(parents=True, exist_ok=True)
    if path.exists():
        theirs = json.loads(path.read_text(encoding="utf-8"))
        differing = [k for k in mine if k != "steps" and mine[k] != theirs.get(k)]
        if differing:
            raise ConfigError(
                f"{out} holds a run with another {', '.join(differing)}: name a new folder"
            )
    checkpoint.write_text(path, json.dumps(mine, indent=2))


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


class _Run:
    def __init__(self, settings: Config, out: Path) -> None:
        self.settings, self.out = settings, out
        self.accelerator = Accelerator(mixed_precision=settings.precision)
        self.examples = Examples(settings.data, settings.seed)
        found = checkpoint.newest(out)
        self.step = checkpoint.step_of(found) if found else 0
        self.raw, self.tokenizer = _start(settings, found)
        self.context = int(self.raw.config.max_position_embeddings)
        learner, optimizer = Learner(self.raw), _optimizer(self.raw, settings)
        if found:
            checkpoint.load_optimizer(found, optimizer)
        self.learner, self.optimizer = self.accelerator.prepare(learner, optimizer)
        self.bucket: tuple[int, list[list[tuple[Encoded, frozenset[int]]]]] = (-1, [])

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
        other = settings.other_weight * max(0.0, 1 - self.step / (settings.other_end * settings.steps))
        ids, weights = collate(rows, other)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share = [t[rank::world].to(self.accelerator.device) for t in (ids, weights)]
        rate = settings.lr * schedule(self.step, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.learner.train()
        with self.accelerator.autocast():
            loss = self.learner(*share) * world
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.learner.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        tokens = sum(len(encoded) for encoded, _ in rows)
        mean = self.accelerator.reduce(loss.detach(), "mean")
        return {
            "loss": float(mean),
            "lr": rate,
            "grad_norm": float(norm),
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
        }

    def rows(self, step: int) -> list[tuple[Encoded, frozenset[int]]]:
        """The examples of a step: a bucket of several batches, sorted by length and cut."""
        number, size = step // BUCKET, self.settings.batch
        if self.bucket[0] != number:
            first, progress = number * BUCKET * size, number * BUCKET / self.settings.steps
            drawn = [self.encoded(first + k, progress) for k in range(BUCKET * size)]
            drawn.sort(key=lambda row: len(row[0]))
            order = np.random.default_rng([self.settings.seed, number]).permutation(BUCKET)
            self.bucket = (number, [drawn[k * size : (k + 1) * size] for k in order])
        return self.bucket[1][step % BUCKET]

    def encoded(self, index: int, progress: float) -> tuple[Encoded, frozenset[int]]:
        told = self.examples.draw(index, progress)
        return encode(self.tokenizer, told.messages).cut(self.context), told.wrong

    def pause(self, bar: Progress) -> None:
        """What is done between two steps: measure and save."""
        last, todo = self.step == self.settings.steps, self.settings.evaluation
        if todo and (last or self.step % todo.every == 0):
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                bar.row(self.step, **evaluate(self.raw, self.tokenizer, todo, self.context))
        if last or self.step % self.settings.save_every == 0:
            self.save()

    def save(self, final: bool = False) -> None:
        """Write a checkpoint; at the end the model alone, in the type it is exported in."""
        self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        if not final:
            checkpoint.save(self.out, self.step, self.raw, self.tokenizer, self.optimizer)
            return
        exported = self.raw.to(getattr(torch, self.settings.export))

        def fill(folder: Path) -> None:
            exported.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        checkpoint.write_folder(self.out / "model", fill)


def _start(settings: Config, found: Path | None) -> tuple[Any, Any]:
    """(model in float32, tokenizer): resumed, loaded or new."""
    folder = found or settings.checkpoint
    if folder is None:
        assert settings.model is not None
        return new_model(settings.model, settings.seed)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"checkpoint {folder} is not a model folder: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"checkpoint {folder} can't be loaded: {error}") from error


def new_model(spec: NewModel, seed: int) -> tuple[Any, Any]:
    """(untrained model, tokenizer). The weights are a function of the seed."""
    told = Examples(spec.text, seed)
    texts = (m.content for k in range(spec.texts) for m in told.draw(k, 0.0).messages)
    tokenizer = train_tokenizer(texts, spec.vocabulary, spec.context)
    make_config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[spec.kind]
    config = make_config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.hidden // spec.heads,
        max_position_embeddings=spec.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config), tokenizer


def _optimizer(model: Any, settings: Config) -> torch.optim.Optimizer:
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), eps=1e-9)


def schedule(step: int, settings: Config) -> float:
    """Share of the highest learning rate at `step`: linear rise, level, linear fall to 0."""
    rise = (step + 1) / (settings.warmup + 1)
    fall = (settings.steps - step) / max(1.0, settings.decay * settings.steps)
    return min(1.0, rise, fall)


def collate(
    rows: list[tuple[Encoded, frozenset[int]]], other_weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
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


def evaluate(model: Any, tokenizer: Any, todo: Evaluation, context: int) -> dict[str, float]:
    """Held-out loss of action tokens (nats a token), and success and mean turns of episodes."""
    told = Examples([todo.source], 0)
    learner = Learner(model).eval()
    rows = []
    for k in range(todo.examples):
        drawn = told.draw(k, 0.0)
        rows.append((encode(tokenizer, drawn.messages).cut(context), drawn.wrong))
    with torch.no_grad():
        parts = [rows[k : k + 32] for k in range(0, len(rows), 32)]
        device = next(model.parameters()).device
        losses = [float(learner(*(t.to(device) for t in collate(part, 0.0)))) for part in parts]
    found = {"held_out_loss": float(np.mean(losses))}
    if todo.episodes and todo.source.env:
        found |= _play(LivePolicy(model, tokenizer, Sampling(max_tokens=todo.max_tokens), context), todo)
    return found


def _play(policy: LivePolicy, todo: Evaluation) -> dict[str, float]:
    source = todo.source
    assert source.env is not None
    env = make(source.env, **source.options)
    known = env.tasks(source.split)
    picked = [known[k * len(known) // todo.episodes % len(known)] for k in range(todo.episodes)]
    rollouts = [
        Rollout.start(env.spawn(), Task(source.env, t, source.split, k), np.random.default_rng(k))
        for k, t in enumerate(picked)
    ]
    play(rollouts, ReActPolicy(policy, instructions=False))
    paths = [rollout.finish() for rollout in rollouts]
    turns = float(np.mean([len(path.turns) for path in paths]))
    return {"success": float(np.mean([path.ret > 0 for path in paths])), "turns": turns}
