"""The TextEnv contract, the wrapper of plain worlds, and making environments by name."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from hypothesis import given
from hypothesis import strategies as st

import turnbench.envs
from turnbench.envs import list_envs, make
from turnbench.envs.core import MAX_SEED, PlainEnv, Step, TextEnv, UnicodeText, clean, mix
from turnbench.envs.errors import (
    BadStep,
    ConfigError,
    EpisodeOver,
    ForkError,
    TurnbenchError,
    UnknownName,
)
from turnbench.envs.textcraft import TextCraft


class Echo(TextEnv):
    """Answers with a dice throw; "end" ends, "pay" pays, "nan", "none" and "odd" break the contract."""

    def __init__(self, prefix: str = "", *, max_turns: int | None = None, render_mode=None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.prefix = prefix
        self.opened = False

    def tasks(self, split):
        return ["a", "b", "c"]

    def _reset(self, task):
        return f"{self.prefix}{task}"

    def _step(self, action):
        if action in ("nan", "none", "odd", "\ud800"):
            return {"nan": Step("", math.nan), "none": Step(None), "odd": Step("", "much")}[action]
        if action == "surrogate":
            return Step("half \ud800 pair")
        said = f"{self.prefix}{action} {int(self.rng.integers(100))}"
        return Step(
            said,
            np.float32(action == "pay"),
            action == "end",
            {"success": True} if action == "end" else None,
        )


class Plain(gymnasium.Env[str, str]):
    """A plain world that truncates by itself at "stop"."""

    instructions = "Say what you like."

    def __init__(self, word: str = "hello") -> None:
        self.word, self.closed = word, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"{self.word} {self.np_random.integers(1000)}", {}

    def step(self, action):
        if action == "bytes":
            return b"bytes", 0.0, False, False, {}
        return (
            f"{action} {self.np_random.integers(1000)}",
            1,
            action == "end",
            action in ("stop", "end"),
            {"k": 1},
        )

    def close(self):
        self.closed += 1


def started(task: str = "a", seed: int = 1, **kwargs) -> Echo:
    env = Echo(**kwargs)
    env.reset(seed=seed, options={"task": task})
    return env


# --- TextEnv -----------------------------------------------------------------------------------------


def test_reset_says_task_and_seed() -> None:
    assert Echo(prefix=">").reset(seed=7, options={"task": "b"}) == (">b", {"task": "b", "seed": 7})


def test_reset_without_arguments_draws_task_and_seed_from_gymnasiums_generator() -> None:
    env = Echo()
    env.reset(seed=5)
    first = [env.reset()[1] for _ in range(20)]
    env.reset(seed=5)
    assert first == [env.reset()[1] for _ in range(20)]
    assert {info["task"] for info in first} == {"a", "b", "c"}
    assert len({info["seed"] for info in first}) == 20 and all(0 <= i["seed"] < MAX_SEED for i in first)


def test_reset_refuses_unknown_options() -> None:
    with pytest.raises(UnknownName, match="'tusk'.*task"):
        Echo().reset(options={"tusk": "a"})


def test_steps_are_counted_and_kept() -> None:
    env = started()
    for action in ("x", "pay", "\ud800x"):
        env.step(action)
    assert env.history == ["x", "pay", "?x"] and env.counts.steps == 3
    assert env.step("pay")[1] == 1.0 and type(env.step("pay")[1]) is float


def test_truncation_is_no_termination() -> None:
    env = started(max_turns=2)
    assert env.step("x")[2:4] == (False, False)
    assert env.step("x")[2:4] == (False, True) and env.over
    env.reset(seed=1)
    env.step("x")
    assert env.step("end")[2:4] == (True, False)


@pytest.mark.parametrize("last", ["end", "x"])
def test_nothing_is_played_after_the_end(last) -> None:
    env = started(max_turns=1)
    env.step(last)
    with pytest.raises(EpisodeOver, match="reset"):
        env.step("x")
    assert env.history == [last] and env.counts.steps == 1


def test_nothing_is_played_before_the_start() -> None:
    with pytest.raises(EpisodeOver):
        Echo().step("x")


@pytest.mark.parametrize(("action", "words"), [("nan", "nan"), ("odd", "'much'"), ("none", "NoneType")])
def test_answers_that_break_the_contract_are_errors(action, words) -> None:
    with pytest.raises(BadStep, match=words):
        started().step(action)


def test_observations_are_made_valid_text() -> None:
    env = started()
    assert env.step("surrogate")[0] == "half ? pair" == env.observation


@pytest.mark.parametrize("turns", [0, -1])
def test_max_turns_is_positive(turns) -> None:
    with pytest.raises(ValueError, match=f"max_turns is {turns}"):
        Echo(max_turns=turns)


def test_infos_are_new_at_each_step() -> None:
    env = started()
    first, second = env.step("x")[4], env.step("x")[4]
    assert first == second == {} and first is not second


def test_render() -> None:
    env = started(render_mode="ansi")
    assert env.render() == "a" and started().render() is None


# --- forks -------------------------------------------------------------------------------------------


def test_fork_by_replay_goes_on_alike_and_apart() -> None:
    env = started(prefix=">", max_turns=9)
    before = [env.step("x")[0] for _ in range(3)]
    twin = env.fork()
    assert (twin.prefix, twin.max_turns, twin.history) == (">", 9, ["x"] * 3) and twin is not env
    ours = [env.step("x")[0] for _ in range(3)]
    assert ours == [twin.step("x")[0] for _ in range(3)] and ours != before
    twin.step("y")
    assert env.history == ["x"] * 6


def test_forks_are_on_the_bill_once() -> None:
    env = started()
    for _ in range(4):
        env.step("x")
    twin = env.fork()
    twin.step("x")
    assert (env.counts.steps, env.counts.replayed, env.counts.forks) == (5, 4, 1)
    assert twin.counts is env.counts


def test_shallow_copy_copies_the_generator_where_it_was_used() -> None:
    class Quick(Echo):
        def fork(self):
            return self._shallow_copy()

    for played in (0, 2):
        env = Quick()
        env.reset(seed=3, options={"task": "a"})
        for _ in range(played):
            env.step("x")
        twin, slow = env.fork(), super(Quick, env).fork()
        rows = [[e.step("x") for _ in range(3)] for e in (env, twin, slow)]
        assert rows[0] == rows[1] == rows[2]


def test_a_world_that_does_not_repeat_cannot_be_forked() -> None:
    class Fickle(Echo):
        calls = closed = 0

        def close(self):
            Fickle.closed += 1

        def _step(self, action):
            Fickle.calls += 1
            return Step(f"call {self.calls}")

    env = Fickle()
    env.reset(seed=1, options={"task": "a"})
    env.step("x")
    with pytest.raises(ForkError, match="task a, seed 1: after 1 replayed"):
        env.fork()
    assert (env.counts.steps, env.counts.replayed) == (1, 1)
    assert Fickle.closed == 1, "the failed copy is closed"


def test_a_fork_of_a_finished_episode_is_finished() -> None:
    env = started()
    env.step("end")
    assert env.fork().over


# --- PlainEnv ----------------------------------------------------------------------------------------


def test_plain_worlds_get_turns_tasks_and_forks() -> None:
    env = PlainEnv(Plain, max_turns=3, word="hi")
    first, info = env.reset(seed=4, options={"task": "17"})
    assert first.startswith("hi ") and info == {"task": "17", "seed": 4}
    assert env.instructions == "Say what you like."
    env.step("x")
    twin = env.fork()
    assert env.step("y") == twin.step("y")
    assert env.step("z")[2:4] == (False, True)


def test_plain_tasks_and_seeds_give_different_starts() -> None:
    env = PlainEnv(Plain)
    starts = {env.reset(seed=s, options={"task": t})[0] for s in range(5) for t in ("0", "1", "2")}
    assert len(starts) > 10
    assert env.tasks("train") == env.tasks("test") == [str(k) for k in range(1000)]
    with pytest.raises(UnknownName, match="dev"):
        env.tasks("dev")


@pytest.mark.parametrize(("action", "ends"), [("stop", (False, True)), ("end", (True, False))])
def test_a_plain_world_may_truncate_by_itself(action, ends) -> None:
    env = PlainEnv(Plain)
    env.reset(seed=0, options={"task": "0"})
    _, reward, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, env.over) == (*ends, True) and reward == 1.0 and info == {"k": 1}
    env.reset(seed=0, options={"task": "0"})
    assert not env.over and not env.step("x")[3]


def test_a_plain_world_must_speak() -> None:
    env = PlainEnv(Plain)
    env.reset(seed=0, options={"task": "0"})
    with pytest.raises(BadStep, match="bytes, not text"):
        env.step("bytes")


def test_closing_closes_the_wrapped_world() -> None:
    env = PlainEnv(Plain)
    env.close()
    assert env.inner.closed == 1


# --- text --------------------------------------------------------------------------------------------


@given(st.text(st.characters()) | st.text())
def test_clean_leaves_valid_text_alone_and_repairs_the_rest(text) -> None:
    cleaned = clean(text)
    assert cleaned.encode("utf-8") and cleaned == clean(cleaned) if text else cleaned == ""
    assert len(cleaned) == len(text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        assert "?" in cleaned
    else:
        assert cleaned == text


def test_unicode_text_space() -> None:
    space = UnicodeText(max_length=5)
    assert "" in space and "漢字🙂" in space and "abcdef" not in space
    assert "\ud800" not in space and 5 not in space and None not in space
    space.seed(1)
    first = [space.sample() for _ in range(5)]
    space.seed(1)
    assert first == [space.sample() for _ in range(5)] and all(0 < len(s) < 40 for s in first)


def test_mixed_seeds_depend_on_everything() -> None:
    seeds = {mix(s, *names) for s in (0, 1) for names in ((), ("a",), ("b",), ("a", "b"), ("b", "a"))}
    assert len(seeds) == 10 and all(0 <= seed < MAX_SEED for seed in seeds)
    assert mix(3, "turnbench") == 1603416993


# --- making by name ------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module on the path that registers Hello-v0, with a bound of its own, when it is imported."""
    text = (
        "import gymnasium\n"
        "class Hello(gymnasium.Env):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return 'hello', {}\n"
        "    def step(self, action):\n"
        "        return action, 0.0, False, False, {}\n"
        "gymnasium.register('Hello-v0', 'turnbench_test_hello:Hello', max_episode_steps=7)\n"
    )
    (tmp_path / "turnbench_test_hello.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "turnbench_test_hello"
    registry.pop("Hello-v0", None)


def test_make_one_of_ours() -> None:
    env = make("turnbench/TextCraft-v0", max_turns=3, min_depth=2)
    assert isinstance(env, TextCraft) and env.max_turns == 3 and env.depths == (2, 99)


def test_make_by_module_and_name(module) -> None:
    env = make(f"{module}:Hello-v0")
    assert isinstance(env, PlainEnv) and env.max_turns == 7
    assert make(f"{module}:Hello-v0", max_turns=2).max_turns == 2
    assert env.reset(seed=0, options={"task": "3"})[0] == "hello"
    assert "Hello-v0" in list_envs() and make("Hello-v0").max_turns == 7


def test_make_what_is_registered_with_gymnasium(monkeypatch) -> None:
    gymnasium.register("Ours-v0", "turnbench.envs.textcraft:TextCraft")
    gymnasium.register("Fixed-v0", Plain, kwargs={"word": "good day"})
    try:
        assert type(make("Ours-v0", max_turns=4)) is TextCraft
        assert make("Fixed-v0").reset(seed=0, options={"task": "0"})[0].startswith("good day")
        assert {"Ours-v0", "Fixed-v0"} <= set(list_envs())
    finally:
        registry.pop("Ours-v0")
        registry.pop("Fixed-v0")


def test_make_by_entry_point(monkeypatch) -> None:
    class Point:
        name = "acme/Echo-v0"

        @staticmethod
        def load():
            return Echo

    monkeypatch.setattr(turnbench.envs, "_plugins", lambda: {Point.name: Point})
    assert isinstance(make("acme/Echo-v0", prefix="!"), Echo)
    assert list_envs().index("acme/Echo-v0") >= len(turnbench.envs.ENVS)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("turnbench/TextCraft-v1", "turnbench/TextCraft-v0"),
        ("TextCraft", "turnbench/TextCraft-v0"),
        ("no_such_module:Thing-v0", "turnbench/"),
        ("math:Thing-v0", "known: "),
        ("", "turnbench/"),
        (":", "turnbench/"),
    ],
)
def test_unknown_names_name_the_neighbours(name, near) -> None:
    with pytest.raises(UnknownName, match=near) as caught:
        make(name)
    assert isinstance(caught.value, TurnbenchError) and isinstance(caught.value, LookupError)
    assert repr(name) in str(caught.value)


def test_a_module_that_fails_to_import_says_so_itself(tmp_path, monkeypatch) -> None:
    (tmp_path / "turnbench_test_needy.py").write_text("import no_such_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="turnbench_test_needy raises .*no_such_dependency"):
        make("turnbench_test_needy:Needy-v0")


def test_gymnasiums_examples_are_not_listed() -> None:
    assert not [name for name in list_envs() if "CartPole" in name or "phys2d" in name]
