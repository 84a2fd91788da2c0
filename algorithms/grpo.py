"""GRPO and its kin without a critic: credit is what an attempt is worth beside others at its task."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from turnbench.algorithms import advantages
from turnbench.algorithms.batch import Batch, Episode
from turnbench.algorithms.common import Common
from turnbench.algorithms.losses import paid, policy_loss
from turnbench.algorithms.objectives import Averaging
from turnbench.algorithms.rl import Run
from turnbench.algorithms.settings import checked


class Grpo(Common):
    """Group-relative policy optimization (Shao et al. 2024)."""

    algorithm: str = Field("grpo", description="Name of the trainer.")
    group: int = Field(8, ge=2, description="Attempts at each task; alone there is nothing to compare.")
    averaging: Averaging = Field("sequence", description="What has equal weight in the loss.")
    scale: bool = Field(True, description="Whether credit is divided by the group's deviation.")
    drop_equal: bool = Field(
        False, description="Whether groups whose returns are all equal are left out."
    )
    rounds: int = Field(1, ge=1, description="Times at most that tasks are drawn to replace these.")
    step_weight: float = Field(0.0, ge=0, description="Weight of credit among turns that saw the same.")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount of a turn's return, for that credit.")

    @model_validator(mode="after")
    def _credit_agrees(self) -> Self:
        self.only_with(self.drop_equal, ("rounds",), "drop_equal is false, so nothing is replaced")
        self.only_with(bool(self.step_weight), ("gamma",), "step_weight is 0")
        return self


class Dapo(Grpo):
    """Wider clip above, equal weight of tokens, groups that teach nothing replaced (2503.14476)."""

    algorithm: str = Field("dapo", description="Name of the trainer.")
    averaging: Averaging = "token"
    clip_high: float = Field(0.28, gt=0, description="How far above 1 a ratio still counts.")
    drop_equal: bool = True
    rounds: int = Field(3, ge=1, description="Times at most that tasks are drawn to replace these.")


class Gspo(Grpo):
    """Whole sequences are reweighed, by the geometric mean of their ratios (2507.18071)."""

    algorithm: str = Field("gspo", description="Name of the trainer.")
    ratio: Literal["token", "turn", "turn_geomean", "sequence"] = "sequence"
    clip_low: float = Field(3e-4, gt=0, description="How far below 1 a ratio still counts.")
    clip_high: float = Field(4e-4, gt=0, description="How far above 1 a ratio still counts.")


class Gigpo(Grpo):
    """Group in group: turns that saw the same are compared too (2505.10978)."""

    algorithm: str = Field("gigpo", description="Name of the trainer.")
    step_weight: float = Field(1.0, ge=0, description="Weight of credit among turns that saw the same.")
    gamma: float = Field(0.95, gt=0, le=1, description="Discount of a turn's return, for that credit.")


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Train as `config` says (fields of `Grpo`) in the run folder `out`; returns the model's folder.

    Raises ConfigError, TrainingError.
    """
    return learn(checked(Grpo, config), out)


def train_dapo(config: Mapping[str, Any], out: Path) -> Path:
    """As `train`, with the fields of `Dapo`."""
    return learn(checked(Dapo, config), out)


def train_gspo(config: Mapping[str, Any], out: Path) -> Path:
    """As `train`, with the fields of `Gspo`."""
    return learn(checked(Gspo, config), out)


def train_gigpo(config: Mapping[str, Any], out: Path) -> Path:
    """As `train`, with the fields of `Gigpo`."""
    return learn(checked(Gigpo, config), out)


def learn(settings: Grpo, out: Path) -> Path:
    """The loop: collect, compare attempts at a task, descend; returns the trained model's folder."""
    loss = policy_loss(settings)
    with Run(settings, out, critic=None) as run:
        for _ in run.remaining():
            batch = run.lay_out(gather(settings, run))
            credit = estimate(settings, batch)
            batch = batch.with_extra(credit=credit.float())
            if credit.any() or settings.kl or settings.entropy:  # else momentum alone would move it
                for part in run.minibatches(batch):
                    run.descend(part, loss)
            run.finish_step()
        return run.export()


def gather(settings: Grpo, run: Run) -> list[Episode]:
    """The step's episodes; with `drop_equal` those of groups that differ, from several rounds if need be.

    Where no group teaches anything, the first round's are given back: their credit is 0.
    """
    first = run.collect()
    if not settings.drop_equal:
        return first
    kept = differing(first)
    for round in range(1, settings.rounds):
        if len({e.group for e in kept}) >= settings.tasks:
            break
        more = differing(run.collect(round))
        kept += [dataclasses.replace(e, group=e.group + round * settings.tasks) for e in more]
    chosen = sorted({e.group for e in kept})[: settings.tasks]
    run.note(groups=len(chosen))
    return [e for e in kept if e.group in chosen] or first


def differing(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes of those groups whose returns are not all equal."""
    returns: dict[int, set[float]] = defaultdict(set)
    for episode in episodes:
        returns[episode.group].add(episode.path.ret)
    return [e for e in episodes if len(returns[e.group]) > 1]


def estimate(settings: Grpo, batch: Batch) -> Tensor:
    """[B, N] float64: the credit of each action token."""
    turns, rewards = batch.turns, paid(settings, batch)
    returns = batch.ret + (rewards - batch.rewards).sum(1)
    credit = advantages.group_relative(returns, batch.group, scale=settings.scale)[:, None] * turns.mask
    if settings.step_weight:
        steps = advantages.turn_group_relative(
            turns, rewards, batch.anchors, gamma=settings.gamma, scale=settings.scale
        )
        credit = credit + settings.step_weight * turns.to_tokens(steps)
    return credit
