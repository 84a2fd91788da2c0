"""WebShop as a world: its contract, its generated catalogue, and what people complained of elsewhere."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.agents.rollout import Move, Rollout
from turnbench.envs import make, webshop_open, webshop_synth
from turnbench.envs.check import check_env
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.record import Task
from turnbench.envs.webshop_goals import reward
from turnbench.envs.webshop_nouns import simple_nouns
from turnbench.envs.webshop_pages import SUB_PAGES
from turnbench.leaderboards.suite import EnvSpec, choose_tasks

ID = "turnbench/WebShop-v0"


@pytest.fixture
def shop():
    return make(ID)


def buy(env, *, options: bool = True) -> tuple:
    """Search for the goal's product by its title, choose what the goal names, and buy."""
    goal = env.goal
    env.step(f"search[{goal.product.title}]")
    env.step(f"click[{goal.product.asin}]")
    for value in goal.options if options else ():
        env.step(f"click[{value}]")
    return env.step("click[Buy Now]")


# --- the generated catalogue ----------------------------------------------------------------------------


def test_every_goal_can_be_solved(shop) -> None:
    for task in shop.tasks("all")[::3]:
        shop.reset(seed=int(task), options={"task": task})
        _, paid, terminated, _, info = buy(shop)
        assert (paid, terminated, info["success"]) == (1.0, True, True), shop.instruction
        assert info["reward"]["total"] == 1.0


def test_only_its_product_satisfies_a_goal(shop) -> None:
    """The others of its family lack something: what sets a product apart is always asked for."""
    catalogue, family = shop.catalogue, webshop_synth.FAMILY
    row_of = {product.asin: row for row, product in enumerate(catalogue.products)}
    for number in range(0, len(catalogue.goals), 3):
        goal = catalogue.goal(number, 0)
        row = row_of[goal.product.asin]
        first = row - row % family
        for other in (catalogue.products[k] for k in range(first, first + family) if k != row):
            paid = reward(goal, other, goal.options, 0, simple_nouns)
            assert paid.attributes < 1 and paid.total < 1
            assert len(set(other.attributes) ^ set(goal.product.attributes)) in (2, 4)


def test_splits_share_no_family(shop) -> None:
    rows = {product.asin: row for row, product in enumerate(shop.catalogue.products)}
    families = {
        split: {
            rows[shop.catalogue.goal(int(task), 0).product.asin] // webshop_synth.FAMILY
            for task in shop.tasks(split)
        }
        for split in shop.splits
    }
    assert sum(len(found) for found in families.values()) == len(set.union(*families.values())) == 200
    sizes = {split: len(shop.tasks(split)) for split in shop.splits}
    assert sizes["train"] > sizes["test"] > sizes["dev"] >= 90
    kinds = {number % len(webshop_synth.KINDS) for number in families["test"]}
    assert len(kinds) == len(webshop_synth.KINDS)
    everything = [task for split in shop.splits for task in shop.tasks(split)]
    assert sorted(everything, key=int) == list(shop.tasks("all"))


def test_the_catalogue_is_what_its_version_says(shop) -> None:
    """Where this fails the generator has changed: raise webshop_synth.VERSION, then change this."""
    rows = json.dumps([product.to_json() for product in shop.catalogue.products])
    texts = "\n".join(shop.catalogue.goal(k, 0).text for k in range(len(shop.catalogue.goals)))
    digest = hashlib.sha256((rows + texts).encode()).hexdigest()
    assert (webshop_synth.VERSION, digest[:16]) == (1, "86c002b09b734730")


def test_the_catalogue_has_what_it_promises(shop) -> None:
    products = shop.catalogue.products
    assert len(products) == len({product.asin for product in products}) == 1000
    assert {product.category for product in products} == {
        *("beauty", "electronics", "fashion", "garden", "grocery"),
    }
    assert all(re.fullmatch("B0[0-9A-Z]{8}", product.asin) for product in products)
    assert all(product.options for product in products)
    ranged = sum(len(product.prices) == 2 for product in products)
    unpriced = sum(product.prices == (100.0,) for product in products)
    assert 50 < ranged < 150 and 15 < unpriced < 80
    texts = [shop.catalogue.goal(k, 0).text for k in range(1000)]
    assert sum("price lower than" in text for text in texts) > 900
    spelled = sum(
        all(attribute in goal.text for attribute in goal.attributes)
        for goal in (shop.catalogue.goal(k, 0) for k in range(1000))
    )
    assert 500 < spelled < 900  # the others are paraphrased


def test_a_larger_catalogue_begins_alike() -> None:
    small, large = make(ID, products=7).catalogue, make(ID, products=40).catalogue
    assert [p.to_json() for p in small.products] == [p.to_json() for p in large.products[:7]]
    assert len(small.goals) == 7


def test_a_large_catalogue_is_kept_on_disk(tmp_path, monkeypatch) -> None:
    """The same answers from the cache folder as from memory."""
    monkeypatch.setenv("TURNBENCH_CACHE", str(tmp_path))
    memory = make(ID, products=300)
    monkeypatch.setattr(webshop_open, "IN_MEMORY", 100)
    monkeypatch.setattr(webshop_open, "_open", {})
    disk = make(ID, products=300)
    assert disk.data_digest() == memory.data_digest() and list(tmp_path.iterdir())
    for split in (*disk.splits, "all"):
        assert list(disk.tasks(split)) == list(memory.tasks(split))
    for task in disk.tasks("all")[::20]:
        shown = [env.reset(seed=1, options={"task": task})[0] for env in (disk, memory)]
        assert shown[0] == shown[1]
        assert buy(disk) == buy(memory)


def test_goals_of_the_other_kind() -> None:
    env = make(ID, products=50, goals="synthetic")
    assert len(env.tasks("all")) > 500
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    assert env.instruction.startswith("Find me ") and " with " in env.instruction
    assert env.data_digest() != make(ID, products=50).data_digest()


# --- the contract ---------------------------------------------------------------------------------------


def test_another_form_of_it_keeps_the_contract() -> None:
    """tests/test_registry.py checks the usual one."""
    report = check_env(ID, products=60, observation="text_rich", list_actions=True, goals="synthetic")
    assert report.ok, str(report)


def test_opening_needs_nothing_heavy() -> None:
    """No tagger, web server, Java or torch: only what the core installation has."""
    code = (
        "import sys; from turnbench.envs import make\n"
        f"env = make({ID!r}); env.reset(seed=0); env.step('search[lamp]')\n"
        "heavy = {'spacy', 'flask', 'bs4', 'torch', 'jnius', 'transformers', 'pandas', 'scipy'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def episode(env: TextEnv, seed: int, task: str) -> list[tuple]:
    """A seeded walk that searches, looks, chooses and at last buys."""
    rng = random.Random(seed)
    steps = [env.reset(seed=seed, options={"task": task})]
    while not env.over:
        words = env.instruction.split()
        choices = env.available_actions()["clickables"]
        search = env.page.place == "search" or rng.random() < 0.2
        action = (
            f"search[{' '.join(rng.sample(words, 3))}]" if search else f"click[{rng.choice(choices)}]"
        )
        steps.append((action, *env.step(action)))
    return steps


def test_fork_equals_replay_and_shares_nothing(shop) -> None:
    for seed in range(15):
        env = make(ID, max_turns=12)
        steps = episode(env, seed, env.tasks("dev")[seed])
        cut = random.Random(seed).randrange(len(steps))
        env.reset(seed=seed, options={"task": env.task})
        for step in steps[1 : cut + 1]:
            env.step(step[0])
        if env.over:
            continue
        copied, replayed = env.fork(), TextEnv.fork(env)
        before = (env.observation, env.page, list(env.history))
        for step in steps[cut + 1 :]:
            assert copied.step(step[0]) == replayed.step(step[0]) == step[1:]
        assert (env.observation, env.page, env.history) == before
        for step in steps[cut + 1 :]:
            assert env.step(step[0]) == step[1:]


def test_threads_play_as_one_would() -> None:
    tasks = list(make(ID).tasks("dev")[:24])
    alone = [episode(make(ID), seed, task) for seed, task in enumerate(tasks)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: episode(make(ID), *job), enumerate(tasks)))
    assert together == alone


words = st.sampled_from(
    [*("red", "lamp", "size", "pack", "free", "shampoo", "the", "8", "zebra", "é", "★", "<r>"), " "]
)
clicks = st.sampled_from(["next >", "< prev", "back to search", "buy now", *SUB_PAGES, "search", ""])
actions = st.one_of(
    st.text(max_size=40),
    st.lists(words, max_size=6).map(lambda some: f"search[{' '.join(some)}]"),
    clicks.map(lambda name: f"click[{name}]"),
    st.integers(0, 30),  # the clickable of that number
)


@given(
    st.lists(actions, max_size=25), st.integers(0, 999), st.sampled_from(["text", "text_rich", "url"])
)
@settings(deadline=None, max_examples=150)
def test_any_actions_keep_the_world_sane(some, task, mode) -> None:
    env = make(ID, observation=mode, max_turns=30)
    env.reset(seed=0, options={"task": str(task)})
    for action in some:
        if env.over:
            break
        listed = env.available_actions()
        if isinstance(action, int):
            names = listed["clickables"]
            action = f"click[{names[action % len(names)]}]"
        before = env.page
        observation, paid, terminated, _, _ = env.step(action)
        assert observation in env.observation_space and observation
        assert 0 <= paid <= 1 and (paid == 0 or terminated)
        page = env.page
        assert page.number >= 1 and (page.product is None) == (page.place in ("search", "results"))
        sold = {} if page.product is None else dict(page.product.options)
        assert all(value in sold[name] for name, value in page.options)
        assert terminated == (page.place == "done")
        if before == page and not terminated:
            assert env.available_actions() == listed


# --- bad arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"catalogue": "2k"}, UnknownName, "1k"),
        ({"goals": "robot"}, UnknownName, "human"),
        ({"observation": "html"}, ConfigError, "text_rich"),
        ({"products": 0}, ConfigError, "at least 1"),
        ({"products": 1.5}, ConfigError, "products is 1.5; a whole number"),
        ({"products": True}, ConfigError, "whole number"),
        ({"nouns": "no_such_pipeline"}, ConfigError, "spacy"),
    ],
)
def test_bad_arguments_are_explained(options, error, match) -> None:
    with pytest.raises(error, match=match):
        make(ID, **options)


def test_a_split_without_tasks_is_named() -> None:
    """A catalogue of one family has goals of one split only."""
    env = make(ID, products=3)
    empty = [split for split in env.splits if not env.tasks(split)]
    assert len(empty) == 2
    with pytest.raises(ConfigError, match=f"split '{empty[0]}' .*no tasks"):
        choose_tasks(EnvSpec(id=ID, split=empty[0]), env)
    monkey = type("Empty", (type(env),), {"splits": (empty[0],)})(products=3)
    with pytest.raises(ConfigError, match=f"the split '{empty[0]}' is empty"):
        monkey.reset(seed=0)


def test_what_is_offered_first_is_a_hurried_purchase(shop) -> None:
    shop.reset(seed=0, options={"task": "0"})
    while not shop.over:
        shop.step(shop.example_actions()[0])
    assert len(shop.history) == 3 and shop.history[-1] == "click[buy now]"


@pytest.mark.parametrize("task", ["1000", "-1", "01", "x", "", "1.0", "\u0661", "9" * 5000])
def test_unknown_tasks_are_refused(shop, task) -> None:
    with pytest.raises(UnknownName, match="WebShop task"):
        shop.reset(options={"task": task})
    with pytest.raises(UnknownName, match="train"):
        shop.tasks("trian")


# --- complaints -----------------------------------------------------------------------------------------


def test_success_means_one(shop) -> None:
    """Score and success apart: without its options the right product pays less than 1."""
    shop.reset(seed=0, options={"task": "0"})
    _, paid, _, _, info = buy(shop, options=False)
    assert 0 < paid < 1 and info["success"] is False


def test_the_record_holds_the_reward() -> None:
    """The reward arrives with the turn that buys, and the trajectory keeps it."""
    env = make(ID)
    rollout = Rollout.start(env, Task(ID, "3", seed=1), np.random.default_rng(0))
    goal = env.goal
    asked = [f"search[{goal.product.title}]", f"click[{goal.product.asin}]"]
    for action in [*asked, *(f"click[{value}]" for value in goal.options), "click[buy now]"]:
        rollout.advance(Move(action))
    done = rollout.finish()
    assert [turn.reward for turn in done.turns] == [0.0] * (len(done.turns) - 1) + [1.0]
    assert done.ret == 1.0 and done.success is True and done.outcome == "ok"


def test_reset_without_a_task_is_seeded(shop) -> None:
    shown = [shop.reset(seed=seed)[0] for seed in (*range(6), *range(6))]
    assert shown[:6] == shown[6:] and len(set(shown[:6])) == 6


def test_environments_share_the_catalogue() -> None:
    envs = [make(ID) for _ in range(64)]
    assert len({id(env.catalogue) for env in envs}) == 1
    assert envs[0].spawn().catalogue is envs[0].catalogue is envs[0].fork().catalogue


def test_many_environments_leak_nothing() -> None:
    make(ID)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for seed in range(300):
        env = make(ID)
        env.reset(seed=seed)
        env.step("search[lamp]")
        env.close()
    assert threading.active_count() == threads and len(os.listdir("/proc/self/fd")) == files


def test_goals_do_not_depend_on_the_seed(shop) -> None:
    """No worker shuffles for itself: a task is the same goal under every seed, whatever the global
    random state; the seed only draws prices where a product has a range."""
    random.seed(1)
    catalogue = shop.catalogue
    for task in shop.tasks("all")[::17]:
        goals = [catalogue.goal(int(task), seed) for seed in range(4)]
        assert len({(goal.product.asin, goal.attributes, goal.options) for goal in goals}) == 1
        if len(goals[0].product.prices) == 1:
            assert len({goal.text for goal in goals}) == 1


def test_no_list_of_actions_is_promised(shop) -> None:
    assert "listed" not in shop.instructions and shop.reply_format == "last-action"
    assert shop.default_turns == 10 and shop.return_range == (0.0, 1.0)


def test_a_session_is_its_environments_own(shop) -> None:
    """Two episodes of one task don't meet, nothing is read again, nobody else's random numbers are
    drawn, and a number that no goal has is refused (it was an IndexError, and -1 the last goal)."""
    before, other = random.getstate(), make(ID)
    for env in (shop, other):
        env.reset(seed=0, options={"task": "5"})
    shop.step("search[lamp]")
    assert other.page.place == "search" and other.catalogue is shop.catalogue
    assert random.getstate() == before
    for task in (len(shop.catalogue.goals), -1):
        with pytest.raises(UnknownName):
            shop.reset(options={"task": str(task)})
