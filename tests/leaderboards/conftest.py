import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnbench.leaderboards.log import NAME, read_episodes
from turnbench.leaderboards.suite import Suite, parse_suite
from turnbench.leaderboards.yamlfile import dump_yaml, parse_yaml

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def standins() -> Iterator[Path]:
    """The folder of the module `standins`, which is importable here and in subprocesses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        yield HERE
    sys.modules.pop("standins", None)


@pytest.fixture
def spec() -> Callable[..., dict[str, Any]]:
    """A suite over the stand-ins as data; keywords replace its keys."""

    def make(tasks: Any = 4, *, split: str = "test", options: Any = None, **changes: Any) -> Any:
        world = {"id": "standins:World-v0", "split": split, "tasks": tasks, "options": options or {}}
        return {
            "suite": "trial",
            "version": 1,
            "seeds": [0, 1],
            "envs": [world],
            "models": {"echo": {"backend": "standins:Echo"}},
            "agents": {"one": {"agent": "standins:Odd", "model": "echo"}},
            **changes,
        }

    return make


@pytest.fixture
def suite(spec: Any) -> Callable[..., Suite]:
    """The same as a Suite, by way of YAML."""

    def make(*args: Any, **kwargs: Any) -> Suite:
        return parse_suite(parse_yaml(dump_yaml(spec(*args, **kwargs)), "trial.yaml"))

    return make


@pytest.fixture(scope="session")
def played() -> Callable[[Path], dict[Any, Any]]:
    """The populations in a run folder, by key; fails if an episode stands there twice."""

    def read(folder: Path) -> dict[Any, Any]:
        keys = [line[: line.index(b"]")] for line in (folder / NAME).read_bytes().splitlines()[1:]]
        assert len(set(keys)) == len(keys), "an episode stands in the log twice"
        return {episode.key: episode.population for episode in read_episodes(folder)}

    return read


@pytest.fixture
def turnbench(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts the command line in a process of its own, in a folder of its own."""

    def start(*arguments: str, **kwargs: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "turnbench.leaderboards.cli", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, **{**streams, **kwargs})

    return start
