"""The trainers as a whole: they learn, go on after a kill, agree with each other, and refuse nonsense."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.resources import files
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import turnbench.algorithms
from turnbench.agents import make_model
from turnbench.agents.chat import Chat
from turnbench.agents.model import Message, Prompt
from turnbench.algorithms import ALGORITHMS, objectives, trainer
from turnbench.algorithms.advantages import Turns
from turnbench.algorithms.collect import World
from turnbench.algorithms.losses import paid
from turnbench.algorithms.mpo import Mpo
from turnbench.algorithms.settings import checked
from turnbench.envs.errors import ConfigError, ModelError, TrainingError, TurnbenchError

CRITICS = ("ppo", "turn_ppo", "mpo", "sao")
GROUPS = ("grpo", "dapo", "gspo", "gigpo")


@pytest.fixture
def config(tiny_folder, worlds):
    """Makes a config of two short steps in the letters' world."""

    def make(world="Letters", **changes):
        base = {
            "model": tiny_folder,
            "env": {"id": f"letter_worlds:{world}-v0"},
            "play": {"max_tokens": 4, "instructions": False},
            "steps": 2,
            "tasks": 2,
            "group": 3,
            "lr": 1e-3,
        }
        return base | changes

    return make


def learn(name, config, out):
    """(weights, metrics) of a run."""
    folder = trainer(name)(config, out)
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    return weights, metrics(out)


def metrics(out):
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def same(one, two, tolerance=0.0):
    return all(torch.allclose(one[k], two[k], rtol=0, atol=tolerance) for k in one)


@pytest.fixture(scope="session")
def start(tiny_folder):
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).state_dict()


# --- every algorithm --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CRITICS + GROUPS)
def test_two_steps_of_each_algorithm_change_the_policy_and_make_a_model(name, config, tmp_path, start):
    extra = {"clip_low": 0.2, "clip_high": 0.2} if name == "gspo" else {}
    weights, rows = learn(name, config(epochs=2, minibatches=2, **extra), tmp_path)
    assert not same(weights, start)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert all(math.isfinite(value) for value in row.values())
        assert {"reward", "entropy", "clip_fraction", "kl_old", "turns", "failed", "seconds"} <= set(row)
    assert (name in CRITICS) == ("explained_variance" in rows[1] and "eta2" in rows[1])
    model = make_model({"backend": "hf", "path": str(tmp_path / "model"), "max_tokens": 3})
    assert len(model.generate([Prompt((Message("user", "write"),))])[0].ids) >= 1
    model.close()


def test_every_registered_algorithm_is_tested():
    families = ("ppo:", "mpo:", "grpo:")
    found = {name for name, place in ALGORITHMS.items() if any(f".{f}" in place for f in families)}
    assert found == {*CRITICS, *GROUPS}


@pytest.mark.parametrize("env", ["turnbench/Toy-v0", "turnbench/TextCraft-v0"])
def test_two_steps_in_the_registrys_own_worlds(env, config, tmp_path):
    world = {"id": env, "max_turns": 2, "tasks": 2}
    _, rows = learn("mpo", config(env=world), tmp_path)
    assert rows[-1]["truncated"] == 1.0 and rows[-1]["turns"] == 2


def test_learning_raises_the_reward(config, tmp_path):
    settings = config(steps=25, tasks=4, group=8, lr=3e-3, minibatches=2, critic_lr=3e-3)
    _, rows = learn("mpo", settings, tmp_path)
    first, last = rows[:5], rows[-5:]
    assert sum(r["reward"] for r in last) > sum(r["reward"] for r in first) + 5 * 0.3


# --- one way from PPO to MPO ------------------------------------------------------------------------


def test_the_way_of_adoption_ends_at_mpo_and_each_key_changes_something(config, tmp_path):
    off = {"epochs": 2, "minibatches": 2}
    keys = [{}, {"advantage": "turn"}, {"advantage": "multiscale", "lam_token": 0.9}]
    keys.append(keys[-1] | {"ratio": "turn"})
    found = [learn("ppo", config(**off, **k), tmp_path / str(n))[0] for n, k in enumerate(keys)]
    assert not any(same(a, b) for a, b in zip(found, found[1:], strict=False))
    assert same(found[-1], learn("mpo", config(**off), tmp_path / "mpo")[0])
    turn = learn("turn_ppo", config(**off), tmp_path / "turn")[0]
    assert same(turn, learn("mpo", config(**off, beta=0.0), tmp_path / "flat")[0], 1e-6)


def test_with_one_update_a_step_the_ratio_makes_no_difference(config, tmp_path):
    """All ratios are 1 then: to study them takes several epochs or minibatches."""
    one = learn("mpo", config(), tmp_path / "turn")[0]
    two = learn("mpo", config(ratio="token"), tmp_path / "token")[0]
    assert same(one, two, 1e-5)


# --- a run goes on as if nothing had happened ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "extra"),
    [("mpo", {"critic": "own", "kl": 0.1}), ("ppo", {}), ("grpo", {"kl": 0.1, "lora": {"rank": 2}})],
)
def test_a_run_goes_on_bit_for_bit(name, extra, config, tmp_path):
    whole, rows = learn(name, config(steps=4, save_every=2, epochs=2, **extra), tmp_path / "whole")
    learn(name, config(steps=2, save_every=2, epochs=2, **extra), tmp_path / "parts")
    parts, again = learn(name, config(steps=4, save_every=2, epochs=2, **extra), tmp_path / "parts")
    assert same(whole, parts)
    timed = {"seconds", "collect_seconds"}
    assert [{k: v for k, v in r.items() if k not in timed} for r in rows] == [
        {k: v for k, v in r.items() if k not in timed} for r in again
    ]


@pytest.fixture
def start_process(tmp_path, worlds):
    """Starts a training run in another process: (settings, run folder, environment variables)."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json, sys, torch
            from pathlib import Path
            torch.set_num_threads(1)
            sys.path.append({str(worlds)!r})
            from turnbench.algorithms import trainer
            trainer("mpo")(json.loads(sys.argv[1]), Path(sys.argv[2]))
            """
        ),
        encoding="utf-8",
    )

    def begin(settings, out, **variables):
        return subprocess.Popen(
            [sys.executable, str(script), json.dumps(settings), str(out)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"} | variables,
            stderr=subprocess.DEVNULL,
        )

    return begin


def test_a_killed_run_ends_with_the_same_weights(config, tmp_path, start_process):
    settings = config(steps=6, save_every=2, epochs=2)
    whole, _ = learn("mpo", settings, tmp_path / "whole")
    out = tmp_path / "killed"
    process = start_process(settings, out)
    deadline = time.monotonic() + 120
    while not list(out.glob("steps/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "model").exists(), "the run was over before it could be killed"
    parts, _ = learn("mpo", settings, out)
    assert same(whole, parts)


def test_a_folder_of_another_run_is_refused(config, tmp_path):
    learn("mpo", config(steps=1), tmp_path)
    with pytest.raises(ConfigError, match="another lr"):
        learn("mpo", config(steps=1, lr=0.5), tmp_path)
    with pytest.raises(ConfigError, match="another .*algorithm"):
        learn("ppo", config(steps=1), tmp_path)


# --- several processes, memory, precision -------------------------------------------------------------


def test_two_processes_learn_what_one_does(config, tmp_path, start_process):
    evaluation = {"every": 1, "episodes": 3, "split": "test"}
    settings = config(tasks=3, epochs=2, minibatches=2, kl=0.05, evaluation=evaluation)
    learn("mpo", settings, tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    processes = [
        start_process(settings, tmp_path / "two", RANK=str(k), LOCAL_RANK=str(k), **common)
        for k in range(2)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert one.keys() == two.keys()
        for name in one.keys() - {"seconds", "collect_seconds"}:
            assert two[name] == pytest.approx(one[name], abs=2e-4), name


def test_pieces_and_recomputed_activations_do_not_change_what_is_learned(config, tmp_path):
    whole, _ = learn("mpo", config(), tmp_path / "whole")
    small, _ = learn("mpo", config(piece_tokens=40), tmp_path / "small")
    lean, _ = learn("mpo", config(gradient_checkpointing=True), tmp_path / "lean")
    assert same(whole, small, 2e-5) and same(whole, lean, 1e-6)


def test_bf16_runs(config, tmp_path):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    _, rows = learn("mpo", config(precision="bf16"), tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert math.isfinite(rows[-1]["loss"])


def test_adapters_are_merged_into_a_plain_model(config, tmp_path, start):
    weights, rows = learn("grpo", config(lora={"rank": 2}, kl=0.1), tmp_path)
    changed = [k for k in start if not torch.equal(weights[k], start[k])]
    assert changed and all("proj" in k for k in changed)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6) and rows[1]["kl"] >= 0


def test_a_history_window_is_trained_from_the_prompts_that_were_sent(config, tmp_path, start):
    play = {"max_tokens": 4, "instructions": False, "history": 0}
    weights, rows = learn("mpo", config(play=play), tmp_path)
    assert not same(weights, start)
    assert abs(rows[0]["kl_old"]) < 1e-6  # the first update sees exactly the policy that played


# --- what goes wrong is data, or stops with a cause ----------------------------------------------------


@pytest.mark.parametrize("name", ["mpo", "grpo"])
def test_failed_episodes_are_counted_and_left_out(name, config, tmp_path):
    weights, rows = learn(name, config("Brittle", tasks=4), tmp_path)
    assert 0 < rows[0]["failed"] < 12 and rows[0]["env_steps"] == 3 * (12 - rows[0]["failed"])


@pytest.mark.parametrize("name", ["mpo", "grpo"])
def test_a_prompt_that_cannot_be_written_is_one_failed_episode(name, config, tmp_path, monkeypatch):
    real = Chat.encode

    def encode(self, prompt):
        if prompt.seed % 5 == 0:
            raise ModelError("the chat template refuses this conversation")
        return real(self, prompt)

    monkeypatch.setattr(Chat, "encode", encode)
    _, rows = learn(name, config(tasks=4), tmp_path)
    assert 0 < rows[0]["failed"] < 12 and rows[0]["env_steps"] == 3 * (12 - rows[0]["failed"])
    assert all(math.isfinite(v) for row in rows for v in row.values())


def test_a_model_that_cannot_be_asked_at_all_stops_with_its_cause(config, tmp_path, monkeypatch):
    def encode(self, prompt):
        raise ModelError("set `reasoning: drop`")

    monkeypatch.setattr(Chat, "encode", encode)
    with pytest.raises(TrainingError, match="every episode failed.*ModelError: set `reasoning: drop`"):
        learn("grpo", config(), tmp_path)


def test_a_step_without_any_episode_stops_with_its_cause(config, tmp_path):
    with pytest.raises(TrainingError, match=r"step 1: every episode failed.*the disk is full"):
        learn("mpo", config("Broken"), tmp_path)


@pytest.mark.parametrize("name", GROUPS)
def test_equal_rewards_leave_the_policy_alone(name, config, tmp_path, start):
    weights, _ = learn(name, config("Flat"), tmp_path)
    assert same(weights, start)


def test_a_loss_that_is_no_number_stops_and_names_the_last_good_checkpoint(
    config, tmp_path, monkeypatch
):
    real, calls = objectives.turn_ratio, []

    def turn_ratio(*args, **kw):
        calls.append(1)
        return real(*args, **kw) * (math.nan if len(calls) == 3 else 1.0)

    monkeypatch.setattr(objectives, "turn_ratio", turn_ratio)
    with pytest.raises(TrainingError, match=r"step 3, update 1: the gradient's norm is nan.*000002"):
        learn("mpo", config(steps=5, save_every=1), tmp_path)
    monkeypatch.undo()
    assert sorted(p.name for p in (tmp_path / "steps").iterdir()) == ["000001", "000002"]
    weights, _ = learn("mpo", config(steps=5, save_every=1), tmp_path)
    assert same(weights, learn("mpo", config(steps=5, save_every=1), tmp_path / "whole")[0])


def test_critic_warmup_leaves_the_policy_alone(config, tmp_path, start):
    for critic in ("shared", "own"):
        out = tmp_path / critic
        settings = config(steps=3, critic=critic, critic_warmup=2, save_every=1, critic_steps=2)
        _, rows = learn("ppo", settings, out)
        saved = AutoModelForCausalLM.from_pretrained(out / "steps" / "000002", dtype=torch.float32)
        assert same(saved.state_dict(), start)
        saved = load_file(out / "steps" / "000002" / "critic.safetensors")
        assert saved["head.bias"].abs() > 0 and ("trunk.norm.weight" in saved) == (critic == "own")
        assert "policy_loss" not in rows[1] and "policy_loss" in rows[2]


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_long_turns_cost_where_the_last_tokens_do(name, config, tmp_path, start):
    """In a world that pays the same for everything, only length teaches."""
    weights, _ = learn(name, config("Flat", overlong_cache=3, group=8), tmp_path)
    assert not same(weights, start)


@pytest.mark.parametrize("name", ["mpo", "grpo"])
def test_a_temperature_is_a_network_with_divided_logits(name, config, tmp_path):
    """Halving the last norm halves the logits: the episodes and the first loss are those of temperature 2."""
    model = AutoModelForCausalLM.from_pretrained(config()["model"], dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight /= 2
    shutil.copytree(config()["model"], tmp_path / "halved")
    model.save_pretrained(tmp_path / "halved")
    keys = {"steps": 1, "kl": 0.1, "entropy": 0.01}
    hot = {"play": {"max_tokens": 4, "instructions": False, "temperature": 2.0}}
    (tempered,) = learn(name, config(**keys, **hot), tmp_path / "hot")[1]
    (divided,) = learn(name, config(**keys, model=str(tmp_path / "halved")), tmp_path / "divided")[1]
    (plain,) = learn(name, config(**keys), tmp_path / "plain")[1]
    told = ("reward", "tokens", "entropy", "policy_loss", "kl", "kl_old", "clip_fraction")
    assert {k: tempered[k] for k in told} == pytest.approx({k: divided[k] for k in told}, abs=1e-5)
    assert tempered["kl_old"] == pytest.approx(0, abs=1e-7) and tempered["entropy"] > plain["entropy"]


@pytest.mark.parametrize(("name", "estimator"), [("mpo", "k2"), ("grpo", "k3")])
def test_a_price_on_kl_keeps_the_policy_near_its_start(name, estimator, config, tmp_path):
    free = config(steps=4, epochs=4, lr=3e-3, kl=1e-9, kl_estimator=estimator)
    far = learn(name, free, tmp_path / "free")[1][-1]["kl"]
    near = learn(name, free | {"kl": 20.0}, tmp_path / "dear")[1][-1]["kl"]
    assert 0 < near < far


def test_kl_paid_as_a_reward_is_that_of_each_turns_tokens():
    batch = SimpleNamespace(
        turns=Turns.of(torch.ones(1, 3), torch.tensor([[0, 0, 1]]), 2),
        rewards=torch.tensor([[0.0, 1.0]], dtype=torch.float64),
        old=torch.tensor([[-1.0, -2.0, -3.0]]),
        extra={"reference": torch.tensor([[-2.0, -2.5, -1.0]])},
    )
    settings = SimpleNamespace(
        kl=0.1, kl_estimator="k1", overlong_cache=0, play=SimpleNamespace(max_tokens=2)
    )
    assert paid(settings, batch).tolist() == [pytest.approx([-0.15, 1.2])]
    settings.kl_estimator = "k2"
    assert paid(settings, batch) is batch.rewards
    settings.overlong_cache = 2  # turns of two and one tokens, of at most two
    assert paid(settings, batch).tolist() == [pytest.approx([-1.0, 0.5])]


def test_evaluation_keeps_the_best_model_and_ends_with_fresh_episodes_of_both(config, tmp_path, capsys):
    todo = {"every": 1, "episodes": 4, "final": 6, "attempts": 2, "split": "test"}
    settings = config("Judged", steps=3, save_every=1, evaluation=todo)
    _, rows = learn("mpo", settings, tmp_path)
    measured = [r["held_out_reward"] for r in rows if "held_out_reward" in r]
    assert len(measured) == 3 and (tmp_path / "best" / "config.json").is_file()
    final = rows[-1]
    for name in ("last", "best"):
        assert final[f"{name}_failed"] == 0
        assert 0 <= final[f"{name}_success"] <= final[f"{name}_pass@2"] <= 1
    told = capsys.readouterr().err
    assert "last model: reward" in told and "best model: reward" in told
    _, again = learn("mpo", settings, tmp_path)
    assert again == rows


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mpo", {"rate": 1}, "rate: unknown key; known: .*lr"),
        ("mpo", {"play": {"style": "plain", "hist": 1}}, "play.hist: unknown key; known: .*history"),
        ("mpo", {"lora": {"rnk": 1}}, "lora.rnk: unknown key; known: .*rank"),
        ("mpo", {"steps": 0}, "steps: .*greater than or equal to 1"),
        ("ppo", {"beta": 0.5}, "beta is 0.5, but advantage is 'token'"),
        ("ppo", {"advantage": "turn", "lam_token": 0.9}, "lam_token is 0.9, but advantage is 'turn'"),
        ("ppo", {"lam_turn": 0.9}, "lam_turn is 0.9, but advantage is 'token'"),
        ("mpo", {"length_lam": 1.5}, "length_lam is 1.5, but advantage is 'multiscale'"),
        ("mpo", {"boundary": "nowhere"}, "boundary: .*bootstrap.*afterstate.*drop"),
        (
            "mpo",
            {"critic": "own", "value_weight": 1},
            "value_weight is 1.0, but the critic shares nothing",
        ),
        ("mpo", {"critic_warmup": 2}, "critic_warmup is 2, but there are no more steps"),
        ("mpo", {"kl_estimator": "k2"}, "kl_estimator is 'k2', but kl is 0"),
        ("mpo", {"minibatches": 7}, "minibatches is 7, but more than episodes"),
        ("sao", {"dual_clip": 3.0}, "dual_clip is 3.0, but clip is 'mask'"),
        ("dapo", {"overlong_cache": 5}, "overlong_cache is 5, but play.max_tokens is less"),
        ("mpo", {"play": {"temperature": 0}}, "play.temperature: .*greater than 0"),
        ("mpo", {"clip_low": 1.0}, "clip_low is 1.0, but no ratio"),
        (
            "mpo",
            {"evaluation": {"episodes": 5, "attempts": 2}},
            "evaluation: episodes is 5, which is no multiple of attempts",
        ),
        ("grpo", {"group": 1}, "group: .*greater than or equal to 2"),
        ("grpo", {"rounds": 2}, "rounds is 2, but drop_equal is false"),
        ("grpo", {"gamma": 0.5}, "gamma is 0.5, but step_weight is 0"),
        ("grpo", {"critic": "own"}, "critic: unknown key"),
        ("mpo", {"model": "no/such"}, "no/such is not a model folder"),
        ("mpo", {"env": {"id": "turnbench/Toi-v0"}}, "unknown environment.*Toy-v0"),
        ("mpo", {"env": {"id": "turnbench/Toy-v0", "split": "tset"}}, "unknown split.*test"),
        ("mpo", {"env": {"id": "turnbench/Toy-v0", "tasks": ["9"]}}, "no task '9' in train"),
        ("mpo", {"env": {"id": "turnbench/Toy-v0", "options": {"slip": 1}}}, "unknown option.*slip"),
    ],
)
def test_a_bad_config_is_refused_in_words(name, changes, message, config, tmp_path):
    with pytest.raises(TurnbenchError, match=message):
        trainer(name)(config(**changes), tmp_path)


def test_the_example_config_is_a_valid_one():
    path = files(turnbench.algorithms) / "configs" / "mpo.yaml"
    settings = checked(Mpo, yaml.safe_load(path.read_text(encoding="utf-8")))
    assert settings.algorithm == "mpo" and settings.env.split in settings.env.make().splits
    assert settings.evaluation.split != settings.env.split


def test_turns_may_be_named_in_the_options_or_beside_them_but_not_twice():
    named = World(id="turnbench/TextCraft-v0", options={"max_turns": 3})
    beside = World(id="turnbench/TextCraft-v0", max_turns=3)
    assert named.make().max_turns == beside.make().max_turns == 3
    with pytest.raises(ConfigError, match="keep one"):
        World(id="turnbench/TextCraft-v0", max_turns=3, options={"max_turns": 3}).make()
