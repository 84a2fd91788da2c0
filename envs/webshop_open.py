"""Opens WebShop's catalogues: made or read once in a process, and on disk where they are large."""

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from threading import Lock

from turnbench.envs import webshop_files, webshop_synth
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.store import build_once
from turnbench.envs.webshop_catalogue import (
    KINDS,
    Catalogue,
    Entry,
    SplitOf,
    build,
    build_into,
    open_built,
)

IN_MEMORY = 20_000  # products; larger catalogues are built into the cache folder and mapped
FORMAT = 1  # of what is kept in the cache folder; a change builds anew
DATA = "TURNBENCH_WEBSHOP_DATA"

_open: dict[tuple[object, ...], Catalogue] = {}
_lock = Lock()


def open_catalogue(
    name: str, data: str | None, goals: str | None, products: int, verify: bool
) -> Catalogue:
    """The catalogue that WebShop's arguments ask for. Raises UnknownName and ConfigError."""
    if name not in ("synthetic", *webshop_files.ITEMS):
        raise UnknownName("WebShop catalogue", name, ["synthetic", *webshop_files.ITEMS])
    kind = goals or ("synthetic" if name == "1k" else "human")
    if kind not in KINDS:
        raise UnknownName("kind of WebShop goals", kind, KINDS)
    if isinstance(products, bool) or not isinstance(products, int) or products < 1:
        raise ConfigError(f"products is {products!r}; a whole number of at least 1 is wanted")
    folder = Path(data or os.environ.get(DATA) or ".").expanduser()
    key = (name, kind, products) if name == "synthetic" else (name, kind, folder.resolve(), verify)
    with _lock:
        if key not in _open:
            made = name == "synthetic"
            _open[key] = _synthetic(products, kind) if made else _official(folder, name, kind, verify)
        return _open[key]


def _synthetic(products: int, kind: str) -> Catalogue:
    name = f"synthetic-{webshop_synth.VERSION}-{products}"
    small = products <= IN_MEMORY
    return _made(name, webshop_synth.entries(products), kind, webshop_synth.split_of, small, name)


def _official(folder: Path, size: str, kind: str, verify: bool) -> Catalogue:
    paths = webshop_files.official_paths(folder, size, kind, verify)
    entries = webshop_files.official_entries(paths)
    agentgym = size == "1k" and kind == "synthetic"
    split_of = webshop_files.by_agentgym if agentgym else webshop_files.by_position
    stored = f"{size}-{webshop_files.digest(paths)[:24]}"
    data = f"{size}-{webshop_files.digest(paths if kind == 'human' else paths[:2])}"
    return _made(stored, entries, kind, split_of, size == "1k", data)


def _made(
    name: str, entries: Iterable[Entry], kind: str, split_of: SplitOf, in_memory: bool, data: str
) -> Catalogue:
    digest = sha256(f"{data}-{kind}".encode()).hexdigest()
    if in_memory:
        return build(entries, kind, split_of, digest)
    folder = build_once(f"webshop-{FORMAT}-{name}", lambda folder: build_into(folder, entries))
    return open_built(folder, kind, split_of, digest)
