"""Merging: a checkpoint between two others, (1 - alpha) x one + alpha x the other, weight by weight.

It is written file by file, so that no more than one file's weights are in memory (extra `local`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

from turnbench.agents import shipped_path
from turnbench.envs.errors import ConfigError, ModelError

WEIGHTS = "*.safetensors"


def merge(start: str, towards: str, alpha: float, out: Path) -> Path:
    """Write the checkpoint that is `alpha` of the way from `start` to `towards`; returns `out`.

    Linear in float32, then in the type of `start`; exact at 0 and 1. Configuration and tokenizer are
    those of `start`. Raises ConfigError, ModelError.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha is {alpha:g}; it must be from 0 (the reference) to 1 (the policy)")
    one, other = _folder(start), _folder(towards)
    where = _places(other)
    _check(_places(one), where, start, towards)
    out.mkdir(parents=True, exist_ok=True)
    for path in one.iterdir():
        if path.is_file() and not path.match(WEIGHTS):
            shutil.copyfile(path, out / path.name)
    for path in sorted(one.glob(WEIGHTS)):
        _merge_file(path, where, alpha, out / path.name)
    return out


def _merge_file(path: Path, where: dict[str, Path], alpha: float, out: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    made: dict[str, Any] = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (it isn't a mapping)
            mine = file.get_tensor(name)
            with safe_open(where[name], "pt") as also:
                theirs = also.get_tensor(name)
            if mine.shape != theirs.shape:
                raise ConfigError(f"{name} has shape {tuple(mine.shape)} and {tuple(theirs.shape)}")
            between = (1 - alpha) * mine.float() + alpha * theirs.float()
            made[name] = between.to(mine.dtype) if mine.is_floating_point() else mine
    save_file(made, out, metadata={"format": "pt"})


def _folder(path: str) -> Path:
    folder = shipped_path(path)
    if not any(folder.glob(WEIGHTS)):
        raise ModelError(f"{str(folder)!r} holds no weights (*.safetensors) to merge")
    return folder


def _places(folder: Path) -> dict[str, Path]:
    """The file that each weight stands in."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ModelError("merging needs more packages: pip install 'turnbench[local]'") from error
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(WEIGHTS)):
        try:
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        except Exception as error:
            raise ModelError(f"{path} can't be read: {error}") from error
    return found


def _check(one: dict[str, Path], other: dict[str, Path], start: str, towards: str) -> None:
    if one.keys() != other.keys():
        apart = sorted(one.keys() ^ other.keys())
        raise ConfigError(
            f"{start} and {towards} are not of one architecture: {len(apart)} weights are in one only, "
            f"such as {json.dumps(apart[0])}"
        )
