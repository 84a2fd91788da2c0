"""What the scripts in benchmarks/ take from the packages is still there: no test runs them whole."""

import ast
import importlib
import runpy
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(ROOT.glob("benchmarks/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_name_it_imports_exists(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnbench"):
            found = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(found, name) or find_spec(f"{node.module}.{name}"), (node.module, name)


def test_best_of_a_subset_is_the_mean_over_all_subsets(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    study = runpy.run_path(str(ROOT / "benchmarks" / "amc_study.py"))
    values, scores = [0.0, 1.0, 0.5, 0.25, 1.0], [3.0, 1.0, 7.0, 2.0, 5.0]
    for n in range(1, 6):
        best = [max(chosen, key=scores.__getitem__) for chosen in combinations(range(5), n)]
        wanted = sum(values[k] for k in best) / len(best)
        assert study["best_of_subset"](values, scores, n) == pytest.approx(wanted)
