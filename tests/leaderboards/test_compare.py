import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.compare import compare, comparison_table
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.submit import submit

ROWS = {
    "plain": {"agent": "standins:Odd", "model": "echo"},
    "seer": {"agent": "best_of_n", "model": "echo", "n": 8, "scorer": "return"},
}


@pytest.fixture
def played_run(suite: Any, tmp_path: Path) -> Path:
    run(suite(40, agents=ROWS, seeds=[0]), tmp_path / "run")
    return tmp_path / "run"


def test_the_better_system_comes_first_and_is_called_better(played_run: Path) -> None:
    (verdict,) = compare([played_run])
    assert (verdict.left, verdict.right, verdict.word) == ("seer", "plain", "better")
    assert verdict.difference.tasks == 40 and verdict.success is not None
    assert verdict.success.left_only > verdict.success.right_only


def test_a_system_against_itself_is_tied(played_run: Path, suite: Any, tmp_path: Path) -> None:
    run(suite(40, agents={"plain": ROWS["plain"]}, seeds=[0]), tmp_path / "again")
    verdicts = {(v.left, v.right): v for v in compare([played_run, tmp_path / "again"])}
    same = verdicts["plain (run)", "plain (again)"]
    assert same.word == "tied" and same.difference.delta == 0 and same.p_holm == 1


def test_trajectory_files_compare_like_their_run(played_run: Path, tmp_path: Path) -> None:
    notes = {"code_url": "https://example.org/code", "notes": "mine"}
    entries = submit(played_run, tmp_path / "out", {"submitter": {"name": "x"}, **notes})
    files = [tmp_path / "out" / e["trajectories"]["file"]["name"] for e in entries]
    assert compare(files) == compare([played_run]) == compare([played_run / "log.jsonl"])


def test_the_table_tells_all(played_run: Path) -> None:
    file = io.StringIO()
    Console(file=file, width=130).print(comparison_table(compare([played_run])))
    text = file.getvalue()
    assert "seer - plain" in text and "better" in text and "40 common tasks" in text
    assert "tasks needed" in text and "80 % power" in text


def test_what_cannot_be_compared(played_run: Path, suite: Any, tmp_path: Path) -> None:
    run(suite(2, agents={"plain": ROWS["plain"]}, split="train"), tmp_path / "train")
    with pytest.raises(ConfigError, match=r"envs\.0\.split is 'test' there and 'train' here"):
        compare([played_run, tmp_path / "train"])
    with pytest.raises(ConfigError, match="two systems are needed"):
        compare([tmp_path / "train"])
    apart = suite(["good390"], agents={"plain": ROWS["plain"]}, seeds=[0])
    run(apart, tmp_path / "apart")
    with pytest.raises(ConfigError, match="no task in common"):
        compare([played_run, tmp_path / "apart"])
