"""The keys that every policy-gradient trainer has."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnbench.algorithms.collect import Play, World
from turnbench.algorithms.held_out import Evaluation
from turnbench.algorithms.objectives import Averaging
from turnbench.algorithms.policy import Lora
from turnbench.algorithms.served import Server


class Common(BaseModel):
    """Keys that every policy-gradient trainer has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Model folder to start from, or the name of a shipped one.")
    env: World = Field(description="Environment to learn in.")
    play: Play = Field(Play.model_validate({}), description="How the policy plays.")
    server: Server | None = Field(None, description="vLLM server that plays; null: this process.")
    evaluation: Evaluation | None = Field(None, description="What to measure on the way.")
    steps: int = Field(ge=1, description="Training steps: collect episodes, then learn from them.")
    tasks: int = Field(8, ge=1, description="Tasks drawn for a step.")
    group: int = Field(8, ge=1, description="Attempts at each of them.")
    epochs: int = Field(1, ge=1, description="Times a step's episodes are learned from.")
    minibatches: int = Field(1, ge=1, description="Parts of an epoch, with an optimizer step each.")
    piece_tokens: int = Field(16_384, ge=1, description="Padded tokens that go through at once.")
    lr: float = Field(1e-5, gt=0, description="Learning rate of the policy (AdamW).")
    warmup: int = Field(0, ge=0, description="Steps over which learning rates rise from 0.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of the policy's matrices.")
    max_norm: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    ratio: Literal["token", "turn", "turn_geomean", "sequence"] = Field(
        "token", description="What is reweighed as one: new over old probability, or its n-th root."
    )
    clip: Literal["ppo", "mask"] = Field(
        "ppo", description="ppo clips by the sign of the credit; mask drops tokens on either side (SAO)."
    )
    clip_low: float = Field(0.2, gt=0, description="How far below 1 a ratio still counts.")
    clip_high: float = Field(0.2, gt=0, description="How far above 1 a ratio still counts.")
    dual_clip: float | None = Field(
        None, gt=1, description="Bound on ratios of bad actions (dual clip); null for none."
    )
    averaging: Averaging = Field("token", description="What has equal weight in the loss.")
    bootstrap: bool = Field(
        True, description="Whether a truncated episode goes on in the critic's eyes, or has ended."
    )
    overlong_cache: int = Field(
        0,
        ge=0,
        description="Last tokens of play.max_tokens over which a turn's reward falls by 1 (DAPO).",
    )
    kl: float = Field(0.0, ge=0, description="Price of a nat of KL to the model it started from.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k2", description="k1 is paid as a reward, turn by turn; k2 and k3 are added to the loss."
    )
    entropy: float = Field(0.0, ge=0, description="Reward for a nat of entropy, in the loss.")
    lora: Lora | None = Field(None, description="Adapters instead of full fine-tuning.")
    precision: Literal["no", "bf16"] = Field("no", description="Autocast type; weights stay float32.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations to save memory.")
    save_every: int = Field(20, ge=1, description="Steps between two checkpoints.")
    seed: int = Field(0, ge=0, description="Seed of everything.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self.refuse(
            self.minibatches > self.tasks * self.group, "minibatches", "more than episodes a step"
        )
        self.refuse("kl_estimator" in self.model_fields_set and not self.kl, "kl_estimator", "kl is 0")
        self.refuse(self.clip == "mask" and bool(self.dual_clip), "dual_clip", "clip is 'mask'")
        self.refuse(
            self.overlong_cache > self.play.max_tokens, "overlong_cache", "play.max_tokens is less"
        )
        self.refuse(self.clip_low >= 1, "clip_low", "no ratio is below 0: less than 1 is wanted")
        return self

    def refuse(self, wrong: bool, key: str, why: str) -> None:
        """Raise ValueError for a key that contradicts another."""
        if wrong:
            raise ValueError(f"{key} is {getattr(self, key)!r}, but {why}")

    def only_with(self, allowed: bool, keys: Sequence[str], why: str) -> None:
        """Refuse keys that were set and would have no effect."""
        for key in keys:
            self.refuse(not allowed and key in self.model_fields_set, key, why)
