"""Blame: one decisive error a log, Who&When's files and figures, and how verdicts are read and scored."""

import json
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnbench.envs import make
from turnbench.envs.blame import render
from turnbench.envs.blame_files import SUBSETS, read_who_and_when
from turnbench.envs.blame_log import plain_agent
from turnbench.envs.blame_logs import OWNER, labelled_logs, toolworld_log
from turnbench.envs.blame_metrics import (
    Verdict,
    accuracy,
    hits,
    read_verdict,
    uniform,
    uniform_agent,
    uniform_step,
)
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolworld import ToolWorld
from turnbench.envs.toolworld_tools import TOOLS

ID = "turnbench/Blame-v0"
DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "who_and_when"
needs_logs = pytest.mark.skipif(not DATA.is_dir(), reason="the sample of Who&When is not there")


# --- ToolWorld's logs -----------------------------------------------------------------------------------


def replayed(task: str, actions: list[str]) -> tuple[list[str], bool]:
    """What is seen, and whether the task is solved, when `actions` are played."""
    world = ToolWorld()
    seen, info = [world.reset(seed=0, options={"task": task})[0]], {}
    for action in actions:
        observation, _, _, _, info = world.step(action)
        seen.append(observation)
    return seen, bool(info.get("success"))


def test_the_labelled_step_alone_decides() -> None:
    """The run fails as logged. With that step right, and what follows from it, it is the ground truth,
    which passes; until then they are the same run."""
    kinds = set()
    for log in [*labelled_logs(split="test", limit=70), *labelled_logs(split="train", limit=14)]:
        world = ToolWorld()
        world.reset(seed=0, options={"task": log.id})
        right, wrong = world.solution(), [turn.action for turn in log.trajectory.turns]
        seen, solved = replayed(log.id, wrong)
        assert not solved and log.trajectory.success is False
        assert seen == [*(turn.observation for turn in log.trajectory.turns), log.trajectory.final]
        assert replayed(log.id, right)[1]
        differing = [k for k, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]
        assert differing[0] == log.step and log.agent == log.agents[log.step]
        if not log.reason.startswith("looked up"):
            assert differing == [log.step]
        kinds.add(log.reason.split()[0] + log.reason.split()[1] * log.reason.startswith("looked"))
    assert kinds == {"called", "lookedagain", "lookedup", "told"}


def test_what_follows_from_a_wrong_look_up_is_no_error_of_its_own() -> None:
    """The later steps are those that would be right for whom was found."""
    logs = [log for log in labelled_logs(limit=70) if log.reason.startswith("looked up")]
    assert logs
    for log in logs:
        found = json.loads(log.text(log.step).partition("\nResult: ")[2])
        world = ToolWorld()
        world.reset(seed=0, options={"task": log.id})
        right = world.solution()
        name = json.loads(right[log.step])["arguments"]["name"]
        email = world.problem.state["contacts"][name]["email"]
        for theirs, ours in zip(
            right[log.step + 1 :], log.trajectory.turns[log.step + 1 :], strict=True
        ):
            assert ours.action == theirs.replace(email, found[0]["email"])


def test_logs_are_the_same_each_time_and_every_tool_has_an_agent() -> None:
    first = [repr(log) for log in labelled_logs(limit=10)]
    toolworld_log.cache_clear()
    assert [repr(log) for log in labelled_logs(limit=10)] == first
    assert OWNER.keys() == TOOLS.keys()


def test_labels_are_spread_over_agents_and_steps() -> None:
    """No constant guess does well: the uniform one is the floor to print."""
    logs = list(labelled_logs(limit=70))
    agents = [log.agent for log in logs]
    steps = [log.step for log in logs]
    assert max(agents.count(a) for a in agents) < 0.5 * len(logs)
    assert max(steps.count(s) for s in steps) < 0.4 * len(logs)
    agent, step = uniform(logs)
    assert 0.2 < agent < 0.6 and 0.05 < step < 0.3


# --- the world ------------------------------------------------------------------------------------------


def test_the_labelled_answer_is_right_and_nothing_is_not() -> None:
    env = make(ID)
    for task in env.tasks("test")[:70]:
        log_text, _ = env.reset(seed=0, options={"task": task})
        assert env.log.reason not in log_text
        _, paid, over, _, info = env.step(env.solution()[0])
        assert (paid, over, info["success"], info["answered"]) == (1.0, True, True, True)
        env.reset(seed=0, options={"task": task})
        _, paid, over, _, info = env.step("")
        assert (paid, over, info["success"], info["answered"]) == (0.0, True, False, False)


def test_the_step_pays_and_both_are_success() -> None:
    env = make(ID)
    env.reset(seed=0, options={"task": "base-1-20000"})
    log = env.log
    answers = {
        json.dumps({"agent": "nobody", "step": log.step}): (1.0, False, True, False),
        json.dumps({"agent": log.agent, "step": log.step + 1}): (0.0, True, False, False),
    }
    for answer, told in answers.items():
        env.reset(seed=0, options={"task": "base-1-20000"})
        _, paid, _, _, info = env.step(answer)
        assert (paid, *(info[k] for k in ("agent_correct", "step_correct", "success"))) == told


PARTS = st.sampled_from(['{"agent": ', '"step": ', "Agent Name:", "Step Number:", "12", "\n", "}", '"'])
TEXTS = st.text(max_size=300) | st.lists(PARTS | st.text(max_size=5), max_size=12).map("".join)


@given(TEXTS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_answer_is_taken_and_nothing_else_happens(watched, text) -> None:
    env = make(ID)
    env.reset(seed=0, options={"task": "base-1-20000"})
    with watched():
        _, paid, over, _, info = env.fork().step(text)
    assert over and paid in (0.0, 1.0) and env.step(text)[4] == info


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"source": "who"}, "who_and_when"),
        ({"source": "who_and_when"}, "needs `data`"),
        ({"data": "x"}, "go with source who_and_when"),
        ({"source": "who_and_when", "data": "nowhere"}, "nowhere.Hand-Crafted holds no logs"),
        ({"variant": "bass"}, "base"),
    ],
)
def test_wrong_options_are_refused(options, why) -> None:
    with pytest.raises((ConfigError, UnknownName), match=why):
        make(ID, **options)


# --- verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"agent": "WebSurfer", "step": 12}', ("WebSurfer", "12")),
        ('{"name": "blame", "arguments": {"agent": "A", "step": "3"}}', ("A", "3")),
        ("Agent Name: Excel_Expert\nStep Number: 0\nReason for Mistake: x", ("Excel_Expert", "0")),
        ("**Agent Name:** Orchestrator (thought)\n**Step Number:** 5", ("Orchestrator (thought)", "5")),
        ('Was it {"agent": "B", "step": 1}? No: agent: C. {"agent": "A", "step": 3}', ("A", "3")),
        ('{"agent": "A", "step": 3', ("A", "3")),
        ("agent: A\nstep: Step 4.", ("A", "4")),
        ('{"agent": "A"}', ("A", "")),
        ("I can't tell.", ("", "")),
        ("{" * 50_000, ("", "")),
        ("{" + "a" * 50_000, ("", "")),
    ],
)
def test_a_verdict_is_read(text, verdict) -> None:
    assert read_verdict(text) == verdict


@pytest.mark.parametrize(
    ("said", "label", "plain", "compat"),
    [
        (("WebSurfer", "12"), ("WebSurfer", 1), (True, False), (True, True)),
        (("Orchestrator (thought)", "5"), ("Orchestrator", 5), (True, True), (True, True)),
        (("websurfer", "05"), ("WebSurfer", 5), (True, True), (False, True)),
        (("the WebSurfer", "-5"), ("WebSurfer", 5), (False, False), (True, True)),
        (("", ""), ("WebSurfer", 0), (False, False), (False, False)),
        (("A", "9" * 5000), ("A", 9), (True, False), (True, True)),
    ],
)
def test_a_verdict_is_compared_by_equality_or_as_published(said, label, plain, compat) -> None:
    assert hits(Verdict(*said), *label) == plain
    assert hits(Verdict(*said), *label, compat=True) == compat


def test_accuracy_counts_a_missing_verdict_as_wrong() -> None:
    logs = list(labelled_logs(limit=4))
    right = [Verdict(log.agent, str(log.step)) for log in logs]
    assert accuracy(right, logs) == (1.0, 1.0, 1.0, 4, 0)
    some = [right[0], None, Verdict(), Verdict(logs[3].agent, "99")]
    assert accuracy(some, logs) == (0.5, 0.25, 0.25, 4, 2)
    with pytest.raises(ValueError, match="3 verdicts for 4 logs"):
        accuracy(right[:3], logs)


# --- Who&When -------------------------------------------------------------------------------------------


@needs_logs
def test_uniform_guesses_score_what_they_should_on_all_184_logs() -> None:
    rows = json.loads((DATA / "labels_184.json").read_text(encoding="utf-8"))
    figures = {
        "Hand-Crafted": (58, 0.42, 0.042, 0.089, 22),
        "Algorithm-Generated": (126, 0.39, 0.120, 0.120, 0),
    }
    for subset, (count, agent, step, published, affected) in figures.items():
        some = [row for row in rows if row["subset"] == subset]
        chances = [
            [uniform_step(r["steps"], r["mistake_step"], compat) for compat in (False, True)]
            for r in some
        ]
        assert len(some) == count and sum(a != b for a, b in chances) == affected
        assert fmean(uniform_agent(r["agents"], r["mistake_agent"]) for r in some) == pytest.approx(
            agent, abs=0.006
        )
        assert fmean(a for a, _ in chances) == pytest.approx(step, abs=0.0005)
        assert fmean(b for _, b in chances) == pytest.approx(published, abs=0.0005)


@needs_logs
def test_the_sample_logs_are_read_as_labelled() -> None:
    rows = json.loads((DATA / "labels_184.json").read_text(encoding="utf-8"))
    labels = {(row["subset"], row["file"]): row for row in rows}
    names = {
        "hand_crafted": ["1", "6", "20", "24", "48"],
        "algorithm_generated": ["1", "12", "14", "21", "47", "93"],
    }
    for subset, numbers in names.items():
        logs = list(labelled_logs("who_and_when", data=str(DATA), subset=subset))
        assert [log.id for log in logs] == [f"{subset}-{number}" for number in numbers]
        for log, number in zip(logs, numbers, strict=True):
            row = labels[SUBSETS[subset], f"{number}.json"]
            assert (len(log), log.agent, log.step) == (
                row["steps"],
                row["mistake_agent"],
                row["mistake_step"],
            )
            assert log.agents[log.step] == plain_agent(row["agent_at_step"])
            assert set(log.agents) == {plain_agent(name) for name in row["agents"]}
            assert [turn.action for turn in log.trajectory.turns[:-1]] == [
                turn.observation for turn in log.trajectory.turns[1:]
            ]
    differing = [log.id for log in read_who_and_when(str(DATA)) if log.agents[log.step] != log.agent]
    assert differing == ["hand_crafted-20", "algorithm_generated-14"]  # annotation noise of the original


@needs_logs
def test_who_and_when_as_a_world() -> None:
    env = make(ID, source="who_and_when", data=str(DATA))
    assert len(env.tasks("test")) == 11 and env.splits == ("test",) and env.data_digest()
    for task in env.tasks("test"):
        text, _ = env.reset(seed=0, options={"task": task})
        assert f"Right answer: {env.log.answer}" in text
        assert "Right answer" not in render(env.log, reveal_answer=False)
        assert env.step(env.solution()[0])[4]["success"]


def log_file(folder: Path, **fields) -> str:
    (folder / "Hand-Crafted").mkdir(exist_ok=True)
    history = [{"role": "human", "content": "q"}, {"role": "A (thought)", "content": "x"}]
    row = {"question": "q", "ground_truth": 3, "history": history, "mistake_agent": "A"}
    text = json.dumps({**row, "mistake_step": "1", **fields})
    (folder / "Hand-Crafted" / "7.json").write_text(text, encoding="utf-8")
    return str(folder)


def test_a_made_up_log_is_read(tmp_path) -> None:
    (log,) = read_who_and_when(log_file(tmp_path), "hand_crafted")
    assert (log.id, log.agents, log.agent, log.step, log.answer) == (
        "hand_crafted-7",
        ("human", "A"),
        "A",
        1,
        "3",
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"history": []}, r"7\.json: field 'history' must be a list"),
        ({"history": ["x"]}, r"history\[0\]: a message must be an object"),
        ({"history": [{"role": "A"}]}, r"history\[0\]: field 'content' must be text"),
        ({"mistake_step": "two"}, "field 'mistake_step' must be a number, not 'two'"),
        ({"mistake_step": "2"}, "field 'mistake_step' is 2, but the history has 2 steps"),
        ({"mistake_agent": None}, "field 'mistake_agent' must be text"),
    ],
)
def test_a_faulty_log_is_refused_with_its_place(tmp_path, fields, why) -> None:
    with pytest.raises(ConfigError, match=why):
        list(read_who_and_when(log_file(tmp_path, **fields), "hand_crafted"))
