"""The shipped model: agents/data/tiny."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import turnbench.agents
import turnbench.algorithms
from turnbench.agents.hf import HfModel
from turnbench.agents.model import Message, Sampling
from turnbench.agents.react import ReActPolicy
from turnbench.agents.rollout import Rollout, play
from turnbench.algorithms.demos import conversation
from turnbench.algorithms.sft import read_config
from turnbench.algorithms.tokenizer import encode
from turnbench.envs.record import Task
from turnbench.envs.textcraft import INSTRUCTIONS, TextCraft, opening, split_tasks
from turnbench.envs.textcraft_plan import demonstrate, plan
from turnbench.envs.textcraft_recipes import plain, recipe_book

FOLDER = Path(str(files(turnbench.agents) / "data" / "tiny"))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def test_the_folder_is_small_whole_and_plain():
    names = {path.name for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert {"chat_template.jinja", "README.md"} <= names
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4_000_000
    assert not [name for name in names if name.endswith((".py", ".bin", ".pt", ".pkl"))]


def test_the_model_is_tiny_and_in_bfloat16(model, tokenizer):
    assert 500_000 <= model.num_parameters() <= 1_500_000
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id


def test_all_text_of_the_game_round_trips(tokenizer):
    book, rng = recipe_book(), np.random.default_rng(0)
    texts = {opening(goal, seed) for seed, goal in enumerate(book.goals)} | {INSTRUCTIONS}
    texts |= {action for goal in book.goals for action in plan(goal)}
    for task in split_tasks("all")[::4]:
        path = demonstrate(TextCraft(max_turns=60), Task("", task), rng, 0.4)
        texts |= {path.final, *(turn.observation for turn in path.turns)}
    texts |= {
        "Inventory: [oak planks] (4) ",
        "",
        "  two  blanks",
        "tab\tnew\n\nline",
        "é漢字🙂",
        "Action: x",
    }
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_names_and_small_numbers_are_single_tokens(tokenizer):
    names = [plain(item) for item in recipe_book().items]
    sizes = [len(tokenizer.tokenize(f" {name}")) for name in names]
    assert np.mean(np.array(sizes) == 1) > 0.95
    assert all(len(tokenizer.tokenize(f" {count}")) == 1 for count in range(1, 10))


def test_the_template_only_ever_appends(tokenizer):
    path = demonstrate(TextCraft(max_turns=40), Task("", "430"), np.random.default_rng(1), 0.2)
    messages = (Message("system", "Play."), *conversation(path).messages)
    rows = [message._asdict() for message in messages]
    whole = tokenizer.apply_chat_template(rows)["input_ids"]
    for cut in range(2, len(rows), 2):
        asked = tokenizer.apply_chat_template(rows[:cut], add_generation_prompt=True)["input_ids"]
        assert whole[: len(asked)] == asked
        told = tokenizer.apply_chat_template(rows[: cut + 1])["input_ids"]
        assert told[-1] == tokenizer.eos_token_id and whole[: len(told)] == told
    assert encode(tokenizer, messages).ids.tolist() == whole


def test_the_recipe_trains_on_policy_goals_alone():
    recipe = files(turnbench.algorithms) / "configs" / "tiny.yaml"
    settings = read_config(yaml.safe_load(recipe.read_text(encoding="utf-8")))
    real = [source for source in settings.data if source.env == "turnbench/TextCraft-v0"]
    assert real and all(source.split == "train-policy" for source in real)
    assert all(source.env and source.env.startswith("turnbench/TextCraft") for source in settings.data)


def test_it_plays(model, tokenizer):
    policy = HfModel.of(model, tokenizer, sampling=Sampling(max_tokens=48))
    tasks = split_tasks("test")[:31:2]
    rollouts = [
        Rollout.start(TextCraft(max_turns=6), Task("", t, seed=k), np.random.default_rng(k))
        for k, t in enumerate(tasks)
    ]
    play(rollouts, ReActPolicy(policy, instructions=False))
    policy.close()
    paths = [rollout.finish() for rollout in rollouts]
    assert not [path.failure for path in paths if path.failure]
    assert sum(path.ret for path in paths) >= 2
