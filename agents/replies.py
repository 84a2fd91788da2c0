"""What a chat server's reply means: an answer, a failure of this prompt, or a reason to ask again.

Completion   the model answered; a refusal in words is an answer too
Failure      this prompt can't be answered: too long (truncated), filtered (agent_error: the
             filter is part of what is measured, and leaving it out of the mean would favour
             models that filter hard tasks away), or rejected for another reason (infra_error)
Retry        trouble that may pass: 408, 409, 425, 429, 5xx, and replies that hold no answer
Refused      concerns every call: key, quota, model name, address, or a field that is not accepted
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

from turnbench.agents.model import Completion
from turnbench.agents.prices import Price
from turnbench.agents.retry import retry_after
from turnbench.agents.tools import native_action
from turnbench.envs.core import clean
from turnbench.envs.record import Failure, Json, Outcome, Usage


@dataclass(frozen=True, slots=True)
class Retry:
    """Trouble that may pass; `after` are the seconds the server asks to wait, `spent` what it billed."""

    cause: str
    after: float | None = None
    spent: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Refused:
    """Trouble that every call would have; `field` is what the server doesn't accept, if it is that."""

    status: int
    cause: str
    field: str | None = None


class Raw(NamedTuple):
    """An HTTP response: status, headers (in lower case) and the body as text."""

    status: int
    headers: Mapping[str, str]
    text: str


A = TypeVar("A", bound=Completion | Failure)
TRANSIENT = frozenset({408, 409, 425, 429})
ONE_LINE = 300

TOO_LONG = re.compile(
    r"context.{0,3}(length|window|size|limit)|maximum (prompt|input) length|(prompt|input) is too long"
    r"|input.{0,40}(too long|exceeds? the (maximum|limit))|reduce the length|max_new_tokens.{0,20}must be <="
    r"|prompt has \d+ tokens|exceeded model token limit"
    r"|max_tokens must be at least 1, got 0",  # vLLM, whose context the prompt fills exactly
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content.{0,3}(filter|policy|management)|responsible.?ai|moderation|flagged|usage polic",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"insufficient.?(quota|balance|credit|funds)", re.IGNORECASE)


def read_error(raw: Raw, sent: Collection[str]) -> Failure | Retry | Refused:
    """What a reply with an error status means; `sent` are the optional fields of the request."""
    status, problem = raw.status, _problem(raw.text)
    cause = f"the server answered {status}: {problem.message}"
    said = f"{problem.code} {problem.message}"
    if _QUOTA.search(said) or status in (401, 402):
        return Refused(status, cause)
    if status != 429 and (status == 413 or TOO_LONG.search(said)):
        return Failure(Outcome.TRUNCATED, f"the prompt is too long: {cause}")
    if status in (400, 403, 422) and _FILTERED.search(said):
        return Failure(Outcome.AGENT_ERROR, f"the provider's filter stopped the prompt: {cause}")
    if status in TRANSIENT or status >= 500:
        return Retry(cause, retry_after(raw.headers))
    if status not in (400, 422):
        return Refused(status, cause)
    field = _blamed(problem, sent)
    return Refused(status, cause, field) if field else Failure(Outcome.INFRA_ERROR, cause)


def read_answer(
    text: str, logprobs: bool, price: Price | None, tools: bool = False
) -> Completion | Failure | Retry | Refused:
    """What the body of a successful reply holds.

    Reasoning that a server gives apart from the content isn't part of the text. `logprobs` and `tools`
    tell whether log-probs were asked for and tools offered.
    """
    data = _parse(text)
    if not isinstance(data, dict):
        return Retry(f"the answer is no JSON object: {_line(text) or 'empty body'}")
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Retry(f"the answer has no choices: {_problem(text).message}")
    finish = choice.get("finish_reason")
    content = _content(message, cut=finish == "length")
    bill = _usage(data.get("usage"), price)
    if finish == "content_filter" and not content:
        return Failure(Outcome.AGENT_ERROR, "the provider's filter removed the whole answer", bill)
    if content is None or finish == "error":
        return Retry("the answer has no content")
    cut: Literal["stop", "length"] = "length" if finish == "length" else "stop"
    called = native_action(message, content) if tools else ""
    done = Completion(called or clean(content), cut, bill, calls=bool(called))
    return _with_logprobs(done, data, choice) if logprobs else done


def spent(text: str, price: Price | None) -> Usage:
    """What a reply bills that is of no use, so that another try is the call."""
    data = _parse(text)
    row = data.get("usage") if isinstance(data, dict) else None
    return replace(_usage(row, price), model_calls=0) if isinstance(row, dict) else Usage()


def with_bill(answer: A, lost: Usage) -> A:
    """An answer with what was paid before for nothing."""
    if lost == Usage():
        return answer
    return replace(answer, usage=(answer.usage or Usage(model_calls=1)) + lost)


SHARED = "turnbench_shared_tokens"  # a field of our own in a reply that was split


def split_choices(text: str, count: int) -> list[str]:
    """A reply with several choices as up to `count` replies with one; as it is where it has one.

    The first is billed for the prompt, which the server has read once; completion tokens, of which it
    tells the sum alone, are shared out evenly.
    """
    data = _parse(text)
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(choices, list) or len(choices) < 2:
        return [text]
    kept = choices[:count]
    bill = data.get("usage") if isinstance(data.get("usage"), dict) else None
    total = _count(bill.get("completion_tokens")) if bill else 0
    parts = []
    for k, choice in enumerate(kept):
        part = {**data, "choices": [choice]}
        if bill and "completion_tokens" in bill:
            share = (total * (k + 1)) // len(kept) - (total * k) // len(kept)
            part["usage"] = {**bill, "completion_tokens": share}
            if k:
                shared = _count(bill.get("prompt_tokens"))
                part["usage"] = {"prompt_tokens": 0, "completion_tokens": share, SHARED: shared}
        parts.append(json.dumps(part))
    return parts


# --- parts of a reply -------------------------------------------------------------------------------


def _content(message: Json, cut: bool) -> str | None:
    """The text of a message, its refusal, or None where there is no answer at all.

    A model whose tokens all went into reasoning has answered, with nothing.
    """
    content = message.get("content")
    if isinstance(content, list):  # parts: the text ones are the answer
        content = "".join(str(p.get("text", "")) for p in content if _is_text(p))
    if isinstance(content, str) and (content or not message.get("refusal")):
        return content
    if isinstance(message.get("refusal"), str):
        return str(message["refusal"])
    thought = any(message.get(field) for field in ("reasoning", "reasoning_content", "tool_calls"))
    return "" if cut or thought else None


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _usage(row: Any, price: Price | None) -> Usage:
    """The bill of one call; its cost is None where the price or the numbers are missing."""
    if not isinstance(row, dict) or not {"prompt_tokens", "completion_tokens"} <= row.keys():
        return Usage(1, cost=None)
    details = row.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = row.get("prompt_cache_hit_tokens")
    prompt, hit, completion = map(_count, (row["prompt_tokens"], cached, row["completion_tokens"]))
    cost = None if price is None else price.cost(prompt, hit, completion)
    return Usage(1, prompt, hit, completion, cost, shared_tokens=_count(row.get(SHARED)))


def _count(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _with_logprobs(done: Completion, data: Json, choice: Json) -> Completion | Failure | Refused:
    """`done` with its log-probs; and with token ids where the server gives them all, as vLLM does
    under `return_token_ids`.
    """
    found = choice.get("logprobs")
    rows = found.get("content") if isinstance(found, dict) else None
    if not isinstance(rows, list) or (done.text and not rows):
        return Refused(200, "the server gives no log-probs although they were asked for", "logprobs")
    values = [_logprob(row) for row in rows]
    if math.nan in values:
        why = f"no log-prob for sampled token {values.index(math.nan)}"
        return Failure(Outcome.INFRA_ERROR, why, done.usage)
    prompt, ids = _ids(data.get("prompt_token_ids")), _ids(choice.get("token_ids"))
    if not prompt or len(ids) != len(values):
        prompt = ids = ()
    return replace(done, prompt_ids=prompt, ids=ids, logprobs=tuple(values))


def _logprob(row: Any) -> float:
    """A row's log-prob; `math.nan` where it has none, or -9999, which stands for "too unlikely"."""
    value = row.get("logprob") if isinstance(row, dict) else None
    known = isinstance(value, int | float) and -9999.0 < value < 0.001
    return float(value) if known else math.nan  # type: ignore[arg-type]


def _ids(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(isinstance(i, int) for i in value)
    return tuple(value) if whole else ()


# --- errors in their many forms ---------------------------------------------------------------------


class _Problem(NamedTuple):
    message: str
    code: str = ""
    param: str = ""


def _problem(text: str) -> _Problem:
    """The one-line message, code and parameter of an error body, in any of the usual forms."""
    data = _parse(text)
    if isinstance(data, list) and data:
        data = data[0]
    error = data.get("error", data) if isinstance(data, dict) else None
    if not isinstance(error, dict):
        return _Problem(_line(error if isinstance(error, str) else text) or "empty body")
    message = error.get("message") or error.get("detail") or error
    code = f"{error.get('code') or ''} {error.get('type') or ''}"
    where = error.get("param") or _location(error.get("detail"))
    return _Problem(
        _line(message if isinstance(message, str) else json.dumps(message)), code, str(where)
    )


def _location(detail: Any) -> str:
    """The field that a validation error of FastAPI's form is about."""
    row = detail[0] if isinstance(detail, list) and detail else None
    place = row.get("loc") if isinstance(row, dict) else None
    return str(place[-1]) if isinstance(place, list) and place else ""


def _blamed(problem: _Problem, sent: Collection[str]) -> str | None:
    """The optional field that the server doesn't accept, if the error is about one."""
    if problem.param in sent:
        return problem.param
    return next((field for field in sent if _names(problem.message, field)), None)


def _names(message: str, field: str) -> bool:
    """Whether a message is about a field: begins with it, quotes it, or calls it one."""
    name = re.escape(field)
    forms = rf"^{name}\b|['\"`]{name}['\"`]|(parameter|argument|field|supplied)\W+{name}\b"
    return re.search(forms, message) is not None


def _line(text: str) -> str:
    """`text` as one bounded line without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", clean(text[: 20 * ONE_LINE])).split())[:ONE_LINE]


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
