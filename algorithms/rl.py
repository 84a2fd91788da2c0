"""Run: what all policy-gradient trainers share, and what their loops are written with.

A loop reads: collect episodes, collate them, give credit, and descend over minibatches. Several
processes (`accelerate launch`) each play and differentiate their share of the same step: the loss is
that of one process.
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers.utils import logging

from turnbench.agents import shipped_path
from turnbench.agents.hf import HfModel
from turnbench.algorithms import checkpoint, collect, held_out
from turnbench.algorithms.batch import Batch, Episode, collate
from turnbench.algorithms.collect import LEARNABLE, Collector
from turnbench.algorithms.common import Common
from turnbench.algorithms.held_out import Evaluation
from turnbench.algorithms.objectives import token_weights
from turnbench.algorithms.policy import Policy, Reading, load_model, merged, with_adapters
from turnbench.algorithms.progress import Progress
from turnbench.algorithms.served import ServedModel
from turnbench.algorithms.settings import claim
from turnbench.envs.errors import ConfigError, TrainingError

MAX_BATCH = 256  # completions that are decoded at once
Metrics = dict[str, float]
Loss = Callable[[Batch, Reading], tuple[Tensor, dict[str, Tensor]]]


class Said(NamedTuple):
    """The critic's values (float64): before each action token [B, N], after each turn [B, K], and after
    each truncated episode [B]."""

    values: Tensor
    after: Tensor
    bootstrap: Tensor


class Run:
    """A training run in a folder: model, critic, sampler, optimizers, checkpoints, metrics.

    Where the folder holds a run of the same config, it goes on from its newest checkpoint, bit for
    bit on a CPU. Raises ConfigError.
    """

    def __init__(
        self,
        settings: Common,
        out: Path,
        critic: Literal["shared", "own"] | None,
        critic_lr: float = 0.0,
    ) -> None:
        claim(out, settings)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # there is a bar for the run itself
        self.settings, self.out = settings, out
        self.accelerator = Accelerator(mixed_precision=settings.precision)
        self.collector = Collector(settings.env, settings.play, settings.seed)
        found = checkpoint.newest(out)
        self.step = checkpoint.step_of(found) if found else 0
        self.policy, self.tokenizer = self._load(found, critic)
        self.reference = self._load_reference()
        self.optimizers = self._make_optimizers(critic_lr)
        if found:
            self.policy.load_critic(found)
            checkpoint.load_optimizers(found, self.optimizers)
        self.sampler = self._make_sampler()
        main = self.accelerator.is_main_process
        self.progress = Progress(out, self.step, settings.steps, main)
        self.best = self._best_so_far()
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.started = time.perf_counter()

    def _load(self, found: Path | None, critic: Literal["shared", "own"] | None) -> tuple[Policy, Any]:
        settings = self.settings
        start = shipped_path(settings.model)
        model, tokenizer = load_model(found if found and not settings.lora else start)
        if settings.lora:
            model = with_adapters(model, settings.lora, settings.seed, found)
        policy = Policy(model, critic, settings.play.temperature).to(self.accelerator.device)
        if settings.gradient_checkpointing:
            policy.checkpoint_gradients()
        return policy.eval(), tokenizer

    def _make_sampler(self) -> HfModel | ServedModel:
        model, tokenizer, sampling = self.policy.model, self.tokenizer, self.settings.play.sampling
        if server := self.settings.server:
            if self.accelerator.num_processes > 1:
                raise ConfigError("server: it is told of new weights by a single process; start one")
            return ServedModel(server, model, tokenizer, sampling, lambda: self._export(server.folder))
        return HfModel.of(model, tokenizer, sampling=sampling, max_batch=MAX_BATCH)

    def _load_reference(self) -> Policy | None:
        if not self.settings.kl or self.settings.lora:
            return None
        model, _ = load_model(shipped_path(self.settings.model))
        reference = Policy(model, None, self.settings.play.temperature)
        return reference.to(self.accelerator.device).eval().requires_grad_(False)

    def _make_optimizers(self, critic_lr: float) -> list[torch.optim.Optimizer]:
        settings = self.settings
        own = [p for p in self.policy.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in own if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0},
        ]
        made: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95))
        ]
        if critic := list(self.policy.critic_parameters):
            made.append(torch.optim.AdamW(critic, lr=critic_lr, betas=(0.9, 0.95), weight_decay=0.0))
        self.rates = [settings.lr, critic_lr][: len(made)]
        return made

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)
        self.sampler.close()
        self.collector.close()

    # --- a step, in the order of a loop --------------------------------------------------------

    def remaining(self) -> Iterator[int]:
        """The steps still to be done; sets the learning rates of each."""
        while self.step < self.settings.steps:
            self.metrics.clear()
            self.started = time.perf_counter()
            rise = min(1.0, (self.step + 1) / (self.settings.warmup + 1))
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate * rise
            yield self.step

    def collect(self, round: int = 0) -> list[Episode]:
        """The step's episodes that can be learned from, those of all processes. Raises TrainingError."""
        settings, accelerator = self.settings, self.accelerator
        share = (accelerator.process_index, accelerator.num_processes)
        at = (self.step, round)
        self.sampler.forget()
        played = self.collector.collect(self.sampler, at, settings.tasks, settings.group, share)
        if share[1] > 1:
            rows = gather_object([collect.to_json(e) for e in played])
            played = sorted(map(collect.from_json, rows), key=lambda e: e.group)
        kept = [e for e in played if e.path.outcome in LEARNABLE]
        if not kept:
            why = played[0].path.failure
            raise TrainingError(
                f"step {self.step + 1}: every episode failed, the first by: {why}. {self.stand}"
            )
        self.note(failed=len(played) - len(kept), **_told(kept))
        self.note(collect_seconds=time.perf_counter() - self.started)
        return kept

    def critic_says(self, batch: Batch) -> Said:
        """The critic's values as they are now."""
        found = [
            torch.zeros(s, dtype=torch.float64, device=self.accelerator.device) for s in _shapes(batch)
        ]
        for chosen, piece, reading in self._read(batch, policy=False):
            assert reading.said is not None
            said = reading.said.double()
            for into, part in zip(
                found, (piece.before(said), piece.after_turns(said), piece.bootstrap(said)), strict=True
            ):
                into[chosen] = part
        return Said(*(self.accelerator.reduce(tensor, "sum") for tensor in found))

    def lay_out(self, episodes: Sequence[Episode]) -> Batch:
        """The episodes as a batch on the device, with the reference's log-probs where KL has a price."""
        settings = self.settings
        batch = collate(episodes, bootstrap=settings.bootstrap).to(self.accelerator.device)
        if settings.play.temperature != 1 or settings.server:
            # What was kept of the sampling are log-probs at 1, and a server's are rounded otherwise.
            said = self._policy_says(batch, self.policy)
            if settings.server and settings.play.temperature == 1:
                self.note(served_gap=float((said - batch.old).abs()[batch.turns.mask].mean()))
            batch = dataclasses.replace(batch, old=said)
        if settings.kl:
            batch = batch.with_extra(reference=self.reference_says(batch))
        return batch

    def reference_says(self, batch: Batch) -> Tensor:
        """[B, N]: log-probs (nats) of the action tokens under the frozen reference."""
        adapters = self.policy.model.disable_adapter if self.settings.lora else nullcontext
        with adapters():
            return self._policy_says(batch, self.reference or self.policy)

    def _policy_says(self, batch: Batch, network: Policy) -> Tensor:
        found = torch.zeros(batch.old.shape, device=self.accelerator.device)
        for chosen, _, reading in self._read(batch, network, critic=False):
            assert reading.logprobs is not None
            found[chosen] = reading.logprobs.float()
        return self.accelerator.reduce(found, "sum")  # type: ignore[no-any-return]

    @torch.no_grad()
    def _read(
        self, batch: Batch, network: Policy | None = None, **what: bool
    ) -> Iterator[tuple[Tensor, Batch, Reading]]:
        numbers = torch.arange(len(batch), device=batch.ids.device)
        for piece in self._mine(batch.with_extra(numbers=numbers)).pieces(self.settings.piece_tokens):
            with self.accelerator.autocast():
                yield piece.extra["numbers"], piece, (network or self.policy).read(piece, **what)

    def _mine(self, batch: Batch) -> Batch:
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return batch if world == 1 else batch.take(range(rank, len(batch), world))

    def minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Each epoch's parts, with the weight of each token in the loss as `weight` [B, N]."""
        settings = self.settings
        for epoch in range(settings.epochs):
            order = np.random.default_rng([settings.seed, self.step, epoch]).permutation(len(batch))
            for chosen in np.array_split(order, min(settings.minibatches, len(batch))):
                part = batch.take(sorted(chosen.tolist()))
                yield part.with_extra(weight=token_weights(part.turns, over=settings.averaging))

    def descend(self, part: Batch, loss: Loss, which: Sequence[int] = (0, 1), **what: bool) -> None:
        """One step of the optimizers `which` (0 the policy's, 1 the critic's) down the sum of `loss` over
        the pieces of a minibatch. Raises TrainingError where that isn't a finite number."""
        optimizers = [self.optimizers[k] for k in which if k < len(self.optimizers)]
        totals: dict[str, Tensor] = {}
        self.policy.train()
        for piece in self._mine(part).pieces(self.settings.piece_tokens):
            with self.accelerator.autocast():
                reading = self.policy.read(piece, **what)
            value, told = loss(piece, reading)
            self.accelerator.backward(value)
            for name, number in (told | {"loss": value}).items():
                totals[name] = totals.get(name, 0) + number.detach().double()
        self.policy.eval()
        self._share_gradients(optimizers)
        for optimizer in optimizers:
            self._step(optimizer, totals)
        self.policy.zero_grad(set_to_none=True)
        self._note_totals(totals)

    def _step(self, optimizer: torch.optim.Optimizer, totals: dict[str, Tensor]) -> None:
        norm = nn.utils.clip_grad_norm_(_parameters(optimizer), self.settings.max_norm)
        if not torch.isfinite(norm):
            told = ", ".join(f"{name} {float(value):g}" for name, value in totals.items())
            raise TrainingError(
                f"step {self.step + 1}, update {len(self.metrics['grad_norm']) + 1}: the gradient's norm is "
                f"{float(norm)} ({told}). {self.stand}"
            )
        optimizer.step()
        self.note(
            **{"grad_norm" if optimizer is self.optimizers[0] else "critic_grad_norm": float(norm)}
        )

    def _share_gradients(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Add up the gradients of all processes."""
        if self.accelerator.num_processes == 1:
            return
        parameters = [p for optimizer in optimizers for p in _parameters(optimizer)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self.accelerator.reduce(torch.cat([part.flatten() for part in parts]), "sum")
        sizes = [p.numel() for p in parameters]
        for p, grad in zip(parameters, flat.split(sizes), strict=True):
            p.grad = grad.view_as(p)

    def _note_totals(self, totals: dict[str, Tensor]) -> None:
        several = self.accelerator.num_processes > 1
        names = sorted({*(gather_object(sorted(totals)) if several else totals)})
        zero = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        if names:
            whole = torch.stack([totals.get(name, zero) for name in names])
            whole = self.accelerator.reduce(whole, "sum")
            self.note(**dict(zip(names, whole.tolist(), strict=True)))

    def note(self, **values: float) -> None:
        """Numbers about this step; its row has the mean of those of one name."""
        for name, value in values.items():
            self.metrics[name].append(float(value))

    def finish_step(self) -> None:
        """Write the step's row; evaluate and save where it is time to."""
        settings = self.settings
        self.note(
            seconds=time.perf_counter() - self.started, lr=self.optimizers[0].param_groups[0]["lr"]
        )
        self.step += 1
        self.progress.row(self.step, **{name: float(np.mean(v)) for name, v in self.metrics.items()})
        last = self.step == settings.steps
        if settings.evaluation and (last or self.step % settings.evaluation.every == 0):
            self._evaluate(settings.evaluation)
        if last or self.step % settings.save_every == 0:
            self.save()

    def _evaluate(self, how: Evaluation) -> None:
        self.sampler.forget()
        found = self._measure(how, self.sampler)
        self.progress.row(self.step, **{f"held_out_{name}": value for name, value in found.items()})
        reward = found.get("reward")
        if reward is not None and (self.best is None or reward > self.best):
            self.best = reward
            self._export(self.out / "best")

    def _measure(self, how: Evaluation, model: HfModel | ServedModel, *, final: bool = False) -> Metrics:
        return held_out.measure(how, self.collector, model, self.accelerator, final=final)

    def _best_so_far(self) -> float | None:
        rows = self.progress.rows()
        return max((r["held_out_reward"] for r in rows if "held_out_reward" in r), default=None)

    def save(self) -> None:
        """Write a checkpoint, from which the run can go on."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            checkpoint.save(
                self.out,
                self.step,
                self.policy.model,
                self.tokenizer,
                self.optimizers,
                self.policy.save_critic,
            )

    def export(self) -> Path:
        """Write the trained model into `out/model`, a folder that a suite can name; measure it and the best."""
        self._export(self.out / "model")
        if self.settings.evaluation:
            self._report(self.settings.evaluation)
        return self.out / "model"

    def _report(self, how: Evaluation) -> None:
        """A row about the last model and the best, on episodes that picked neither."""
        if any("last_reward" in row and row["step"] == self.step for row in self.progress.rows()):
            return
        self.accelerator.wait_for_everyone()
        row: Metrics = {}
        for name, folder in (("last", self.out / "model"), ("best", self.out / "best")):
            if folder.is_dir():
                found = self._measure_folder(how, folder)
                row |= {f"{name}_{key}": value for key, value in found.items()}
                self.progress.say(f"{name} model: {', '.join(f'{k} {v:.3g}' for k, v in found.items())}")
        self.progress.row(self.step, **row)

    def _measure_folder(self, how: Evaluation, folder: Path) -> Metrics:
        network, tokenizer = load_model(folder)
        network = network.to(self.accelerator.device).eval()
        sampling = self.settings.play.sampling
        with closing(HfModel.of(network, tokenizer, sampling=sampling, max_batch=MAX_BATCH)) as model:
            return self._measure(how, model, final=True)

    def _export(self, target: Path) -> None:
        def fill(folder: Path) -> None:
            merged(self.policy.model).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        if self.accelerator.is_main_process:
            checkpoint.write_folder(target, fill)

    @property
    def stand(self) -> str:
        """Where the last good checkpoint is."""
        found = checkpoint.newest(self.out)
        return f"The last good checkpoint is {found}" if found else "There is no checkpoint yet"


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _shapes(batch: Batch) -> tuple[tuple[int, ...], ...]:
    return tuple(batch.old.shape), tuple(batch.rewards.shape), (len(batch),)


def _told(episodes: Sequence[Episode]) -> Metrics:
    """What a step's episodes were like, on average."""
    paths = [e.path for e in episodes]
    judged = [p.success for p in paths if p.success is not None]
    told = {
        "reward": float(np.mean([p.ret for p in paths])),
        "turns": float(np.mean([len(p.turns) for p in paths])),
        "truncated": float(np.mean([p.outcome == "truncated" for p in paths])),
        "env_steps": float(sum(len(p.turns) for p in paths)),
        "tokens": float(sum(len(t.tokens.ids) for p in paths for t in p.turns if t.tokens)),
    }
    return told | ({"success": float(np.mean(judged))} if judged else {})
