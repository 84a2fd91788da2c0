"""Imports point one way: envs <- agents <- algorithms <- leaderboards."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("envs", "agents", "algorithms", "leaderboards")
FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), f"{path} imports relatively"
    return plain | {f"{n.module}.{alias.name}" for n in froms for alias in n.names}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path) -> None:
    layer = LAYERS.index(path.relative_to(ROOT).parts[0])
    used = {name.split(".")[1] for name in imported(path) if name.startswith("turnbench.")}
    assert used <= set(LAYERS[: layer + 1])


LIGHT = """
import importlib, sys
for name in ("envs.check", "envs.textcraft", "envs.toy", "agents.best_of_n", "agents.toy"):
    importlib.import_module(f"turnbench.{name}")
assert not {"torch", "transformers", "openai", "py4j"} & sys.modules.keys()
"""


def test_the_core_loads_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
