"""Trainers: how a policy or a value function improves.

`ALGORITHMS` maps a name to "module:function", so that listing imports nothing. A trainer is called
as `train(config, out)` with a YAML file's mapping and a run folder, and returns the folder of the
trained model. A new one is one file here and one line below; a config may also name
"module:function" of any installed package.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnbench.agents import find

ALGORITHMS: dict[str, str] = {
    "dapo": "turnbench.algorithms.grpo:train_dapo",
    "gigpo": "turnbench.algorithms.grpo:train_gigpo",
    "grpo": "turnbench.algorithms.grpo:train",
    "gspo": "turnbench.algorithms.grpo:train_gspo",
    "mpo": "turnbench.algorithms.mpo:train",
    "ppo": "turnbench.algorithms.ppo:train",
    "reward_model": "turnbench.algorithms.reward_model:train",
    "sao": "turnbench.algorithms.ppo:train_sao",
    "sft": "turnbench.algorithms.sft:train",
    "turn_ppo": "turnbench.algorithms.ppo:train_turn_ppo",
    "value": "turnbench.algorithms.value:train",
}


def trainer(name: str) -> Callable[[Mapping[str, Any], Path], Path]:
    """The trainer registered as `name`, or named as "module:function".

    Raises UnknownName, or ConfigError where a package is missing.
    """
    return find("algorithm", name, ALGORITHMS, extra="train")  # type: ignore[no-any-return]
