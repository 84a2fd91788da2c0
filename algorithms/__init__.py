"""Algorithms: how a policy or a value function improves.

`ALGORITHMS` maps a name to "module:function", so that listing imports nothing.
"""

from typing import Any

ALGORITHMS: dict[str, str] = {}


def trainer(name: str) -> Any:
    """Placeholder until the first trainer lands."""
