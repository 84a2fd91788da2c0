"""MPO, multiscale policy optimization: credit for turns, refined inside each turn, turns reweighed.

It is the loop of ppo.py with three keys changed; docs/mpo.md derives what they do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from turnbench.algorithms.ppo import Ppo, learn
from turnbench.algorithms.settings import checked


class Mpo(Ppo):
    """Multiscale credit (docs/mpo.md, eq. 1-3) and the turn's ratio (eq. 4).

    `beta` 0 is turn-level PPO; `ratio: token` is the ablation without the turn's ratio.
    """

    algorithm: str = Field("mpo", description="Name of the trainer.")
    advantage: Literal["token", "turn", "multiscale"] = "multiscale"
    ratio: Literal["token", "turn", "turn_geomean", "sequence"] = "turn"
    lam_token: float = Field(0.9, ge=0, le=1, description="Lambda of the trace inside a turn.")


def train(config: Mapping[str, Any], out: Path) -> Path:
    """Train as `config` says (fields of `Mpo`) in the run folder `out`; returns the model's folder.

    Raises ConfigError, TrainingError.
    """
    return learn(checked(Mpo, config), out)
