"""check_env: a faultless world passes, and each planted fault fails exactly its own check."""

import itertools
import json
import os
import random
import subprocess
import threading
import time

import gymnasium
import numpy as np
import pytest

from turnbench.envs import make
from turnbench.envs.check import check_env
from turnbench.envs.core import Step, TextEnv, UnicodeText
from turnbench.envs.errors import UnknownName


class Guess(gymnasium.Env[str, str]):
    """A faultless plain world: guess a number; every third answer comes with a hint drawn by luck."""

    example_actions = ("20", "50", "70")

    def __init__(self) -> None:
        self.observation_space = self.action_space = UnicodeText()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret, self.turns = int(self.np_random.integers(1, 100)), []
        return "Guess my number from 1 to 99.", {}

    def step(self, action):
        self.turns.append(action)
        if not (action.isascii() and action.isdigit() and len(action) < 4):
            return self.hint("That is no number from 1 to 99."), 0.0, False, False, {}
        won = int(action) == self.secret
        said = "Right." if won else "Higher." if int(action) < self.secret else "Lower."
        return self.hint(said), float(won), won, False, {"success": won}

    def hint(self, said: str) -> str:
        lucky = self.np_random.integers(3) == 0
        return f"{said} You have had {len(self.turns)} turns{'!' if lucky else '.'}"


class Walk(TextEnv):
    """A faultless TextEnv with a fork of its own: walk up or down by a random number of steps."""

    example_actions = ("up", "down", "bag")

    def tasks(self, split):
        return ["low", "high"]

    def _reset(self, task):
        self.place, self.bag = (0 if task == "low" else 10), []
        return f"You stand on step {self.place}."

    def _step(self, action):
        if action == "bag":
            return Step(f"Your bag holds: {', '.join(self.bag) or 'nothing'}.")
        if action not in ("up", "down"):
            return Step("Nothing happens.")
        far = int(self.rng.integers(1, 4))
        self.place += far if action == "up" else -far
        self.bag.append(f"stone {self.place}")
        return Step(f"You stand on step {self.place}.", float(far), abs(self.place) > 20)

    def fork(self):
        twin = self._shallow_copy()
        twin.bag = self.bag.copy()
        return twin


def test_a_faultless_plain_world_passes_all() -> None:
    report = check_env(Guess)
    skipped = [r.check for r in report.results if r.verdict == "skip"]
    assert report.ok and skipped in ([], ["processes"]), str(report)


def test_a_world_without_spaces_passes() -> None:
    class Bare(Guess):
        def __init__(self) -> None:
            pass

    assert check_env(Bare).ok


def test_a_faultless_text_env_passes_all() -> None:
    assert check_env(Walk).ok


def test_a_world_that_declares_non_determinism_is_not_compared() -> None:
    class Declared(Clock):
        metadata = {"nondeterministic": True}

    verdicts = {r.check: r for r in check_env(Declared).results}
    assert {r.verdict for r in verdicts.values()} == {"pass", "skip"}
    for name in ("seed", "concurrency", "fork", "aliasing", "reset"):
        assert verdicts[name].verdict == "skip" and "declares itself" in verdicts[name].message
    assert verdicts["any_text"].verdict == verdicts["truncation"].verdict == "pass"


def test_the_declaration_may_stand_in_the_registration() -> None:
    for entry in (Guess, Walk):
        name = f"Declared{entry.__name__}-v0"
        gymnasium.register(name, entry, nondeterministic=True)
        try:
            env = make(name)
            assert env.nondeterministic
            env.reset(seed=0)
            assert env.spawn().nondeterministic
        finally:
            del gymnasium.registry[name]


# --- planted faults: the check that must fail, and a world that is sound but for one thing -----------


class IgnoredSeed(Guess):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Clock(Guess):
    def step(self, action):
        seen, *rest = super().step(action)
        return f"{seen} It is {time.perf_counter_ns()}.", *rest


class GlobalRandom(Guess):
    def step(self, action):
        seen, *rest = super().step(action)
        return f"{seen} {random.choice('abc')}", *rest


class GlobalNumpy(Guess):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)


class AliasedFork(Walk):
    def fork(self):
        return self._shallow_copy()


class ForkForgetsLuck(Walk):
    def fork(self):
        twin = super().fork()
        twin._rng = None
        return twin


class ForkForgetsPlace(Walk):
    def fork(self):
        twin = self.spawn()
        twin.reset(seed=self.seed, options={"task": self.task})
        return twin


class NumbersOnly(Guess):
    def step(self, action):
        int(action)
        return super().step(action)


class LoadedWord(Guess):
    """Ordinary words are answered; only what looks like a format string raises."""

    def step(self, action):
        if "{" in action:
            action.format()
        return super().step(action)


class LeftOver(Guess):
    """What the first episode leaves behind shows in the second."""

    best = 0

    def step(self, action):
        seen, *rest = super().step(action)
        self.best = max(self.best, len(self.turns))
        return f"{seen} Your longest game: {self.best} turns.", *rest


class SharedState(Guess):
    """The place of every instance is kept on the class."""

    def reset(self, *, seed=None, options=None):
        SharedState.place = 0
        return super().reset(seed=seed)

    def step(self, action):
        SharedState.place += 1
        seen, *rest = super().step(action)
        return f"{seen} Place {SharedState.place}.", *rest


HELD = []


class LeakedHandle(Guess):
    def __init__(self) -> None:
        super().__init__()
        self.file = open(os.devnull, encoding="utf-8")  # noqa: SIM115
        HELD.append(self.file)


class LeakedThread(Guess):
    def __init__(self) -> None:
        super().__init__()
        stop = threading.Event()
        threading.Thread(target=stop.wait, daemon=True).start()
        HELD.append(stop)


class LeakedChild(Guess):
    def __init__(self) -> None:
        super().__init__()
        self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        HELD.append(self.child)


class ClosesOnce(Guess):
    def close(self):
        del self.gone

    def reset(self, *, seed=None, options=None):
        self.gone = True
        return super().reset(seed=seed)


class UnstableTasks(Walk):
    calls = itertools.count()

    def tasks(self, split):
        return ["low", "high"] if next(self.calls) % 2 else ["high", "low"]


class RepeatedTask(Walk):
    def tasks(self, split):
        return ["low", "low"]


class NoTasks(Walk):
    def tasks(self, split):
        return []


class BrokenTask(Walk):
    def _reset(self, task):
        return {"low": "You stand."}[task]


class NoText(Guess):
    def step(self, action):
        seen, *rest = super().step(action)
        return seen.encode(), *rest


class NotANumber(Guess):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, float("nan"), *rest


class Endless(Walk):
    def step(self, action):
        self.over = False
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, False, info


class NoTurnLimit(Walk):
    def __init__(self):
        super().__init__()


class FixedTurns(Walk):
    def __init__(self, *, max_turns=None):
        super().__init__(max_turns=50)


RELEASE = threading.Event()


class Hangs(Guess):
    def step(self, action):
        RELEASE.wait()
        return super().step(action)


class HangsAtStart(Guess):
    def reset(self, *, seed=None, options=None):
        RELEASE.wait()
        return super().reset(seed=seed)


class WrongSpace(Guess):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Text(10)
        self.action_space = UnicodeText()


class SameInfo(Guess):
    """Gymnasium asks for a new info at each step."""

    info: dict = {}

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, self.info


FAULTS = {
    IgnoredSeed: "seed",
    Clock: "seed",
    GlobalRandom: "global_rng",
    GlobalNumpy: "global_rng",
    AliasedFork: "aliasing",
    ForkForgetsLuck: "fork",
    ForkForgetsPlace: "fork",
    NumbersOnly: "any_text",
    LoadedWord: "any_text",
    LeftOver: "reset",
    SharedState: "concurrency",
    LeakedHandle: "close",
    LeakedThread: "close",
    LeakedChild: "close",
    ClosesOnce: "close",
    UnstableTasks: "tasks",
    RepeatedTask: "tasks",
    NoTasks: "tasks",
    BrokenTask: "tasks",
    NoText: "values",
    NotANumber: "values",
    Endless: "truncation",
    NoTurnLimit: "make",
    FixedTurns: "make",
    Hangs: "play",
    HangsAtStart: "tasks",
    WrongSpace: "gymnasium",
    SameInfo: "gymnasium",
}


@pytest.fixture
def released():
    RELEASE.clear()
    yield
    RELEASE.set()
    for held in HELD:
        match held:
            case threading.Event():
                held.set()
            case subprocess.Popen():
                held.communicate()
            case _:
                held.close()
    HELD.clear()


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize(("world", "check"), FAULTS.items(), ids=lambda x: getattr(x, "__name__", x))
def test_a_planted_fault_fails_exactly_its_check(world, check, monkeypatch) -> None:
    monkeypatch.setattr("turnbench.envs.probe.origin", lambda env, kwargs: None)
    report = check_env(world, seconds=0.5 if world in (Hangs, HangsAtStart) else 30)
    assert [r.check for r in report.failures] == [check], str(report)


# --- faults that only another process shows ------------------------------------------------------------

SETS = """
import gymnasium
class Bag(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {start}, {{}}
    def step(self, action):
        return "Nothing happens.", 0.0, False, False, {info}
gymnasium.register("{name}-v0", "{module}:Bag")
"""
WORDS = "{'apple', 'pear', 'plum', 'fig'}"


def written(folder, monkeypatch, name: str, start: str = "'A bag.'", info: str = "{}") -> str:
    module = f"turnbench_test_{name.lower()}"
    text = SETS.format(name=name, module=module, start=start, info=info)
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return f"{module}:{name}-v0"


def test_the_order_of_a_set_is_found_across_processes_only(tmp_path, monkeypatch) -> None:
    report = check_env(written(tmp_path, monkeypatch, "Unsorted", start=f"' '.join({WORDS})"))
    assert [r.check for r in report.failures] == ["processes"], str(report)
    assert "PYTHONHASHSEED" in report.failures[0].message


@pytest.mark.parametrize(
    ("name", "start", "info"),
    [
        ("Sorted", f"' '.join(sorted({WORDS}))", "{}"),
        ("SetInInfo", "'A bag.'", f"{{'words': {WORDS}}}"),  # no order is promised, none is compared
    ],
)
def test_order_that_no_one_sees_is_fine(tmp_path, monkeypatch, name, start, info) -> None:
    report = check_env(written(tmp_path, monkeypatch, name, start=start, info=info))
    assert all(r.verdict == "pass" for r in report.results), str(report)


def test_an_importable_class_is_checked_across_processes(tmp_path, monkeypatch) -> None:
    module = written(tmp_path, monkeypatch, "Importable", start="str(hash('a'))").partition(":")[0]
    report = check_env(__import__(module).Bag)
    assert [r.check for r in report.failures] == ["processes"]


def test_the_other_process_may_not_know_the_world() -> None:
    gymnasium.register("OnlyHere-v0", Guess)
    report = check_env("OnlyHere-v0")
    assert report.ok
    assert {r.check: r.verdict for r in report.results}["processes"] == "skip", str(report)


# --- the report ----------------------------------------------------------------------------------------


def test_report_as_text_and_json() -> None:
    report = check_env(NotANumber)
    text, data = str(report), json.loads(json.dumps(report.to_json()))
    assert not report.ok and data["ok"] is False
    assert len(text.splitlines()) == len(report.results) + 1 == len(data["checks"]) + 1
    assert "fail  values" in text and "NaN" in report.failures[0].message


def test_an_error_names_its_place() -> None:
    message = check_env(BrokenTask).failures[0].message
    assert message.startswith("raised KeyError: 'high' (test_check.py, line ")


def test_a_failed_check_skips_only_what_rests_on_it(monkeypatch) -> None:
    monkeypatch.setattr("turnbench.envs.probe.origin", lambda env, kwargs: None)
    verdicts = {r.check: r.verdict for r in check_env(IgnoredSeed).results}
    assert [c for c, v in verdicts.items() if v == "pass"] == [
        *("make", "tasks", "play", "values", "any_text", "global_rng", "truncation", "close"),
    ]


def test_nothing_is_printed_or_warned(capsys) -> None:
    check_env(WrongSpace)
    assert capsys.readouterr() == ("", "")


def test_the_global_generators_are_as_before() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    check_env("turnbench/Toy-v0")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_an_unknown_id_is_no_report() -> None:
    with pytest.raises(UnknownName, match="turnbench/Toy-v0"):
        check_env("turnbench/Toi-v0")


def test_arguments_reach_the_world() -> None:
    with pytest.raises(UnknownName, match="deterministic"):
        check_env("turnbench/Toy-v0", variant="determinist")
