import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnbench.agents.hf import HfModel
from turnbench.agents.model import Completion, Message, Prompt, Sampling, ScriptedModel
from turnbench.algorithms import evaluation, trainer
from turnbench.algorithms.demos import Conversation, Examples, Source, read_conversations
from turnbench.algorithms.sft import (
    Learner,
    collate,
    make_optimizers,
    new_model,
    read_config,
    schedule,
    train,
)
from turnbench.algorithms.tokenizer import Encoded, encode, train_tokenizer
from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError, TurnbenchError, UnknownName
from turnbench.envs.textcraft import split_tasks
from turnbench.envs.textcraft_recipes import plain, recipe_book

ENV = "turnbench/TextCraft-v0"
DEMO = {"env": ENV, "split": "train-policy", "mistakes": 0.1, "options": {"max_depth": 1}}
MODEL = {"hidden": 16, "layers": 2, "heads": 2, "ffn": 32, "context": 256, "vocabulary": 500}


def config(**changes):
    base = {
        "model": {**MODEL, "text": [DEMO], "texts": 40},
        "data": [DEMO],
        "steps": 12,
        "batch": 4,
        "warmup": 2,
        "decay": 4,
        "other_weight": 0.3,
        "other_steps": 8,
        "save_every": 5,
    }
    return {**base, **changes}


@pytest.fixture(scope="module")
def small():
    """(model, tokenizer) as they are before training."""
    torch.set_num_threads(1)
    return new_model(read_config(config()).model, 0)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same_weights(one, two):
    models = [
        AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).state_dict() for f in (one, two)
    ]
    return all(torch.equal(models[0][name], models[1][name]) for name in models[0])


# --- examples ---------------------------------------------------------------------------------------


def test_examples_are_a_function_of_seed_and_index_and_hold_no_held_out_goal():
    sources = [
        Source(**DEMO | {"options": {}}),
        Source(env="turnbench/TextCraftMadeUp-v0", mistakes=0.1),
    ]
    one, two = Examples(sources, 3), Examples(sources, 3)
    assert [one.draw(k) for k in range(20)] == [two.draw(k) for k in reversed(range(20))][::-1]
    assert one.draw(0) != Examples(sources, 4).draw(0)
    book = recipe_book()
    held = {plain(book.goals[int(t)]) for s in ("test", "train-value") for t in split_tasks(s)}
    goals = {one.draw(k).messages[0].content.rpartition("Goal: craft ")[2][:-1] for k in range(600)}
    assert len(goals) > 100 and not goals & held


def test_sources_open_and_close_by_step():
    shallow = Source(**DEMO, end=10)
    deep = Source(**DEMO | {"options": {"min_depth": 3, "max_turns": 60}}, begin=5)
    told = Examples([shallow, deep], 0)
    lengths = [np.mean([len(told.draw(k, step).messages) for k in range(30)]) for step in (0, 7, 12)]
    assert lengths[0] < lengths[1] < lengths[2]
    with pytest.raises(ConfigError, match="no source is open at step 10"):
        Examples([shallow], 0).draw(0, 10)


def test_repeated_demonstrations_are_played_once_each():
    told = Examples([Source(**DEMO | {"repeat": 2, "options": {"min_depth": 2}})], 0)
    (stream,) = told.streams
    seen = {told.draw(k).messages for k in range(600)}
    assert len(stream.tasks) < len(seen) <= len(stream.kept) <= 2 * len(stream.tasks)
    again = Examples(told.sources, 0)
    again.streams[0].demonstrate = None  # all is known
    assert {again.draw(k).messages for k in range(600)} == seen
    assert Examples(told.sources, 9).draw(5).messages in seen  # whatever the seed of the draws


def test_failed_demonstrations_are_not_learned_from():
    with pytest.raises(ConfigError, match="turns too few"):
        Examples([Source(**DEMO | {"options": {"min_depth": 3, "max_turns": 1}})], 0).draw(0)


def test_conversations_of_a_file_are_read(tmp_path):
    path = tmp_path / "talk.jsonl"
    talk = [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "ho"}]
    path.write_text(json.dumps({"messages": talk}) + "\n\n", encoding="utf-8")
    assert read_conversations(path) == [
        Conversation((Message("user", "hé"), Message("assistant", "ho")))
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "talk.jsonl:1"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no assistant message"),
        ('{"text": "x"}', "messages"),
        ("", "holds no conversations"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, line, message):
    path = tmp_path / "talk.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_conversations(path)


# --- tokens and masks -------------------------------------------------------------------------------


def test_the_mask_marks_each_action_with_its_end_and_nothing_else(small):
    told = Examples([Source(**DEMO)], 1)
    for k in range(20):
        messages = told.draw(k).messages
        coded = encode(small[1], messages)
        said = [m.content for m in messages if m.role == "assistant"]
        for number, action in enumerate(said):
            assert small[1].decode(coded.ids[coded.turn == number]) == action + "<|end|>"
        assert set(coded.turn) == {-1, *range(len(said))}
        rest = small[1].decode(coded.ids[coded.turn == -1])
        assert rest == "".join(f"<|{m.role}|>{m.content if m.role == 'user' else ''}" for m in messages)


def test_every_rendering_is_a_prefix_of_the_longer_ones_in_tokens_too(small):
    messages = Examples([Source(**DEMO)], 2).draw(0).messages
    whole = encode(small[1], messages).ids.tolist()
    for cut in range(1, len(messages), 2):
        rows = [m._asdict() for m in messages[:cut]]
        asked = small[1].apply_chat_template(rows, add_generation_prompt=True)["input_ids"]
        assert whole[: len(asked)] == asked


def test_a_template_that_rewrites_the_past_is_refused(small):
    tokenizer = train_tokenizer(["some text"], 300, 64)
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="append-only"):
        encode(tokenizer, [Message("user", "a"), Message("assistant", "b")])


def test_words_are_a_token_each_and_any_text_round_trips() -> None:
    texts = ["click[B0AAAA1111] [SEP] B0BBBB2222 [SEP] $9.99", "buy now"] * 3
    tokenizer = train_tokenizer(texts, 300, 64, r"B0[0-9A-Z]{8}| \[SEP\] ")
    said = "click[B0BBBB2222] [SEP] B0CCCC3333"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode(said))
    assert {"B0BBBB2222", " [SEP] "} <= set(pieces) and tokenizer.decode(tokenizer.encode(said)) == said
    assert len(tokenizer) == len(train_tokenizer(["buy now"] * 3, 300, 64)) + 3
    assert not any("AA" in piece for piece in tokenizer.get_vocab() if piece != "B0AAAA1111")
    grouped = train_tokenizer(texts, 300, 64, r"(B0)([0-9A-Z]{8})|( \[SEP\] )|x*")
    assert (
        grouped.get_vocab() == tokenizer.get_vocab()
    )  # groups change nothing, nor what matches no text


def test_words_that_are_no_regular_expression_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.words: .*no regular expression"):
        read_config(config(model={**MODEL, "text": [DEMO], "words": "B0["}))


def coded(turn):
    return Encoded(np.arange(len(turn)), np.array(turn))


def test_weights_are_a_mean_over_actions_and_a_share_of_a_mean_over_the_rest():
    rows = [(coded([-1, -1, 0, 0, -1, 1]), frozenset({1})), (coded([-1, 0]), frozenset())]
    ids, weights = collate(rows, 0.5)
    assert ids.shape == (2, 6)
    expected = [[0, 0.25, 1 / 3, 1 / 3, 0.25, 0], [0, 1 / 3, 0, 0, 0, 0]]
    assert torch.allclose(weights, torch.tensor(expected))
    assert collate(rows, 0.0)[1].sum() == pytest.approx(1)


def test_the_loss_is_the_weighted_likelihood_of_the_next_token(small):
    model = small[0].eval()
    ids = torch.randint(5, 400, (2, 9), generator=torch.Generator().manual_seed(0))
    weights = torch.rand(2, 9, generator=torch.Generator().manual_seed(1))
    weights[1, 6:] = 0
    logs = torch.log_softmax(model(ids).logits, -1)
    by_hand = -sum(weights[b, t] * logs[b, t - 1, ids[b, t]] for b in range(2) for t in range(1, 9))
    assert torch.allclose(Learner(model)(ids, weights), by_hand, atol=1e-5)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_two_steps_on_a_fixed_batch_lower_the_loss(kind):
    settings = read_config(config())
    model, tokenizer = new_model(settings.model, 0)
    told = Examples(settings.data, 0)
    batch = collate([(encode(tokenizer, told.draw(k).messages), frozenset()) for k in range(8)], 0.1)
    learner, optimizers, losses = Learner(model), make_optimizers(model, kind, 3e-3, 0.1), []
    for _ in range(3):
        losses.append(learner(*batch))
        losses[-1].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[0] > losses[1] > losses[2]


def test_the_optimizers_hold_every_parameter_once(small):
    for kind in ("adamw", "muon"):
        made = make_optimizers(small[0], kind, 3e-3, 0.1)
        held = [id(p) for o in made for group in o.param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in small[0].parameters())


def test_the_learning_rate_rises_stays_and_falls_to_nearly_nothing():
    rates = [schedule(step, steps=100, warmup=9, decay=20) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3]) and rates[9:79] == [1.0] * 70
    assert rates[99] == pytest.approx(1 / 21) and sorted(rates[79:], reverse=True) == rates[79:]


# --- whole runs -------------------------------------------------------------------------------------


def test_a_resumed_run_ends_with_the_weights_and_metrics_of_an_undisturbed_one(tmp_path):
    for kind in ("adamw", "muon"):
        whole, parts = tmp_path / f"{kind}-whole", tmp_path / f"{kind}-parts"
        train(config(optimizer=kind, decay=0), whole)
        train(config(optimizer=kind, decay=0, steps=7), parts)
        train(config(optimizer=kind, decay=0), parts)
        assert same_weights(whole / "model", parts / "model")
        kept = [[(r["step"], r["loss"]) for r in rows_of(p / "metrics.jsonl")] for p in (whole, parts)]
        assert kept[0] == kept[1] and len(kept[0]) == 12


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    wanted = config(steps=200, save_every=20)
    script = textwrap.dedent(f"""
        import sys, torch, pathlib
        torch.set_num_threads(1)
        from turnbench.algorithms.sft import train
        train({wanted!r}, pathlib.Path(sys.argv[1]))
    """)
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(killed)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(killed.glob("steps/0*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(killed.glob("steps/0*")) and not (killed / "model").exists()
    with (killed / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3')  # as a kill in the middle of a write leaves it
    train(wanted, killed)
    train(wanted, tmp_path / "whole")
    assert same_weights(killed / "model", tmp_path / "whole" / "model")
    assert [r["step"] for r in rows_of(killed / "metrics.jsonl")] == list(range(1, 201))


def test_the_result_is_a_model_folder_and_a_start_for_another_run(tmp_path):
    (tmp_path / "talk.jsonl").write_text(
        json.dumps(
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        ),
        encoding="utf-8",
    )
    evaluation = {"source": DEMO | {"split": "train-value"}, "every": 6, "examples": 8, "episodes": 2}
    first = train(config(evaluation=evaluation), tmp_path / "first")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(first), AutoTokenizer.from_pretrained(first)
    assert model.dtype == torch.bfloat16 and tokenizer.eos_token_id == model.config.eos_token_id
    measured = [r for r in rows_of(tmp_path / "first" / "metrics.jsonl") if "success" in r]
    assert [r["step"] for r in measured] == [6, 12] and all(0 <= r["success"] <= 1 for r in measured)
    more = {"data": [{"file": str(tmp_path / "talk.jsonl")}], "steps": 30, "batch": 2, "warmup": 0}
    second = train(more | {"checkpoint": str(first), "lr": 0.01}, tmp_path / "second")
    tuned = AutoModelForCausalLM.from_pretrained(second, dtype=torch.float32).eval()
    asked = [Prompt((Message("user", "a"),), seed) for seed in range(5)]
    answers = HfModel.of(tuned, tokenizer, sampling=Sampling(temperature=0, max_tokens=4)).generate(
        asked
    )
    assert {a.text for a in answers} == {"b"}


def test_a_folder_of_another_run_is_refused(tmp_path):
    train(config(steps=1), tmp_path)
    with pytest.raises(ConfigError, match="another lr"):
        train(config(lr=0.5), tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 1}, "rate: unknown key; known: .*lr"),
        ({"model": {**MODEL, "text": [DEMO], "width": 3}}, "model.width: unknown key; known: .*hidden"),
        ({"data": [DEMO | {"enviroment": 1}]}, "enviroment: unknown key; known: .*env"),
        ({"steps": 0}, "steps: .*greater than or equal to 1"),
        ({"data": []}, "list of sources is empty"),
        ({"data": [{"share": 1}]}, "either env or file"),
        ({"data": [{"file": "no.jsonl"}]}, "can't read no.jsonl"),
        ({"model": None, "checkpoint": "no/such"}, "no/such is not a model folder"),
        ({"checkpoint": "x"}, "either checkpoint"),
        ({"model": {**MODEL, "text": [DEMO], "heads": 3}}, "multiple of"),
        ({"data": [DEMO | {"env": "turnbench/TextCroft-v0"}]}, "unknown environment.*TextCraft-v0"),
        ({"data": [DEMO | {"split": "tset"}]}, "unknown TextCraft split.*test"),
        (
            {"data": [DEMO | {"options": {"depths": 1}}]},
            "unknown option of turnbench/TextCraft-v0 'depths'",
        ),
        ({"data": [DEMO | {"options": {"min_depth": 9}}]}, "has no tasks"),
        ({"data": [DEMO | {"demonstrator": "nobody"}]}, "unknown demonstrator"),
        ({"data": [DEMO | {"demonstrator": ":f"}]}, "unknown demonstrator ':f'"),
        ({"data": [DEMO | {"demonstrator": ".rel:f"}]}, "unknown demonstrator '.rel:f'"),
        ({"data": [DEMO | {"demonstrator": "math:pi"}]}, "unknown demonstrator"),
        ({"data": [DEMO | {"demonstrator": "builtins:print"}]}, "returned a NoneType, no Trajectory"),
    ],
)
def test_a_bad_config_is_refused_in_words(tmp_path, changes, message):
    with pytest.raises(TurnbenchError, match=message):
        train(config(**changes), tmp_path)


def test_algorithms_are_found_by_name():
    assert trainer("sft") is train
    with pytest.raises(UnknownName, match="unknown algorithm 'stf'; known: sft"):
        trainer("stf")


# --- the policy under training ----------------------------------------------------------------------


def test_samples_have_the_models_own_likelihoods_and_do_not_depend_on_the_batch(small):
    model, tokenizer = small[0].eval(), small[1]
    policy = HfModel.of(model, tokenizer, sampling=Sampling(max_tokens=6))
    prompts = [Prompt((Message("user", "get " * n),), seed=n) for n in (1, 9, 4)]
    answers = policy.generate(prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert isinstance(answer, Completion)
        alone = policy.generate([prompt])[0]
        assert alone.ids == answer.ids and alone.logprobs == pytest.approx(answer.logprobs, abs=1e-4)
        logits = model(torch.tensor([answer.prompt_ids + answer.ids])).logits[0]
        logs = torch.log_softmax(logits.detach(), -1)
        start = len(answer.prompt_ids)
        exact = [float(logs[start + k - 1, token]) for k, token in enumerate(answer.ids)]
        assert answer.logprobs == pytest.approx(exact, abs=1e-4)


def test_a_return_above_zero_is_no_success(monkeypatch):
    class Half(TextEnv):
        """Pays half of what it could, and says that this isn't enough."""

        has_success = True

        def tasks(self, split):
            return ["0"]

        def _reset(self, task):
            return "go"

        def _step(self, action):
            return Step("gone", 0.5, True, {"success": False})

    monkeypatch.setattr(evaluation, "make", lambda env, **options: Half())
    todo = evaluation.Evaluation(source=Source(env="half"), episodes=3)
    told = evaluation._play(ScriptedModel(lambda prompt: "x"), todo)
    assert told == {"reward": 0.5, "success": 0.0, "turns": 1.0}
