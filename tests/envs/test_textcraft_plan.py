import numpy as np
import pytest

from turnbench.envs import make
from turnbench.envs.errors import ConfigError, EnvError
from turnbench.envs.record import Outcome, Task
from turnbench.envs.textcraft import TextCraft, split_tasks
from turnbench.envs.textcraft_made_up import TASKS, MadeUpTextCraft
from turnbench.envs.textcraft_plan import demonstrate, plan
from turnbench.envs.textcraft_recipes import recipe_book

ENV = "turnbench/TextCraft-v0"
GOALS = list(enumerate(recipe_book().goals))


def play(env, actions):
    """(observations, rewards) of actions played in an env that was reset."""
    steps = [env.step(action) for action in actions]
    return [s[0] for s in steps], [s[1] for s in steps]


def test_every_goal_is_reached_with_no_refusal_and_nothing_superfluous_at_the_end():
    env = TextCraft(max_turns=300)
    for task, goal in GOALS:
        env.reset(seed=task, options={"task": str(task)})
        seen, rewards = play(env, plan(goal))
        assert rewards == [0.0] * (len(seen) - 1) + [1.0], goal
        assert all(text.startswith(("Got ", "Crafted ")) for text in seen), goal


def test_every_item_is_taken_once_and_only_what_is_shown_is_crafted():
    env = TextCraft(max_turns=300)
    for task, goal in GOALS[::7]:
        shown, _ = env.reset(seed=1, options={"task": str(task)})
        actions = plan(goal)
        taken = [action.split(" ", 2)[2] for action in actions if action.startswith("get")]
        assert len(set(taken)) == len(taken)
        crafted = {a.partition(" using ")[0] for a in actions if a.startswith("craft")}
        assert crafted <= {line.partition(" using ")[0] for line in shown.splitlines()}


def test_the_default_turns_suffice_for_nearly_every_goal():
    within = {
        split: sum(len(plan(recipe_book().goals[int(t)])) <= 20 for t in split_tasks(split))
        for split in ("test", "train-policy", "train-value", "all")
    }
    assert within["test"] >= 95 and within["train-policy"] >= 248 and within["all"] >= 532


def brute_force(goal, limit):
    """Length of the shortest plan, by breadth-first search over inventories; None beyond `limit`."""
    book = recipe_book()
    closure = book.closure(goal)
    base = {i.name for r in closure for i in r.inputs if not book.craftable(i.name)}
    supply = {name: 12 for name in base}
    # Taking is free in the search (12 of everything) and paid once per base item used.
    start = tuple(sorted(supply.items()))
    best, layer, seen = None, {(start, frozenset())}, set()
    for crafts in range(1, limit + 1):
        following = set()
        for state, used in layer:
            for recipe in closure:
                held = dict(state)
                paid = []
                for need in recipe.inputs:
                    names = [
                        n
                        for n in held
                        if n == need.name or need.is_tag and book.tag_of.get(n) == need.name
                    ]
                    fitting = [n for n in names if held[n] >= need.quantity]
                    if not fitting:
                        break
                    paid.append((fitting[0], need.quantity))
                else:
                    for name, quantity in paid:
                        held[name] -= quantity
                    held[recipe.output] = held.get(recipe.output, 0) + recipe.count
                    now = used | {name for name, _ in paid if name in base}
                    if recipe.output == goal:
                        best = min(best or 99, crafts + len(now))
                    following.add((tuple(sorted(held.items())), now))
        layer = following - seen
        seen |= following
    return best


@pytest.mark.parametrize("goal", ["torch", "lever", "chest", "birch_stairs", "andesite", "bone_block"])
def test_plans_are_shortest_where_that_can_be_searched(goal):
    found = len(plan(f"minecraft:{goal}"))
    best = brute_force(f"minecraft:{goal}", 4)
    assert found == best


def test_a_plan_uses_what_is_carried():
    assert plan("minecraft:chest", {"minecraft:oak_planks": 8}) == ["craft 1 chest using 8 oak planks"]
    assert plan("minecraft:torch", {"minecraft:stick": 1})[0] == "get 1 coal"


def test_what_no_recipe_makes_has_no_plan():
    with pytest.raises(EnvError, match="no recipe makes cobblestone"):
        plan("minecraft:cobblestone")


def test_demonstrations_replay_exactly_and_mark_their_mistakes():
    env, rng, mistaken = TextCraft(max_turns=40), np.random.default_rng(5), 0
    for number in range(120):
        task = Task(ENV, split_tasks("train-policy")[number * 2], "train-policy", number)
        path = demonstrate(env, task, rng, 0.2)
        fresh = make(ENV, max_turns=40)
        observation, _ = fresh.reset(seed=task.seed, options={"task": task.id})
        for turn in path.turns:
            assert turn.observation == observation
            observation, reward, *_ = fresh.step(turn.action)
            assert reward == turn.reward
        assert path.final == observation
        assert path.success == (path.ret == 1.0) == (path.outcome is Outcome.OK)
        mistaken += len(path.info["mistakes"])
    assert mistaken > 50


def test_without_mistakes_a_demonstration_is_the_plan_and_every_seed_shows_another_opening():
    env = TextCraft()
    paths = [
        demonstrate(env, Task(ENV, "200", "all", seed), np.random.default_rng(seed)) for seed in range(4)
    ]
    assert len({path.turns[0].observation for path in paths}) > 1
    assert [turn.action for turn in paths[0].turns] == plan(recipe_book().goals[200])
    assert all(path.info["mistakes"] == [] for path in paths)


def test_the_same_generator_makes_the_same_demonstration():
    task = Task(ENV, "450", "all", 3)
    one, two = (demonstrate(TextCraft(), task, np.random.default_rng(9), 0.3) for _ in range(2))
    assert one == two


def test_a_demonstration_that_runs_out_of_turns_says_so():
    path = demonstrate(TextCraft(max_turns=2), Task(ENV, "500", "all"), np.random.default_rng(0))
    assert path.outcome is Outcome.TRUNCATED and path.success is False and len(path.turns) == 2


def test_only_textcraft_is_played():
    with pytest.raises(ConfigError, match="plays TextCraft"):
        demonstrate(make("CartPole-v1"), Task("x", "0"), np.random.default_rng(0))


# --- made-up recipes --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_made_up_books_can_be_played_to_the_end(depth):
    env = MadeUpTextCraft(depth=depth, max_turns=200)
    for seed in range(60):
        path = demonstrate(
            env, Task("x", str(seed * 16), "train", seed), np.random.default_rng(seed), 0.1
        )
        assert path.ret == 1.0
        assert env.book.depth(env.goal) <= depth


def test_made_up_openings_depend_on_task_and_seed_alone():
    first, second = MadeUpTextCraft(), MadeUpTextCraft()
    seen = set()
    for task, seed in [("0", 0), ("0", 1), ("1", 0), ("999", 7)]:
        one = first.reset(seed=seed, options={"task": task})[0]
        assert one == second.reset(seed=seed, options={"task": task})[0]
        seen.add(one)
    assert len(seen) == 4
    assert len(first.tasks("test")) == TASKS


def test_made_up_goals_are_never_named_like_held_out_ones():
    held = {recipe_book().goals[int(t)] for s in ("test", "train-value") for t in split_tasks(s)}
    env = MadeUpTextCraft()
    for seed in range(400):
        env.reset(seed=seed, options={"task": str(seed)})
        assert env.goal not in held


def test_the_shown_commands_are_the_book():
    env = MadeUpTextCraft()
    opening, _ = env.reset(seed=4, options={"task": "4"})
    lines = opening.split("\n\n")[0].splitlines()[1:]
    assert sorted(lines) == sorted(r.command for rs in env.book.by_item.values() for r in rs)


def test_a_fork_plays_on_alone():
    env = MadeUpTextCraft(max_turns=100)
    env.reset(seed=2, options={"task": "3"})
    actions = plan(env.goal, book=env.book)
    env.step(actions[0])
    twin = env.fork()
    for action in actions[1:]:
        _, reward, *_ = twin.step(action)
    assert reward == 1.0 and len(env.history) == 1 and not env.over
