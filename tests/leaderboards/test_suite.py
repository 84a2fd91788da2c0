from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.leaderboards.suite import (
    Suite,
    find_suite,
    load_suite,
    parse_suite,
    shipped_suites,
    slug,
    tasks_of,
)
from turnbench.leaderboards.yamlfile import parse_yaml

TEXT = """\
suite: trial
version: 1
description: a trial
seeds: [0, 1]
envs:
  - id: standins:World-v0
    split: test
    tasks: [good0, good1]
    max_turns: 4
    options: {pause: 0}
models:
  echo: {backend: standins:Echo, temperature: 0.5, cost: 0.1}
agents:
  one: {agent: standins:Odd, model: echo, colour: blue}
limits:
  model_calls: 9
  seconds: 60
"""


def read(text: str) -> Suite:
    return parse_suite(parse_yaml(text, "s.yaml"))


def test_the_text_is_read() -> None:
    suite = read(TEXT)
    assert tasks_of(suite.envs[0]) == ["good0", "good1"]
    assert suite.system("one") == {
        "agent": "standins:Odd",
        "options": {"colour": "blue"},
        "model": {"name": "echo", "backend": "standins:Echo", "temperature": 0.5, "cost": 0.1},
    }
    assert suite.limits.model_calls == 9 and suite.limits.seconds == 60


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("seeds:", "seds:", 4, "unknown key 'seds'; known: seeds"),
        ("    split:", "    splitt:", 7, "unknown key 'splitt'; known: split"),
        ("  seconds:", "  second:", 17, "unknown key 'second'; known: seconds"),
        ("standins:World-v0", "turnbench/TextCaft-v0", 6, "known: turnbench/TextCraft-v0"),
        ("standins:World-v0", "World", 6, "unknown environment 'World'"),
        ("standins:World-v0", "':'", 6, "unknown environment ':'"),
        ("standins:World-v0", ".x:World-v0", 6, "unknown environment"),
        ("standins:World-v0", "nowhere:World-v0", 6, "unknown environment"),
        ("split: test", "split: tests", 7, "unknown split 'tests'; known: test"),
        ("good1]", "good11x]", 8, "unknown task of split 'test' 'good11x'; known: good11"),
        ("{pause: 0}", "{max_turns: 5}", 6, "max_turns stands beside the environment's options"),
        ("{pause: 0}", "{pauze: 0}", 10, "unknown option of standins:World-v0 'pauze'; known: pause"),
        ("max_turns: 4", "max_turns: 0", 9, "envs.0.max_turns: "),
        ("backend: standins:Echo", "backend: hff", 12, "unknown backend 'hff'; known: hf"),
        ("backend: standins:Echo", "backend: standins:Eko", 12, "unknown backend"),
        ("backend: standins:Echo, ", "", 12, "needs the key 'backend'"),
        ("temperature: 0.5", "temperatur: 0.5", 12, "'temperatur'; known: temperature"),
        ("temperature: 0.5", "temperature: hot", 12, "temperature is 'hot'"),
        ("temperature: 0.5", "temperature: -1", 12, "temperature >= 0"),
        ("temperature: 0.5", "stop: [1]", 12, "stop is [1]"),
        ("cost: 0.1", "price: 0.1", 12, "'price'"),
        ("standins:Odd", "reakt", 14, "unknown agent 'reakt'; known: react"),
        ("standins:Odd", "standins:Od", 14, "unknown agent"),
        ("standins:Odd", "sys:maxsize", 14, "unknown agent"),
        ("standins:Odd", "':'", 14, "unknown agent"),
        ("standins:Odd", ".:Odd", 14, "unknown agent"),
        ("model: echo", "model: ecko", 14, "unknown model 'ecko'; known: echo"),
        (", model: echo", "", 14, "needs the option 'model'"),
        ("colour", "colours", 14, "known: colour"),
        ("seeds: [0, 1]", "seeds: []", 4, "seeds: "),
        ("seeds: [0, 1]", "seeds: [1, 1]", 4, "1 appears twice"),
        ("seeds: [0, 1]", "seeds: [-1]", 4, "seeds.0: "),
        ("seeds: [0, 1]", "seeds: [1.5]", 4, "seeds.0: "),
        ("seeds: [0, 1]", "seeds: [true]", 4, "seeds.0: "),
        ("[good0, good1]", "0", 8, "a count of at least 1"),
        ("[good0, good1]", "-3", 8, "a count of at least 1"),
        ("[good0, good1]", "true", 8, "a count of at least 1"),
        ("[good0, good1]", "[]", 8, "a list of task ids"),
        ("[good0, good1]", "[good0, good0]", 8, "good0 appears twice"),
        ("[good0, good1]", "99999", 6, "99999 tasks wanted, but split 'test' has 400"),
        ("version: 1", "version: 0", 2, "version: "),
        ("suite: trial", "suite: a/b", 1, "suite: a name"),
        ("suite: trial", "suit: trial", 1, "the key 'suite' is missing"),
        ("seconds: 60", "seconds: 0", 17, "limits.seconds: "),
        ("model_calls: 9", "model_calls: -1", 16, "limits.model_calls: "),
        ("{pause: 0}", "{broken_from: 0}", 6, "OSError: no more worlds"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_neighbours(
    old: str, new: str, line: int, told: str
) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        read(TEXT.replace(old, new))
    assert f"s.yaml line {line}: " in str(caught.value)
    assert told in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("key", ["envs", "agents"])
@pytest.mark.parametrize("value", ["[]", "{}", "null", "5", "text"])
def test_nothing_to_play(key: str, value: str, spec: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        read(TEXT.partition(f"\n{key}:")[0] + f"\n{key}: {value}\n")


def test_the_same_world_twice_is_refused() -> None:
    world = TEXT[TEXT.index("  - id") : TEXT.index("models:")]
    with pytest.raises(ConfigError, match="twice"):
        read(TEXT.replace(world, world + world))
    read(TEXT.replace(world, world + world.replace("max_turns: 4", "max_turns: 5")))


def test_numbers_may_name_tasks() -> None:
    suite = read(
        TEXT.replace("standins:World-v0", "turnbench/TextCraft-v0")
        .replace("[good0, good1]", "[0, 140]")
        .replace("{pause: 0}", "{}")
    )
    assert tasks_of(suite.envs[0]) == ["0", "140"]


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "turnbench.agents.hf", None)
    with pytest.raises(ConfigError, match=r"line 12: backend 'hf' can't be loaded.*turnbench\[local\]"):
        read(TEXT.replace("backend: standins:Echo", "backend: hf"))


def test_a_replaced_model_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "turnbench.agents.hf", None)
    document = parse_yaml(TEXT.replace("standins:Echo", "hf"), "s.yaml")
    with pytest.raises(ConfigError, match="hf"):
        parse_suite(document)
    with pytest.raises(UnknownName, match="api"):
        parse_suite(document, model="nothing")


# --- digest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a trial", "another"),
        ("echo", "ekko"),
        ("  one:", "  two:"),
        ("colour: blue", "colour: green"),
        ("temperature: 0.5", "temperature: 0.7"),
    ],
)
def test_digest_ignores_who_plays(old: str, new: str) -> None:
    assert read(TEXT.replace(old, new)).digest == read(TEXT).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 2"),
        ("suite: trial", "suite: trial2"),
        ("[0, 1]", "[0, 2]"),
        ("[0, 1]", "[1, 0]"),
        ("[good0, good1]", "[good0]"),
        ("[good0, good1]", "all"),
        ("max_turns: 4", "max_turns: 5"),
        ("pause: 0", "pause: 0.001"),
        ("split: test", "split: train"),
        ("model_calls: 9", "model_calls: null"),
        ("seconds: 60", "seconds: 61"),
    ],
)
def test_digest_changes_with_the_protocol(old: str, new: str) -> None:
    assert read(TEXT.replace(old, new)).digest != read(TEXT).digest


def test_digest_ignores_order_and_layout() -> None:
    head, tail = TEXT.split("seeds: [0, 1]\n")
    assert read(head + tail + "seeds:\n  - 0\n  - 1\n").digest == read(TEXT).digest


# --- changes --------------------------------------------------------------------------------------


def test_with_changes() -> None:
    suite = read(TEXT + "")
    fewer = suite.with_changes(tasks=1)
    assert tasks_of(fewer.envs[0]) == ["good0"] and fewer.digest != suite.digest
    other = suite.with_changes(model="api:some-model")
    assert other.system("one")["model"] == {
        "name": "api-some-model",
        "backend": "api",
        "model": "some-model",
    }
    assert other.digest == suite.digest
    assert list(suite.with_changes(agents=["one"]).agents) == ["one"]
    with pytest.raises(UnknownName, match="one"):
        suite.with_changes(agents=["on"])
    with pytest.raises(ConfigError, match="at least 1"):
        suite.with_changes(tasks=0)
    with pytest.raises(UnknownName, match="hf:PATH"):
        suite.with_changes(model="tiny")
    assert suite.with_changes() == suite


def test_finding(tmp_path: Any) -> None:
    assert find_suite("quickstart").data["suite"] == "quickstart"
    with pytest.raises(UnknownName, match="quickstart"):
        load_suite("quickstar")
    with pytest.raises(ConfigError, match="No such file"):
        load_suite(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="directory"):
        load_suite(str(tmp_path))


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_shipped_suites_are_named_as_their_files(name: str) -> None:
    assert find_suite(name).validate(Suite).suite == name


def test_slug() -> None:
    assert slug("hf:runs/My Model") == "hf-runs-my-model"
    assert len(slug("x" * 500)) == 100
    assert slug("///") == "unnamed"


LINES = TEXT.splitlines(keepends=True)
VALUES = st.sampled_from(
    ["0", "-1", "null", "[]", "{}", "x", "1e9", "true", "[1, x]", "{a: 1}", "''", "9" * 30, "2.5"]
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_mutated_suite_is_a_suite_or_a_clear_error(data: st.DataObject) -> None:
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        k = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["drop", "double", "value", "indent", "char"])):
            case "drop":
                lines[k] = ""
            case "double":
                lines[k] *= 2
            case "value":
                lines[k] = lines[k].partition(":")[0] + ": " + data.draw(VALUES) + "\n"
            case "indent":
                lines[k] = " " * data.draw(st.integers(0, 4)) + lines[k].lstrip()
            case "char" if lines[k]:
                at = data.draw(st.integers(0, len(lines[k]) - 1))
                lines[k] = lines[k][:at] + data.draw(st.characters()) + lines[k][at:]
    try:
        suite = read("".join(lines))
    except ConfigError as error:
        assert str(error).startswith("s.yaml")
    else:
        assert len(suite.digest) == 16


def test_another_model_is_told_what_the_suites_own_knew() -> None:
    local = load_suite("quickstart", model="hf:folder")
    own = load_suite("quickstart").models["tiny"]
    assert local.models == {"hf-folder": {**own, "path": "folder"}}
    assert not any(row.options.get("instructions", True) for row in local.agents.values())
    api = load_suite("quickstart", model="api:some-model")
    assert api.models == {"api-some-model": {"backend": "api", "model": "some-model", "logprobs": True}}
    assert all(row.options["instructions"] is True for row in api.agents.values())
    assert api.agents["best-of-8"].options["scorer"] == "mean_logprob"
    alone = load_suite("quickstart", agents=["react"], model="api:some-model")
    assert "logprobs" not in alone.models["api-some-model"]
