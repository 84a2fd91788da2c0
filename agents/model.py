"""Model: anything that continues conversations. Backends live in api.py, hf.py and vllm.py."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from turnbench.envs.record import Failure, Json, Outcome, Usage


class Message(NamedTuple):
    """One message of a conversation; `role` is "system", "user" or "assistant".

    Where tools are called natively, an assistant's `tool_calls` are OpenAI's, as JSON text, and each is
    followed by a message of role "tool" with the call's result and id.
    """

    role: str
    content: str
    tool_calls: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a completion. Temperature 0 is greedy; `max_tokens` bounds the completion."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            raise ValueError(f"temperature >= 0, 0 < top_p <= 1 and max_tokens >= 1 wanted: {self}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to continue, and the seed of the sample to draw.

    The first `covered` messages were sent and sampled before as exactly the token ids `context`:
    a local model extends these and never tokenises that text again. An API model has no use for it.
    `tools` are OpenAI schemas, for models with `native_tools` alone.
    """

    messages: tuple[Message, ...]
    seed: int = 0
    context: tuple[int, ...] = ()
    covered: int = 0
    tools: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `finish` is "length" where `max_tokens` cut it.

    Local models give the whole prompt's ids, the sampled ids (with the end-of-turn token, if it was
    sampled) and a natural log-prob for each. API models may give log-probs without ids.
    `calls`: whether the text is an OpenAI message with native tool calls, as JSON.
    """

    text: str
    finish: Literal["stop", "length"] = "stop"
    usage: Usage = Usage()
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    calls: bool = False


Answer = Completion | Failure


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """The length of the longest common prefix of two sequences of token ids."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(k for k in range(length) if left[k] != right[k])


class Model(Protocol):
    """Continues conversations, many per call and from many threads at once.

    What goes wrong with one prompt is a Failure in its place and leaves the others alone. A model with
    an attribute `native_tools` that is true takes tools in its prompts, and may answer with calls.
    """

    name: str
    sampling: Sampling

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt, in order; `sampling` None takes the model's own."""
        ...

    def close(self) -> None:
        """Release what the model holds."""
        ...


class ScriptedModel:
    """A model whose answers are computed by a function of the prompt: for tests and examples."""

    def __init__(self, answer: Callable[[Prompt], str | Answer], name: str = "scripted") -> None:
        self.answer, self.name, self.sampling = answer, name, Sampling()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """The function's answers; words stand for tokens in the usage."""
        return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: Prompt) -> Answer:
        answer = self.answer(prompt)
        if not isinstance(answer, str):
            return answer
        asked = sum(len(m.content.split()) for m in prompt.messages)
        return Completion(answer, usage=Usage(1, asked, 0, len(answer.split())))

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one episode may use; None is without bound."""

    model_calls: int | None = None
    seconds: float | None = None


class Metered:
    """A model with a bill and a budget, made anew for each episode.

    Once the budget is used up every prompt is answered by a Failure with outcome `timeout`.
    """

    def __init__(self, model: Model, budget: Budget = Budget()) -> None:
        self.model, self.budget = model, budget
        self.name, self.sampling = model.name, model.sampling
        self.native_tools: bool = getattr(model, "native_tools", False)
        self.usage = Usage()
        self._started = time.monotonic()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """The model's answers, billed, for as many prompts as the budget allows."""
        allowed, why = self._allowance(len(prompts))
        answers = self._checked(prompts[:allowed], sampling) if allowed else []
        for answer in answers:
            self.usage += _bill(answer)
        return [*answers, *(Failure(Outcome.TIMEOUT, why) for _ in prompts[allowed:])]

    def _checked(self, prompts: Sequence[Prompt], sampling: Sampling | None) -> list[Answer]:
        """The model's answers; what no model may answer is the infrastructure's failure, not the agent's."""
        answers = self.model.generate(prompts, sampling)
        if len(answers) != len(prompts):
            why = f"the model gave {len(answers)} answers to {len(prompts)} prompts"
            return [Failure(Outcome.INFRA_ERROR, why) for _ in prompts]
        return [_finite(answer) for answer in answers]

    def _allowance(self, wanted: int) -> tuple[int, str]:
        calls, seconds = self.budget.model_calls, self.budget.seconds
        if seconds is not None and time.monotonic() - self._started > seconds:
            return 0, f"the episode's {seconds:g} seconds are used up"
        if calls is None:
            return wanted, ""
        return min(
            wanted, max(0, calls - self.usage.model_calls)
        ), f"all {calls} model calls are used up"

    def close(self) -> None:
        """The model outlives its meters."""


def _bill(answer: Answer) -> Usage:
    """What an answer cost; a call that failed was a call, but for a prompt that is too long to be sent."""
    if isinstance(answer, Completion):
        return answer.usage
    if answer.usage is not None:
        return answer.usage
    if answer.outcome is Outcome.TRUNCATED:
        return Usage()
    paid = answer.outcome is Outcome.AGENT_ERROR  # answered, but filtered away: at what price?
    return Usage(model_calls=1, cost=None if paid else 0.0)


def _finite(answer: Answer) -> Answer:
    if isinstance(answer, Completion) and not all(map(math.isfinite, answer.logprobs)):
        why = "the model gave a log-prob that is no finite number"
        return Failure(Outcome.INFRA_ERROR, why, answer.usage)
    return answer
