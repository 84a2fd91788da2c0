"""The look at credit: numbers as in training, and a page in which nothing runs."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from turnbench.algorithms import trainer
from turnbench.algorithms.credit import Critic, page, summary
from turnbench.envs.errors import ConfigError
from turnbench.leaderboards.cli import app


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
