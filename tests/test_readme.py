"""What the README quotes is what the sources say."""

import inspect
import re
from pathlib import Path

from turnbench.agents.rollout import play
from turnbench.envs.wheels import LINE
from turnbench.leaderboards.suite import Suite
from turnbench.leaderboards.yamlfile import parse_yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_loop_is_quoted_from_the_source() -> None:
    assert inspect.getsource(play) in blocks("python")


def test_the_example_world_is_the_tested_one_and_has_eleven_lines() -> None:
    world = next(block for block in blocks("python") if "class Guess" in block)
    assert world in (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    tested = (ROOT / "tests" / "test_plugin.py").read_text(encoding="utf-8")
    lines = [line for line in world.splitlines() if line.strip()]
    assert all(line in tested for line in lines)
    assert len(lines) <= 11


def test_the_example_suite_is_a_suite() -> None:
    suite = Suite.model_validate(parse_yaml(blocks("yaml")[0], "README").data)
    assert {"react", "best-of-8", "my-agent"} == set(suite.agents)


def test_the_wheels_are_installed_by_the_line_that_errors_name() -> None:
    assert f"\n{LINE}\n" in blocks("sh")[1]
    assert LINE in (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
