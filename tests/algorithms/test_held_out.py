"""Held-out results are counted by task, and what was played to pick a model isn't played to report it."""

from types import SimpleNamespace

import pytest

from turnbench.algorithms.held_out import Evaluation, Result, told


def test_pass_at_k_is_a_mean_over_tasks_of_the_unbiased_estimate():
    found = [Result(0, 1.0, True)] + [Result(0, 0.0, False)] * 3 + [Result(1, 1.0, True)] * 4
    said = told(found)
    assert said["reward"] == said["success"] == pytest.approx(5 / 8)
    assert said["pass@2"] == pytest.approx((1 - 3 / 6 + 1) / 2)
    assert said["pass@4"] == 1.0 and "pass@8" not in said


def test_a_task_with_too_few_episodes_left_is_left_out():
    said = told([Result(0, 0.0, False), Result(0, 0.0, False), Result(1, 1.0, True)])
    assert said == {"reward": pytest.approx(1 / 3), "success": pytest.approx(1 / 3), "pass@2": 0.0}


def test_without_a_judge_there_is_only_the_return():
    assert told([Result(0, 0.5, None)]) == {"reward": 0.5} and told([]) == {}


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_the_final_episodes_are_others(attempts):
    how = Evaluation(episodes=8, final=16, attempts=attempts)
    env = SimpleNamespace(tasks=lambda split: ["a", "b", "c"])
    world = SimpleNamespace(id="w")
    picked, final = how.jobs(world, env), how.jobs(world, env, final=True)
    assert len(picked) == 8 and len(final) == 16
    tasks = [{(task.id, task.seed) for _, task, _ in jobs} for jobs in (picked, final)]
    assert not tasks[0] & tasks[1] and len(tasks[0]) == 8 // attempts
    draws = [rng.random() for _, _, rng in picked + final]
    assert len(set(draws)) == len(draws)
