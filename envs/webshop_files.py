"""Readers of WebShop's official files, which the user has to bring (docs/webshop.md says from where).

    items_shuffle_1000.json   items_ins_v2_1000.json   (the "1k" catalogue)
    items_shuffle.json        items_ins_v2.json        (the "full" one)
    items_human_ins.json                               (instructions written by people, both)

They are read as streams: of the products, only one is held at a time.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from turnbench.envs.errors import ConfigError
from turnbench.envs.store import file_digest
from turnbench.envs.webshop_catalogue import Array, Draft, Entry, Goals
from turnbench.envs.webshop_product import is_listed, product_from_item

ITEMS = {"1k": "items_shuffle_1000.json", "full": "items_shuffle.json"}
ATTRIBUTES = {"1k": "items_ins_v2_1000.json", "full": "items_ins_v2.json"}
HUMAN = "items_human_ins.json"
SHA256 = {
    "items_shuffle_1000.json": "30a4765c3a327af72d9a9a95a6b2486d516f0fa1d3ecd83681901ce82a21b269",
    "items_ins_v2_1000.json": "f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f",
}
CHUNK = 2**20
AGENTGYM_GOALS = 6910

Record = tuple[Mapping[str, Any], Mapping[str, Any] | None, list[Any]]


def official_paths(folder: Path, size: str, goals: str, verify: bool) -> list[Path]:
    """The catalogue's files; human instructions only where they are there or asked for.

    Raises ConfigError for one that is missing or, with `verify`, isn't the published one.
    """
    needed = [folder / ITEMS[size], folder / ATTRIBUTES[size]]
    human = folder / HUMAN
    if goals == "human" or human.is_file():
        needed.append(human)
    for path in needed:
        if not path.is_file():
            raise ConfigError(
                f"{path.absolute()} is missing: name the folder of WebShop's files by the option `data` or "
                "by TURNBENCH_WEBSHOP_DATA; docs/webshop.md says where they come from"
            )
        known = SHA256.get(path.name)
        if verify and known is not None and file_digest(path) != known:
            raise ConfigError(
                f"{path} is not the published file: its SHA-256 is {file_digest(path)}, not {known}; "
                "verify=False takes it all the same, but then numbers can't be compared"
            )
    return needed


def digest(paths: list[Path]) -> str:
    """A digest of the contents of all files."""
    return sha256("".join(file_digest(path) for path in paths).encode()).hexdigest()


def official_entries(paths: list[Path]) -> Iterator[Entry]:
    """The products of official files, without repetitions. Raises ConfigError where they are damaged."""
    items, attributes, *human = paths
    infos = _mapping(attributes)
    asked = _mapping(human[0]) if human else {}
    seen: set[str] = set()
    for row, item in enumerate(stream_array(items)):
        if not isinstance(item, dict) or not isinstance(item.get("asin"), str):
            raise ConfigError(f"{items}, item {row}: {str(item)[:80]!r} is no product with an asin")
        asin = item["asin"]
        if is_listed(item) and asin not in seen:
            seen.add(asin)
            try:
                yield make_entry(item, infos.get(asin), asked.get(asin, []))
            except ConfigError as error:
                raise ConfigError(f"{items}, item {row}: {error}") from error
    if not seen:
        raise ConfigError(f"{items} holds no products")


def make_entry(item: Mapping[str, Any], info: Mapping[str, Any] | None, human: list[Any]) -> Entry:
    """A product and its instructions from one record of each file. Raises ConfigError."""
    info = {} if info is None else info
    product = product_from_item(item, _attributes(item["asin"], info))
    try:
        by_people = tuple(
            Draft(
                row["instruction"],
                tuple(row["instruction_attributes"]),
                tuple(row["instruction_options"]),
            )
            for row in human
            if row["instruction_attributes"]
        )
        text = info.get("instruction")
        made = () if text is None else (Draft(text, tuple(info["instruction_attributes"]), None),)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the instructions for {product.asin} lack {error}") from error
    return Entry(product, (by_people, made))


def _attributes(asin: str, info: Any) -> tuple[str, ...] | None:
    """The attributes that are known of a product, if any. Raises ConfigError."""
    if not isinstance(info, dict):
        raise ConfigError(f"what the attribute file has for {asin} is no JSON object")
    found = info.get("attributes", [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"the attributes of {asin} are {found!r:.80}; a list of texts is wanted")
    return tuple(found) if "attributes" in info else None


def stream_array(path: Path) -> Iterator[Any]:
    """The members of a JSON file's one array, one by one. Raises ConfigError where it is damaged."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8-sig") as file:
        text, place = next((t for t in iter(lambda: file.read(CHUNK), "") if t.strip()), "").lstrip(), 1
        if not text.startswith("["):
            raise ConfigError(f"{path} holds no JSON array")
        while True:
            while place < len(text) and text[place] in " \t\r\n,":
                place += 1
            if text[place : place + 1] == "]":
                return
            try:
                member, place = decoder.raw_decode(text, place)
            except json.JSONDecodeError as error:
                more = file.read(max(CHUNK, len(text)))
                if not more:
                    raise ConfigError(f"{path} is damaged or cut off: {error}") from error
                text, place = text[place:] + more, 0
            else:
                yield member


def _mapping(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold a JSON object that is keyed by asin")
    return loaded


# --- splits ---------------------------------------------------------------------------------------------


def by_position(goals: Goals) -> Array:
    """The published split: goals 0-499 test, 500-1499 dev, the others train."""
    number = np.arange(len(goals))
    return np.where(number < 500, "test", np.where(number < 1500, "dev", "train"))


def by_agentgym(goals: Goals) -> Array:
    """AgentGym's test and train goals of the small catalogue; dev are those it uses in neither."""
    if len(goals) != AGENTGYM_GOALS:
        return by_position(goals)
    split = np.full(len(goals), "dev  ")
    for name, numbers in _agentgym_ids().items():
        split[numbers] = name
    return np.char.strip(split)


@cache
def _agentgym_ids() -> dict[str, list[int]]:
    data = files("turnbench.envs") / "data" / "agentgym_webshop.json"
    ids: dict[str, list[int]] = json.loads(data.read_text(encoding="utf-8"))
    return ids
