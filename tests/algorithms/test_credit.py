"""The look at credit: numbers as in training, and a page in which nothing runs."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from turnbench.agents.core import Population
from turnbench.algorithms import trainer
from turnbench.algorithms.batch import Episode
from turnbench.algorithms.credit import Critic, page, summary
from turnbench.envs.errors import ConfigError, LogError
from turnbench.leaderboards.cli import app
from turnbench.leaderboards.log import Key, LogWriter, episode_line, read_episodes
from turnbench.leaderboards.runner import header_of
from turnbench.leaderboards.suite import parse_suite
from turnbench.leaderboards.yamlfile import dump_yaml, parse_yaml


@pytest.fixture(scope="module")
def run(tiny_folder, worlds, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    config = {
        "model": tiny_folder,
        "env": {"id": "letter_worlds:Letters-v0"},
        "play": {"max_tokens": 4, "instructions": False},
        "steps": 2,
        "tasks": 2,
        "group": 2,
        "lr": 1e-3,
        "beta": 0.7,
    }
    trainer("mpo")(config, out)
    return out


def test_a_turns_mean_credit_is_the_turns_and_shares_are_those_of_the_values(run):
    critic = Critic(run)
    judged = critic.judge(critic.play(3))
    for one in judged:
        starts = [values[0] for values in one.values]
        rewards = [turn.reward for turn in one.episode.path.turns]
        level = 0.0
        for k in reversed(range(3)):
            after = starts[k + 1] if k < 2 else 0.0
            level = rewards[k] + after - starts[k] + 0.95 * level
            assert np.mean(one.credit[k]) == pytest.approx(level)
        flat = [v for values in one.values for v in values]
        between = sum(len(v) * (np.mean(v) - np.mean(flat)) ** 2 for v in one.values)
        assert one.between == pytest.approx(between / (np.var(flat) * len(flat)))
    told = summary(judged)
    assert told["median"] == pytest.approx(np.median([one.between for one in judged]))
    assert math.isnan(summary([])["median"])


def test_the_page_escapes_what_the_model_wrote(run):
    critic = Critic(run)
    one = critic.judge(critic.play(1))[0]
    evil = "<script>alert(1)</script>"
    turn = dataclasses.replace(one.episode.path.turns[0], observation=evil)
    path = dataclasses.replace(one.episode.path, turns=(turn, *one.episode.path.turns[1:]))
    one = dataclasses.replace(
        one,
        episode=dataclasses.replace(one.episode, path=path),
        tokens=[[evil] * len(t) for t in one.tokens],
    )
    text = page([one])
    assert "<script" not in text and text.count("&lt;script&gt;") > 3


def test_the_command_tells_shares_and_writes_the_page(run, tmp_path):
    page_file = tmp_path / "credit.html"
    told = CliRunner().invoke(app, ["credit", str(run), "--episodes", "2", "--html", str(page_file)])
    assert told.exit_code == 0, told.output
    assert "2 trajectories" in told.output and "median 0." in told.output
    assert page_file.read_text(encoding="utf-8").count("<section>") == 2


def test_credit_is_drawn_into_a_copy_of_a_run(run, tmp_path):
    spec = {
        "suite": "credited",
        "envs": [{"id": "letter_worlds:Letters-v0", "tasks": 1}],
        "models": {"tiny": {"backend": "hf", "path": "turnbench/tiny"}},
        "agents": {"react": {"agent": "react", "model": "tiny"}},
    }
    critic = Critic(run)
    judged = critic.judge(critic.play(2))
    silent = judged[1].episode.path.turns[1]
    silent = dataclasses.replace(silent, tokens=silent.tokens._replace(ids=(), logprobs=()))
    first, _, last = judged[1].episode.path.turns
    paths = (
        judged[0].episode.path,
        dataclasses.replace(judged[1].episode.path, turns=(first, silent, last)),
    )
    with LogWriter(tmp_path / "log", header_of(parse_suite(parse_yaml(dump_yaml(spec), "s")))) as log:
        for seed, path in enumerate(paths):
            log.write(episode_line(Key("react", 0, "0", seed), Population((path,)), (), 1.0))
    words = ["credit", str(run), "--log", str(tmp_path / "log"), "--out", str(tmp_path / "shown")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0 and "turnbench view" in told.output, told.output
    one, other = (e.population.best.info["turn_scores"] for e in read_episodes(tmp_path / "shown"))
    assert one["credit [reward]"] == pytest.approx([np.mean(c) for c in judged[0].credit], rel=1e-4)
    starts = [values[0] for values in judged[0].values]
    assert one["value before the turn [reward]"] == pytest.approx(starts, rel=1e-4)
    assert [number is None for number in other["credit [reward]"]] == [False, True, False]
    for wrong in (words[:2] + words[4:], [*words[:3], str(run), *words[4:]]):
        refused = CliRunner().invoke(app, wrong)
        assert isinstance(refused.exception, ConfigError) and "--log" in str(refused.exception)


def test_tokens_of_another_model_are_refused(run):
    critic = Critic(run)
    path = critic.play(1)[0].path
    tokens = path.turns[0].tokens._replace(ids=(10**6,), logprobs=(-1.0,))
    path = dataclasses.replace(path, turns=(dataclasses.replace(path.turns[0], tokens=tokens),))
    with pytest.raises(LogError, match="another model's vocabulary"):
        critic.judge([Episode(path)])


def test_what_is_no_run_with_a_critic_is_refused(run, tiny_folder, tmp_path):
    with pytest.raises(ConfigError, match="no training run"):
        Critic(tmp_path)
    trainer("grpo")(
        {
            "model": tiny_folder,
            "env": {"id": "letter_worlds:Letters-v0"},
            "steps": 1,
            "tasks": 1,
            "group": 2,
        },
        tmp_path / "grpo",
    )
    with pytest.raises(ConfigError, match="no config of one of: mpo, ppo"):
        Critic(tmp_path / "grpo")
    assert torch.is_grad_enabled()
