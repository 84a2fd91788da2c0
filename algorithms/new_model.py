"""Small causal LMs to be trained from scratch, with a tokenizer made from a game's text."""

import re
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from turnbench.algorithms.demos import Examples, Source
from turnbench.algorithms.tokenizer import train_tokenizer


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

    words: str | None = Field(
        None,
        description="Regular expression of words that are a token each, beyond `vocabulary`, such as product "
        "numbers.",
    )

    @field_validator("words")
    @classmethod
    def _compiles(cls, words: str | None) -> str | None:
        try:
            re.compile(words or "")
        except re.error as error:
            raise ValueError(f"{words!r} is no regular expression: {error}") from error
        return words

    @model_validator(mode="after")
    def _divides(self) -> "NewModel":
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden ({self.hidden}) must be a multiple of 2 * heads ({2 * self.heads})"
            )
        return self


def new_model(spec: NewModel, seed: int) -> tuple[Any, Any]:
    """(untrained model, tokenizer). The weights are a function of the seed."""
    told = Examples(spec.text, seed)
    texts = (m.content for k in range(spec.texts) for m in told.draw(k).messages)
    tokenizer = train_tokenizer(texts, spec.vocabulary, spec.context, spec.words)
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
        return AutoModelForCausalLM.from_config(config), tokenizer  # type: ignore[no-untyped-call]
