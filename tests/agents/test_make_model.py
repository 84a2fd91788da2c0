"""make_model: specs are checked against the backend's own signature."""

import subprocess
import sys
import types
from typing import Any

import pytest

from turnbench.agents import AGENTS, BACKENDS, agent_class, make_model
from turnbench.agents.model import Sampling
from turnbench.envs.errors import ConfigError, UnknownName


class StandIn:
    def __init__(
        self, path: str, *, name: str | None = None, sampling: Sampling = Sampling(), device: str = "cpu"
    ) -> None:
        if not isinstance(path, str):
            raise TypeError("path must be text")
        self.path, self.name, self.sampling, self.device = path, name or path, sampling, device


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("stand_ins")
    module.Model = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stand_ins", module)
    monkeypatch.setitem(BACKENDS, "hf", "stand_ins:Model")


def made(spec: Any) -> Any:
    return make_model(spec)


def test_arguments_and_sampling_are_told_apart() -> None:
    spec = {
        "backend": "hf",
        "path": "x",
        "device": "cuda",
        "temperature": 0,
        "stop": ["a"],
        "max_tokens": 9,
    }
    kept = dict(spec)
    model = made(spec)
    assert (model.path, model.device) == ("x", "cuda")
    assert model.sampling == Sampling(temperature=0, max_tokens=9, stop=("a",))
    assert spec == kept


def test_short_forms() -> None:
    assert made("hf:C:/models/x").path == "C:/models/x"
    assert made({"backend": "stand_ins:Model", "path": "y", "stop": "\n"}).sampling.stop == ("\n",)
    assert made("hf:x").sampling == Sampling()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"backend": "hf", "path": "x", "devise": "cpu"}, "unknown option .*'devise'; known: device"),
        ({"backend": "hf", "path": "x", "sampling": {}}, "unknown option .*'sampling'"),
        ({"backend": "hf"}, "needs the option 'path'"),
        ({"path": "x"}, "needs the key 'backend': one of api, hf"),
        ({"backend": 3, "path": "x"}, "needs the key 'backend'"),
        ({"backend": "hf", "path": 3}, "path must be text"),
        ({"backend": "hf", "path": "x", "temperature": "hot"}, "temperature is 'hot'"),
        ({"backend": "hf", "path": "x", "max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"backend": "hf", "path": "x", "max_tokens": True}, "max_tokens is True"),
        ({"backend": "hf", "path": "x", "top_p": 0}, "top_p <= 1"),
        ({"backend": "hf", "path": "x", "stop": 3}, "stop is 3"),
        ({"backend": "hf", "path": "x", "stop": [3]}, "stop is"),
        ("hf", "unknown model 'hf'; known: .*hf:PATH"),
        ("hf:", "unknown model"),
        ("ff:x", "unknown model"),
    ],
)
def test_wrong_specs(spec: Any, message: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=message):
        made(spec)


@pytest.mark.parametrize("backend", ["apo", "no.such:Model", "stand_ins:Nothing", "stand_ins", ":", ""])
def test_unknown_backends(backend: str) -> None:
    with pytest.raises(UnknownName, match="unknown backend.*known: "):
        made({"backend": backend, "path": "x"})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "needs_more.py").write_text("import not_there_at_all", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKENDS, "hf", "needs_more:Model")
    for backend in ("hf", "needs_more:Model"):
        with pytest.raises(ConfigError, match="can't be loaded.*not_there_at_all"):
            made({"backend": backend, "path": "x"})
    with pytest.raises(ConfigError, match=r"pip install 'turnbench\[local\]'"):
        made("hf:x")


def test_agents_are_found_as_before() -> None:
    assert {"BestOfN", "ReAct"} <= {agent_class(name).__name__ for name in AGENTS}
    assert agent_class("stand_ins:Model") is StandIn
    with pytest.raises(UnknownName, match="unknown agent 'reakt'; known: react"):
        agent_class("reakt")


def test_the_api_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    model = made({"backend": "api", "model": "gpt-4o", "timeout": 5, "temperature": 0.5})
    assert (model.name, model.timeout, model.sampling.temperature) == ("gpt-4o", 5, 0.5)
    model.close()
    with pytest.raises(ConfigError, match="timeout"):
        made({"backend": "api", "model": "gpt-4o", "timeout": "soon"})
    with pytest.raises(UnknownName, match="max_retries"):
        made({"backend": "api", "model": "gpt-4o", "max_retry": 5})


def test_importing_agents_stays_light() -> None:
    check = (
        "import sys, turnbench.agents; sys.exit(bool({'openai', 'torch', 'httpx2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
