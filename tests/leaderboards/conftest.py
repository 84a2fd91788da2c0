import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
