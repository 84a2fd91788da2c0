import numpy as np
import pytest

from turnbench.envs import make
from turnbench.envs.demonstrate import solve
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Outcome, Task
from turnbench.envs.toy import Toy
from turnbench.envs.webshop_plan import demonstrate as shop

SHOP = "turnbench/WebShop-v0"


def shopping(task, mistakes, seed=0):
    """A demonstration in WebShop, and what was to be bought."""
    env = make(SHOP)
    path = shop(env, Task(SHOP, task, "train", seed), np.random.default_rng(seed), mistakes)
    return path, env.goal


def test_a_shopper_buys_what_is_wanted_and_makes_good_its_mistakes():
    bought, gave_up, wrong = 0, 0, 0
    for task in make(SHOP).tasks("train")[::9]:
        path, _ = shopping(task, 0.2)
        wrong += len(path.info["mistakes"])
        if path.turns[-1].action == "click[buy now]":
            assert path.ret == 1.0 and path.success
            bought += 1
        else:  # not among the first results, or out of turns
            assert path.outcome is Outcome.TRUNCATED and path.success is False
            gave_up += 1
    assert wrong > 40 and bought > 8 * gave_up > 0


def test_a_shopper_acts_on_what_the_pages_show():
    for task in make(SHOP).tasks("train")[:40]:
        path, goal = shopping(task, 0.1)
        for turn in path.turns:
            name, _, argument = turn.action[:-1].partition("[")
            assert argument in turn.observation or argument in ("buy now", "next >", "< prev")
            assert (name == "search") == (argument in goal.text and len(argument) > 40)


def test_a_world_that_knows_its_solutions_needs_no_demonstrator():
    env = make("turnbench/ClosedSearch-v0")
    task = Task("turnbench/ClosedSearch-v0", env.tasks("train")[3], "train", 2)
    path = solve(env, task, np.random.default_rng(0))
    assert path.success and path.outcome is Outcome.OK
    env.reset(seed=2, options={"task": task.id})
    assert [turn.action for turn in path.turns] == list(env.solution())


def test_a_solution_that_ends_before_the_episode_is_a_failure():
    env = make(SHOP)
    env.solution = lambda: ["search[shoe]"]
    path = solve(env, Task(SHOP, "3", "train"), np.random.default_rng(0))
    assert path.success is False and path.outcome is Outcome.TRUNCATED and len(path.turns) == 1


def test_a_mistake_is_another_action_that_the_world_offers_and_the_plan_goes_on_after_it():
    env, fresh = (make("turnbench/TextCraft-v0", max_turns=60) for _ in range(2))
    rng, mistakes = np.random.default_rng(1), 0
    for task in env.tasks("train")[:20]:
        path = solve(env, Task("", task, "train", 0), rng, 0.3)
        fresh.reset(seed=0, options={"task": task})
        todo = list(fresh.solution())
        for number, turn in enumerate(path.turns):
            if number in path.info["mistakes"]:
                assert turn.action in fresh.example_actions() and turn.action != todo[0]
                mistakes += 1
            else:
                assert turn.action == todo.pop(0)
            fresh.step(turn.action)
    assert mistakes > 5


def test_what_does_not_say_that_it_was_solved_was_not():
    class Silent(Toy):
        """A world that judges success, but never says so."""

        has_success = True

        def _step(self, action):
            return super()._step(action)._replace(info={})

        def solution(self):
            return [self.example_actions()[0]] * 99

    path = solve(Silent(), Task("", "0"), np.random.default_rng(0))
    assert path.outcome is Outcome.OK and path.success is False


def test_without_a_solution_there_is_nothing_to_demonstrate():
    with pytest.raises(ConfigError, match=r"Toy.* has neither a demonstrator nor a solution"):
        solve(make("turnbench/Toy-v0"), Task("turnbench/Toy-v0", "0"), np.random.default_rng(0))
