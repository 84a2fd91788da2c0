"""What is measured between two steps of training: the held-out loss, and success of episodes."""

from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from turnbench.agents.hf import HfModel
from turnbench.agents.model import Sampling
from turnbench.agents.react import ReActPolicy
from turnbench.agents.rollout import Rollout, play
from turnbench.algorithms import held_out
from turnbench.algorithms.demos import Examples, Source
from turnbench.algorithms.learner import Learner, collate, draw_row
from turnbench.envs import make
from turnbench.envs.record import Task


class Evaluation(BaseModel):
    """What is measured on the way. Nothing here is learned from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source = Field(description="Held-out conversations; episodes are played on its tasks.")
    every: int = Field(200, ge=1, description="Steps between two measurements.")
    examples: int = Field(64, ge=1, description="Conversations for the held-out loss.")
    episodes: int = Field(0, ge=0, description="Episodes for the success rate, at temperature 1.")
    max_tokens: int = Field(32, ge=1, description="Longest action, in tokens.")


def evaluate(model: Any, tokenizer: Any, todo: Evaluation, context: int) -> dict[str, float]:
    """Held-out loss of action tokens (nats a token), and mean return and turns of episodes; where the world
    judges it also success."""
    told = Examples([todo.source], 0)
    learner = Learner(model).eval()
    rows = [draw_row(told, tokenizer, context, k) for k in range(todo.examples)]
    with torch.no_grad():
        parts = [rows[k : k + 32] for k in range(0, len(rows), 32)]
        device = next(model.parameters()).device
        losses = [float(learner(*(t.to(device) for t in collate(part, 0.0)))) for part in parts]
    found = {"held_out_loss": float(np.mean(losses))}
    if todo.episodes and todo.source.env:
        live = HfModel.of(model.eval(), tokenizer, sampling=Sampling(max_tokens=todo.max_tokens))
        found |= _play(live, todo)
        live.close()
    return found


def _play(policy: HfModel, todo: Evaluation) -> dict[str, float]:
    source = todo.source
    assert source.env is not None
    env = make(source.env, **source.options)
    known = env.tasks(source.split)
    picked = [known[k * len(known) // todo.episodes % len(known)] for k in range(todo.episodes)]
    rollouts = [
        Rollout.start(env.spawn(), Task(source.env, t, source.split, k), np.random.default_rng(k))
        for k, t in enumerate(picked)
    ]
    play(rollouts, ReActPolicy(policy, instructions=False))
    paths = [rollout.finish() for rollout in rollouts]
    turns = float(np.mean([len(path.turns) for path in paths]))
    found = [held_out.Result(k, path.ret, path.success) for k, path in enumerate(paths)]
    return held_out.told(found) | {"turns": turns}
