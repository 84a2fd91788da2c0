"""Opens WebShop's catalogues: made or read once in a process, and on disk where they are large."""

import os
from collections.abc import Iterable
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
    if products < 1:
        raise ConfigError(f"products is {products}; it must be at least 1")
    folder = Path(data or os.environ.get(DATA) or ".").expanduser()
    key = (name, kind, products) if name == "synthetic" else (name, kind, folder.resolve(), verify)
    with _lock:
        if key not in _open:
            made = name == "synthetic"
            _open[key] = _synthetic(products, kind) if made else _official(folder, name, kind, verify)
        return _open[key]


def _synthetic(products: int, kind: str) -> Catalogue:
    entries = webshop_synth.entries(products)
    if products <= IN_MEMORY:
        return build(entries, kind, webshop_synth.split_of)
    name = f"webshop-{FORMAT}-synthetic-{webshop_synth.VERSION}-{products}"
    return _stored(name, entries, kind, webshop_synth.split_of)


def _official(folder: Path, size: str, kind: str, verify: bool) -> Catalogue:
    paths = webshop_files.official_paths(folder, size, kind, verify)
    entries = webshop_files.official_entries(paths)
    if size == "1k":
        small = webshop_files.by_agentgym if kind == "synthetic" else webshop_files.by_position
        return build(entries, kind, small)
    name = f"webshop-{FORMAT}-full-{webshop_files.digest(paths)[:16]}"
    return _stored(name, entries, kind, webshop_files.by_position)


def _stored(name: str, entries: Iterable[Entry], kind: str, split_of: SplitOf) -> Catalogue:
    folder = build_once(name, lambda folder: build_into(folder, entries))
    return open_built(folder, kind, split_of)
