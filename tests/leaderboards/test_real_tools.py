"""Every agent plays the three real tool-use benchmarks, and what is recorded can be verified."""

import json

import numpy as np
import pytest

from turnbench import envs
from turnbench.agents import AGENTS, agent_class
from turnbench.agents.model import ScriptedModel
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task, trajectory_from_json, trajectory_to_json
from turnbench.leaderboards.replay import replay_path

WORLDS = {
    "turnbench/BFCL-v0": ({}, "multi_turn_miss_func_0"),
    "turnbench/AgentDojo-v0": ({}, "banking/user_task_0/injection_task_0"),
    "turnbench/Tau2-v0": ({"domain": "airline"}, "1"),
}
OPTIONS = {
    "best_of_n": {"n": 2, "scorer": "return"},
    "amc": {"n": 2},
    "fleet": {"n": 2},
    "baseline": {"policy": "oracle"},
    "monitor": {"watch": "length", "threshold": -1e9},
}


def solver(world):
    """A model that answers with the ground truth's next action."""
    actions = world.solution()

    def answer(prompt):
        said = [m.content for m in prompt.messages if m.role == "assistant" and m.content != "Ready."]
        return actions[len(said)]

    return ScriptedModel(answer)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("world", WORLDS)
def test_every_agent_solves_it_and_its_record_is_verified(world, agent) -> None:
    options, task = WORLDS[world]
    try:
        env = envs.make(world, tools_in_observation=True, **options)
    except ConfigError as why:
        pytest.skip(str(why))
    env.reset(seed=0, options={"task": task})
    models = () if agent == "baseline" else (solver(env),)
    player = agent_class(agent)(*models, **OPTIONS.get(agent, {}))
    asked = Task(world, task, seed=0)
    path = player.solve(env, asked, np.random.default_rng(0)).best
    assert path.success and path.ret == 1.0 and "2" in path.info["benchmark"]
    kept = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(path))), asked)
    assert replay_path(env.spawn(), kept) is None
