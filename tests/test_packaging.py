"""The wheel holds every module and data file, under turnbench.*, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("envs", "agents", "algorithms", "leaderboards")
KEPT_OUT = ("__pycache__",)


def sources() -> set[str]:
    files = (p for name in PACKAGES for p in (ROOT / name).rglob("*") if p.is_file())
    return {
        f"turnbench/{p.relative_to(ROOT).as_posix()}"
        for p in files
        if not set(p.parts) & set(KEPT_OUT) and not p.name.startswith(".")
    }


def test_wheel_holds_every_module_and_data_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*KEPT_OUT))
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(tree),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == sources()


def test_no_package_is_imported_under_its_bare_name() -> None:
    assert not set(PACKAGES) & set(sys.modules)
