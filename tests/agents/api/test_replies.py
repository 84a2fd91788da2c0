"""What replies mean, without a server; retry pauses; price tables."""

import json
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.model import Completion
from turnbench.agents.prices import Price, load_prices
from turnbench.agents.replies import Raw, Refused, Retry, read_answer, read_error
from turnbench.agents.retry import FIRST_PAUSE, LONGEST_PAUSE, pause, retry_after
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Failure, Outcome

FIELDS = ("temperature", "top_p", "max_tokens", "stop", "seed")

# How servers of various makes say that the prompt doesn't fit.
TOO_LONG = [
    (400, {"error": {"code": "context_length_exceeded", "message": "no"}}),
    (400, {"error": {"message": "max_tokens must be at least 1, got 0.", "param": "max_tokens"}}),
    (400, {"error": {"message": "maximum context length is 4097 tokens, you requested 5000"}}),
    (400, {"error": {"message": "'max_tokens' is too large: 5. The maximum context length is 40"}}),
    (400, {"error": {"message": "prompt is too long: 212345 tokens > 200000 maximum"}}),
    (400, {"error": {"message": "the request exceeds the available context size", "type": "x"}}),
    (400, {"error": {"type": "exceed_context_size_error", "message": "no"}}),
    (400, [{"error": {"message": "The input token count (9) exceeds the maximum number of tokens"}}]),
    (400, {"object": "error", "message": "Prompt has 9 tokens, too large for model with 4 maximum"}),
    (400, {"error": {"message": "Input length (265330) exceeds model's maximum context length (4)."}}),
    (400, {"error": {"message": "This model's maximum prompt length is 1 but the request has 2"}}),
    (400, {"error": {"message": "Your request exceeded model token limit: 8192"}}),
    (400, {"error": {"message": "Input length 8 exceeds the maximum allowed input length of 6"}}),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"}),
    (413, "Payload Too Large"),
    (500, {"error": {"message": "the input is larger than the context window"}}),
]


def reply(status: int, body: Any, **headers: str) -> Raw:
    text = body if isinstance(body, str) else json.dumps(body)
    return Raw(status, {k.replace("_", "-"): v for k, v in headers.items()}, text)


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_too_long_a_prompt_is_truncation(status: int, body: Any) -> None:
    found = read_error(reply(status, body), FIELDS)
    assert isinstance(found, Failure) and found.outcome is Outcome.TRUNCATED


@pytest.mark.parametrize(
    "message",
    [
        "Too many tokens per minute; limit on context length 8",
        "rate limit",
        "prompt is too long: slow down",
    ],
)
def test_a_rate_limit_is_never_truncation(message: str) -> None:
    found = read_error(reply(429, {"error": {"message": message}}, retry_after="3"), FIELDS)
    assert found == Retry(f"the server answered 429: {message}", 3.0)


def test_an_output_limit_is_the_suites_fault() -> None:
    message = "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"
    found = read_error(reply(400, {"error": {"message": message, "param": "max_tokens"}}), FIELDS)
    assert isinstance(found, Refused) and found.field == "max_tokens"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("Unsupported parameter: 'top_p' is not supported with this model.", "top_p"),
        ("Unrecognized request argument supplied: seed", "seed"),
        ('Invalid JSON payload received. Unknown name "stop": Cannot find field.', "stop"),
        ("temperature must be non-negative, got -1.0", "temperature"),
        ("`temperature` and `top_p` cannot both be specified for this model", "temperature"),
        ("please stop sending messages with a bad seed", None),
    ],
)
def test_which_field_is_not_accepted(message: str, field: str | None) -> None:
    found = read_error(reply(400, {"error": {"message": message}}), FIELDS)
    if field is None:
        assert found == Failure(Outcome.INFRA_ERROR, f"the server answered 400: {message}")
    else:
        assert isinstance(found, Refused) and found.field == field


def test_a_limit_per_minute_is_no_empty_account() -> None:
    message = "You exceeded your current quota, please check your plan. Please retry in 34s."
    assert isinstance(read_error(reply(429, [{"error": {"message": message}}]), FIELDS), Retry)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass(status: int) -> None:
    assert isinstance(read_error(reply(status, ""), FIELDS), Retry)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"error": {"message": "a\n b"}}, "a b"),
        ({"error": "plain"}, "plain"),
        ({"message": "mistral"}, "mistral"),
        ({"detail": "fastapi"}, "fastapi"),
        ([{"error": {"message": "google"}}], "google"),
        ("<html><h1>Bad  gateway</h1></html>", "Bad gateway"),
        ("", "empty body"),
        ("x" * 10_000, "x" * 300),
    ],
)
def test_errors_become_one_line(body: Any, line: str) -> None:
    assert read_error(reply(500, body), FIELDS) == Retry(f"the server answered 500: {line}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def known_shape(*fields: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field: JSON for field in fields})


CHOICE = st.fixed_dictionaries(
    {"message": known_shape("content", "refusal", "reasoning") | JSON},
    optional={"finish_reason": JSON, "logprobs": JSON | known_shape("content"), "token_ids": JSON},
)
BODY = JSON | st.fixed_dictionaries(
    {"choices": st.lists(CHOICE | JSON, max_size=2)},
    optional={
        "usage": JSON | known_shape("prompt_tokens", "completion_tokens", "prompt_tokens_details"),
        "error": JSON,
        "prompt_token_ids": JSON,
    },
)


@given(st.one_of(BODY.map(json.dumps), st.text(max_size=40)), st.booleans())
def test_no_body_raises(text: str, logprobs: bool) -> None:
    found = read_answer(text, logprobs, Price(1, 1, 1))
    if isinstance(found, Completion):
        found.text.encode("utf-8")
        assert found.usage.model_calls == 1
    else:
        assert isinstance(found, Failure | Retry | Refused)


@given(st.integers(300, 599), st.one_of(BODY.map(json.dumps), st.text(max_size=40)))
def test_no_error_body_raises(status: int, text: str) -> None:
    found = read_error(Raw(status, {}, text), FIELDS)
    cause = found.message if isinstance(found, Failure) else found.cause
    assert "\n" not in cause and len(cause) < 500


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_no_crash(text: str) -> None:
    assert isinstance(read_answer(text, False, None), Retry)


# --- pauses -----------------------------------------------------------------------------------------


@given(st.integers(0, 5000), st.none() | st.floats(0, 1e6), st.integers(0, 2**32))
def test_pauses_are_bounded_and_never_shorter_than_asked(
    attempt: int, after: float | None, seed: int
) -> None:
    wait = pause(attempt, after, random.Random(seed))
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 60))
    low, high = (longest / 2, longest) if after is None else (after, after + longest / 2)
    assert low <= wait <= high


@pytest.mark.parametrize("value", ["", "soon", "-5", "nan", "inf", "Wed, 99 Foo 2020 00:00:00 GMT"])
def test_a_senseless_retry_after_is_none(value: str) -> None:
    assert retry_after({"retry-after": value}) is None


def test_a_date_without_the_servers_clock() -> None:
    date = datetime.now(UTC) + timedelta(seconds=100)
    wait = retry_after({"retry-after": format_datetime(date, usegmt=True)})
    assert wait is not None and 90 < wait <= 100
    assert retry_after({"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"}) == 0


# --- prices -----------------------------------------------------------------------------------------


def test_the_shipped_table_is_sound() -> None:
    table = load_prices()
    assert len(table) >= 12
    assert all(0 < p.cached_input <= p.input < p.output for p in table.values())


def test_the_cost_of_a_call() -> None:
    assert Price(2, 1, 8).cost(1000, 400, 100) == pytest.approx((600 * 2 + 400 * 1 + 100 * 8) / 1e6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "a mapping with"),
        ("version: 1", "a mapping with"),
        ("version: 2\nmodels: {}", "version 2"),
        ("version: 1\nmodels: {m: {input: 1}}", "m: `input`, `output`"),
        ("version: 1\nmodels: {m: {input: 1, output: 1, outptu: 2}}", "m: `input`, `output`"),
        ("version: 1\nmodels: {m: {input: -1, output: 1}}", "input is -1"),
        ("version: 1\nmodels: {m: {input: .nan, output: 1}}", "input is nan"),
        ("version: 1\nmodels: {m: {input: '1', output: 1}}", "input is '1'"),
        ("version: [", "prices.yaml"),
        ("a: !!python/object:os.system {}", "prices.yaml"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Any, text: str, message: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_prices(str(path))


def test_a_missing_table(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="nowhere.yaml"):
        load_prices(str(tmp_path / "nowhere.yaml"))
