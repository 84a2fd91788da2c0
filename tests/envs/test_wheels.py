"""A wheel that is absent, or another version, is a clear error; nothing of it is imported to list worlds."""

import subprocess
import sys

import pytest

from turnbench.envs import wheels
from turnbench.envs.errors import ConfigError


def test_without_the_wheel_the_error_has_the_line_to_run(monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'turnbench\[tools\]'.*--no-deps bfcl-eval=="):
        wheels.require("no-such-wheel")
    with pytest.raises(ConfigError, match="no_such_module is missing"):
        wheels.load("no_such_module")
    monkeypatch.setitem(wheels.WHEELS, "pytest", "1")
    with pytest.raises(ConfigError, match=r"pytest .* is installed, but 1 is what was tested"):
        wheels.require("pytest")


def test_listing_worlds_imports_no_wheel() -> None:
    code = (
        "import sys; from turnbench.envs import list_envs; list_envs()\n"
        "from turnbench.envs import agentdojo, bfcl, tau2\n"
        "print({'bfcl_eval', 'agentdojo', 'tau2', 'loguru', 'deepdiff'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr
