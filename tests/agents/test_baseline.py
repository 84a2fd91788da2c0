"""Baselines: they need no model, play what the world offers, and say when they know the answer."""

import numpy as np
import pytest

from turnbench import envs
from turnbench.agents.baseline import Baseline
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Outcome, Task
from turnbench.leaderboards.suite import load_suite


def solve(world, task, policy, seed=0, **options):
    env, name = envs.make(f"turnbench/{world}-v0", **options), f"turnbench/{world}-v0"
    return Baseline(policy=policy).solve(env, Task(name, task), np.random.default_rng(seed)).best


@pytest.mark.parametrize("world", ["TextCraft", "WebShop"])
def test_the_oracle_solves_what_it_has_the_turns_for(world) -> None:
    for task in envs.make(f"turnbench/{world}-v0").tasks("test")[::20]:
        path = solve(world, task, "oracle", max_turns=100)
        assert path.success and path.ret == 1.0 and path.outcome is Outcome.OK
    assert Baseline(policy="oracle").privileges == ("oracle",)
    assert Baseline(policy="random").privileges == Baseline(policy="first").privileges == ()


def test_a_solution_that_ends_too_early_ends_the_path(monkeypatch) -> None:
    monkeypatch.setattr("turnbench.envs.textcraft.TextCraft.solution", lambda env: ["inventory"])
    path = solve("TextCraft", "3", "oracle")
    assert len(path.turns) == 1 and path.outcome is Outcome.TRUNCATED and not path.success


def test_first_is_the_first_example_and_random_is_seeded() -> None:
    first = solve("Toy", "0", "first")
    assert {turn.action for turn in first.turns} == {envs.make("turnbench/Toy-v0").example_actions()[0]}
    played = [
        [turn.action for turn in solve("TextCraft", "140", "random", k).turns] for k in (0, 0, 1, 2)
    ]
    assert played[0] == played[1] and len({tuple(actions) for actions in played}) == 3


def test_what_a_world_does_not_offer_is_named() -> None:
    with pytest.raises(ConfigError, match="turnbench/Toy-v0 offers no solution"):
        solve("Toy", "0", "oracle")
    with pytest.raises(UnknownName, match="oracle"):
        Baseline(policy="best")


@pytest.mark.parametrize("name", ["agentgym", "sciworld", "textcraft", "webshop"])
def test_suites_have_rows_that_need_no_model(name) -> None:
    suite = load_suite(name, agents=["oracle", "random", "first-action"], model="api:some-model")
    assert [suite.system(row)["model"] for row in suite.agents] == [None] * 3


TOOLS = ["agentdojo", "bfcl", "blame", "closedsearch", "tau2", "toolworld"]


@pytest.mark.parametrize("name", TOOLS)
def test_tool_suites_have_rows_that_need_no_model(name) -> None:
    suite = load_suite(name, agents=["oracle", "random"], model="api:some-model")
    assert [suite.system(row)["model"] for row in suite.agents] == [None] * 2


@pytest.mark.parametrize(("world", "task"), [("ToolWorld", "base-1-20000"), ("Blame", "base-1-20000")])
def test_who_plays_tools_blindly_knows_nothing_of_the_solution(world, task) -> None:
    assert solve(world, task, "oracle").ret == 1.0
    env = envs.make(f"turnbench/{world}-v0")
    env.reset(seed=0, options={"task": task})
    calls = [action for action in env.example_actions() if action != "Done."]
    right = [action for action in calls if action in env.solution()]
    assert len(right) == (world == "Blame")
