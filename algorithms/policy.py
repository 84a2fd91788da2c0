"""Policy: a causal language model under training, its critic, and its frozen reference."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnbench.algorithms.batch import Batch
from turnbench.envs.errors import ConfigError

CRITIC = "critic.safetensors"


class Lora(BaseModel):
    """Low-rank adapters instead of full fine-tuning (Hu et al. 2022; needs the package peft)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(8, ge=1, description="Rank of the adapters.")
    alpha: int = Field(16, ge=1, description="Scale of the adapters, divided by the rank.")
    targets: tuple[str, ...] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the modules that get one."
    )


class Reading(NamedTuple):
    """What the networks say of a batch.

    `logprobs`, `entropy` [B, N] of action tokens, in nats; `said` [R, T], the critic's value after each
    token. Each is None where it wasn't asked for.
    """

    logprobs: Tensor | None
    entropy: Tensor | None
    said: Tensor | None


class Policy(nn.Module):
    """A language model with a value head, which stands on its trunk or on a trunk of its own.

    `critic` "shared" puts a linear head on the policy's last hidden states, "own" gives it a copy of
    the trunk, None leaves it out. The head begins at 0. Logits are computed for action tokens only, and
    divided by the temperature.
    """

    def __init__(
        self, model: Any, critic: Literal["shared", "own"] | None, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature
        self.trunk: Any = copy.deepcopy(_trunk(model)) if critic == "own" else None
        self.head = _zero_head(model) if critic else None
        module: Any
        for module in self.modules():  # noise between sampling and learning would look like a new policy
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0

    def checkpoint_gradients(self) -> None:
        """Recompute activations in the backward pass instead of keeping them."""
        for network in (self.model, self.trunk):
            if network is not None:
                network.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that only the critic uses."""
        for part in (self.trunk, self.head):
            if part is not None:
                yield from part.parameters()

    def read(
        self, batch: Batch, *, policy: bool = True, critic: bool = True, frozen_trunk: bool = False
    ) -> Reading:
        """What the networks say of the batch.

        With `frozen_trunk` the value's gradient stops at the trunk that it shares with the policy.
        """
        shared = critic and self.head is not None and self.trunk is None
        hidden = self._hidden(_trunk(self.model), batch) if policy or shared else None
        logprobs, entropy = self._actions(hidden, batch) if policy else (None, None)
        if not critic or self.head is None:
            return Reading(logprobs, entropy, None)
        if self.trunk is not None:
            hidden = self._hidden(self.trunk, batch)
        assert hidden is not None
        features = hidden.detach() if frozen_trunk and shared else hidden
        with torch.autocast(features.device.type, enabled=False):
            return Reading(logprobs, entropy, self.head(features.float())[..., 0])

    def _hidden(self, trunk: Any, batch: Batch) -> Tensor:
        # What stands behind a causal network's token doesn't reach it: padding needs no mask.
        return trunk(input_ids=batch.ids, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def _actions(self, hidden: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor]:
        assert hidden is not None
        logits = self.model.get_output_embeddings()(hidden[:, :-1][batch.acts[:, 1:]]).float()
        logs = (logits / self.temperature).log_softmax(-1)
        chosen = logs.gather(1, batch.ids[:, 1:][batch.acts[:, 1:]][:, None])[:, 0]
        return batch.compact(chosen), batch.compact(_entropy(logs))

    def save_critic(self, folder: Path) -> None:
        """Write the critic's weights."""
        state = {
            f"{part}.{name}": value.contiguous()
            for part in ("trunk", "head")
            if getattr(self, part) is not None
            for name, value in getattr(self, part).state_dict().items()
        }
        if state:
            save_file(state, folder / CRITIC)

    def load_critic(self, folder: Path) -> None:
        """Read what `save_critic` wrote."""
        if self.head is not None:
            missing, unknown = self.load_state_dict(load_file(folder / CRITIC), strict=False)
            lacking = [name for name in missing if not name.startswith("model.")]
            if lacking or unknown:
                raise ConfigError(f"{folder / CRITIC} belongs to another critic")


def _entropy(logs: Tensor) -> Tensor:
    return -(logs.exp() * logs).sum(-1)


def _trunk(model: Any) -> Any:
    """The transformer without its output layer; with adapters in it where there are some."""
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    return inner.base_model


def _zero_head(model: Any) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):  # its weights are drawn before they are set to 0
        head = nn.Linear(model.config.get_text_config().hidden_size, 1)
    for p in head.parameters():
        nn.init.zeros_(p)
    return head


def load_model(folder: Path) -> tuple[Any, Any]:
    """(causal LM in float32, tokenizer) of a folder. Raises ConfigError."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model {folder} is not a model folder: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {folder} can't be loaded: {error}") from error
    words, known = len(tokenizer), int(model.config.get_text_config().vocab_size)
    if words > known:
        raise ConfigError(
            f"model {folder}: the tokenizer has {words} tokens and the network only {known}"
        )
    return model, tokenizer


def with_adapters(model: Any, lora: Lora, seed: int, found: Path | None) -> Any:
    """The model with fresh adapters, or those of the checkpoint `found`. Raises ConfigError."""
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError as error:
        raise ConfigError("lora needs the package peft: pip install 'turnbench[train]'") from error
    if found:
        return PeftModel.from_pretrained(model, found, is_trainable=True)
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merged(model: Any) -> Any:
    """A plain model with the adapters, if there are any, worked into its weights."""
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "peft_config") else model
