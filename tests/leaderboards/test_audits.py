"""What search must have cost and how it must have branched, on small populations by hand; and real ones."""

from pathlib import Path
from typing import Any

from turnbench.agents.core import Population, Resampling
from turnbench.envs import make
from turnbench.envs.record import Outcome, Task, Trajectory, Turn, Usage
from turnbench.leaderboards.audits import (
    bill_fault,
    genealogy_fault,
    leak_fault,
    search_fault,
    solutions,
)
from turnbench.leaderboards.log import read_episodes
from turnbench.leaderboards.runner import run

TASK = Task("world", "task", "test", 0)


def path(actions: str) -> Trajectory:
    return Trajectory(TASK, tuple(Turn("o", a, 0.0) for a in actions), "end", Outcome.OK)


def test_shared_beginnings_are_billed_once() -> None:
    paths = (path("abc"), path("abd"), path("x"))
    exact = Population(paths, usage=Usage(model_calls=5, env_steps=5))
    assert bill_fault(exact, "amc", True) is None
    few = Population(paths, usage=Usage(model_calls=4, env_steps=5))
    assert "4 model calls" in str(bill_fault(few, "amc", True))
    assert bill_fault(few, "amc", False) is None, "nobody was asked"
    assert bill_fault(few, "mine:Agent", True) is None, "may have played without asking"
    lost = Population((path("abc"),), usage=Usage(model_calls=9, env_steps=3), discarded=(path("z"),))
    assert "environment steps" in str(bill_fault(lost, "amc", True))


def test_copies_share_what_came_before() -> None:
    point = Resampling(2, (0, 0, 2), (0.0, 0.0, 0.0))
    good = Population((path("abc"), path("abd"), path("xyz")), resamplings=(point,))
    assert genealogy_fault(good) is None
    bad = Population((path("abc"), path("acd"), path("xyz")), resamplings=(point,))
    assert "differ before it" in str(genealogy_fault(bad))
    later = Resampling(3, (0, 2, 2), (0.0, 0.0, 0.0))  # particle 1 came from 2, particle 2 from 2
    both = Population((path("abcd"), path("xyzw"), path("xyzv")), resamplings=(point, later))
    assert genealogy_fault(both) is None
    wide = Population((path("a"),), resamplings=(point,))
    assert "isn't over 1 particles" in str(genealogy_fault(wide))
    absent = Population((path("a"),), resamplings=(Resampling(1, (3,), (0.0,)),))
    assert "isn't there" in str(genealogy_fault(absent))


def test_every_agent_of_ours_passes(suite: Any, tmp_path: Path) -> None:
    rows = {
        "amc": {"agent": "amc", "model": "echo", "n": 6, "resample_at": "every"},
        "best": {"agent": "best_of_n", "model": "echo", "n": 3, "scorer": "return"},
        "react": {"agent": "react", "model": "echo"},
    }
    run(suite(12, agents=rows), tmp_path)
    for episode in read_episodes(tmp_path):
        assert search_fault(episode, rows[episode.key.agent]["agent"], True) is None


def test_what_leaks_a_task() -> None:
    system = {"options": {"hint": 'the "Goal: craft 3 oak planks" task'}, "model": None}
    assert "goal of a task" in str(leak_fault(system, [], ["Goal: craft 3 oak planks"], "test"))
    assert leak_fault(system, ["17", "12345678", "craft9"], ["Goal: mine"], "test") is None
    assert "task id 'planks'" in str(leak_fault(system, ["planks"], [], "test"))
    gold = {"7": ("get 2 oak log", "craft 4 oak plank"), "8": ("get 2 oak log", "craft 1 stick")}
    system = {"options": {"examples": ["get 2 oak log\ncraft 4 oak plank"]}, "model": None}
    assert "solution of task '7'" in str(leak_fault(system, [], [], "test", gold))
    assert leak_fault(system, [], [], "test", {"8": gold["8"], "9": ("go",)}) is None


def test_solutions_are_the_worlds_own() -> None:
    env = make("turnbench/TextCraft-v0")
    tasks = env.tasks("test")
    found = solutions(env, tasks, 0)
    assert 25 <= len(found) <= 50 and set(found) <= set(tasks)
    env.reset(seed=0, options={"task": tasks[0]})
    assert [env.step(action)[1] for action in found[tasks[0]]][-1] == 1.0
