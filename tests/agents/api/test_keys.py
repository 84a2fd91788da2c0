"""Keys and addresses: where they come from, and that no key ever shows."""

import json
import logging
import traceback
from typing import Any

import pytest

from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt
from turnbench.envs.errors import ConfigError, ModelError

KEY = "sk-very-secret-0123456789"
HELLO = Prompt((Message("user", "hello"),), seed=7)


def one(model: ApiModel, prompt: Prompt = HELLO) -> Any:
    (answer,) = model.generate([prompt])
    return answer


def test_the_key_never_shows(
    server: Any,
    make: Any,
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f"you sent Authorization: Bearer {KEY}"
    model = make(cache=str(tmp_path), max_retries=0)
    seen = [repr(model), str(vars(model).keys())]
    for status in (400, 500, 413):
        server.play = [dict(body={"error": {"message": echo}}, status=status)]
        seen.append(repr(one(model)))
    escaped = json.dumps({"error": echo}).replace("sk-", "\\u0073k-")
    for reply in (dict(body={"error": {"message": echo}}, status=401), dict(body=escaped, status=404)):
        server.play = [reply]
        with pytest.raises(ModelError) as caught:
            one(model)
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        seen += [str(caught.value), *(s for s in shown.format() if "test_keys.py" not in s)]
    server.play = [dict(text=echo)]
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


def test_no_key_at_all(server: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert one(make(base_url=server.url + "/")).text == "hi"
    assert "authorization" not in server.headers[0].lower()
    server.play = [dict(body={"error": {"message": "who are you?"}}, status=401)]
    with pytest.raises(ModelError, match="OTHER_KEY, which is not set"):
        one(make(api_key_env="OTHER_KEY"))
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(ModelError, match="set the environment variable OPENAI_API_KEY"):
        ApiModel("gpt-4o")


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"max_retries": -1},
        {"max_in_flight": 0},
        {"base_url": "localhost:8000"},
        {"base_url": "http://localhost:port/v1"},
        {"base_url": "http:///v1"},
    ],
)
def test_wrong_options(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**options)
