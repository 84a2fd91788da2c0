"""ScienceWorld's task ids and splits: no Java needed."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from turnbench import envs
from turnbench.envs import sciworld_tasks
from turnbench.envs.errors import ConfigError, UnknownName

DATA = Path(__file__).parents[3] / "shared" / "data"
reference = pytest.mark.skipif(not DATA.is_dir(), reason="the reference data isn't there")


def make(**kwargs):
    return envs.make("turnbench/ScienceWorld-v0", **kwargs)


def numbers(split):
    rows = json.loads((DATA / f"agentgym_item_ids/sciworld_{split}.json").read_text(encoding="utf-8"))
    return {int(row["item_id"].removeprefix("sciworld_")) for row in rows}


def released():
    with gzip.open(DATA / "sciworld/agentgym_index_map.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def test_there_are_7207_tasks_of_30_types_each_in_one_own_split():
    env = make()
    tasks = [t for part in ("train", "dev", "test") for t in env.tasks(f"full-{part}")]
    assert len(tasks) == len(set(tasks)) == 7207
    assert len({task.partition("/")[0] for task in tasks}) == 30


@reference
def test_agentgym_numbers_are_the_published_ones():
    assert set(sciworld_tasks.agentgym_tasks("test")) == numbers("test")
    assert set(sciworld_tasks.agentgym_tasks("train")) == numbers("train")


@reference
def test_released_map_is_the_servers():
    rows = released()
    assert list(sciworld_tasks.index_map("released")) == [f"{name}/{k}" for _, name, k, _ in rows]
    own = {part: set(make().tasks(f"full-{part}")) for part in ("train", "dev", "test")}
    assert all(f"{name}/{k}" in own[part] for _, name, k, part in rows)


@reference
def test_intended_map_is_the_one_that_the_ids_were_made_with():
    text = (DATA / "sciworld/agenteval_test_intended.json").read_text(encoding="utf-8")
    want = {int(n): f"{row['task']}/{row['variation']}" for n, row in json.loads(text)["map"].items()}
    assert sciworld_tasks.agentgym_tasks("test", "intended") == want


def test_intended_test_tasks_are_all_test_tasks_and_released_ones_leak():
    env, shifted = make(), make(index="released")
    assert set(env.tasks("test")) <= set(env.tasks("full-test"))
    assert not set(env.tasks("test")) & set(env.tasks("train"))
    in_split = Counter(
        part
        for part in ("train", "dev", "test")
        for t in shifted.tasks("test")
        if t in env.tasks(f"full-{part}")
    )
    assert in_split == {"test": 107, "train": 66, "dev": 27}
    assert len(set(shifted.tasks("test")) & set(shifted.tasks("train"))) == 61


def test_train_is_parted_two_to_one():
    env = make()
    policy, value = env.tasks("train-policy"), env.tasks("train-value")
    assert sorted([*policy, *value]) == sorted(env.tasks("train"))
    assert len(policy) == 1414 and len(value) == 706
    assert set(env.tasks("train")) <= set(env.tasks("full-train"))


def test_types_filter_by_number_or_name():
    assert make(types=["1-1"]).tasks("full-dev") == [f"boil/{k}" for k in range(14, 21)]
    assert make(types=["boil", "8-2"]).tasks("full-test")[-1] == "identify-life-stages-2/9"
    with pytest.raises(UnknownName, match="boil"):
        make(types=["boils"])
    with pytest.raises(ConfigError, match=r"types is 'boil'; a list .*\['boil'\]"):
        make(types="boil")


def test_what_changes_the_world_is_in_the_task_id():
    assert make(simplifications="easy").tasks("test")[0] == "use-thermometer/416@easy"
    env = make(types=["boil"], simplifications="openDoors, openContainers", step_limit=50)
    assert env.tasks("full-train")[0] == "boil/0@openContainers+openDoors,moves=50"


@pytest.mark.parametrize(
    "task",
    [
        "",
        "boil",
        "boil/",
        "boil/30",
        "boil/-1",
        "boil/1 ",
        "boil/٣",
        "x/1",
        "x/1@easy",
        "boil/999999999",
    ],
)
def test_unknown_tasks_are_named(task):
    with pytest.raises(UnknownName, match="ScienceWorld task"):
        sciworld_tasks.read_task(task, "", "")


@pytest.mark.parametrize("task", ["boil/012", "1-1/12", "Boil/12"])
def test_a_task_has_one_spelling(task):
    with pytest.raises(UnknownName, match="boil/"):
        sciworld_tasks.read_task(task, "", "")


def test_a_world_takes_only_its_own_ids():
    assert sciworld_tasks.read_task("boil/3@easy", "easy", "@easy") == ("boil", 3, "easy")
    for task in ("boil/3", "boil/3@moves=7", "boil/3@easy@easy"):
        with pytest.raises(ConfigError, match="where it is 'boil/3@easy'.*simplifications"):
            sciworld_tasks.read_task(task, "easy", "@easy")
    with pytest.raises(ConfigError, match="where it is 'boil/3'"):
        sciworld_tasks.read_task("boil/3@easy", "", "")


def test_tasks_that_cannot_start_are_not_listed():
    """Electrical ones, without electrical actions; the set 'easy' takes care of them itself."""
    for name, electrical in (("noElectricalAction", 0), ("easy", 5)):
        tasks = make(simplifications=name, types=["boil", "3-1"]).tasks("full-test")
        assert [task.startswith("boil") for task in tasks] == [True] * 9 + [False] * electrical


def test_wrong_arguments_are_refused():
    with pytest.raises(UnknownName, match="openDoors"):
        make(simplifications="openDoor")
    with pytest.raises(ConfigError, match="easy"):
        make(simplifications="easy,openDoors")
    with pytest.raises(UnknownName, match="intended"):
        make(index="intentional")
    with pytest.raises(ConfigError, match="step_limit"):
        make(step_limit=0)
    with pytest.raises(UnknownName, match="split"):
        make().tasks("dev")
    with pytest.raises(ConfigError, match="noElectricalAction"):
        name = "noElectricalAction"
        sciworld_tasks.read_task(f"test-conductivity/0@{name}", name, f"@{name}")
