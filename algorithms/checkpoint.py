"""Checkpoints of a run: whole or absent, whatever kills the process, and free of pickle.

A run folder holds `steps/000500/`, each a Hugging Face model folder with its tokenizer, the
optimizer's state and the step; the newest two are kept.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

KEPT = 2
Optimizers = Sequence[torch.optim.Optimizer]


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a new folder, then put it at `target` in one rename, synced to disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    fill(fresh)
    for path in (*fresh.iterdir(), fresh):
        _sync(path)
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old)
    else:
        fresh.rename(target)
    _sync(target.parent)


def write_text(target: Path, text: str) -> None:
    """Replace a text file in one rename, synced to disk."""
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_text(text, encoding="utf-8")
    _sync(fresh)
    fresh.replace(target)


def save(
    out: Path,
    step: int,
    model: Any,
    tokenizer: Any,
    optimizers: Optimizers,
    also: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write the checkpoint of `step`, with what `also` writes, and drop those before the last `KEPT`."""

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_file(_flat(optimizers), folder / "optimizer.safetensors")
        also(folder)
        (folder / "step.json").write_text(json.dumps({"step": step}), encoding="utf-8")

    target = out / "steps" / f"{step:06d}"
    write_folder(target, fill)
    for old in _all(out)[:-KEPT]:
        shutil.rmtree(old)
    return target


def newest(out: Path) -> Path | None:
    """The folder of the newest checkpoint, if there is one."""
    return next(reversed(_all(out)), None)


def step_of(folder: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(json.loads((folder / "step.json").read_text(encoding="utf-8"))["step"])


def load_optimizers(folder: Path, optimizers: Optimizers) -> None:
    """Put a checkpoint's state into fresh optimizers over the same parameters."""
    states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    with safe_open(folder / "optimizer.safetensors", "pt") as file:
        for key in file.keys():  # noqa: SIM118 (it isn't a mapping)
            which, index, name = key.split(".")
            states[int(which)].setdefault(int(index), {})[name] = file.get_tensor(key)
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _all(out: Path) -> list[Path]:
    return sorted((out / "steps").glob("[0-9]*"))


def _flat(optimizers: Optimizers) -> dict[str, torch.Tensor]:
    """All state tensors, named "optimizer.parameter.name"."""
    return {
        f"{which}.{index}.{name}": value.contiguous()
        for which, optimizer in enumerate(optimizers)
        for index, row in optimizer.state_dict()["state"].items()
        for name, value in row.items()
    }


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
