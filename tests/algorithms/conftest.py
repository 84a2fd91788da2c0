import os

import pytest

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = [
    "You are in room 0. Turns left: 4. That is no action; the actions are: left, right, wait.",
    "You are in room 3. Turns left: 12. Your actions are: left, right, wait. Ready.",
    "Answer each observation with your next action and nothing else.",
    "craft 4 stick using 2 oak planks",
    "Goal: craft stick. Inventory: [oak planks] (4)",
    "left",
    "right",
    "wait",
]


def save_tiny(folder, kind="llama", context=512, **changes):
    """A checkpoint with random weights and a tokenizer that knows the toy world's words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    config = CONFIG_MAPPING[kind](**settings | changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


WORLDS = '''
import gymnasium


class Letters(gymnasium.Env):
    """Pays the share of an action's letters from the first half of the alphabet, for three turns."""

    instructions = "Write letters."

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return "write", {}

    def step(self, action):
        self.left -= 1
        letters = [c for c in action.lower() if c.isalpha()]
        reward = sum(c < "n" for c in letters) / len(letters) if letters else 0.0
        return f"left {self.left}", reward, self.left == 0, False, {}


class Brittle(Letters):
    """Fails now and then."""

    def step(self, action):
        if len(action) % 3 == 1:
            raise RuntimeError("the disk is full")
        return super().step(action)


class Broken(Letters):
    """Always fails."""

    def step(self, action):
        raise RuntimeError("the disk is full")


class Flat(Letters):
    """Pays the same for whatever is done."""

    def step(self, action):
        seen, _, over, cut, info = super().step(action)
        return seen, 0.1, over, cut, info


class Judged(Letters):
    """Says whether most of the last action was right."""

    def step(self, action):
        seen, reward, over, cut, _ = super().step(action)
        return seen, reward, over, cut, {"success": reward > 0.5}


for kind in (Letters, Brittle, Broken, Flat, Judged):
    gymnasium.register(id=f"{kind.__name__}-v0", entry_point=kind)
'''


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Puts a module of small worlds on the path; gives the folder it is in."""
    import sys

    folder = tmp_path_factory.mktemp("worlds")
    (folder / "letter_worlds.py").write_text(WORLDS, encoding="utf-8")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
