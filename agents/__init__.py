"""Agents: how one acts at test time.

`AGENTS` maps a name to "module:Class", so that listing imports nothing. A new agent is one file
here and one line below; a suite may also name "module:Class" of any installed package.
"""

import importlib
from typing import Any

from turnbench.envs.errors import UnknownName

AGENTS: dict[str, str] = {
    "best_of_n": "turnbench.agents.best_of_n:BestOfN",
    "react": "turnbench.agents.react:ReAct",
}


def agent_class(name: str) -> type[Any]:
    """The class registered as `name`, or named as "module:Class". Raises UnknownName."""
    entry = AGENTS.get(name, name)
    module, colon, attribute = entry.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        if colon and name in AGENTS:
            raise
        raise UnknownName("agent", name, AGENTS) from error
