"""Best-of-N: N independent rollouts, one scorer, the highest-scored path is submitted."""

import math
from typing import Literal

import numpy as np

from turnbench.agents.core import Population
from turnbench.agents.model import Model
from turnbench.agents.react import ReActPolicy
from turnbench.agents.readers import Spec
from turnbench.agents.rollout import finish_all, play, start_many
from turnbench.agents.scorers import Scorer, make_scorer
from turnbench.agents.turn_scores import NOT_SCORED, ask_apart
from turnbench.agents.values import Value
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, Unscored
from turnbench.envs.record import Task, Usage


class BestOfN:
    """N rollouts in step, so that each turn is one batch. Other options are ReActPolicy's.

    `scorer` is a Scorer, the name of one, or a mapping of `scorer` and its options (scorers.py);
    "return" makes this an oracle, and says so.
    """

    def __init__(
        self,
        model: Model,
        *,
        n: int = 8,
        scorer: Scorer | Spec = "return",
        style: Literal["plain", "thought"] = "plain",
        instructions: bool = True,
        history: int | None = None,
        reasoning: Literal["keep", "drop"] = "keep",
    ) -> None:
        if n < 1:
            raise ConfigError(f"n is {n}; it must be at least 1")
        self.n = n
        self.scorer = make_scorer(scorer, model)
        self.policy = ReActPolicy(model, style, instructions, history, reasoning)
        self.privileges: tuple[str, ...] = ("oracle",) if self.scorer.oracle else ()

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Play the task N times and choose. Paths that are missing, or can't be scored, are never chosen
        while another is left. Raises ModelError, Unscored where none can be."""
        if isinstance(self.scorer, Value):
            self.scorer.check(task.env)
        rollouts = start_many(env, task, rng, self.n)
        play(rollouts, self.policy)
        paths = finish_all(rollouts, env)
        whole = [k for k, path in enumerate(paths) if not path.missing]
        scores = [-math.inf] * self.n
        told = ask_apart(lambda some: self.scorer.score(some, rng), [paths[k] for k in whole])
        for k, score in zip(whole, told, strict=True):
            if isinstance(score, Unscored):
                if all(isinstance(one, Unscored) for one in told):
                    raise score
                paths[k].info[NOT_SCORED] = str(score)
            else:
                scores[k] = score
        usage = getattr(self.scorer, "usage", Usage())
        return Population(paths, int(np.argmax(scores)), scores=tuple(scores), usage=usage)
