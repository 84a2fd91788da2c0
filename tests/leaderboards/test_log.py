import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnbench.agents.core import Population
from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import Outcome, Task, Trajectory, Turn
from turnbench.leaderboards.entry import entries_of
from turnbench.leaderboards.log import (
    NAME,
    Key,
    LogWriter,
    difference,
    episode_line,
    has_log,
    json_line,
    read_done,
    read_episodes,
    read_header,
)
from turnbench.leaderboards.pages import run_page
from turnbench.leaderboards.runner import run

HEADER: dict[str, Any] = {
    "suite": {"suite": "s", "envs": [{"id": "a"}]},
    "code": "c",
    "worlds": [],
    "checkpoints": {},
    "versions": {"turnbench": "9.9"},
}


def population(key: Key, outcome: Outcome = Outcome.OK, text: str = "act") -> Population:
    task = Task("world", key.task, "test", key.seed)
    return Population((Trajectory(task, (Turn("seen", text, 1.0),), "end", outcome),))


def key(number: int) -> Key:
    return Key("react", 0, f"task {number}", number)


def line(number: int, outcome: Outcome = Outcome.OK, text: str = "act") -> bytes:
    return episode_line(key(number), population(key(number), outcome, text), ("oracle",), 1.25)


def fill(folder: Path, count: int = 3) -> Path:
    with LogWriter(folder, HEADER) as log:
        for number in range(count):
            log.write(line(number))
    return folder / NAME


def test_what_is_written_is_read(tmp_path: Path) -> None:
    fill(tmp_path)
    episodes = list(read_episodes(tmp_path))
    assert [e.key for e in episodes] == [key(0), key(1), key(2)]
    assert episodes[1].population == population(key(1))
    assert (episodes[1].seconds, episodes[1].privileges) == (1.25, ("oracle",))
    assert read_done(tmp_path) == {e.key: e.outcome for e in episodes}
    assert {k: v for k, v in read_header(tmp_path).items() if k in HEADER} == HEADER


def test_nothing_is_left_behind_by_a_run_that_played_nothing(tmp_path: Path) -> None:
    with LogWriter(tmp_path, HEADER):
        pass
    assert not has_log(tmp_path)
    with pytest.raises(LogError, match="holds no run"):
        read_header(tmp_path)
    with LogWriter(tmp_path, {**HEADER, "suite": {"suite": "another"}}) as log:
        assert log.done == {}


@pytest.mark.parametrize(
    "text", ['"seconds": 1', ', "seconds": 2', "\\", '"', "\n", "\ud83d", "é\u2028"]
)
def test_odd_text_in_actions_and_task_ids(tmp_path: Path, text: str) -> None:
    odd = Key("react", 0, text, 0)
    with LogWriter(tmp_path, HEADER) as log:
        log.write(episode_line(odd, population(odd, text=text), (), 0))
        log.write(line(1))
    first, second = read_episodes(tmp_path)
    assert first.population.best.turns[0].action == text.replace("\ud83d", "?")
    assert list(read_done(tmp_path)) == [first.key, second.key]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0))
def test_torn_anywhere_only_the_last_episode_is_lost(tmp_path: Path, cut: int) -> None:
    path = tmp_path / NAME
    path.unlink(missing_ok=True)
    whole = fill(tmp_path).read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut])
    done = whole[:cut].count(b"\n")
    kept = max(0, done - 1)
    if done:
        assert len(read_done(tmp_path)) == len(list(read_episodes(tmp_path))) == kept
    else:
        assert not has_log(tmp_path)
    with LogWriter(tmp_path, HEADER) as log:
        assert len(log.done) == kept
        for number in range(kept, 3):
            log.write(line(number))
    again = path.read_bytes()
    assert again.split(b"\n")[1:] == whole.split(b"\n")[1:]


def test_a_tail_of_zeros_is_torn_too(tmp_path: Path) -> None:
    path = fill(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    assert len(read_done(tmp_path)) == 3
    with LogWriter(tmp_path, HEADER) as log:
        log.write(line(3))
    assert len(list(read_episodes(tmp_path))) == 4


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"nonsense",
        b'{"key": "react", "outcome": "ok", "seconds": 1}',
        b'{"key": ["react", 0, "t"], "outcome": "ok", "seconds": 1}',
        b'{"key": ["react", 0, "t", [1]], "outcome": "ok", "seconds": 1}',
        b'{"key": ["react", 0, "t", 0], "outcome": "fine", "seconds": 1}',
        b'{"key": ["react", 0, "t", 0], "seconds": 1}',
        b'{"key": ["react", 0, "t", 0], "outcome": "ok"}',
        b'{"key": ["react", 0, "t", 0]',
        b"\xff\xfe",
    ],
)
def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path: Path, damage: bytes) -> None:
    path = fill(tmp_path)
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage
    path.write_bytes(b"\n".join(lines))
    for read in (read_done, lambda folder: list(read_episodes(folder))):
        with pytest.raises(LogError, match=r"log\.jsonl line 3 is damaged"):
            read(tmp_path)
    with pytest.raises(LogError, match="line 3"):
        LogWriter(tmp_path, HEADER)
    assert path.read_bytes() == b"\n".join(lines)


@pytest.mark.parametrize("part", ["population", "privileges", "seconds"])
def test_an_episode_without_its_parts_is_damaged(tmp_path: Path, part: str) -> None:
    path = fill(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(f'"{part}": '.encode(), b'"other": ')
    path.write_bytes(b"".join(lines))
    with pytest.raises(LogError, match="line 2 is damaged"):
        list(read_episodes(tmp_path))


@pytest.mark.parametrize("content", [b"{}\n", b"hello", b'{"a": 1}', b"\n", b"\x7fELF\n"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(LogError, match="not a log of turnbench"):
        LogWriter(tmp_path, HEADER)
    assert (tmp_path / NAME).read_bytes() == content


def test_a_log_of_another_version_names_who_can_read_it(tmp_path: Path) -> None:
    path = fill(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'{"turnbench_log": 1', b'{"turnbench_log": 7'))
    with pytest.raises(LogError, match=r"version 7.*reads version 1.*9\.9"):
        read_header(tmp_path)


@pytest.mark.parametrize("part", ["suite", "code", "worlds", "checkpoints"])
def test_the_log_of_another_run_is_refused(tmp_path: Path, part: str) -> None:
    before = fill(tmp_path).read_bytes()
    with pytest.raises(LogError, match="Choose another folder with --out"):
        LogWriter(tmp_path, {**HEADER, part: {"suite": "other"}})
    assert (tmp_path / NAME).read_bytes() == before


def test_difference_names_the_place() -> None:
    old = {"envs": [{"id": "a", "tasks": list("abc")}], "seeds": [0]}
    new = {"envs": [{"id": "a", "tasks": list("abd")}], "seeds": [0]}
    assert difference(old, new, "suite") == "suite.envs.0.tasks.2 is 'c' there and 'd' here"
    assert difference({"a": 1}, {"a": 1, "b": 2}, "suite") == "suite.b is None there and 2 here"
    assert difference([1], [1, 2], "x") == "x is [1] there and [1, 2] here"


def test_the_last_line_of_a_key_counts(tmp_path: Path) -> None:
    with LogWriter(tmp_path, HEADER) as log:
        log.write(line(0, Outcome.INFRA_ERROR))
        log.write(line(1))
        log.write(line(0, Outcome.OK, "again"))
    episodes = list(read_episodes(tmp_path))
    assert [e.key for e in episodes] == [key(1), key(0)]
    assert episodes[1].population.best.turns[0].action == "again"
    assert read_done(tmp_path) == {e.key: e.outcome for e in episodes}


def test_another_process_holds_the_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from turnbench.leaderboards.log import LogWriter\n"
        "with LogWriter(Path(sys.argv[1]), {}): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogError, match="another run is writing"):
            LogWriter(tmp_path, HEADER)
    finally:
        holder.communicate()
    LogWriter(tmp_path, HEADER).close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="can't write to .*file/run: Not a directory"):
        LogWriter(tmp_path / "file" / "run", HEADER)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A file may grow to 3,000 bytes only: the episode that doesn't fit leaves no trace."""
    code = (
        "import json, resource, sys; from pathlib import Path\n"
        "from turnbench.leaderboards.log import LogWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "with LogWriter(Path(sys.argv[1]), {}) as log:\n"
        "    for k in range(9): log.write(b'{\"key\": ' + b'x' * 700 + b'}\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "LogError" in done.stderr and "File too large" in done.stderr
    assert "What it holds is safe" in done.stderr
    content = (tmp_path / NAME).read_bytes()
    assert content.endswith(b"}\n") and content.count(b"\n") == 1 + 4


def test_a_log_that_grows_while_it_is_read(tmp_path: Path) -> None:
    with LogWriter(tmp_path, HEADER) as log:
        log.write(line(0))
        log.write(line(1))
        episodes = read_episodes(tmp_path)
        first = next(episodes)
        log.write(line(2))
        assert [first.key, *(e.key for e in episodes)] == [key(0), key(1)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_json_cannot_hold_is_refused(bad: Any) -> None:
    task = Task("world", "t")
    path = Trajectory(task, (), "", Outcome.OK, info={"x": bad})
    with pytest.raises((TypeError, ValueError)):
        episode_line(key(0), Population((path,)), (), 0)


def test_the_header_is_one_line_of_json(tmp_path: Path) -> None:
    first = fill(tmp_path).read_bytes().split(b"\n")[0]
    assert json.loads(first)["turnbench_log"] == 1


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("population", "chosen"), 0.5),
        (("population", "task", "id"), []),
        (("population", "usage", "model_calls"), None),
        (("population", "usage", "env_steps"), -1),
        (("population", "trajectories", 0, "info"), 5),
        (("population", "trajectories", 0, "final"), None),
        (("population", "trajectories", 0, "turns", 0, "rew"), float("nan")),
        (("population", "trajectories", 0, "turns", 0, "rew"), 10**400),
        (("population", "trajectories", 0, "turns", 0, "act"), 7),
        (("privileges",), [{}]),
        (("key", 1), 0.5),
        (("seconds",), "long"),
    ],
)
def test_edited_values_are_named_as_damage(suite: Any, tmp_path: Path, at: Any, value: Any) -> None:
    run(suite(1, seeds=[0]), tmp_path, workers=1)
    header, line = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    row = part = json.loads(line)
    for step in at[:-1]:
        part = part[step]
    part[at[-1]] = value
    (tmp_path / NAME).write_bytes(header + json.dumps(row).encode() + b"\n")
    with pytest.raises(LogError, match="line 2 is damaged"):
        list(read_episodes(tmp_path))


@pytest.mark.parametrize(
    ("part", "value"),
    [("worlds", [7]), ("worlds", []), ("checkpoints", 3), ("suite", None), ("suite", {"envs": ["x"]})],
)
def test_an_edited_header_is_a_message(suite: Any, tmp_path: Path, part: str, value: Any) -> None:
    run(suite(1, seeds=[0]), tmp_path, workers=1)
    header, line = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(json_line({**json.loads(header), part: value}) + line)
    with pytest.raises(LogError, match="line 1 is damaged"):
        entries_of(tmp_path)
    if part == "suite":
        with pytest.raises(LogError, match="line 1 is damaged"):
            run_page(tmp_path, embed=True)
