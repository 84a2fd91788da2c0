"""What ApiModel makes of trouble: what is tried again, what is a failure, what is raised."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from turnbench.agents import api
from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt
from turnbench.envs.errors import ModelError
from turnbench.envs.record import Failure, Outcome

HELLO = Prompt((Message("user", "hello"),), seed=7)


def one(model: ApiModel, prompt: Prompt = HELLO) -> Any:
    (answer,) = model.generate([prompt])
    return answer


PASSING = {
    "429": dict(body={"error": {"message": "slow down"}}, status=429),
    "500": dict(body="oops", status=500),
    "503": dict(body="<html><body>down for\n maintenance</body></html>", status=503),
    "half a JSON": dict(body='{"choices": [{"mess'),
    "empty body": dict(body=""),
    "no JSON object": dict(body="[1]"),
    "no choices": dict(body={"choices": []}),
    "error inside 200": dict(body={"error": {"message": "upstream died", "code": 502}}),
    "null content": dict(text=None),
    "error finish": dict(text="x", finish="error"),
    "HTML": dict(body="<!doctype html><title>login</title>", headers={"content-type": "text/html"}),
    "closed at once": dict(cut=0),
    "closed in mid-body": dict(cut=20),
}


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_passing_trouble_is_tried_again(server: Any, make: Any, trouble: Any) -> None:
    server.play = [trouble, trouble, dict(text="at last")]
    assert one(make()).text == "at last"
    assert len(server.bodies) == 3


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_lasting_trouble_is_an_infra_error(server: Any, make: Any, trouble: Any) -> None:
    server.play = [trouble]
    answer = one(make(max_retries=2))
    assert answer.outcome is Outcome.INFRA_ERROR
    assert answer.message.endswith("(try 3 of 3)") and "\n" not in answer.message
    assert "<" not in answer.message
    assert len(server.bodies) == 3


def test_nobody_listens(make: Any) -> None:
    answer = one(make(base_url="http://127.0.0.1:9/v1", max_retries=1))
    assert answer.outcome is Outcome.INFRA_ERROR
    assert "no answer from http://127.0.0.1:9/v1" in answer.message


def test_a_stalled_server_meets_the_deadline(server: Any, make: Any) -> None:
    server.play = lambda body: dict(text="quick", delay=60 * (body["seed"] == 1))
    answers = make(timeout=0.3).generate([Prompt(HELLO.messages, seed) for seed in (0, 1, 2)])
    assert [getattr(a, "text", None) for a in answers] == ["quick", None, "quick"]
    assert answers[1].outcome is Outcome.INFRA_ERROR and "within 0.3 s" in answers[1].message


@pytest.mark.parametrize("form", ["seconds", "date", "milliseconds"])
def test_retry_after_is_honoured(
    server: Any, make: Any, monkeypatch: pytest.MonkeyPatch, form: str
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

    server.play = [dict(body="", status=429, headers=asked), dict()]
    model = make()
    monkeypatch.setattr(api.asyncio, "sleep", sleep)
    assert one(model).text == "hi"
    (wait,) = [w for w in waits if w > 1]
    assert wait == pytest.approx(17, abs=0.01)


def test_a_wait_beyond_the_deadline_is_not_begun(server: Any, make: Any) -> None:
    server.play = [
        dict(body={"error": {"message": "come back later"}}, status=429, headers={"retry-after": "3600"})
    ]
    answer = one(make())
    assert answer.outcome is Outcome.INFRA_ERROR and "come back later (try 1 of 6)" in answer.message


# --- trouble that stays ---


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (dict(body={"error": {"message": "bad key"}}, status=401), "401: bad key.*OPENAI_API_KEY"),
        (dict(body={"error": {"message": "not yours"}}, status=403), "not yours.*OPENAI_API_KEY"),
        (
            dict(body={"error": {"message": "no such model"}}, status=404),
            "no such model.*check the model's name",
        ),
        (dict(body={"detail": "Not Found"}, status=404), "Not Found.*ends in /v1"),
        (dict(body="", status=405), "405.*ends in /v1"),
        (dict(body={"error": {"message": "x", "code": "insufficient_quota"}}, status=429), "used up"),
        (dict(body={"error": {"message": "Insufficient Balance"}}, status=402), "used up"),
        (
            dict(body={"error": {"message": "Unsupported value", "param": "temperature"}}, status=400),
            "change temperature, or leave it out with extra: {temperature: null}",
        ),
        (
            dict(body={"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs"}]}, status=422),
            "change seed",
        ),
    ],
)
def test_what_concerns_every_call_is_raised(server: Any, make: Any, reply: Any, message: str) -> None:
    server.play = [reply]
    with pytest.raises(ModelError, match=message) as caught:
        make().generate([HELLO] * 5)
    assert caught.value.__context__ is None


def test_a_rejected_prompt_fails_alone(server: Any, make: Any) -> None:
    wrong = dict(body={"error": {"message": "roles must alternate"}}, status=400)
    server.play = lambda body: wrong if body["seed"] == 1 else dict()
    answers = make().generate([Prompt(HELLO.messages, seed) for seed in (0, 1)])
    assert answers[0].text == "hi"
    assert answers[1] == Failure(Outcome.INFRA_ERROR, "the server answered 400: roles must alternate")


def test_the_newer_length_limit(server: Any, make: Any) -> None:
    text = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    wrong = dict(body={"error": {"message": text, "param": "max_tokens"}}, status=400)
    server.play = lambda body: wrong if "max_tokens" in body else dict()
    model = make("o3", max_retries=0)
    assert one(model).text == one(model).text == "hi"
    limits = [(b.get("max_tokens"), b.get("max_completion_tokens")) for b in server.bodies]
    assert limits == [(256, None), (None, 256), (None, 256)]
