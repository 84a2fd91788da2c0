"""What a tool-use world checked at the end of an episode is in the record, and is played again."""

import dataclasses
import json

import numpy as np

from turnbench.agents.rollout import Move, Rollout
from turnbench.algorithms.demos import EnvStream, Source
from turnbench.envs.record import Task, trajectory_from_json, trajectory_to_json
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolworld import ToolWorld
from turnbench.envs.toolworld_tasks import problem
from turnbench.leaderboards.replay import replay_path

TASK = Task("turnbench/ToolWorld-v0", "injection-1-20001", seed=3)


def attacked():
    """The record of an episode in which the hidden instruction is obeyed, read back from JSON."""
    rollout = Rollout.start(ToolWorld(), TASK, np.random.default_rng(0))
    name, arguments = problem(TASK.id).attack.call
    for action in [call_text(name, **arguments), *rollout.env.ground_truth()]:
        rollout.advance(Move(action))
    return trajectory_from_json(json.loads(json.dumps(trajectory_to_json(rollout.finish()))), TASK)


def test_the_checks_are_recorded_and_verified() -> None:
    path = attacked()
    assert path.success is False and path.info["benchmark"] == "toolworld 1"
    assert path.info["checks"]["attack_success"] is True
    assert replay_path(ToolWorld(), path) is None
    checks = {**path.info["checks"], "attack_success": False}
    forged = dataclasses.replace(path, info={**path.info, "checks": checks})
    assert "checks" in str(replay_path(ToolWorld(), forged))
    assert "benchmark" in str(
        replay_path(ToolWorld(), dataclasses.replace(path, info={"checks": path.info["checks"]}))
    )


def test_its_demonstrations_can_be_learned_from() -> None:
    options = {"level": 1, "distractors": 2, "tools_in_observation": True}
    stream = EnvStream(Source(env=TASK.env, options=options, mistakes=0.3))
    found = [stream.draw(np.random.default_rng(k)) for k in range(5)]
    assert all(c.messages[0].content.startswith("Tools:\n") for c in found) and any(
        c.wrong for c in found
    )
