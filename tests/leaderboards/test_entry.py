"""Entries against numbers worked out by hand from a small log."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnbench.agents.core import Population
from turnbench.envs.errors import LogError
from turnbench.envs.record import Failure, Outcome, Task, Trajectory, Turn, Usage
from turnbench.leaderboards.entry import Entry, entries_of
from turnbench.leaderboards.log import NAME, Key, LogWriter, episode_line
from turnbench.leaderboards.runner import header_of, run
from turnbench.leaderboards.table import table


def path(task: Task, ret: float, *, outcome: Outcome = Outcome.OK, success: bool | None = None) -> Any:
    turns = (Turn("o", "a", ret / 2), Turn("o", "a", ret / 2))
    failure = None if outcome is Outcome.OK else Failure(outcome, "why").message
    return Trajectory(task, turns, "end", outcome, failure, success)


def write(suite: Any, folder: Path, episodes: list[tuple[Key, Population, tuple[str, ...]]]) -> None:
    with LogWriter(folder, header_of(suite)) as log:
        for key, population, privileges in episodes:
            log.write(episode_line(key, population, privileges, 2.0))


@pytest.fixture
def small(suite: Any, tmp_path: Path) -> tuple[Any, Path]:
    """Two tasks, two seeds: returns 1, 3 (good0) and 0 (good1); one episode is missing."""
    made = suite(2)
    usage = Usage(3, 100, 40, 7, 0.5, 2, 1, 1)
    rows = []
    for task, seed, ret in (("good0", 0, 1.0), ("good0", 1, 3.0), ("good1", 0, 0.0)):
        t = Task("standins:World-v0", task, "test", seed)
        population = Population((path(t, ret, success=ret > 0),), usage=usage)
        rows.append((Key("one", 0, task, seed), population, ("fork",) if ret == 3 else ()))
    t = Task("standins:World-v0", "good1", "test", 1)
    gone = Population((path(t, 9.0, outcome=Outcome.ENV_ERROR),), usage=usage)
    rows.append((Key("one", 0, "good1", 1), gone, ()))
    write(made, tmp_path, rows)
    return made, tmp_path


def only(folder: Path) -> Entry:
    (entry,) = entries_of(folder)
    return entry


def test_a_row_that_never_played_a_turn_measured_nothing(suite: Any, tmp_path: Path) -> None:
    made = suite(1)
    task = Task("standins:World-v0", "good0", "test", 0)
    rows: list[Any] = []
    for seed in made.seeds:
        idle = Trajectory(replace(task, seed=seed), (), "", Outcome.AGENT_ERROR, "TypeError: broken")
        rows.append((Key("one", 0, "good0", seed), Population((idle,)), ()))
    write(made, tmp_path, rows)
    entry = only(tmp_path)
    assert entry["results"][0]["episodes"] == {"wanted": len(made.seeds), "missing": 0, "left": 0}
    assert entry["complete"] is False


def test_returns_below_zero_are_also_given_clipped(suite: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """As for ScienceWorld, where a wrong focus is -1. The raw mean stays the score."""
    monkeypatch.setattr("standins.World.return_range", (-1.0, 1.0))
    made = suite(2, seeds=[0])
    rows: list[Any] = []
    for task, ret in (("good0", -1.0), ("good1", 0.5)):
        population = Population((path(Task("standins:World-v0", task, "test", 0), ret),))
        rows.append((Key("one", 0, task, 0), population, ()))
    write(made, tmp_path, rows)
    (result,) = only(tmp_path)["results"]
    assert result["score"]["mean"] == -0.25 and result["clipped"]["mean"] == 0.25
    file = io.StringIO()
    Console(file=file, width=110).print(table(entries_of(tmp_path)))
    text = " ".join(file.getvalue().split())
    assert "-0.250" in text and "0.250" in text and "clipped: returns below 0 count as 0" in text


def test_numbers_by_hand(small: Any) -> None:
    suite, folder = small
    entry = only(folder)
    (result,) = entry["results"]
    assert result["episodes"] == {"wanted": 4, "missing": 1, "left": 0}
    assert result["tasks"] == 2
    assert result["score"]["mean"] == pytest.approx(4 / 3, rel=1e-5)
    # Draws of two tasks from (sum 4 of 2, sum 0 of 1): means 2, 4/3, 0 with 1/4, 1/2, 1/4.
    assert result["score"]["ci95"] == [0.0, 2.0]
    assert result["per_seed"] == {"0": 0.5, "1": 3.0}
    assert result["per_task"] == [2.0, 0.0] and result["passes"]["hat_k"] == [1.0, 1.0]
    assert result["success"]["mean"] == pytest.approx(2 / 3, rel=1e-5)
    assert result["bounds"] == [1.0, 1.75]  # (4 + 0) / 4 and (4 + 3) / 4
    assert result["outcomes"]["ok"] == 3 and result["outcomes"]["env_error"] == 1
    assert result["turns"] == 2.0
    assert entry["score"] == result["score"] and "clipped" not in result
    assert entry["complete"] is False
    assert entry["privileges"] == ["fork"]
    assert entry["compute"] == {
        "model_calls": 12,
        "prompt_tokens": 400,
        "cached_tokens": 160,
        "completion_tokens": 28,
        "cost": 2.0,
        "env_steps": 8,
        "replayed_steps": 4,
        "forks": 4,
        "episode_seconds": 8.0,
        "cache_hits": 0,
        "shared_tokens": 0,
    }
    assert entry["suite"] == {"name": "trial", "version": 1, "digest": suite.digest}
    assert entry["protocol"] == suite.protocol
    assert entry["system"]["model"] == {"name": "echo", "backend": "standins:Echo"}


def test_an_entry_is_a_function_of_the_log(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No world and no agent is needed to make a board from a log that came from elsewhere."""
    _, folder = small
    before = entries_of(folder)
    monkeypatch.setattr("turnbench.envs.make", None)
    monkeypatch.setattr("turnbench.agents.agent_class", None)
    monkeypatch.setattr("turnbench.agents.make_model", None)
    assert entries_of(folder) == before


def test_an_unknown_price_is_not_zero(suite: Any, tmp_path: Path) -> None:
    t = Task("standins:World-v0", "good0", "test", 0)
    known = Population((path(t, 1.0),), usage=Usage(1, cost=0.5))
    unknown = Population((path(t, 1.0),), usage=Usage(1, cost=None))
    rows = [(Key("one", 0, "good0", 0), known, ()), (Key("one", 0, "good0", 1), unknown, ())]
    write(suite(1), tmp_path, rows)
    assert only(tmp_path)["compute"]["cost"] is None


def test_what_is_left_is_counted(suite: Any, tmp_path: Path) -> None:
    t = Task("standins:World-v0", "good0", "test", 0)
    write(suite(3), tmp_path, [(Key("one", 0, "good0", 0), Population((path(t, 1.0),)), ())])
    entry = only(tmp_path)
    assert entry["results"][0]["episodes"] == {"wanted": 6, "missing": 0, "left": 5}
    assert entry["complete"] is False


def test_nothing_counted_has_no_score(suite: Any, tmp_path: Path) -> None:
    run(suite(["env-step"], split="bad"), tmp_path)
    entry = only(tmp_path)
    assert entry["score"] is None and entry["results"][0]["score"] is None
    assert entry["results"][0]["bounds"] == [0.0, 3.0]
    assert entry["results"][0]["success"] is None


def test_selectors_of_one_log(suite: Any, tmp_path: Path) -> None:
    t = Task("standins:World-v0", "good0", "test", 0)
    paths = (path(t, 1.0), path(t, 3.0), path(t, 2.0), path(t, 9.0, outcome=Outcome.INFRA_ERROR))
    logs = (-1.0, -float("inf"), -1.0, 5.0)
    population = Population(paths, chosen=2, log_weights=logs)
    write(suite(1, seeds=[0]), tmp_path, [(Key("one", 0, "good0", 0), population, ())])
    result = only(tmp_path)["results"][0]
    found = {name: value["mean"] for name, value in result["selectors"].items()}
    assert found["oracle_max"] == 3.0 and found["max_weight"] == 1.0
    assert found["population_mean"] == 1.5 and found["sample_by_weight"] in (1.0, 2.0)
    assert result["score"]["mean"] == 2.0 and result["lost_paths"] == 1


def test_numbers_among_the_worlds_checks_have_means_where_they_were_made(
    suite: Any, tmp_path: Path
) -> None:
    def checked(task: str, **checks: Any) -> Any:
        done = path(Task("standins:World-v0", task, "test", 0), 1.0)
        return Key("one", 0, task, 0), Population((replace(done, info={"checks": checks}),)), ()

    rows = [
        checked("good0", attack_success=True, credit=0.5, goals={"a": True}),
        checked("good1", attack_success=False, credit=1e300),
        checked("good2", credit=1, note="text"),
    ]
    write(suite(3, seeds=[0]), tmp_path, rows)
    found = only(tmp_path)["results"][0]["checks"]
    assert {name: score["mean"] for name, score in found.items()} == {
        "attack_success": 0.5,
        "credit": 0.75,
    }
    console = Console(file=io.StringIO(), width=200)
    console.print(table(entries_of(tmp_path)))
    assert "one: attack_success 0.500, credit 0.750 on" in console.file.getvalue()


def test_several_worlds_count_alike(suite: Any, spec: Any, tmp_path: Path) -> None:
    world = spec(1)["envs"][0]
    made = suite(envs=[world, {**world, "tasks": 3, "split": "train"}], seeds=[0])
    rows = []
    for k, task, ret in ((0, "good0", 1.0), (1, "good0", 0.0), (1, "good1", 0.0), (1, "good2", 3.0)):
        t = Task("standins:World-v0", task, "test", 0)
        rows.append((Key("one", k, task, 0), Population((path(t, ret),)), ()))
    write(made, tmp_path, rows)
    assert only(tmp_path)["score"]["mean"] == 1.0


def test_best_first_and_complete_before_incomplete(suite: Any, tmp_path: Path) -> None:
    rows = {name: {"agent": "standins:Odd", "model": "echo"} for name in ("low", "high", "partial")}
    episodes = []
    for name, ret, seeds in (("low", 1.0, (0, 1)), ("high", 2.0, (0, 1)), ("partial", 3.0, (0,))):
        for seed in seeds:
            t = Task("standins:World-v0", "good0", "test", seed)
            episodes.append((Key(name, 0, "good0", seed), Population((path(t, ret),)), ()))
    write(suite(1, agents=rows), tmp_path, episodes)
    assert [e["system"]["name"] for e in entries_of(tmp_path)] == ["high", "low", "partial"]


def test_weights_without_weight_do_not_break_the_board(suite: Any, tmp_path: Path) -> None:
    t = Task("standins:World-v0", "good0", "test", 0)
    gone = path(t, 1.0, outcome=Outcome.INFRA_ERROR)
    population = Population((path(t, 1.0), gone), log_weights=(-float("inf"), 0.0))
    write(suite(1, seeds=[0]), tmp_path, [(Key("one", 0, "good0", 0), population, ())])
    result = only(tmp_path)["results"][0]
    assert result["score"]["mean"] == 1.0
    assert not set(result["selectors"]) & {"max_weight", "sample_by_weight", "population_mean"}
    assert result["selectors"]["oracle_max"]["mean"] == 1.0


@pytest.mark.parametrize("part", ["suite", "worlds", "checkpoints", "started", "versions", "code"])
def test_a_damaged_header(small: Any, part: str) -> None:
    _, folder = small
    log = folder / NAME
    content = log.read_bytes()
    log.write_bytes(content.replace(f'"{part}": '.encode(), b'"other": ', 1))
    with pytest.raises(LogError, match="line 1 is damaged"):
        entries_of(folder)
