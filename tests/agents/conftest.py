import pytest

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEXT = [
    "craft 4 stick using 2 oak planks",
    "get 2 oak log",
    "Crafting commands:\ncraft 1 oak planks using 1 oak log",
    "Goal: craft stick.",
    "Could not find enough items to craft minecraft:stick",
    "Inventory: [oak planks] (4)",
    "inventory",
    "system user assistant Ready.",
]


def save_tokenizer(folder, template=TEMPLATE, vocabulary=400):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|start|>"],
    )
    if template:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_model(folder, kind="llama", template=TEMPLATE, context=2048, scale=0.25, **changes):
    """A checkpoint with random weights: `scale` is their spread, so that it prefers some tokens."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    vocabulary = save_tokenizer(folder, template)
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": context,
        "initializer_range": scale,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    config = CONFIG_MAPPING[kind](**settings | changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """Saves a random checkpoint (see save_model) and gives its folder."""
    return lambda **settings: save_model(tmp_path_factory.mktemp("checkpoint"), **settings)


@pytest.fixture(scope="session")
def checkpoint(make_checkpoint):
    return make_checkpoint()
