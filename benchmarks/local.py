"""Speed of local models, as ratios measured in one run: python benchmarks/local.py [--json].

Compares HfModel with transformers' own `generate` on the same network, prompts and batch. Both run on
one CPU thread and are timed by the processor time they take, which on an idle machine is the time that
passes, and which other programs disturb least. Takes the shipped model, or a random one of its size
where that isn't there.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from figures import Figure, show
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnbench.agents import SHIPPED, shipped_path
from turnbench.agents.hf import HfModel
from turnbench.agents.model import Message, Prompt, Sampling
from turnbench.envs import make

NEW = 48
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def texts(count: int) -> list[str]:
    """First observations of TextCraft's training tasks."""
    env = make("turnbench/TextCraft-v0")
    return [env.reset(seed=k, options={"task": t})[0] for k, t in enumerate(env.tasks("train")[:count])]


def random_model(folder: Path) -> str:
    """A checkpoint of the shipped model's size with random weights."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|start|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts(300), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=3000,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        eos_token_id=2,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def prompts(count: int, turns: int, seed: int = 0) -> list[Prompt]:
    """Conversations of different lengths, `turns` times a task's text long."""
    found = texts(count * turns)
    return [
        Prompt((Message("user", "\n".join(found[k * turns : (k + 1) * turns])),), seed + k)
        for k in range(count)
    ]


class Endless:
    """Generates exactly NEW tokens, as ends are taken away, so that all sides do the same work."""

    def __init__(self, path: str, cache_bytes: int = 0) -> None:
        self.model = HfModel(path, device="cpu", cache_bytes=cache_bytes)
        self.model._worker._decoder.ends = frozenset()
        self.sampling = Sampling(max_tokens=NEW)

    def batch(self, asked: list[Prompt]) -> int:
        answers = self.model.generate(asked, self.sampling)
        return sum(len(a.ids) for a in answers)

    def singly(self, asked: list[Prompt]) -> int:
        return sum(self.batch([prompt]) for prompt in asked)

    def bare(self, asked: list[Prompt]) -> int:
        """The loop that one writes with transformers alone."""
        tokenizer = self.model.tokenizer
        tokenizer.padding_side = "left"
        rows = [[{"role": m.role, "content": m.content} for m in p.messages] for p in asked]
        lines = [
            tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=True)
            for row in rows
        ]
        inputs = tokenizer(
            lines,
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        found = self.model.network.generate(
            **inputs,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            pad_token_id=0,
        )
        new = found[:, inputs["input_ids"].shape[1] :]
        tokenizer.batch_decode(new)
        return int(new.numel())


def rates(*works: Callable[[], int], repeats: int = 3) -> list[float]:
    """Tokens a second of each: the best of some runs, taken in turns, after one to warm up."""
    best = [0.0 for _ in works]
    for repeat in range(repeats + 1):
        for k, work in enumerate(works):
            start = time.process_time()
            tokens = work()
            if repeat:
                best[k] = max(best[k], tokens / (time.process_time() - start))
    return best


def by_threads(model: HfModel, conversations: int, turns: int) -> float:
    """Completion tokens a second, when as many threads each hold a conversation of some turns."""
    counts: list[int] = []
    opening = prompts(conversations, 1)

    def converse(index: int) -> None:
        messages, context = list(opening[index].messages), ()
        for turn in range(turns):
            covered = len(messages) - 1 if context else 0
            prompt = Prompt(tuple(messages), index * 100 + turn, context, covered)
            answer = model.generate([prompt], Sampling(max_tokens=8 + (index * 7 + turn) % 16))[0]
            counts.append(len(answer.ids))
            context = answer.prompt_ids + answer.ids
            messages += [Message("assistant", answer.text), Message("user", "Got 1 oak log")]

    threads = [threading.Thread(target=converse, args=(k,)) for k in range(conversations)]
    start = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.process_time() - start)


def measure(path: str) -> list[Figure]:
    """All figures."""
    model = Endless(path)
    short, long = prompts(64, 1), prompts(64, 3)
    size = {
        name: round(statistics.mean(len(model.model.chat.encode(p)) for p in asked))
        for name, asked in (("short", short), ("long", long))
    }
    few = short[:8]
    batch, bare = rates(lambda: model.batch(short), lambda: model.bare(short))
    single, bare_single = rates(lambda: model.singly(few), lambda: sum(model.bare([p]) for p in few))
    long_batch, long_bare = rates(lambda: model.batch(long), lambda: model.bare(long), repeats=1)
    twins, bare_twins = rates(
        lambda: model.batch(long[:1] * 64), lambda: model.bare(long[:1] * 64), repeats=1
    )
    threads = by_threads(model.model, 64, 8)
    answers = model.model.generate(short, model.sampling)
    pairs = [(a.prompt_ids, a.ids) for a in answers]
    scored = sum(len(prompt) + len(ids) for prompt, ids in pairs)
    (scoring,) = rates(lambda: len(model.model.logprobs(pairs)) and scored)
    model.model.close()
    reusing = Endless(path, 2**30)
    threads_reusing = by_threads(reusing.model, 64, 8)
    reusing.model.close()
    return [
        Figure("prompt tokens short", size["short"], "tokens"),
        Figure("prompt tokens long", size["long"], "tokens"),
        Figure("batch 64", batch, "tokens/s"),
        Figure("batch 64 over bare generate", batch / bare, "ratio", least=0.8),
        Figure("batch 64 long over bare generate", long_batch / long_bare, "ratio", least=0.8),
        Figure("batch 64 same prompt over bare generate", twins / bare_twins, "ratio", least=0.8),
        Figure("single over bare generate", single / bare_single, "ratio", least=0.8),
        Figure("batch 64 over single calls", batch / single, "ratio", least=8),
        Figure("batch 64 over bare single calls", batch / bare_single, "ratio"),
        Figure("threads 64 without reuse", threads, "tokens/s"),
        Figure("threads 64 reuse over none", threads_reusing / threads, "ratio", least=1),
        Figure("scoring", scoring, "tokens/s"),
    ]


def figures() -> Iterator[Figure]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shipped = shipped_path(SHIPPED + "tiny").is_dir()
        yield from measure(SHIPPED + "tiny" if shipped else random_model(Path(folder)))


if __name__ == "__main__":
    show("Local models", figures())
