import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from turnbench.algorithms.settings import claim
from turnbench.envs.errors import ConfigError


class World(BaseModel):
    id: str
    turns: int = 20


class Settings(BaseModel):
    rate: float
    steps: int = 10
    world: World
    data: tuple[World, ...] = ()
    path: Path | None = None
    spare: World = World(id="spare")


MADE = Settings(rate=0.1, world=World(id="toy"), data=(World(id="a"), World(id="b", turns=3)))
SHORTER: list[dict[str, Any]] = [
    {"path": ...},
    {"spare": ...},
    {"spare": {"id": "spare"}},
    {"world": {"id": "toy"}},
    {"data": [{"id": "a"}, {"id": "b", "turns": 3}]},
    {"steps": 4},
]
OTHER: list[tuple[dict[str, Any], str]] = [
    ({"rate": ...}, "another rate"),
    ({"rate": 0.2}, "another rate"),
    ({"path": "x"}, "another path"),
    ({"spare": None}, "another spare"),
    ({"world": {"id": "toy", "turns": 3}}, "another world"),
    ({"world": {"turns": 20}}, "another world"),
    ({"data": [{"id": "a"}, {"id": "b"}]}, "another data"),
    ({"data": [{"id": "a"}]}, "another data"),
    ({"data": ...}, "another data"),
    ({"gone": 1}, "another gone"),
]


def record(folder: Path, changes: dict[str, Any]) -> None:
    """A run begun with MADE as an older version recorded it; ... stands for no such key."""
    whole = {**MADE.model_dump(mode="json"), **changes}
    told = {key: value for key, value in whole.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "metrics.jsonl").touch()


@pytest.mark.parametrize("changes", SHORTER)
def test_a_run_goes_on_where_newer_keys_have_their_defaults(tmp_path: Path, changes: Any) -> None:
    record(tmp_path, changes)
    claim(tmp_path, MADE)
    told = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert told == MADE.model_dump(mode="json")


@pytest.mark.parametrize(("changes", "message"), OTHER)
def test_another_value_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    record(tmp_path, changes)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=message):
        claim(tmp_path, MADE)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_run_that_failed_at_its_start_leaves_its_folder_to_another(tmp_path: Path) -> None:
    record(tmp_path, {"rate": 0.2})
    (tmp_path / "metrics.jsonl").unlink()
    claim(tmp_path, MADE)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["rate"] == 0.1


def test_a_newer_key_with_another_value_than_its_default_is_refused(tmp_path: Path) -> None:
    record(tmp_path, {"path": ...})
    with pytest.raises(ConfigError, match="another path"):
        claim(tmp_path, MADE.model_copy(update={"path": Path("x")}))
