"""What a call costs: a YAML table of dollars per million tokens."""

from dataclasses import dataclass
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from turnbench.envs.errors import ConfigError

VERSION = 1
FIELDS = ("input", "cached_input", "output")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached_input` is for prompt tokens the provider had cached."""

    input: float
    cached_input: float
    output: float

    def cost(self, prompt: int, cached: int, completion: int) -> float:
        """Dollars for a call; `cached` of its `prompt` tokens were cached."""
        fresh = max(0, prompt - cached)
        return (fresh * self.input + cached * self.cached_input + completion * self.output) / 1e6


def load_prices(path: str | None = None) -> dict[str, Price]:
    """Prices by model name from the table at `path`, by default the one that comes along.

    Raises ConfigError, which says what is wrong where.
    """
    source = Path(path) if path else files("turnbench.agents") / "data" / "prices.yaml"
    try:
        table = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"price table {source}: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("models"), dict):
        raise ConfigError(f"price table {source}: a mapping with `version` and `models` wanted")
    if table.get("version") != VERSION:
        raise ConfigError(f"price table {source}: version {table.get('version')!r}, not {VERSION}")
    return {str(name): _price(row, f"{source}: {name}") for name, row in table["models"].items()}


def _price(row: Any, where: str) -> Price:
    if not isinstance(row, dict) or not {"input", "output"} <= row.keys() <= set(FIELDS):
        raise ConfigError(f"price table {where}: `input`, `output` and perhaps `cached_input` wanted")
    for field, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_price(value):
            raise ConfigError(f"price table {where}: {field} is {value!r}, not a number from 0 up")
    cached = row["cached_input"] if "cached_input" in row else row["input"]
    return Price(row["input"], cached, row["output"])


def _is_price(value: float) -> bool:
    return isfinite(value) and value >= 0
