"""Value functions: the text of a state, scores read from a model's words, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.amc import AMC
from turnbench.agents.model import Completion, Prompt, ScriptedModel
from turnbench.agents.rollout import Move, Rollout
from turnbench.agents.values import (
    Computed,
    ZeroShot,
    estimates,
    make_value,
    read_final_score,
    read_score,
    state_text,
)
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Failure, Outcome, Task, Turn
from turnbench.envs.toy import Toy

TASK = Task("turnbench/Toy-v0", "0")


def started(*actions: str) -> Rollout:
    rollout = Rollout.start(Toy("shaped"), TASK, np.random.default_rng(0))
    for action in actions:
        rollout.advance(Move(action))
    return rollout


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0.35", 0.35),
        ("0", 0.0),
        ("1", 1.0),
        (" .5\n", 0.5),
        ("Score: 0.25.", 0.25),
        ("1e-2", 0.01),
        ("0.8, since the goal is near", 0.8),
        ("", None),
        ("I can't tell.", None),
        ("0,7", None),
        ("70%", None),
        ("7/10", None),
        ("85", None),
        ("-0.5", None),
        ("nan", None),
        ("inf", None),
        ("v2", None),
        ("1e999", None),
    ],
)
def test_a_missing_number_is_no_zero(text: str, score: float | None) -> None:
    assert read_score(text) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("It has 2 of 3 items. Final score: 7", 0.7),
        ("final score 10.", 1.0),
        ("Final score: 3/10", 0.3),
        ("Final score: 4. No: **Final score:** 6", 0.6),
        ("Final score: 11", None),
        ("Final score: 70%", None),
        ("Score: 7", None),
        ("7", None),
    ],
)
def test_reflection_is_read_from_its_last_line(text: str, score: float | None) -> None:
    assert read_final_score(text) == score


@given(st.text())
def test_any_text_is_read_without_error(text: str) -> None:
    for read in (read_score, read_final_score):
        score = read(text)
        assert score is None or 0 <= score <= 1


@given(st.floats(0, 1))
def test_numbers_from_0_to_1_are_read_back(number: float) -> None:
    assert read_score(f"Score: {number}") == number


def test_the_state_is_the_task_the_last_rounds_and_now() -> None:
    turns = [Turn("task", "a", 0), Turn("seen 1", "b", 0), Turn("seen 2", "c", 0)]
    assert state_text(turns, "seen 3", history=2).splitlines() == [
        "=== INSTRUCTION ===",
        "task",
        "=== HISTORY ===",
        "Round 2 - STATE: seen 1",
        "ACTION: b",
        "Round 3 - STATE: seen 2",
        "ACTION: c",
        "=== NOW ===",
        "[STATE] seen 3",
    ]
    assert "Round 1 - ACTION: a" in state_text(turns, "seen 3")
    assert "Round" not in state_text(turns, "seen 3", history=0)
    assert state_text([], "task").count("task") == 2


def test_zero_shot_asks_once_per_state_and_stretches_scores() -> None:
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return "0.5"

    value = ZeroShot(ScriptedModel(answer))
    paths = [started("right"), started("right"), started("left")]
    for path in paths:
        path.env.return_range = (-1.0, 3.0)
    assert value.returns(paths) == [1.0, 1.0, 1.0]
    assert len(asked) == 2
    assert value.returns(paths[:1]) == [1.0]
    assert len(asked) == 2  # it remembers
    (message,) = asked[0].messages
    assert Toy().instructions in message.content
    assert "You are in room 3" in message.content


def test_zero_shot_is_greedy_and_short() -> None:
    class Recorder(ScriptedModel):
        def generate(self, prompts, sampling=None):  # type: ignore[no-untyped-def]
            self.used = sampling
            return super().generate(prompts, sampling)

    model = Recorder(lambda _: "Final score: 2")
    assert ZeroShot(model, style="reflect").returns([started()]) == [0.2]
    assert (model.used.temperature, model.used.max_tokens) == (0.0, 256)


def test_unreadable_answers_are_counted_and_declared() -> None:
    answers = iter(["no idea", Failure(Outcome.INFRA_ERROR, "gone"), "0", Completion("0.9")])
    value = ZeroShot(ScriptedModel(lambda _: next(answers)), fallback=0.3)
    paths = [started(), started("right"), started("left"), started("wait")]
    assert value.returns(paths) == [0.3, 0.3, 0.0, 0.9]
    assert value.fallbacks == 2


def test_the_population_tells_how_many_values_were_missing() -> None:
    def answer(prompt: Prompt) -> str:
        judged = "=== NOW ===" in prompt.messages[-1].content
        return "hard to say" if judged else "wait"

    agent = AMC(ScriptedModel(answer), n=3, value="zero_shot", resample_at=[1])
    found = agent.solve(Toy(), TASK, np.random.default_rng(0))
    assert found.fallbacks == 1  # three particles in one state


def test_a_shared_model_outlives_what_it_writes_and_not_its_checkpoint(tmp_path, monkeypatch) -> None:
    from turnbench.agents import sharing

    monkeypatch.setattr(sharing, "_shared", {})
    monkeypatch.setattr(sharing, "make_model", lambda spec: object())
    for name in ("cache", "model"):
        (tmp_path / name).mkdir()
    spec = {"backend": "hf", "path": str(tmp_path / "model"), "cache": str(tmp_path / "cache")}
    first = sharing.shared_model(spec)
    (tmp_path / "cache" / "answers").write_text("one", encoding="utf-8")
    assert sharing.shared_model(dict(spec)) is first
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    assert sharing.shared_model(spec) is not first


def test_another_model_has_its_own_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    import turnbench.agents.values as values

    other = ScriptedModel(lambda _: "0.5")
    monkeypatch.setattr(values, "shared_model", lambda spec: other)
    spec = {"value": "zero_shot", "model": {"backend": "api", "model": "judge"}}
    agent = AMC(ScriptedModel(lambda _: "wait"), n=3, value=spec, resample_at=[1])
    found = agent.solve(Toy(), TASK, np.random.default_rng(0))
    assert found.usage.model_calls == 1


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("zero-shot", UnknownName, "zero_shot"),
        ({"value": "zero_shot", "styl": "score"}, UnknownName, "style"),
        ({"value": "zero_shot", "style": "poem"}, UnknownName, "reflect"),
        ({"value": "zero_shot", "fallback": 2}, ConfigError, "from 0 to 1"),
        ({"style": "score"}, ConfigError, "needs the key 'value'"),
    ],
)
def test_wrong_specifications_are_refused(spec: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_value(spec, ScriptedModel(lambda _: ""))


def test_a_folder_without_a_value_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"holds no value\.json"):
        make_value(str(tmp_path), ScriptedModel(lambda _: ""))


def test_collected_sees_rewards_and_constant_sees_nothing() -> None:
    paths = [started(), started("right"), started("right", "right")]
    asked = ScriptedModel(lambda _: "")
    assert make_value("collected", asked).returns(paths) == [0, 0.25, 1.25]
    assert make_value("collected", asked).oracle
    assert make_value("constant", asked).returns(paths) == [0, 0, 0]
    assert not make_value("constant", asked).oracle


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_name_the_function(number: float) -> None:
    with pytest.raises(ConfigError, match=r"value function 'computed' returned .* task 0 after 1 turns"):
        estimates(Computed(lambda _: number), [started("wait")])
