"""Trainers: how a policy or a value function improves.

`ALGORITHMS` maps a name to "module:function", so that listing imports nothing. A trainer is called
as `train(config, out)` with a YAML file's mapping and a run folder, and returns the folder of the
trained model. A new one is one file here and one line below; a config may also name
"module:function" of any installed package.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnbench.envs.errors import UnknownName

ALGORITHMS: dict[str, str] = {
    "sft": "turnbench.algorithms.sft:train",
}


def trainer(name: str) -> Callable[[Mapping[str, Any], Path], Path]:
    """The trainer registered as `name`, or named as "module:function". Raises UnknownName."""
    module, colon, attribute = ALGORITHMS.get(name, name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        if colon and name in ALGORITHMS:
            raise
        raise UnknownName("algorithm", name, ALGORITHMS) from error
