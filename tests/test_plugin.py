"""A user's environment: eleven lines, nothing of ours in them, in a package of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnbench.envs.checks import CHECKS

GUESS = """\
import gymnasium


class Guess(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret = str(self.np_random.integers(1, 10))
        return "I think of a number from 1 to 9. Guess it.", {}

    def step(self, action):
        won = action.strip() == self.secret
        said = "Right!" if won else f"It is not {action}. Guess again."
        return said, float(won), won, False, {"success": won}


gymnasium.register("Guess-v0", "guess:Guess", max_episode_steps=5)
"""

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "guess-world"
version = "1.0"
[tool.setuptools]
py-modules = ["guess"]
[project.entry-points."turnbench.envs"]
"acme/Guess-v0" = "guess:Guess"
"""

TRY = """
import json, sys
import gymnasium
from turnbench.envs import list_envs, make
from turnbench.envs.check import check_env
env_id = sys.argv[1]
listed = env_id in list_envs()
env = make(env_id)
start, _ = env.reset(seed=1, options={"task": env.tasks("test")[0]})
rows = [env.step(str(n))[:4] for n in range(1, 10) if not env.over]
report = check_env(env_id)
print(json.dumps([listed, env.max_turns, start, rows, report.ok, str(report)]))
"""

SAME = """
import sys
from turnbench.envs import make
one, two = (make(name, max_turns=5) for name in sys.argv[1:])
for task in map(str, range(20)):
    starts = [env.reset(seed=2, options={"task": task}) for env in (one, two)]
    assert starts[0] == starts[1]
    assert one.step("5") == two.step("5")
"""


def tried(env_id: str, folder: Path) -> tuple[bool, int, str, list, bool, str]:
    """What a process that has `folder` on its path makes of the environment."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRY, env_id],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_it_is_eleven_lines_and_knows_nothing_of_us() -> None:
    assert len([line for line in GUESS.splitlines() if line]) <= 11 and "turnbench" not in GUESS
    assert all(len(line) <= 100 for line in GUESS.splitlines())


def test_the_documentation_shows_these_very_lines() -> None:
    page = Path(__file__).parents[1].joinpath("docs", "environments.md").read_text(encoding="utf-8")
    assert f"```python\n{GUESS}```" in page
    assert all(f"| {check.name} |" in page for check in CHECKS)


def test_a_file_beside_the_suite_is_enough(tmp_path) -> None:
    (tmp_path / "guess.py").write_text(GUESS, encoding="utf-8")
    _, turns, start, rows, ok, report = tried("guess:Guess-v0", tmp_path)
    assert ok and "0 fail, 0 skip" in report, report
    assert start == "I think of a number from 1 to 9. Guess it." and turns == 5
    assert rows[-1][2] or (len(rows) == 5 and rows[-1][3])


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The package, installed offline into a folder."""
    source, target = tmp_path_factory.mktemp("guess"), tmp_path_factory.mktemp("site")
    (source / "guess.py").write_text(GUESS, encoding="utf-8")
    (source / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*pip, *offline, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_an_installed_package_brings_its_world(installed) -> None:
    """By its entry point, and by its module as well: the same world, played alike."""
    listed, _, start, rows, ok, report = tried("acme/Guess-v0", installed)
    assert listed and ok and "0 fail, 0 skip" in report, report
    assert start.startswith("I think") and any(row[2] for row in rows)
    again = subprocess.run(
        [sys.executable, "-c", SAME, "acme/Guess-v0", "guess:Guess-v0"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=False,
    )
    assert again.returncode == 0
