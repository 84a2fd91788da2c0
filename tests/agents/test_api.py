"""ApiModel against a real server on the loopback that plays every misbehaviour."""

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from turnbench.agents import api, retry
from turnbench.agents.api import ApiModel
from turnbench.agents.model import Completion, Message, Prompt, Sampling
from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Failure, Outcome

KEY = "sk-very-secret-0123456789"
HELLO = Prompt((Message("user", "hello"),), seed=7)


@dataclass
class Reply:
    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int | None = None  # close after so many bytes of the body

    def encode(self) -> tuple[bytes, bytes]:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        body = text.encode("utf-8", "surrogatepass")
        lines = [f"HTTP/1.1 {self.status} X", f"content-length: {len(body)}"]
        lines += [f"{k}: {v}" for k, v in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode(), body


def chat(text: str | None = "hi", finish: str = "stop", **choice: Any) -> dict[str, Any]:
    """A well-formed chat completion."""
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 40},
    }
    return {
        "id": "1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
        "usage": usage,
    }


class Server:
    """Answers by `play`, a function of the request's body, or by a list whose last entry stays."""

    def __init__(self) -> None:
        self.play: Callable[[dict[str, Any]], Reply] | list[Reply] = [Reply(chat())]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.now = self.peak = 0
        self.loop = asyncio.new_event_loop()
        self.connections: set[asyncio.StreamWriter] = set()
        self.thread = threading.Thread(target=self.loop.run_forever, name="test-server")
        self.thread.start()
        self.server = self.run(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while await self.exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(v[15:]) for v in head.lower().split("\r\n") if v.startswith("content-length:"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        self.headers.append(head)
        self.now += 1
        self.peak = max(self.peak, self.now)
        if callable(self.play):
            reply = self.play(body)
        else:
            reply = self.play.pop(0) if len(self.play) > 1 else self.play[0]
        await asyncio.sleep(reply.delay)
        self.now -= 1
        header, content = reply.encode()
        writer.write(header + content[: reply.cut])
        await writer.drain()
        return reply.cut is None

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        self.server.close()
        for writer in self.connections:
            writer.close()
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ApiModel]]:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    made: list[ApiModel] = []

    def model(name: str = "gpt-4o-mini", **options: Any) -> ApiModel:
        made.append(ApiModel(name, **options))
        return made[-1]

    yield model
    for one in made:
        one.close()


def one(model: ApiModel, prompt: Prompt = HELLO) -> Completion | Failure:
    (answer,) = model.generate([prompt])
    return answer


# --- a good server ----------------------------------------------------------------------------------


def test_an_answer_with_its_bill(server: Server, make: Callable[..., ApiModel]) -> None:
    answer = one(make(sampling=Sampling(0.5, 0.9, 32, ("\n",))))
    assert isinstance(answer, Completion)
    assert (answer.text, answer.finish, answer.logprobs, answer.ids) == ("hi", "stop", (), ())
    usage = answer.usage
    assert (usage.model_calls, usage.prompt_tokens, usage.cached_tokens) == (1, 100, 40)
    assert usage.completion_tokens == 10
    assert usage.cost == pytest.approx((60 * 0.15 + 40 * 0.075 + 10 * 0.60) / 1e6)
    assert server.bodies == [
        {
            "model": "gpt-4o-mini",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 32,
            "stop": ["\n"],
            "seed": 7,
        }
    ]
    assert f"Bearer {KEY}" in server.headers[0]


def test_an_unknown_price_is_no_price(make: Callable[..., ApiModel], tmp_path: Any) -> None:
    assert one(make("unheard-of")).usage.cost is None
    table = tmp_path / "prices.yaml"
    table.write_text("version: 1\nmodels: {unheard-of: {input: 0, output: 0}}", encoding="utf-8")
    assert one(make("unheard-of", prices=str(table))).usage.cost == 0


def test_missing_usage_has_no_cost(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = [Reply({**chat(), "usage": None})]
    assert one(make()).usage.cost is None


def test_answers_come_in_order_and_the_cap_holds(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = lambda body: Reply(chat(f"{body['seed']}"), delay=0.002 * (body["seed"] % 5))
    model = make(max_in_flight=4)
    prompts = [Prompt(HELLO.messages, seed) for seed in range(20)]
    assert [a.text for a in model.generate(prompts)] == [str(seed) for seed in range(20)]
    assert server.peak == 4


def test_many_threads_share_one_loop(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = lambda body: Reply(chat(f"{body['seed']}"))
    models = [make(), make()]
    texts: dict[int, str] = {}

    def work(seed: int) -> None:
        texts[seed] = one(models[seed % 2], Prompt(HELLO.messages, seed)).text

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {seed: str(seed) for seed in range(16)}
    assert sum(t.name == "turnbench-api" for t in threading.enumerate()) == 1


def test_no_prompts_no_calls(server: Server, make: Callable[..., ApiModel]) -> None:
    assert make().generate([]) == []
    assert server.bodies == []


def test_odd_text_survives(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = [
        Reply('{"choices": [{"message": {"content": "\\ud83d é 漢"}, "finish_reason": "stop"}]}')
    ]
    answer = one(make(), Prompt((Message("user", "\ud800 é 😀"),)))
    assert answer.text == "? é 漢"
    assert server.bodies[0]["messages"][0]["content"] == "? é 😀"


def test_extra_fields_are_added_and_nulls_left_out(
    server: Server, make: Callable[..., ApiModel]
) -> None:
    one(make(extra={"reasoning_effort": "low", "temperature": None}))
    assert server.bodies[0]["reasoning_effort"] == "low"
    assert "temperature" not in server.bodies[0]
    with pytest.raises(ConfigError, match="extra can't set messages, n"):
        make(extra={"n": 2, "messages": []})


# --- log-probs --------------------------------------------------------------------------------------

ROWS = {"content": [{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -1.5}]}


@pytest.mark.parametrize(
    ("prompt_ids", "ids", "kept"),
    [([1, 2, 3], [4, 5], True), ([1, 2, 3], [4], False), ([], [4, 5], False), (None, None, False)],
)
def test_token_ids_only_where_exact(
    server: Server, make: Callable[..., ApiModel], prompt_ids: Any, ids: Any, kept: bool
) -> None:
    body = chat(logprobs=ROWS, token_ids=ids) | {"prompt_token_ids": prompt_ids}
    server.play = [Reply(body)]
    answer = one(make(logprobs=True))
    assert answer.logprobs == (-0.5, -1.5)
    assert (answer.prompt_ids, answer.ids) == ((tuple(prompt_ids), tuple(ids)) if kept else ((), ()))
    assert server.bodies[0]["logprobs"] is True


@pytest.mark.parametrize("found", [None, {}, {"content": None}, {"content": []}])
def test_silently_missing_logprobs_are_an_error(
    server: Server, make: Callable[..., ApiModel], found: Any
) -> None:
    server.play = [Reply(chat(logprobs=found))]
    with pytest.raises(ModelError, match="gives no log-probs.*set logprobs: false"):
        one(make(logprobs=True))


@pytest.mark.parametrize("value", [None, -9999.0, "x", 1.0])
def test_a_token_without_logprob_is_never_guessed(
    server: Server, make: Callable[..., ApiModel], value: Any
) -> None:
    server.play = [Reply(chat(logprobs={"content": [ROWS["content"][0], {"logprob": value}]}))]
    answer = one(make(logprobs=True))
    assert answer == Failure(Outcome.INFRA_ERROR, "no log-prob for sampled token 1")


# --- answers of odd shape ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (chat("cut", "length"), "cut", "length"),
        (chat("", "stop"), "", "stop"),
        (chat(None, "stop", message={"refusal": "I won't"}), "I won't", "stop"),
        (chat("half", "content_filter"), "half", "stop"),
        (chat(None, "stop", message={"reasoning_content": "hm"}), "", "stop"),
        (chat([{"type": "thinking", "thinking": []}, {"type": "text", "text": "go"}]), "go", "stop"),
    ],
)
def test_what_counts_as_an_answer(
    server: Server, make: Callable[..., ApiModel], body: Any, text: str, finish: str
) -> None:
    server.play = [Reply(body)]
    answer = one(make(max_retries=0))
    assert isinstance(answer, Completion), answer
    assert (answer.text, answer.finish) == (text, finish)


def test_reasoning_that_leaves_no_tokens_is_told_once(
    server: Server, make: Callable[..., ApiModel]
) -> None:
    server.play = [Reply(chat(None, "length"))]
    model = make()
    with pytest.warns(UserWarning, match="max_tokens was used up"):
        assert one(model).finish == "length"
    assert one(model).text == ""


def test_a_filtered_answer_is_the_agents_failure(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = [Reply(chat(None, "content_filter"))]
    assert one(make()).outcome is Outcome.AGENT_ERROR
    server.play = [Reply({"error": {"code": "content_filter", "message": "management policy"}}, 400)]
    assert one(make()).outcome is Outcome.AGENT_ERROR
    assert len(server.bodies) == 2


# --- trouble that may pass --------------------------------------------------------------------------

PASSING = {
    "429": Reply({"error": {"message": "slow down"}}, 429),
    "500": Reply("oops", 500),
    "503": Reply("<html><body>down for\n maintenance</body></html>", 503),
    "half a JSON": Reply('{"choices": [{"mess'),
    "empty body": Reply(""),
    "no JSON object": Reply("[1]"),
    "no choices": Reply({"choices": []}),
    "error inside 200": Reply({"error": {"message": "upstream died", "code": 502}}),
    "null content": Reply(chat(None)),
    "error finish": Reply(chat("x", "error")),
    "HTML": Reply("<!doctype html><title>login</title>", headers={"content-type": "text/html"}),
    "closed at once": Reply(chat(), cut=0),
    "closed in mid-body": Reply(chat(), cut=20),
}


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_passing_trouble_is_tried_again(
    server: Server, make: Callable[..., ApiModel], trouble: Reply
) -> None:
    server.play = [trouble, trouble, Reply(chat("at last"))]
    assert one(make()).text == "at last"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_lasting_trouble_is_an_infra_error(
    server: Server, make: Callable[..., ApiModel], trouble: Reply
) -> None:
    server.play = [trouble]
    answer = one(make(max_retries=2))
    assert answer.outcome is Outcome.INFRA_ERROR
    assert answer.message.endswith("(tried 3 times)") and "\n" not in answer.message
    assert "<" not in answer.message
    assert len(server.bodies) == 3


def test_nobody_listens(make: Callable[..., ApiModel]) -> None:
    answer = one(make(base_url="http://127.0.0.1:9/v1", max_retries=1))
    assert answer.outcome is Outcome.INFRA_ERROR
    assert "no connection to http://127.0.0.1:9/v1" in answer.message


def test_a_stalled_server_meets_the_deadline(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = lambda body: Reply(chat("quick"), delay=60 * (body["seed"] == 1))
    answers = make(timeout=0.3).generate([Prompt(HELLO.messages, seed) for seed in (0, 1, 2)])
    assert [getattr(a, "text", None) for a in answers] == ["quick", None, "quick"]
    assert answers[1].outcome is Outcome.INFRA_ERROR and "within 0.3 s" in answers[1].message


@pytest.mark.parametrize("form", ["seconds", "date", "milliseconds"])
def test_retry_after_is_honoured(
    server: Server, make: Callable[..., ApiModel], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    now = datetime(2020, 1, 1, tzinfo=UTC)  # the server's clock is years behind ours
    asked = {
        "seconds": {"retry-after": "17"},
        "date": {
            "Date": format_datetime(now, usegmt=True),
            "Retry-After": format_datetime(now + timedelta(seconds=17), usegmt=True),
        },
        "milliseconds": {"retry-after-ms": "17000"},
    }[form]
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    server.play = [Reply("", 429, asked), Reply(chat())]
    model = make()
    monkeypatch.setattr(api.asyncio, "sleep", sleep)
    assert one(model).text == "hi"
    (wait,) = [w for w in waits if w > 1]
    assert wait == pytest.approx(17, abs=0.01)


def test_a_wait_beyond_the_deadline_is_not_begun(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = [Reply({"error": {"message": "come back later"}}, 429, {"retry-after": "3600"})]
    answer = one(make())
    assert answer.outcome is Outcome.INFRA_ERROR and "come back later (tried 1 times)" in answer.message


# --- trouble that stays -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"error": {"message": "bad key"}}, 401), "401: bad key.*OPENAI_API_KEY"),
        (Reply({"error": {"message": "not yours"}}, 403), "not yours.*OPENAI_API_KEY"),
        (Reply({"error": {"message": "no such model"}}, 404), "no such model.*check the model's name"),
        (Reply({"detail": "Not Found"}, 404), "Not Found.*ends in /v1"),
        (Reply("", 405), "405.*ends in /v1"),
        (Reply({"error": {"message": "x", "code": "insufficient_quota"}}, 429), "used up"),
        (Reply({"error": {"message": "Insufficient Balance"}}, 402), "used up"),
        (
            Reply({"error": {"message": "Unsupported value", "param": "temperature"}}, 400),
            "change temperature, or leave it out with extra: {temperature: null}",
        ),
        (Reply({"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs"}]}, 422), "change seed"),
    ],
)
def test_what_concerns_every_call_is_raised(
    server: Server, make: Callable[..., ApiModel], reply: Reply, message: str
) -> None:
    server.play = [reply]
    with pytest.raises(ModelError, match=message) as caught:
        make().generate([HELLO] * 5)
    assert caught.value.__context__ is None


def test_a_rejected_prompt_fails_alone(server: Server, make: Callable[..., ApiModel]) -> None:
    wrong = Reply({"error": {"message": "roles must alternate"}}, 400)
    server.play = lambda body: wrong if body["seed"] == 1 else Reply(chat())
    answers = make().generate([Prompt(HELLO.messages, seed) for seed in (0, 1)])
    assert answers[0].text == "hi"
    assert answers[1] == Failure(Outcome.INFRA_ERROR, "the server answered 400: roles must alternate")


def test_the_newer_length_limit(server: Server, make: Callable[..., ApiModel]) -> None:
    text = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    wrong = Reply({"error": {"message": text, "param": "max_tokens"}}, 400)
    server.play = lambda body: wrong if "max_tokens" in body else Reply(chat())
    model = make("o3", max_retries=0)
    assert one(model).text == one(model).text == "hi"
    limits = [(b.get("max_tokens"), b.get("max_completion_tokens")) for b in server.bodies]
    assert limits == [(256, None), (None, 256), (None, 256)]


# --- keys and addresses -----------------------------------------------------------------------------


def test_the_key_never_shows(
    server: Server,
    make: Callable[..., ApiModel],
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f"you sent Authorization: Bearer {KEY}"
    model = make(cache=str(tmp_path), max_retries=0)
    seen = [repr(model), str(vars(model).keys())]
    for status in (400, 500, 413):
        server.play = [Reply({"error": {"message": echo}}, status)]
        seen.append(repr(one(model)))
    escaped = json.dumps({"error": echo}).replace("sk-", "\\u0073k-")
    for reply in (Reply({"error": {"message": echo}}, 401), Reply(escaped, 404)):
        server.play = [reply]
        with pytest.raises(ModelError) as caught:
            one(model)
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        seen += [str(caught.value), *(s for s in shown.format() if "test_api.py" not in s)]
    server.play = [Reply(chat(echo))]
    seen.append(repr(one(model)))
    model.close()
    seen += [caplog.text, *capfd.readouterr()]
    assert "[key]" in "".join(seen)
    assert KEY not in "".join(seen)
    for path in tmp_path.iterdir():
        assert KEY.encode() not in path.read_bytes()


def test_the_key_stays_out_of_connection_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = ApiModel("m", base_url=f"http://127.0.0.1:9/{KEY}/v1", max_retries=0)
    assert KEY not in one(model).message
    model.close()


def test_keys_in_the_wrong_place_are_refused_without_showing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ODD_KEY", "sk-secret\nx")
    for options in (
        {"api_key_env": KEY},
        {"api_key_env": "gsk_secret"},
        {"api_key_env": "ODD_KEY"},
        {"base_url": "https://me:sk-secret@example.com/v1"},
        {"base_url": "https://example.com/v1?key=sk-secret"},
    ):
        with pytest.raises(ConfigError) as caught:
            ApiModel("m", **options)
        assert "secret" not in str(caught.value)


def test_no_key_at_all(
    server: Server, make: Callable[..., ApiModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert one(make(base_url=server.url + "/")).text == "hi"
    assert KEY not in server.headers[0]
    server.play = [Reply({"error": {"message": "who are you?"}}, 401)]
    with pytest.raises(ModelError, match="OTHER_KEY, which is not set"):
        one(make(api_key_env="OTHER_KEY"))
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(ModelError, match="set the environment variable OPENAI_API_KEY"):
        ApiModel("gpt-4o")


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"max_retries": -1}, {"max_in_flight": 0}, {"base_url": "localhost:8000"}],
)
def test_wrong_options(make: Callable[..., ApiModel], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**options)


# --- the cache, seen from the model -----------------------------------------------------------------


def test_a_hit_is_the_same_answer_unpaid(
    server: Server, make: Callable[..., ApiModel], tmp_path: Any
) -> None:
    server.play = [Reply(chat(logprobs=ROWS))]
    first = one(make(cache=str(tmp_path), logprobs=True))
    again = one(make(cache=str(tmp_path), logprobs=True))
    assert len(server.bodies) == 1
    assert (again.text, again.finish, again.logprobs) == (first.text, first.finish, first.logprobs)
    assert (again.usage.cost, again.usage.cache_hits, again.usage.model_calls) == (0.0, 1, 1)
    assert (first.usage.cache_hits, again.usage.prompt_tokens) == (0, first.usage.prompt_tokens)
    assert first.usage.cost and first.usage.cost > 0


def test_every_part_of_the_request_is_in_the_key(
    server: Server, make: Callable[..., ApiModel], tmp_path: Any
) -> None:
    cache = str(tmp_path)
    model = make(cache=cache)
    base = Sampling()
    one(model)
    variants = [
        lambda: model.generate([Prompt(HELLO.messages, seed=8)]),
        lambda: model.generate([Prompt((Message("system", "hello"),), seed=7)]),
        lambda: model.generate([HELLO], Sampling(temperature=0.5)),
        lambda: model.generate([HELLO], Sampling(top_p=0.5)),
        lambda: model.generate([HELLO], Sampling(max_tokens=5)),
        lambda: model.generate([HELLO], Sampling(stop=("x",))),
        lambda: one(make("other", cache=cache)),
        lambda: one(make(cache=cache, extra={"reasoning_effort": "low"})),
        lambda: one(make(cache=cache, base_url=server.url.replace("127.0.0.1", "localhost"))),
    ]
    for count, ask in enumerate(variants, start=2):
        ask()
        assert len(server.bodies) == count
    for ask in variants:
        ask()
    model.generate([HELLO], base)
    assert len(server.bodies) == len(variants) + 1


def test_failures_are_not_cached(server: Server, make: Callable[..., ApiModel], tmp_path: Any) -> None:
    model = make(cache=str(tmp_path), max_retries=0)
    for trouble in (*PASSING.values(), Reply({"error": {"message": "too long", "code": 1}}, 413)):
        server.play = [trouble]
        assert isinstance(one(model), Failure)
    server.play = [Reply(chat("good"))]
    assert one(model).text == "good"


def test_hits_and_misses_mix_in_order(
    server: Server, make: Callable[..., ApiModel], tmp_path: Any
) -> None:
    server.play = lambda body: Reply(chat(f"{body['seed']}"))
    model = make(cache=str(tmp_path))
    prompts = [Prompt(HELLO.messages, seed) for seed in range(6)]
    model.generate(prompts[1::2])
    assert [a.text for a in model.generate(prompts)] == list("012345")
    assert [a.usage.cache_hits for a in model.generate(prompts)] == [1] * 6
    assert len(server.bodies) == 6
    assert model.explain(Prompt(HELLO.messages, 99)).endswith("differs in seed (asked 99, stored 1)")


# --- ending -----------------------------------------------------------------------------------------


def test_close_leaves_nothing(server: Server, make: Callable[..., ApiModel]) -> None:
    before = {t.name for t in threading.enumerate()}
    models = [make(), make()]
    for model in models:
        model.generate([HELLO] * 3)
    for model in models:
        assert "turnbench-api" in {t.name for t in threading.enumerate()}
        model.close()
        model.close()
    gc.collect()  # an unclosed socket would warn, which is an error here
    assert {t.name for t in threading.enumerate()} == before
    with pytest.raises(ModelError, match="closed"):
        models[0].generate([HELLO])
    assert one(make()).text == "hi"


def test_close_ends_calls_of_other_threads(server: Server, make: Callable[..., ApiModel]) -> None:
    server.play = [Reply(chat(), delay=60)]
    model = make()
    errors: list[Exception] = []

    def work() -> None:
        try:
            model.generate([HELLO] * 100)
        except ModelError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not server.bodies:
        time.sleep(0.01)
    model.close()
    thread.join(timeout=20)
    assert "closed while it was asked" in str(errors[0])


SCRIPT = """
import sys, warnings
warnings.simplefilter("error")
from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt
model = ApiModel("m", base_url=sys.argv[1])
try:
    model.generate([Prompt((Message("user", "x"),))] * 3)
except KeyboardInterrupt:
    model.close()
    print("interrupted")
"""


def test_ctrl_c_ends_promptly(server: Server) -> None:
    server.play = [Reply(chat(), delay=60)]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": KEY},
    )
    while not server.bodies and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
