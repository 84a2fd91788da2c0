"""What all episodes of a process share: models of scorers and value functions, each loaded once."""

import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from turnbench.agents import make_model, shipped_path

Shared = TypeVar("Shared")
FOLDERS = ("path", "merge", "model", "policy", "reference", "scorer")  # options that may name one
_shared: dict[str, Any] = {}
_making = threading.RLock()


def shared(kind: str, spec: Any, make: Callable[[], Shared]) -> Shared:
    """What `make` makes of a specification, once in a process as long as its folders stay as they were.

    Waits for another thread that makes anything, as loading checkpoints side by side is no safe thing.
    """
    key = json.dumps([kind, _plain(spec)], sort_keys=True)
    with _making:
        if key not in _shared:
            _shared[key] = make()
        made: Shared = _shared[key]
        return made


def shared_model(spec: Mapping[str, Any]) -> Any:
    """The model of a specification. Raises as make_model does."""
    return shared("model", dict(spec), lambda: make_model(spec))


def _plain(spec: Any) -> Any:
    """A specification whose folders are told by where they are and when they were written."""
    if isinstance(spec, Mapping):
        return {k: _folder(v) if k in FOLDERS else v for k, v in spec.items()}
    return _folder(spec)


def _folder(name: Any) -> Any:
    if not isinstance(name, str) or not shipped_path(name).is_dir():
        return name
    folder = shipped_path(name).resolve()
    return [str(folder), *sorted(_stamp(path) for path in folder.iterdir() if path.is_file())]


def _stamp(path: Path) -> tuple[str, int]:
    return path.name, os.stat(path).st_mtime_ns


@atexit.register
def _close_all() -> None:
    """What holds threads and connections has to let go of them while there is an interpreter."""
    for made in _shared.values():
        if hasattr(made, "close"):
            made.close()
    _shared.clear()
