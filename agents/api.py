"""Models behind any server that speaks OpenAI's chat completions."""

import asyncio
import json
import random
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx2
import openai

from turnbench.agents.cache import ResponseCache
from turnbench.agents.loop import BackgroundLoop
from turnbench.agents.model import Answer, Completion, Prompt, Sampling
from turnbench.agents.prices import load_prices
from turnbench.agents.replies import (
    Raw,
    Refused,
    Retry,
    read_answer,
    read_error,
    spent,
    split_choices,
    with_bill,
)
from turnbench.agents.retry import pause, reason
from turnbench.agents.servers import server_address, server_key
from turnbench.agents.tools import conversation_key, message_row
from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Failure, Json, Outcome, Usage

NEWER_LIMIT = "max_completion_tokens"
ADVICE = {
    "logprobs": "set logprobs: false, or use a server that gives them",
    "tools": "set native_tools: false",
}
RESERVED = ("messages", "model", "n", "stream")
SECRET_LENGTH = 8


class ApiModel:
    """`model` at an OpenAI-compatible server, asked over one background event loop.

    `base_url`: the server's address, up to and with its /v1; else $OPENAI_BASE_URL, else OpenAI's.
    `api_key_env`: the environment variable that holds the key; a server of your own needs none.
    `timeout`: seconds for one prompt's answer, all tries and pauses included (not the wait for a
    place among the `max_in_flight` calls).
    `max_retries`: further tries after trouble that may pass, with growing pauses.
    `logprobs`: ask for the log-probs of sampled tokens, at temperature 1 as servers give them. With
    `extra: {return_token_ids: true}` vLLM adds the token ids.
    `prices`: a YAML price table instead of the one that comes along.
    `cache`: a folder; answers found there are not asked for again (agents/cache.py). They count as
    model calls with their tokens, cost nothing, and are counted as `cache_hits`.
    `share`: ask for the samples of one conversation (all particles of a search at its start, copies
    after a resampling) in one call with `n`, so that their prompt is paid for once. Only the first
    sample's seed is sent then. A server that answers once all the same is asked one by one.
    `native_tools`: send a world's tools as tools; False, for servers without, puts them into the prompt.
    `extra`: further fields of the request, such as reasoning_effort. A field set to null is not
    sent: `{temperature: null}` for a model that accepts no temperature.

    Models that think before they answer spend `max_tokens` on that too: give them thousands.
    `max_completion_tokens` is sent instead of `max_tokens` once the server asks for it.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        sampling: Sampling = Sampling(),
        base_url: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        max_retries: int = 5,
        max_in_flight: int = 64,
        logprobs: bool = False,
        prices: str | None = None,
        cache: str | None = None,
        share: bool = False,
        native_tools: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not (timeout > 0 and max_retries >= 0 and max_in_flight >= 1):
            raise ConfigError("timeout > 0, max_retries >= 0 and max_in_flight >= 1 wanted")
        self.model, self.name, self.sampling = model, name or model, sampling
        self.endpoint = server_address(base_url)
        self.timeout, self.max_retries, self.logprobs = timeout, max_retries, logprobs
        self.share, self.native_tools, self.extra = share, native_tools, _extra(extra or {})
        self.price = load_prices(prices).get(model)
        self._key_env, self._key = api_key_env, server_key(api_key_env, self.endpoint)
        self._limit = "max_tokens"
        self._slots = asyncio.Semaphore(max_in_flight)
        self._jitter = random.Random()
        self._warned = self._closed = False
        self._batches: set[asyncio.Task[Any] | None] = set()
        self._lock = threading.Lock()
        self._client = _client(max_in_flight)
        self._url = httpx2.URL(f"{self.endpoint}/chat/completions")
        bearer = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self._headers = {"content-type": "application/json"} | bearer
        self._cache = None if cache is None else ResponseCache(cache)
        self._loop = BackgroundLoop.acquire()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt, in order; may be called from many threads.

        Raises ModelError for what concerns every call: key, quota, model name, address, a field
        that the server doesn't accept, or a model that was closed meanwhile.
        """
        self._refuse_if_closed()
        chosen = sampling or self.sampling
        found: list[Answer | None] = [self._look_up(prompt, chosen) for prompt in prompts]
        missing = [prompt for prompt, answer in zip(prompts, found, strict=True) if answer is None]
        fresh = iter(self._wait_for(missing, chosen) if missing else ())
        return [next(fresh) if answer is None else answer for answer in found]

    def explain(self, prompt: Prompt, sampling: Sampling | None = None) -> str:
        """Why the cache does or doesn't have an answer to `prompt`."""
        if self._cache is None:
            return "this model has no cache"
        return self._cache.explain(self._request(prompt, sampling or self.sampling))

    def close(self) -> None:
        """Give up what is in flight and release connections, cache and, as the last, the loop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            shut = self._loop.submit(self._shut())
        shut.result()
        BackgroundLoop.release()
        if self._cache is not None:
            self._cache.close()

    # --- on the caller's thread ------------------------------------------------------------------

    def _wait_for(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answer]:
        with self._lock:
            self._refuse_if_closed()
            future = self._loop.submit(self._answer_all(prompts, sampling))
        with suppress(CancelledError):  # an error raised in a handler would drag that one along
            try:
                return future.result()
            finally:  # Ctrl-C ends the calls too
                future.cancel()
        raise ModelError(f"model {self.name} was closed while it was asked")

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ModelError(f"model {self.name} is closed")

    def _look_up(self, prompt: Prompt, sampling: Sampling) -> Completion | None:
        text = self._cache.get(self._request(prompt, sampling)) if self._cache else None
        if text is None:
            return None
        found = read_answer(text, self.logprobs, self.price, bool(prompt.tools))
        if not isinstance(found, Completion):
            warnings.warn(f"response cache: an entry holds no answer: {found}", stacklevel=3)
            return None
        return replace(found, usage=replace(found.usage, cost=0.0, cache_hits=1))

    def _request(self, prompt: Prompt, sampling: Sampling) -> Json:
        """All that decides the answer: the cache's key."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            **conversation_key(prompt),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop),
            "seed": prompt.seed,
            "logprobs": self.logprobs,
            "extra": self.extra,
        }

    # --- on the loop -----------------------------------------------------------------------------

    async def _answer_all(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answer]:
        """All answers: one call a prompt, or a conversation where samples share calls."""
        batch = asyncio.current_task()
        self._batches.add(batch)
        groups = _groups(prompts, self.share)
        calls = [asyncio.ensure_future(self._answer([prompts[k] for k in g], sampling)) for g in groups]
        try:
            answers = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            self._batches.discard(batch)
        pairs = zip(groups, answers, strict=True)
        placed = {k: answer for g, found in pairs for k, answer in zip(g, found, strict=True)}
        return [placed[k] for k in range(len(prompts))]

    async def _answer(self, group: Sequence[Prompt], sampling: Sampling) -> list[Answer]:
        """The samples of one conversation."""
        async with self._slots:
            reply = await self._insist(group, sampling)
        if isinstance(reply, Refused):
            raise ModelError(self._advice(reply))
        if isinstance(reply, Failure):
            return [reply, *[replace(reply, usage=None)] * (len(group) - 1)]
        if len(reply) == len(group):
            return reply
        self.share = False  # the server took no notice of `n`
        rest = [await self._answer([prompt], sampling) for prompt in group[len(reply) :]]
        return [*reply, *(answer for (answer,) in rest)]

    async def _insist(
        self, group: Sequence[Prompt], sampling: Sampling
    ) -> list[Answer] | Failure | Refused:
        """Ask until the reply is final, or no try or no time is left. Its first answer is billed for
        the tries that came to nothing.
        """
        deadline, tries, lost = time.monotonic() + self.timeout, 0, Usage()
        while True:
            reply = await self._ask(group, sampling, deadline)
            if isinstance(reply, list):
                return [with_bill(reply[0], lost), *reply[1:]]
            if not isinstance(reply, Retry):
                return reply if isinstance(reply, Refused) else with_bill(reply, lost)
            lost += reply.spent
            wait = pause(tries, reply.after, self._jitter)
            tries += 1
            if tries > self.max_retries or time.monotonic() + wait > deadline:
                tried = f"(try {tries} of {self.max_retries + 1})"
                return with_bill(Failure(Outcome.INFRA_ERROR, f"{reply.cause} {tried}"), lost)
            await asyncio.sleep(wait)

    async def _ask(
        self, group: Sequence[Prompt], sampling: Sampling, deadline: float
    ) -> list[Answer] | Failure | Retry | Refused:
        """One try; a second request where the server wants the length limit by its newer name."""
        reply = await self._once(group, sampling, deadline)
        if isinstance(reply, Refused) and reply.field == "max_tokens" and NEWER_LIMIT in reply.cause:
            self._limit = NEWER_LIMIT
            return await self._once(group, sampling, deadline)
        return reply

    async def _once(
        self, group: Sequence[Prompt], sampling: Sampling, deadline: float
    ) -> list[Answer] | Failure | Retry | Refused:
        """As many answers as the server gave, at most one a prompt; or what went wrong with all."""
        body = self._body(group[0], sampling) | ({"n": len(group)} if len(group) > 1 else {})
        raw = await self._post(body, deadline)
        if isinstance(raw, Retry):
            return raw
        if raw.status >= 300:
            return self._redacted(read_error(raw, body.keys() - {"model", "messages"}))
        answers: list[Answer] = []
        for prompt, text in zip(group, split_choices(raw.text, len(group)), strict=False):
            reply = read_answer(text, self.logprobs, self.price, bool(prompt.tools))
            if isinstance(reply, Retry):
                reply = replace(reply, spent=spent(raw.text, self.price))
            if isinstance(reply, Retry | Refused):
                return self._redacted(reply)
            answers.append(self._kept(prompt, sampling, reply, text))
        return answers

    def _kept(
        self, prompt: Prompt, sampling: Sampling, reply: Completion | Failure, text: str
    ) -> Answer:
        if isinstance(reply, Failure):
            return replace(reply, message=self._redact(reply.message))
        if self._cache is not None:
            self._cache.put(self._request(prompt, sampling), text)
        self._watch(reply)
        return reply

    async def _post(self, body: Json, deadline: float) -> Raw | Retry:
        """Send a request. The key is taken out of whatever comes back, before anything reads it."""
        content = json.dumps(body).encode()
        request = httpx2.Request("POST", self._url, headers=self._headers, content=content)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                response = await self._client.send(request)
        except TimeoutError:
            return Retry(f"no answer within {self.timeout:g} s")
        except Exception as error:
            return Retry(self._redact(f"no answer from {self.endpoint}: {reason(error)}"))
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Raw(
            response.status_code, headers, self._redact(response.content.decode("utf-8", "replace"))
        )

    async def _shut(self) -> None:
        batches = [batch for batch in self._batches if batch is not None]
        for batch in batches:
            batch.cancel()
        await asyncio.gather(*batches, return_exceptions=True)
        await self._client.aclose()

    # --- what is sent and said -------------------------------------------------------------------

    def _body(self, prompt: Prompt, sampling: Sampling) -> Json:
        body: Json = {
            "model": self.model,
            "messages": [message_row(message) for message in prompt.messages],
            "tools": list(prompt.tools) or None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._limit: sampling.max_tokens,
            "seed": prompt.seed,
            "stop": list(sampling.stop) or None,
            "logprobs": self.logprobs or None,
            **self.extra,
        }
        return {field: value for field, value in body.items() if value is not None}

    def _advice(self, refused: Refused) -> str:
        """What went wrong and what the user can do about it."""
        where = f"model {self.model} at {self.endpoint}"
        if refused.field in ADVICE:
            hint = ADVICE[refused.field]
        elif refused.field is not None:
            hint = f"change {refused.field}, or leave it out with extra: {{{refused.field}: null}}"
        elif refused.status in (401, 403):
            state = "whose key was not accepted" if self._key else "which is not set"
            hint = f"look at the environment variable {self._key_env}, {state}"
        elif refused.status in (402, 429):
            hint = "the account is used up; top it up and run again to go on"
        else:
            hint = "check the model's name, and the address, which mostly ends in /v1"
        return f"{where}: {refused.cause}; {hint}"

    def _redact(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= SECRET_LENGTH else text

    def _redacted(self, trouble: Failure | Retry | Refused) -> Failure | Retry | Refused:
        """Once more, as JSON may have spelled the key in another way."""
        if isinstance(trouble, Failure):
            return replace(trouble, message=self._redact(trouble.message))
        return replace(trouble, cause=self._redact(trouble.cause))

    def _watch(self, done: Completion) -> None:
        """Say once that a reasoning model has no tokens left to answer with."""
        if done.finish == "length" and not done.text and not self._warned:
            self._warned = True
            warnings.warn(
                f"model {self.name}: max_tokens was used up before the answer began; "
                "models that think first need more",
                stacklevel=2,
            )


def _groups(prompts: Sequence[Prompt], share: bool) -> list[list[int]]:
    """Indices of the prompts that are asked together: with `share`, those of one conversation."""
    found: dict[str, list[int]] = {}
    for k, prompt in enumerate(prompts):
        found.setdefault(json.dumps(conversation_key(prompt)) if share else str(k), []).append(k)
    return list(found.values())


def _extra(fields: Mapping[str, Any]) -> Json:
    taken = [field for field in RESERVED if field in fields]
    if taken:
        raise ConfigError(f"extra can't set {', '.join(taken)}")
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra can't be sent as JSON: {error}") from error
    return dict(fields)


def _client(max_in_flight: int) -> httpx2.AsyncClient:
    """OpenAI's HTTP client over aiohttp: httpx's own pool takes time quadratic in what waits.

    `openai.AsyncOpenAI` itself, with retries and time-outs that are not wanted here, would take three
    times the CPU per call (0.6 instead of 0.2 ms).
    """
    limits = httpx2.Limits(max_connections=max_in_flight, max_keepalive_connections=max_in_flight)
    return openai.DefaultAioHttpClient(limits=limits, timeout=None)
