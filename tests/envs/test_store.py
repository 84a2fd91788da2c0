"""The cache folder: built once, whole or not at all, by one of several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnbench.envs.errors import ConfigError
from turnbench.envs.store import Rows, RowsWriter, build_once, cache_folder, file_digest

BUILDER = """
import sys, time
from pathlib import Path
from turnbench.envs.store import build_once

def build(folder):
    with (Path(sys.argv[1]) / "builds").open("a") as log:
        log.write("built\\n")
    (folder / "part").write_text("one")
    time.sleep(0.3)
    (folder / "whole").write_text("two")

folder = build_once("thing", build)
assert (folder / "part").read_text() == "one" and (folder / "whole").read_text() == "two"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TURNBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_where_the_cache_is(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TURNBENCH_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("TURNBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "turnbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "turnbench"


def test_one_of_several_processes_builds(cache, tmp_path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path)]
    running = [subprocess.Popen(command, env=os.environ) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert (tmp_path / "builds").read_text() == "built\n"


def test_a_failed_build_leaves_nothing(cache) -> None:
    def fail(folder: Path) -> None:
        (folder / "part").write_text("x", encoding="utf-8")
        raise OSError("disk full")

    with pytest.raises(ConfigError, match="disk full; TURNBENCH_CACHE"):
        build_once("thing", fail)
    assert [path.name for path in cache.iterdir()] == ["thing.lock"]
    assert build_once("thing", lambda folder: None).is_dir()


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(2**24 + 1))
    monkeypatch.setenv("TURNBENCH_CACHE", str(file / "cache"))
    with pytest.raises(ConfigError, match=r"file/cache can't be used.*TURNBENCH_CACHE may name another"):
        build_once("thing", lambda folder: None)
    assert len(file_digest(file)) == 64  # only not remembered


def test_what_a_killed_builder_left_is_cleared(cache) -> None:
    (cache / "thing.abc").mkdir(parents=True)
    (cache / "thing.abc" / "part").write_text("x", encoding="utf-8")
    build_once("thing", lambda folder: None)
    assert sorted(path.name for path in cache.iterdir()) == ["thing", "thing.lock"]


def test_rows_hold_any_text(tmp_path) -> None:
    texts = ["", "a\nb", "é ☃ \U0001f600", "\ud800", "x" * 100_000]
    with RowsWriter(tmp_path, "some") as writer:
        for text in texts:
            writer.add(text)
    for keep in (0, 2):
        rows = Rows(tmp_path, "some", str, keep=keep)
        assert list(rows) == texts and len(rows) == 5
        assert rows[-1] == texts[-1] and rows[1:3] == texts[1:3]
        for index in (5, -6):
            with pytest.raises(IndexError):
                rows[index]


def test_no_rows(tmp_path) -> None:
    with RowsWriter(tmp_path, "none"):
        pass
    assert list(Rows(tmp_path, "none", str)) == []


def test_digest_follows_the_content(cache, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert file_digest(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    file.write_bytes(b"abcd")
    assert file_digest(file).startswith("88d4266fd4e6338d")


def test_the_digest_of_a_large_file_is_remembered(cache, tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    with file.open("wb") as out:
        out.truncate(2**24 + 1)
    digest = file_digest(file)
    monkeypatch.setattr("turnbench.envs.store._sha256", lambda file: pytest.fail("read again"))
    assert file_digest(file) == digest
