import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import MISSING, Outcome
from turnbench.leaderboards.log import NAME, episode_line, read_done, read_episodes
from turnbench.leaderboards.runner import Watcher, run
from turnbench.leaderboards.yamlfile import dump_yaml

TWO = {
    "one": {"agent": "standins:Odd", "model": "echo"},
    "many": {"agent": "best_of_n", "model": "echo", "n": 3, "scorer": "random"},
}


class Ear(Watcher):
    def __init__(self) -> None:
        self.begun: tuple[int, int] | None = None
        self.keys: list[Any] = []
        self.ended = 0

    def begin(self, total: int, done: int) -> None:
        self.begun = (total, done)

    def played(self, episode: Any) -> None:
        self.keys.append(episode.key)

    def end(self) -> None:
        self.ended += 1


def test_the_number_of_workers_changes_nothing(suite: Any, played: Any, tmp_path: Path) -> None:
    made = suite(8, agents=TWO)
    for workers in (1, 3, 16):
        report = run(made, tmp_path / str(workers), workers=workers)
        assert report.complete and report.total == 32
    one = played(tmp_path / "1")
    assert len(one) == 32 and one == played(tmp_path / "3") == played(tmp_path / "16")
    assert len({p.best.turns for p in one.values()}) > 16


def test_a_second_run_plays_nothing(suite: Any, tmp_path: Path) -> None:
    first, second = Ear(), Ear()
    run(suite(), tmp_path, watcher=first)
    log = (tmp_path / NAME).read_bytes()
    report = run(suite(), tmp_path, watcher=second)
    assert (first.begun, second.begun) == ((8, 0), (8, 8))
    assert (len(first.keys), second.keys, second.ended) == (8, [], 1)
    assert report.complete and (tmp_path / NAME).read_bytes() == log


def test_only_missing_episodes_are_played_again(suite: Any, tmp_path: Path) -> None:
    made = suite(seeds=[0])
    run(made, tmp_path)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    whole = {e.key: e for e in read_episodes(tmp_path)}
    key = sorted(whole)[1]
    from turnbench.agents.core import failed
    from turnbench.envs.record import Failure

    gone = failed(whole[key].population.best.task, Failure(Outcome.INFRA_ERROR, "down"))
    late = failed(whole[sorted(whole)[2]].population.best.task, Failure(Outcome.TIMEOUT, "late"))
    kept = [
        line
        for line in lines[1:]
        if f'"{key.task}"'.encode() not in line and f'"{late.best.task.id}"'.encode() not in line
    ]
    timed_out = episode_line(sorted(whole)[2], late, (), 1)
    (tmp_path / NAME).write_bytes(b"".join([lines[0], *kept, episode_line(key, gone, (), 1), timed_out]))
    ear = Ear()
    report = run(made, tmp_path, watcher=ear)
    assert ear.begun == (4, 3) and ear.keys == [key] and report.complete
    after = {e.key: e for e in read_episodes(tmp_path)}
    assert after[key].population == whole[key].population
    assert after[sorted(whole)[2]].outcome is Outcome.TIMEOUT


def test_a_run_with_something_missing_is_not_complete(suite: Any, tmp_path: Path) -> None:
    made = suite(["env-step", "model-infra", "agent-raises"], split="bad", seeds=[0])
    report = run(made, tmp_path)
    assert (report.total, report.done, report.missing, report.complete) == (3, 3, 2, False)
    assert sum(o in MISSING for o in read_done(tmp_path).values()) == 2


def test_read_done_has_the_keys_of_read_episodes(suite: Any, tmp_path: Path) -> None:
    run(suite(6, agents=TWO), tmp_path)
    assert read_done(tmp_path) == {e.key: e.outcome for e in read_episodes(tmp_path)}


def test_another_suite_in_the_folder_is_refused(suite: Any, tmp_path: Path) -> None:
    run(suite(), tmp_path)
    with pytest.raises(LogError, match=r"another suite: suite\.seeds is \[0, 1\] there and \[0\] here"):
        run(suite(seeds=[0]), tmp_path)
    with pytest.raises(ConfigError, match="workers"):
        run(suite(), tmp_path, workers=0)


def test_it_runs_outside_the_main_thread(suite: Any, tmp_path: Path) -> None:
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(run(suite(), tmp_path)))
    thread.start()
    thread.join()
    assert reports[0].complete


# --- in a process of its own ----------------------------------------------------------------------


def write(spec: Any, tmp_path: Path, *args: Any, **kwargs: Any) -> str:
    path = tmp_path / "trial.yaml"
    path.write_text(dump_yaml(spec(*args, **kwargs)), encoding="utf-8")
    return str(path)


def wait_for(folder: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / NAME).exists() and (folder / NAME).read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was played")


def test_ctrl_c_finishes_what_is_in_flight(
    spec: Any, suite: Any, played: Any, turnbench: Any, tmp_path: Path
) -> None:
    options = {"pause": 0.1}
    path = write(spec, tmp_path, 30, options=options)
    process = turnbench("run", path, "--out", "run", "--workers", "3")
    wait_for(tmp_path / "run", 4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "episodes in flight are played to their ends" in err
    assert "the same command goes on" in err and "Traceback" not in err
    done = len(played(tmp_path / "run"))
    assert 3 < done < 60 and f"{done} of 60 episodes are done" in err
    assert f"one: {60 - done} left to play" in out


def test_a_second_ctrl_c_leaves_at_once(spec: Any, turnbench: Any, tmp_path: Path) -> None:
    good = spec(3)["envs"][0]
    hang = {**good, "split": "bad", "tasks": ["env-hang"]}
    path = write(spec, tmp_path, envs=[good, hang], seeds=[0])
    process = turnbench("run", path, "--out", "run")
    wait_for(tmp_path / "run", 4)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err
    assert len(read_done(tmp_path / "run")) == 3


def test_a_full_disk_loses_nothing(
    spec: Any, suite: Any, played: Any, turnbench: Any, tmp_path: Path
) -> None:
    path = write(spec, tmp_path, 30)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    process = turnbench("run", path, "--out", "run", preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "File too large. What it holds is safe" in err and "Traceback" not in err
    kept = played(tmp_path / "run")
    assert 0 < len(kept) < 60
    run(suite(30), tmp_path / "run")
    run(suite(30), tmp_path / "undisturbed")
    assert played(tmp_path / "run") == played(tmp_path / "undisturbed")


KILL = """
import os, random, signal, sys, time
from pathlib import Path
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.suite import load_suite
suite, out = load_suite(sys.argv[1]), Path(sys.argv[2])
run(suite, out / "warm", workers=1)  # so that the children have nothing to load
moments = random.Random(0)
for _ in range(20):
    child = os.fork()
    if child == 0:
        run(suite, out / "killed", workers=4)
        os._exit(0)
    time.sleep(moments.uniform(0.0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_kill_at_20_random_moments(spec: Any, played: Any, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    path = write(spec, tmp_path, 150, options={"pause": 0.002, "diary": str(diary)})
    subprocess.run([sys.executable, "-c", KILL, path, str(tmp_path)], check=True, timeout=120)
    diary.write_text(diary.read_text(encoding="utf-8"), encoding="utf-8")
    before = len(read_done(tmp_path / "killed")) if (tmp_path / "killed" / NAME).exists() else 0
    from turnbench.leaderboards.suite import load_suite

    ear = Ear()
    report = run(load_suite(path), tmp_path / "killed", workers=4, watcher=ear)
    assert report.complete and ear.begun == (300, before)
    assert played(tmp_path / "killed") == played(tmp_path / "warm")
    resets = len(diary.read_text(encoding="utf-8").splitlines()) - 300  # those of the warm run
    assert 300 <= resets <= 300 + 20 * 4
