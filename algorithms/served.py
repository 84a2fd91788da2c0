"""Served: a policy that is sampled by a vLLM server, which is given its weights anew before each step.

Token ids go out and come back; conversations are written here, by the tokenizer that is trained with. The
server serves the folder that the policy is saved to, and reads it again when it is told to (docs/vllm.md):

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from turnbench.agents.chat import Chat
from turnbench.agents.hf import context_of, ends_of
from turnbench.agents.model import Answer, Completion, Prompt, Sampling
from turnbench.envs.errors import ModelError
from turnbench.envs.record import Failure, Outcome, Usage

WHOLE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The distribution as it is. What isn't sent, vLLM takes from the folder's generation_config.json."""


class Server(BaseModel):
    """A vLLM server that samples the policy, in developer's mode and with access to a folder of this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="Its address, without /v1.")
    folder: Path = Field(description="The model folder that it serves; the policy is written there.")
    name: str | None = Field(None, description="The name it serves that under; null: the folder.")
    timeout: float = Field(600.0, gt=0, description="Seconds for one answer, or for reading weights.")
    max_in_flight: int = Field(256, ge=1, description="Completions that are asked for at once.")


class ServedModel:
    """A model (agents/model.py) behind a `Server`. `save` writes the policy as it is into the served folder."""

    def __init__(
        self, server: Server, network: Any, tokenizer: Any, sampling: Sampling, save: Callable[[], None]
    ) -> None:
        self.server, self.sampling, self.save = server, sampling, save
        self.name = server.name or str(server.folder)
        self.context_length = context_of(network.config)
        self.chat = Chat(tokenizer, network.config.get_text_config().vocab_size, ends_of(network))
        limits = httpx2.Limits(max_connections=server.max_in_flight)
        self._client = httpx2.Client(base_url=server.url, timeout=server.timeout, limits=limits)
        self._pool = ThreadPoolExecutor(server.max_in_flight)

    def forget(self) -> None:
        """Let the server read the policy as it is now. Raises ModelError where it doesn't."""
        self.save()
        self._order("/collective_rpc", {"method": "reload_weights"})
        # Requests that are still running, given up by someone, would keep what the old weights computed.
        said = self._order("/reset_prefix_cache?reset_running_requests=true", {})
        if said.get("success") is False:
            raise ModelError(
                f"{self.server.url} keeps what the old weights computed (reset_prefix_cache)"
            )

    def _order(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What it answers; older versions answer nothing. Raises ModelError."""
        where = f"{self.server.url}{path}"
        try:
            reply = self._client.post(path, json=body)
        except httpx2.HTTPError as error:
            raise ModelError(f"{where} can't be asked: {error}") from error
        if not reply.is_success:
            why = "start vLLM with VLLM_SERVER_DEV_MODE=1" if reply.status_code == 404 else reply.text
            raise ModelError(f"{where} answers {reply.status_code}: {why[:300]}")
        try:
            said = reply.json()
        except ValueError:
            said = None
        return said if isinstance(said, dict) else {}

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt, in order. Raises ModelError where a prompt can't be written."""
        chosen = sampling or self.sampling
        written = [self.chat.encode(prompt) for prompt in prompts]
        seeds = [prompt.seed for prompt in prompts]
        return list(self._pool.map(self._answer, written, seeds, [chosen] * len(prompts)))

    def _answer(self, ids: tuple[int, ...], seed: int, sampling: Sampling) -> Answer:
        limit = sampling.max_tokens
        if self.context_length is not None:
            limit = min(limit, self.context_length - len(ids))
        if limit < 1:
            return Failure(Outcome.TRUNCATED, f"the prompt has {len(ids)} tokens and leaves no room")
        body = {
            "model": self.name,
            "prompt": ids,
            "seed": seed,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **WHOLE,
            "stop_token_ids": sorted(self.chat.ends),
            "logprobs": 1,
            "return_token_ids": True,
        }
        try:
            reply = self._client.post("/v1/completions", json=body).raise_for_status()
            return self._read(ids, reply.json()["choices"][0])
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            return Failure.of(error, Outcome.INFRA_ERROR)

    def _read(self, prompt: tuple[int, ...], choice: dict[str, Any]) -> Completion:
        """A choice as a completion. Raises ValueError, LookupError or TypeError for what is none."""
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        known = all(0 <= token < self.chat.vocabulary for token in ids)
        if not ids or len(ids) != len(logprobs) or not known:
            raise ValueError(f"{len(ids)} token ids (known: {known}) with {len(logprobs)} log-probs")
        ended = ids[-1] in self.chat.ends
        text = self.chat.text(ids[:-1] if ended else ids)
        usage = Usage(1, len(prompt), 0, len(ids), 0.0)
        return Completion(text, "stop" if ended else "length", usage, prompt, ids, logprobs)

    def close(self) -> None:
        """Close the connections; the server stays."""
        self._pool.shutdown()
        self._client.close()
