"""PPO and its kin with a critic: token PPO, turn-level PPO, SAO; MPO (mpo.py) is the same loop.

The way from plain PPO to MPO is one key at a time (docs/mpo.md): `advantage: turn` gives credit at
turn boundaries, `advantage: multiscale` refines it inside each turn, `ratio: turn` reweighs whole
turns.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from turnbench.algorithms import advantages
from turnbench.algorithms.advantages import Boundary
from turnbench.algorithms.batch import Batch
from turnbench.algorithms.common import Common
from turnbench.algorithms.losses import joint_loss, paid, policy_loss, value_loss
from turnbench.algorithms.rl import Run, Said
from turnbench.algorithms.settings import checked


class Ppo(Common):
    """Token PPO (Schulman et al. 2017) as it is usual for language models."""

    algorithm: str = Field("ppo", description="Name of the trainer.")
    advantage: Literal["token", "turn", "multiscale"] = Field(
        "token",
        description="Where credit is given: to tokens, to turns, or to turns and refined inside.",
    )
    gamma_token: float = Field(1.0, gt=0, le=1, description="Discount from token to token.")
    lam_token: float = Field(0.95, ge=0, le=1, description="GAE's lambda from token to token.")
    length_lam: float | None = Field(
        None, gt=0, description="Take lambda = 1 - 1/(length_lam x tokens of the episode) instead (SAO)."
    )
    gamma_turn: float = Field(1.0, gt=0, le=1, description="Discount from turn to turn.")
    lam_turn: float = Field(0.95, ge=0, le=1, description="GAE's lambda from turn to turn.")
    beta: float = Field(0.5, ge=0, description="Weight of the residual inside turns; 0 is turn credit.")
    boundary: Boundary = Field(
        "bootstrap", description="What a turn's last token is compared with inside the turn."
    )
    whiten: Literal["full", "scale", "none"] = Field(
        "full", description="Credit to mean 0 and variance 1 over the step, to variance 1, or as it is."
    )
    critic: Literal["shared", "own"] = Field("shared", description="On the policy's trunk, or its own.")
    critic_lr: float = Field(1e-4, gt=0, description="Learning rate of what only the critic uses.")
    critic_lam: float = Field(1.0, ge=0, le=1, description="Lambda of the critic's targets.")
    critic_warmup: int = Field(0, ge=0, description="First steps in which only the critic learns.")
    critic_steps: int = Field(1, ge=1, description="Critic updates for each update of the policy.")
    value_weight: float = Field(
        0.5, gt=0, description="Weight of the critic's loss in the shared trunk."
    )

    @model_validator(mode="after")
    def _credit_agrees(self) -> Self:
        is_token, refined = self.advantage == "token", self.advantage == "multiscale"
        why = f"advantage is {self.advantage!r}, which doesn't use it"
        self.only_with(refined, ("beta", "boundary"), why)
        self.only_with(is_token, ("length_lam",), why)
        self.only_with(not is_token, ("gamma_turn", "lam_turn"), why)
        self.only_with(is_token or refined, ("gamma_token", "lam_token"), why)
        self.only_with(self.length_lam is None, ("lam_token",), "length_lam takes its place")
        self.only_with(self.critic == "shared", ("value_weight",), "the critic shares nothing")
        self.refuse(
            self.critic_warmup >= self.steps, "critic_warmup", "there are no more steps than that"
        )
        return self


class TurnPpo(Ppo):
    """PPO with a turn as the action: turn GAE and the turn's ratio (as in Turn-PPO, 2512.17008)."""

    algorithm: str = Field("turn_ppo", description="Name of the trainer.")
    advantage: Literal["token", "turn", "multiscale"] = "turn"
    ratio: Literal["token", "turn", "turn_geomean", "sequence"] = "turn"


class Sao(Ppo):
    """One rollout a task, a mask instead of the clip, a critic of its own (SAO, 2607.07508)."""

    algorithm: str = Field("sao", description="Name of the trainer.")
    group: int = Field(1, ge=1, description="Attempts at each task.")
    clip: Literal["ppo", "mask"] = "mask"
    clip_low: float = Field(0.8, gt=0, description="How far below 1 a ratio still counts.")
    clip_high: float = Field(3.0, gt=0, description="How far above 1 a ratio still counts.")
    length_lam: float | None = Field(
        1.5, gt=0, description="lambda = 1 - 1/(length_lam x tokens of the episode); null: lam_token."
    )
    critic: Literal["shared", "own"] = "own"
    critic_steps: int = Field(2, ge=1, description="Critic updates for each update of the policy.")


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Train as `config` says (fields of `Ppo`) in the run folder `out`; returns the model's folder.

    Raises ConfigError, TrainingError.
    """
    return learn(checked(Ppo, config), out)


def train_turn_ppo(config: Mapping[str, Any], out: Path) -> Path:
    """As `train`, with the fields of `TurnPpo`."""
    return learn(checked(TurnPpo, config), out)


def train_sao(config: Mapping[str, Any], out: Path) -> Path:
    """As `train`, with the fields of `Sao`."""
    return learn(checked(Sao, config), out)


def learn(settings: Ppo, out: Path) -> Path:
    """The loop: collect, give credit by the critic, descend; returns the trained model's folder."""
    joint = joint_loss(policy_loss(settings), settings.value_weight)
    with Run(settings, out, settings.critic, settings.critic_lr) as run:
        for step in run.remaining():
            batch = run.lay_out(run.collect())
            said = run.critic_says(batch)
            credit, targets = estimate(settings, batch, said)
            batch = batch.with_extra(credit=credit.float(), targets=targets.float())
            for part in run.minibatches(batch):
                if step >= settings.critic_warmup:
                    run.descend(part, joint)
                for _ in range(settings.critic_steps - (step >= settings.critic_warmup)):
                    run.descend(part, value_loss, which=(1,), policy=False, frozen_trunk=True)
            run.note(**critic_told(batch, said, targets))
            run.finish_step()
        return run.export()


def estimate(settings: Ppo, batch: Batch, said: Said) -> tuple[Tensor, Tensor]:
    """(credit, the critic's targets) of each action token, both [B, N] float64."""
    turns, lam = batch.turns, settings.critic_lam
    args = turns, paid(settings, batch), said.values, said.bootstrap
    if settings.advantage == "token":
        gamma = settings.gamma_token
        credit = advantages.token_gae(*args, gamma=gamma, lam=_lam_token(settings, batch))
        targets = advantages.token_gae(*args, gamma=gamma, lam=lam) + said.values
    else:
        gamma = settings.gamma_turn
        credit = advantages.multiscale(
            *args,
            gamma_turn=gamma,
            lam_turn=settings.lam_turn,
            gamma_token=settings.gamma_token,
            lam_token=settings.lam_token,
            beta=settings.beta if settings.advantage == "multiscale" else 0.0,
            boundary=settings.boundary,
            after=said.after,
        )
        targets = advantages.turn_targets(*args, gamma=gamma, lam=lam)
    if settings.whiten != "none":
        credit = advantages.whiten(credit, turns.mask, centre=settings.whiten == "full")
    return credit, targets * turns.mask


def _lam_token(settings: Ppo, batch: Batch) -> float | Tensor:
    if settings.length_lam is None:
        return settings.lam_token
    count = batch.turns.lengths.double().sum(1, keepdim=True)
    return (1 - 1 / (settings.length_lam * count.clamp(min=1))).clamp(min=0)


def critic_told(batch: Batch, said: Said, targets: Tensor) -> dict[str, float]:
    """How good the critic is, and how much of what it tells apart are turns (papers: eta squared)."""
    share = advantages.between_turn_share(batch.turns, said.values)
    share = share[share.isfinite()]
    told = {
        "explained_variance": float(
            advantages.explained_variance(said.values, targets, batch.turns.mask)
        )
    }
    if len(share):
        told |= {"eta2": float(share.median()), "eta2_above_half": float((share > 0.5).double().mean())}
    return {name: value for name, value in told.items() if value == value}
