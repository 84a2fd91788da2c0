"""Every outcome, from a fault that was planted for it (standins.py)."""

import time
from pathlib import Path
from typing import Any

import pytest

from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Outcome
from turnbench.leaderboards import crew
from turnbench.leaderboards.log import Episode, read_episodes
from turnbench.leaderboards.runner import Watcher, run


class Ear(Watcher):
    """Hears what a run says."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, message: str) -> None:
        self.heard.append(message)


def play(suite: Any, folder: Path, tasks: list[str], **changes: Any) -> dict[str, Episode]:
    made = suite(tasks, split="bad", seeds=[0], **changes)
    run(made, folder, workers=4)
    return {episode.key.task: episode for episode in read_episodes(folder)}


@pytest.mark.parametrize(
    ("task", "outcome", "told"),
    [
        ("env-reset", Outcome.ENV_ERROR, "RuntimeError: planted in reset"),
        ("env-step", Outcome.ENV_ERROR, "RuntimeError: planted in step"),
        ("env-nan", Outcome.ENV_ERROR, "nan"),
        ("model-infra", Outcome.INFRA_ERROR, "503 from nowhere"),
        ("model-raises", Outcome.INFRA_ERROR, "RuntimeError: planted in generate (at standins.py:"),
        ("model-surrogate", Outcome.OK, None),
        ("agent-raises", Outcome.AGENT_ERROR, "KeyError: 'planted in solve' (at standins.py:"),
        ("agent-none", Outcome.AGENT_ERROR, "solve() returned NoneType, not a Population"),
        ("agent-exit", Outcome.AGENT_ERROR, "SystemExit: 3"),
        ("agent-nan", Outcome.AGENT_ERROR, "ValueError"),
        ("agent-other", Outcome.AGENT_ERROR, "another task"),
        ("agent-steps-on", Outcome.AGENT_ERROR, "EpisodeOver"),
        ("agent-unanswered", Outcome.INFRA_ERROR, "the judge is busy"),
        ("agent-unscored", Outcome.INFRA_ERROR, "no attempt can be scored"),
    ],
)
def test_a_planted_fault_has_its_outcome(
    suite: Any, tmp_path: Path, task: str, outcome: Outcome, told: str | None
) -> None:
    episode = play(suite, tmp_path, [task])[task]
    assert episode.outcome is episode.population.best.outcome is outcome
    failure = episode.population.best.failure
    assert failure is None if told is None else told in str(failure)


def test_faults_leave_the_other_episodes_alone(suite: Any, tmp_path: Path) -> None:
    bad = ["env-step", "agent-raises", "model-infra", "env-reset", "agent-exit"]
    alone = play(suite, tmp_path / "alone", ["model-surrogate"])
    among = play(suite, tmp_path / "among", [*bad, "model-surrogate"])
    assert among["model-surrogate"].population == alone["model-surrogate"].population


def test_truncation(suite: Any, tmp_path: Path) -> None:
    run(suite(1, options={"turns": 99}), tmp_path)
    assert {e.outcome for e in read_episodes(tmp_path)} == {Outcome.TRUNCATED}


def test_budget_of_model_calls(suite: Any, tmp_path: Path) -> None:
    run(suite(1, limits={"model_calls": 2}), tmp_path)
    best = next(read_episodes(tmp_path)).population.best
    assert best.outcome is Outcome.TIMEOUT and len(best.turns) == 2
    assert "all 2 model calls are used up" in str(best.failure)


def test_budget_of_seconds(suite: Any, tmp_path: Path) -> None:
    slow = {"echo": {"backend": "standins:Echo", "pause": 0.05}}
    run(suite(1, models=slow, options={"turns": 99, "max_turns": 99}, limits={"seconds": 0.3}), tmp_path)
    best = next(read_episodes(tmp_path)).population.best
    assert best.outcome is Outcome.TIMEOUT and 0 < len(best.turns) < 9
    assert "0.3 seconds are used up" in str(best.failure)


def test_a_world_that_cannot_be_made_again(suite: Any, tmp_path: Path) -> None:
    import standins

    standins.World.made = 0
    run(suite(3, options={"broken_from": 3}), tmp_path, workers=1)  # two look at the tasks
    episodes = list(read_episodes(tmp_path))
    assert len(episodes) == 6 and {e.outcome for e in episodes} == {Outcome.ENV_ERROR}
    assert "OSError: no more worlds" in str(episodes[0].population.best.failure)


def test_copies_of_a_world_that_cannot_be_made(suite: Any, tmp_path: Path) -> None:
    import standins

    standins.World.made = 0
    many = {"many": {"agent": "best_of_n", "model": "echo", "n": 3, "scorer": "random"}}
    run(suite(1, seeds=[0], options={"broken_from": 4}, agents=many), tmp_path, workers=1)
    assert {e.outcome for e in read_episodes(tmp_path)} == {Outcome.ENV_ERROR}


@pytest.mark.parametrize(("task", "error"), [("model-fatal", ModelError), ("agent-config", ConfigError)])
def test_what_no_episode_can_mend_stops_the_run_and_keeps_the_rest(
    suite: Any, spec: Any, tmp_path: Path, task: str, error: type[Exception]
) -> None:
    ear = Ear()
    good = spec(30)["envs"][0]
    bad = {**good, "split": "bad", "tasks": [task]}
    made = suite(envs=[good, bad, {**good, "split": "train"}], seeds=[0])
    with pytest.raises(error):
        run(made, tmp_path, workers=3, watcher=ear)
    keys = [episode.key for episode in read_episodes(tmp_path)]
    assert [k.task for k in keys if k.env == 0] and all(k.env != 1 for k in keys)
    assert 30 <= len(keys) <= 33  # those before it, and those that were in flight with it
    assert "Stopping: " in ear.heard[0]


@pytest.mark.parametrize(
    ("task", "outcome", "where"),
    [
        ("env-hang", Outcome.ENV_ERROR, "in _step (standins.py:"),
        ("model-hang", Outcome.INFRA_ERROR, "in answer (standins.py:"),
        ("agent-hang", Outcome.TIMEOUT, "in solve (standins.py:"),
    ],
)
def test_a_hung_episode_is_named_and_given_up(
    suite: Any,
    spec: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    outcome: Any,
    where: str,
) -> None:
    monkeypatch.setattr(crew, "GRACE", 0.3)
    ear = Ear()
    world = spec(3)["envs"][0]
    made = suite(
        envs=[{**world, "split": "bad", "tasks": [task]}, world], seeds=[0], limits={"seconds": 0.3}
    )
    started = time.monotonic()
    report = run(made, tmp_path, workers=1, watcher=ear)
    assert time.monotonic() - started < 60
    assert report.done == report.total == 4
    hung, *others = sorted(read_episodes(tmp_path), key=lambda e: e.key.env)
    assert hung.outcome is outcome and where in str(hung.population.best.failure)
    assert {e.outcome for e in others} == {Outcome.OK}
    assert f"one on standins:World-v0 task {task} seed 0 is past its 0.3 s, {where}" in ear.heard[0]
    assert "is given up" in ear.heard[1]


def test_the_bill(suite: Any, tmp_path: Path) -> None:
    many = {"many": {"agent": "best_of_n", "model": "echo", "n": 2, "scorer": "random"}}
    run(suite(1, seeds=[0], agents=many), tmp_path)
    usage = next(read_episodes(tmp_path)).population.usage
    assert (usage.model_calls, usage.prompt_tokens, usage.completion_tokens) == (6, 60, 12)
    assert usage.env_steps == 6 and usage.cost == pytest.approx(0.006)


def test_privileges_are_those_of_the_agent_that_played(suite: Any, tmp_path: Path) -> None:
    rows = {
        "seer": {"agent": "best_of_n", "model": "echo", "n": 2, "scorer": "return"},
        "blind": {"agent": "best_of_n", "model": "echo", "n": 2, "scorer": "random"},
        "special": {"agent": "standins:Odd", "model": "echo", "used": ["oracle", "more"]},
    }
    run(suite(1, seeds=[0], agents=rows), tmp_path)
    told = {e.key.agent: e.privileges for e in read_episodes(tmp_path)}
    assert told == {"seer": ("oracle",), "blind": (), "special": ("oracle", "more")}


def test_success_does_not_leak_from_one_episode_into_another(suite: Any, tmp_path: Path) -> None:
    """A plain world tells success for some tasks only: that must not depend on what came before."""
    plain = [{"id": "standins:Sometimes-v0", "tasks": 40}]
    run(suite(envs=plain, seeds=[0]), tmp_path / "one", workers=1)
    run(suite(envs=plain, seeds=[0]), tmp_path / "many", workers=8)
    one, many = ({e.key: e.population for e in read_episodes(tmp_path / n)} for n in ("one", "many"))
    assert one == many
    assert {p.best.success for p in one.values()} == {True, None}


def test_an_agent_that_cannot_be_made_is_a_wrong_configuration(suite: Any, tmp_path: Path) -> None:
    black = {"one": {"agent": "standins:Odd", "model": "echo", "colour": "black"}}
    with pytest.raises(ConfigError, match="agents.one: RuntimeError: no black, please"):
        run(suite(1, agents=black), tmp_path)
    run(suite(1), tmp_path)  # the folder is as good as new
