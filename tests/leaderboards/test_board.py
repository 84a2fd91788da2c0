import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import BoardError
from turnbench.envs.record import Usage
from turnbench.leaderboards.board import (
    entry_digest,
    ranking,
    read_entry,
    status,
    verification_path,
    write_entries,
)
from turnbench.leaderboards.entry import entries_of
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml


def entry(name: str, score: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    """A valid entry; `score` is that of each of 30 tasks, with a little noise."""
    values = [] if score is None else [score + 0.01 * (k % 3 - 1) for k in range(30)]
    summary = None if score is None else {"mean": score, "ci95": [0.0, 2.0]}
    counts = dict.fromkeys(["truncated", "timeout", "agent_error", "env_error", "infra_error"], 0)
    left = 0 if changes.get("complete", True) else 1
    result = {
        "env": "standins:World-v0",
        "split": "test",
        "episodes": {"wanted": 30, "missing": 0, "left": left},
        "tasks": len(values),
        "score": summary,
        "per_seed": {},
        "per_task": values,
        "success": None,
        "passes": None,
        "bounds": None,
        "outcomes": {"ok": 30, **counts},
        "turns": 2.0,
    }
    usage = dict.fromkeys([f.name for f in dataclasses.fields(Usage)], 0)
    return {
        "schema": "leaderboard-entry/1",
        "entry": name,
        "suite": {"name": "trial", "version": 1, "digest": "d" * 16},
        "track": "standard",
        "system": {"name": name, "agent": "react", "options": {}, "model": None, "checkpoint": None},
        "privileges": [],
        "complete": True,
        "score": summary,
        "results": [result],
        "compute": {**usage, "model_calls": 1, "cost": None, "episode_seconds": 1.0},
        "date": "2026-01-01",
        "protocol": {},
        "provenance": {"versions": {}, "code": "c" * 16, "worlds": [""]},
        "trajectories": {
            **{"episodes": 30, "raw_bytes": 9, "merkle_root": "0" * 64, "actions": "1" * 64},
        },
        **changes,
    }


def test_a_run_becomes_entries_and_a_ranking(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path / "run")
    boards = tmp_path / "boards"
    entries = entries_of(tmp_path / "run")
    paths = write_entries(entries, boards)
    assert [p.relative_to(boards).as_posix() for p in paths] == [
        f"trial/{entries[0]['entry']}.yaml",
        "trial.yaml",
    ]
    (table,) = read_yaml(paths[1]).data["tables"]
    (row,) = table["rows"]
    assert row["rank"] == 1 and row["score"] == entries[0]["score"]
    assert row["tokens"] == 288 and row["model"] == "echo"
    read = read_yaml(paths[0]).data
    assert read["results"][0]["outcomes"] == entries[0]["results"][0]["outcomes"]
    assert read["score"] == entries[0]["score"]
    before = {p: p.read_bytes() for p in paths}
    write_entries(entries_of(tmp_path / "run"), boards)
    assert {p: p.read_bytes() for p in paths} == before


def test_tables_by_protocol_newest_first(tmp_path: Path) -> None:
    old, new = ({"name": "trial", "version": v, "digest": str(v) * 16} for v in (1, 2))
    write_entries([entry("a", suite=old), entry("b", suite=new), entry("c", suite=new)], tmp_path)
    tables = ranking("trial", tmp_path)["tables"]
    assert [(t["version"], len(t["rows"])) for t in tables] == [(2, 2), (1, 1)]


def test_ties_share_a_rank_and_incomplete_ones_have_none(tmp_path: Path) -> None:
    """b and c differ by less than noise; without a rank the incomplete ones stand last."""
    write_entries(
        [entry("a", 1.0), entry("b", 2.0), entry("c", 2.0), entry("d", 3.0, complete=False)]
        + [entry("e", 0.5), entry("f", None, complete=False)],
        tmp_path,
    )
    (table,) = ranking("trial", tmp_path)["tables"]
    assert [(r["entry"], r["rank"]) for r in table["rows"]] == [
        *(("b", 1), ("c", 1), ("a", 3), ("e", 4)),
        *(("d", None), ("f", None)),
    ]


def test_entries_with_other_tasks_are_not_ranked_together(tmp_path: Path) -> None:
    other = entry("b")
    other["results"][0]["per_task"].pop()
    with pytest.raises(BoardError, match="other tasks"):
        write_entries([entry("a"), other], tmp_path)


def test_status_is_a_fact_about_a_verification(tmp_path: Path) -> None:
    (path, _) = write_entries([entry("a")], tmp_path)
    assert status(read_entry(path), path) == "self-reported"
    record = {"entry": entry_digest(path), "code": "c" * 16, "checks": {"replay": "1 episodes"}}
    verification_path(path).parent.mkdir()
    verification_path(path).write_text(dump_yaml(record), encoding="utf-8")
    assert status(read_entry(path), path) == "verified"
    path.write_text(path.read_text(encoding="utf-8") + "notes: changed\n", encoding="utf-8")
    assert status(read_entry(path), path) == "self-reported"


DAMAGE = [
    ("schema: leaderboard-entry/1", "schema: leaderboard-entry/2", "schema"),
    ("mean: 1.0", "mean: much", "score.mean"),
    ("entry: a", "name: a", "'entry' is missing"),
    ("date: ", "status: verified\ndate: ", "unknown key 'status'"),
    ("version: 1", "version: x", "suite.version"),
    ("model_calls: 1", "calls: 1", "compute.model_calls"),
    ("complete: true", "complete: maybe", "complete"),
    ("schema: ", "schema", "line 2"),
]


@pytest.mark.parametrize(("old", "new", "told"), DAMAGE)
def test_a_damaged_entry_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    write_entries([entry("a")], tmp_path)
    before = (tmp_path / "trial.yaml").read_bytes()
    path = tmp_path / "trial" / "a.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BoardError, match=r"a\.yaml") as caught:
        write_entries([entry("b")], tmp_path)
    assert told in str(caught.value)
    assert (tmp_path / "trial.yaml").read_bytes() == before
    assert (tmp_path / "trial" / "b.yaml").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(BoardError, match="can't write to .*Not a directory|File exists"):
        write_entries([entry("a")], tmp_path / "file" / "boards")


def test_runs_that_finish_together_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from turnbench.leaderboards.board import write_entries\n"
        "from turnbench.leaderboards.yamlfile import read_yaml\n"
        "one = read_yaml(Path(sys.argv[1])).data\n"
        "for k in range(6):\n"
        "    name = f'{sys.argv[2]}-{k}'\n"
        "    write_entries([{**one, 'entry': name, 'score': {'mean': k, 'ci95': [0, 1]}}], Path(sys.argv[3]))\n"
    )
    one = tmp_path / "one.yaml"
    one.write_text(dump_yaml(entry("x")), encoding="utf-8")
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(one), name, str(tmp_path / "boards")])
        for name in ("left", "right")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    (table,) = read_yaml(tmp_path / "boards" / "trial.yaml").data["tables"]
    assert {r["entry"] for r in table["rows"]} == {
        f"{n}-{k}" for n in ("left", "right") for k in range(6)
    }
    assert not [p for p in (tmp_path / "boards").rglob(".*") if p.name != ".lock"]


def test_a_folder_is_no_entry(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="is no file: an entry"):
        read_entry(tmp_path)
    with pytest.raises(BoardError, match="nothing.yaml: No such file"):
        read_entry(tmp_path / "nothing.yaml")
