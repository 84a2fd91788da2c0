"""Value regression: targets and losses by closed form, the fit on the toy world, the folder it writes."""

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from turnbench.agents.amc import AMC
from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.core import Population, population_to_json
from turnbench.agents.gathering import Merger
from turnbench.agents.model import Prompt, ScriptedModel
from turnbench.agents.regression import (
    Card,
    Reader,
    Regressor,
    Row,
    State,
    TrainedValue,
    is_causal,
    nested,
    soft_binary,
    trained_value,
)
from turnbench.agents.rollout import Rollout
from turnbench.agents.scorers import make_scorer
from turnbench.agents.values import CARD, make_value
from turnbench.algorithms import trainer
from turnbench.algorithms.progress import Progress
from turnbench.algorithms.rollouts import FILE, collect, read_rollouts, split_tasks, tasks_of
from turnbench.algorithms.value import loss_of, read_config
from turnbench.algorithms.value_data import auroc, auroc_within, calibration, examples, pearson
from turnbench.envs import toy
from turnbench.envs.errors import ConfigError, LogError, ModelError
from turnbench.envs.record import Failure, Outcome, Task, Trajectory, Turn
from turnbench.envs.toy import Toy, ToyMDP
from turnbench.leaderboards.cli import app
from turnbench.leaderboards.log import Key, LogWriter, episode_line, read_episodes
from turnbench.leaderboards.runner import header_of
from turnbench.leaderboards.suite import parse_suite
from turnbench.leaderboards.yamlfile import dump_yaml, parse_yaml

ENV = "turnbench/Toy-v0"
BETA = 0.5
WORLD = ToyMDP.random(np.random.default_rng(16), deterministic=True)
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_checkpoint(folder: Path, kind: str = "llama") -> Path:
    """A small random network with a word tokenizer for the toy world."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<unk>", "<|user|>", "<|assistant|>"]
    text = "You are in room door Turns left INSTRUCTION HISTORY NOW STATE ACTION Round = [ ] . : - <|>"
    words += sorted(
        {*text.split(), *"0123456789", "===", "user", "assistant", "right", "wait", "<", ">", "|"}
    )
    backend = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=TEMPLATE,
    )
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
    }
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**sizes)
    make = transformers.AutoModelForCausalLM if kind == "llama" else transformers.AutoModel
    make.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("bert"), "bert")


def blind(prompt: Prompt) -> str:
    return WORLD.actions[prompt.seed % 2]


def rollouts(folder: Path, tasks: int = 50, group: int = 4) -> Path:
    """Blind play of the toy world, with the seed as the task's name, so that tasks can be held out."""
    folder.mkdir(exist_ok=True)
    lines = []
    for seed in range(tasks):
        agent = BestOfN(ScriptedModel(blind), n=group)
        task = Task(ENV, "0", "train", seed)
        found = agent.solve(Toy(mdp=WORLD), task, np.random.default_rng(seed))
        row = population_to_json(found)
        row["task"]["id"] = str(seed)
        lines.append(json.dumps(row) + "\n")
    (folder / FILE).write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rollouts(tmp_path_factory.mktemp("played"))


def config(played: Path, backbone: Path, **changes: Any) -> dict[str, Any]:
    base = {"env": ENV, "rollouts": str(played), "backbone": str(backbone), "epochs": 6, "lr": 3e-3}
    return {**base, "batch": 8, "patience": 6, **changes}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rollouts(tmp_path_factory.mktemp("few"), 10, 2)


@pytest.fixture(scope="module")
def fitted(played: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "value"
    settings = config(played, llama, pool="last", lr=6e-3, epochs=8, batch=6)
    found: Path = trainer("value")(settings, out)
    return found


# --- targets and losses ---------------------------------------------------------------------------


def minimiser(y: Any, target: str, beta: float) -> float:
    """Where the mean loss over outcomes `y` is smallest, by gradient descent on one number."""
    y = torch.tensor(y, dtype=torch.float64)
    f = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([f], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(f.expand(len(y)), y, target, beta)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(f.detach())


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_a10_linex_recovers_the_soft_value(beta: float) -> None:
    y = [0.0, 0.2, 0.2, 0.7, 1.0]
    assert minimiser(y, "linex", beta) == pytest.approx(
        beta * math.log(np.mean(np.exp(np.array(y) / beta))), abs=1e-3
    )


@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("prize", [1.0, 2.5])
def test_a10_binary_recovers_the_soft_value(beta: float, prize: float) -> None:
    y = np.array([0.0, 0.0, 0.0, 1.0, 1.0])
    logit = torch.tensor(minimiser(y, "binary", beta), dtype=torch.float64)
    exact = beta * math.log(np.mean(np.exp(prize * y / beta)))
    assert float(soft_binary(logit, prize, beta)) == pytest.approx(exact, abs=1e-3)


def test_a10_soft_binary_does_not_overflow() -> None:
    logits = torch.tensor([-80.0, 0.0, 80.0], dtype=torch.float64)
    assert soft_binary(logits, 1.0, 1e-4).tolist() == pytest.approx([0.992, 1, 1], abs=1e-3)


def test_mean_and_exponential_have_their_minimisers() -> None:
    y, beta = np.array([0.0, 0.2, 0.9]), 0.4
    assert minimiser(y, "mean", beta) == pytest.approx(y.mean(), abs=1e-4)
    weights = np.exp(y / beta)
    tilted = float(weights @ y / weights.sum())
    assert minimiser(y, "exponential", beta) == pytest.approx(tilted, abs=1e-4)
    assert y.mean() < minimiser(y, "linex", beta) < tilted  # papers' order of the three


def path(rewards: list[float], outcome: Outcome = Outcome.OK, task: str = "0") -> Trajectory:
    turns = tuple(Turn(f"room {k}", "door 0", r) for k, r in enumerate(rewards))
    return Trajectory(Task(ENV, task), turns, "room 3", outcome)


def test_targets_of_states(llama: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    reader = Reader(tokenizer, "chat", None, 256)
    group = [
        Population((path([0.25, 0.5]), path([0, 1]), path([9, 9], Outcome.INFRA_ERROR))),
    ]

    def targets(**options: Any) -> list[tuple[float, ...]]:
        settings = {"best_only": False, "predicts": "return", "merge": True} | options
        return [e.targets for e in examples(group, reader, **settings)]

    assert targets() == [(0.75, 0.75, 0.75), (1, 1, 1)]
    assert targets(best_only=True) == [(1, 1, 1)]
    assert targets(predicts="future") == [(0.75, 0.5, 0), (1, 1, 0)]
    assert targets(merge=False, best_only=True) == [(1,), (1,), (1,)]


def test_held_out_tasks_are_whole_tasks() -> None:
    tasks = [Task(ENV, str(k), "train", seed) for k in range(10) for seed in range(3)]
    held = split_tasks(tasks, 0.2, 0)
    assert len(held) == 2
    assert held == split_tasks(tasks, 0.2, 0) != split_tasks(tasks, 0.2, 1)
    with pytest.raises(ConfigError, match="too few"):
        split_tasks(tasks[:3], 0.2, 0)


# --- measures -------------------------------------------------------------------------------------


def test_auroc_is_the_share_of_pairs_with_ties_as_halves() -> None:
    rng = np.random.default_rng(0)
    scores, won = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[won] for b in scores[~won]]
    assert auroc(scores, won) == pytest.approx(np.mean(pairs))
    assert auroc(-scores, won) == pytest.approx(1 - np.mean(pairs))
    assert auroc(scores, np.ones(60, bool)) is None


def test_auroc_within_ignores_what_tells_groups_apart() -> None:
    groups = ["easy", "easy", "hard", "hard"]
    scores, won = np.array([0.9, 0.8, 0.1, 0.2]), np.array([True, False, True, False])
    assert auroc_within(scores, won, groups) == 0.5
    assert auroc_within(scores, np.array([True, True, False, False]), groups) is None


def test_calibration_and_pearson_by_hand() -> None:
    predicted, actual = np.array([0.1, 0.1, 0.8, 0.8]), np.array([0.0, 0.0, 1.0, 0.5])
    gap, table = calibration(predicted, actual, bins=2)
    assert table == [pytest.approx([0.1, 0, 2]), pytest.approx([0.8, 0.75, 2])]
    assert gap == pytest.approx(0.075)
    assert pearson(predicted, 2 * predicted) == pytest.approx(1)
    assert pearson(predicted, np.ones(4)) is None


# --- network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_nested_states_and_shared_beginnings_change_nothing(llama: Path, pool: Any) -> None:
    network = Regressor(transformers.AutoModel.from_pretrained(llama), pool).eval()
    assert network.causal
    texts = [tuple(range(4, 4 + n)) for n in (5, 8, 13)]
    with torch.inference_mode():
        alone = [float(network([Row(text, (len(text),))])) for text in texts]
        together = network([Row(text, (len(text),)) for text in texts])
        (row,) = nested(texts)
        assert row.ends == (5, 8, 13)
        for outputs in (together, network([row]), network.shared(texts[0][:4], [t[4:] for t in texts])):
            assert outputs.tolist() == pytest.approx(alone, abs=1e-5)


def test_an_encoder_is_not_taken_for_a_causal_network(bert: Path) -> None:
    assert not is_causal(transformers.AutoModel.from_pretrained(bert))
    assert nested([(1, 2), (1, 3, 4)]) == [Row((1, 2), (2,)), Row((1, 3, 4), (3,))]
    cut = [(1,), (1, 2), (2, 3), (2, 3, 4)]  # the oldest round was left out
    assert nested(cut) == [Row((1, 2), (1, 2)), Row((2, 3, 4), (2, 3))]


def test_the_oldest_rounds_make_room(llama: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    turns = [Turn(f"You are in room {k % 4}", f"door {k % 2}", 0) for k in range(12)]
    whole = Reader(tokenizer, "chat", None, 10_000).ids(State(turns, "left"))
    cut = Reader(tokenizer, "chat", None, 40).ids(State(turns, "left"))
    assert len(cut) <= 40 < len(whole)
    first = len(tokenizer.encode("<|user|>You are in room 0", add_special_tokens=False))
    assert cut[:first] == whole[:first]
    assert cut[-12:] == whole[-12:]
    assert len(Reader(tokenizer, "report", 1, 10_000).ids(State(turns, "left"))) < len(whole)


def test_calls_of_many_threads_are_merged_and_answered_in_order() -> None:
    sizes: list[int] = []
    first, entered = threading.Event(), threading.Event()

    def double(items: list[Any]) -> list[Any]:
        entered.set()
        first.wait()
        sizes.append(len(items))
        return [2 * item for item in items]

    merger, answers = Merger(double), dict[int, Any]()
    threads = [
        threading.Thread(target=lambda k=k: answers.update({k: merger([k, k + 100])}))  # type: ignore[misc]
        for k in range(6)
    ]
    threads[0].start()
    entered.wait()
    for thread in threads[1:]:
        thread.start()
    while len(merger._waiting) < 5:
        pass
    first.set()
    for thread in threads:
        thread.join()
    assert answers == {k: [2 * k, 2 * k + 200] for k in range(6)}
    assert sizes == [2, 10]


def test_an_error_reaches_every_caller() -> None:
    def fail(items: list[Any]) -> list[Any]:
        raise ValueError("no")

    merger = Merger(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            merger([1])  # type: ignore[list-item]


# --- the fit and its folder -----------------------------------------------------------------------


def test_a_fit_begins_anew_whatever_was_measured_before(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 0, "loss": 1.0}\n', encoding="utf-8")
    with Progress(tmp_path, 0, 4, True) as bar:
        bar.row(1, loss=0.5, calibration=[[1.0]])
    assert [
        r["step"] for r in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    ] == [1]


def test_the_fit_learns_the_value_of_states(fitted: Path) -> None:
    steps = [json.loads(line) for line in (fitted / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in steps if "epoch" in row]
    assert all(row["loss"] >= 0 and row["tokens"] > 0 for row in steps if row not in rows)
    assert max(row["pearson"] for row in rows) > 0.45  # the exact value has 0.64
    value = trained_value(fitted)
    exact = toy.values(WORLD, toy.uniform(WORLD))
    learned, wanted = [], []
    for run in read_rollouts(rollouts(fitted.parent / "fresh", 12) / FILE):
        for k in range(len(run.best.turns)):
            seen = run.best.turns[k].observation
            turn, state = toy.understand(WORLD, seen)
            earned = sum(t.reward for t in run.best.turns[:k])
            learned += value.estimate([State(run.best.turns[:k], seen)])
            wanted.append(earned + exact[turn, state])
    assert np.corrcoef(learned, wanted)[0, 1] > 0.8


def test_the_card_tells_what_it_is(fitted: Path) -> None:
    card = json.loads((fitted / CARD).read_text(encoding="utf-8"))
    assert card["env"] == ENV
    assert set(card["trained"]["held_out"]) >= {"pearson", "calibration_gap", "calibration", "mse"}
    assert Card.model_validate(card).low < Card.model_validate(card).high


def test_the_folder_is_a_value_and_a_scorer(fitted: Path) -> None:
    value = make_value(str(fitted), ScriptedModel(blind))
    assert value is make_value({"value": str(fitted)}, ScriptedModel(blind))
    assert make_scorer(str(fitted)) is value
    agent = AMC(ScriptedModel(blind), n=8, value=value, resample_at=[2], rewards="estimated", beta=BETA)
    assert agent.privileges == ()
    found = agent.solve(Toy(mdp=WORLD), Task(ENV, "0"), np.random.default_rng(0))
    assert found.resamplings
    chosen = BestOfN(ScriptedModel(blind), n=8, scorer=str(fitted))
    best = chosen.solve(Toy(mdp=WORLD), Task(ENV, "0"), np.random.default_rng(0))
    assert chosen.privileges == ()
    assert best.chosen == int(np.argmax(best.scores))


def test_a_value_tells_what_it_expected_after_each_turn(fitted: Path) -> None:
    value = trained_value(fitted)
    paths = [
        p for run in read_rollouts(rollouts(fitted.parent / "told", 3) / FILE) for p in run.trajectories
    ]
    found = value.turns(paths)
    for path, numbers in zip(paths, found, strict=True):
        seen = [*(turn.observation for turn in path.turns[1:]), path.final]
        for k, now in enumerate(seen):
            (alone,) = value.estimate([State(path.turns[: k + 1], now)])
            assert numbers[k] == pytest.approx(alone, abs=1e-5)
    ends = value.score(paths, np.random.default_rng(0))
    assert [value.path_score(numbers) for numbers in found] == pytest.approx(ends, abs=1e-5)
    with pytest.raises(ConfigError, match="was trained for"):
        value.turns([dataclasses.replace(paths[0], task=Task("turnbench/TextCraft-v0", "0"))])


def test_score_draws_a_values_strip(fitted: Path, tmp_path: Path) -> None:
    spec = {
        "suite": "valued",
        "envs": [{"id": ENV, "split": "train", "tasks": 1}],
        "models": {"none": {"backend": "hf", "path": "turnbench/tiny"}},
        "agents": {"blind": {"agent": "best_of_n", "model": "none"}},
    }
    suite = parse_suite(parse_yaml(dump_yaml(spec), "s.yaml"))
    played = next(iter(read_rollouts(rollouts(fitted.parent / "shown", 1) / FILE)))
    with LogWriter(tmp_path / "run", header_of(suite)) as log:
        log.write(episode_line(Key("blind", 0, "0", 0), played, (), 1.0))
    before = (tmp_path / "run" / "log.jsonl").read_bytes()
    words = ["score", str(tmp_path / "run"), "--scorer", str(fitted)]
    told = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "shown"), "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.output.splitlines()[-1])
    assert str(fitted) in report["uncertainty"]
    (episode,) = read_episodes(tmp_path / "shown")
    value = trained_value(fitted)
    for path, numbers in zip(played.trajectories, value.turns(played.trajectories), strict=True):
        strips = episode.population.trajectories[played.trajectories.index(path)].info["turn_scores"]
        assert strips == {"value after the turn, value [reward]": pytest.approx(numbers, rel=1e-5)}
    same = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert isinstance(same.exception, ConfigError) and "a run of its own" in str(same.exception)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == before


def test_particles_are_valued_in_one_pass(fitted: Path) -> None:
    value = TrainedValue(fitted)
    agent = AMC(ScriptedModel(blind), n=16, value=value, resample_at=[2])
    agent.solve(Toy(mdp=WORLD), Task(ENV, "0"), np.random.default_rng(0))
    assert value.passes.passes == 1
    assert value.passes.states <= 16


def test_batching_does_not_change_a_value(fitted: Path) -> None:
    value = TrainedValue(fitted)
    states = []
    for run in read_rollouts(rollouts(fitted.parent / "more", 5) / FILE):
        states += [
            State(t.turns[:1], t.turns[1].observation) for t in run.trajectories if len(t.turns) > 1
        ]
        states += [State(t.turns, t.final) for t in run.trajectories]
    together = value.estimate(states)
    assert together == pytest.approx([value.estimate([s])[0] for s in states], abs=1e-5)


@pytest.mark.parametrize(
    "changes", [{"text": "report", "history": 2}, {"pool": "last"}, {"lora_rank": 2}]
)
def test_other_choices_train_and_load(few: Path, llama: Path, tmp_path: Path, changes: Any) -> None:
    if "lora_rank" in changes:
        pytest.importorskip("peft")
    out = trainer("value")(config(few, llama, epochs=1, target="linex", **changes), tmp_path / "v")
    assert math.isfinite(trained_value(out).estimate([State([], "You are in room 0")])[0])


def test_an_encoder_trains_and_predicts_the_future(few: Path, bert: Path, tmp_path: Path) -> None:
    settings = config(few, bert, epochs=1, text="report", predicts="future")
    value = trained_value(trainer("value")(settings, tmp_path / "v"))
    assert value.oracle
    ended = Rollout.start(Toy(mdp=WORLD), Task(ENV, "0"), np.random.default_rng(0))
    ended.turns, ended.failure = [Turn("room", "door 0", 0.5)], Failure(Outcome.TIMEOUT, "late")
    assert value.returns([ended]) == [0.5]
    with pytest.raises(ConfigError, match="predicts the future"):
        value.score([ended.finish()], np.random.default_rng(0))
    path = Trajectory(ended.task, (Turn("a", "door 0", 0.5), Turn("b", "door 1", 0.25)), "c", Outcome.OK)
    (first, last), alone = value.turns([path])[0], value.estimate([State(path.turns[:1], "b")])
    assert first == pytest.approx(0.5 + alone[0], abs=1e-5) and last == 0.75


def test_a_value_for_another_world_is_refused_before_the_first_call(fitted: Path) -> None:
    model = ScriptedModel(lambda _: pytest.fail("the model was asked"))
    agent = AMC(model, n=4, value=str(fitted))
    with pytest.raises(ConfigError, match="not for other/World-v0"):
        BestOfN(model, scorer=str(fitted)).solve(
            Toy(mdp=WORLD), Task("other/World-v0", "0"), np.random.default_rng(0)
        )
    with pytest.raises(ConfigError, match=r"trained for turnbench/Toy-v0, not for other/World-v0"):
        agent.solve(Toy(mdp=WORLD), Task("other/World-v0", "0"), np.random.default_rng(0))


def test_a_damaged_folder_is_refused(fitted: Path, tmp_path: Path) -> None:
    import shutil

    for name in (CARD, "head.safetensors", "backbone/model.safetensors"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(fitted, copy)
        (copy / name).write_text("{}", encoding="utf-8")
        with pytest.raises((ConfigError, ModelError)):
            trained_value(copy)


# --- collecting -----------------------------------------------------------------------------------


def test_rollouts_are_collected_once_and_resume_after_a_torn_line(llama: Path, tmp_path: Path) -> None:
    tasks = tasks_of(ENV, {}, "train", [0, 1])
    model = {"backend": "hf", "path": str(llama), "max_tokens": 3}
    whole = list(collect(tmp_path / "a", Toy(), tasks, 2, model, {}))
    assert [p.best.task for p in whole] == tasks
    assert {len(p.trajectories) for p in whole} == {2}
    text = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(text[: len(text) // 2])
    assert list(collect(tmp_path / "b", Toy(), tasks, 2, model, {})) == whole
    assert (tmp_path / "b").read_bytes() == text
    none = {"backend": "no such thing"}
    assert list(collect(tmp_path / "b", Toy(), tasks, 2, none, {})) == whole


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"task": 3}\n', encoding="utf-8")
    with pytest.raises(LogError, match="rollouts.jsonl:1"):
        read_rollouts(tmp_path / FILE)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "epochs"),
        ({"target": "median"}, "target"),
        ({"rollouts": None}, "either model"),
        ({"model": {"backend": "hf"}}, "either model"),
        ({"target": "binary", "predicts": "future"}, "predicts to return"),
        ({"beta": 0}, "beta"),
        ({"group": 0}, "group"),
    ],
)
def test_wrong_configs_are_refused(played: Path, llama: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({**config(played, llama), **changes})


def test_data_that_cannot_be_learned_from_is_refused(played: Path, llama: Path, tmp_path: Path) -> None:
    run = trainer("value")
    with pytest.raises(ConfigError, match="'binary' can't be fitted"):
        run(config(played, llama, target="binary"), tmp_path / "a")
    with pytest.raises(ConfigError, match="no rollouts"):
        run(config(tmp_path, llama), tmp_path / "b")
    with pytest.raises(ConfigError, match="holds rollouts of"):
        run(config(played, llama, env="turnbench/TextCraft-v0"), tmp_path / "c")
    flat = tmp_path / "flat"
    flat.mkdir()
    row = population_to_json(Population((path([0.0]),)))
    lines = [json.dumps(row | {"task": {**row["task"], "id": str(k)}}) + "\n" for k in range(4)]
    (flat / FILE).write_text("".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match="nothing to tell apart"):
        run(config(flat, llama), tmp_path / "d")
    with pytest.raises(ConfigError, match="known: .*policy"):
        run(config(played, llama, polici={}), tmp_path / "e")
