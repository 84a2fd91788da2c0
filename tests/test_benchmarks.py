"""What the scripts in benchmarks/ and docs/ take from the packages is still there: no test runs them."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_name_it_imports_exists(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnbench"):
            found = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(found, name) or find_spec(f"{node.module}.{name}"), (node.module, name)
