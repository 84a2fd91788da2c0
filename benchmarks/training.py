"""Cost of a training step against the bare work in it: python benchmarks/training.py [--json].

Both sides run on one CPU thread, in turns, over the same padded tokens of the same random network: the
bare side a forward pass with logits for every token, a mean log-likelihood and a backward pass.

Where TRL is installed (pip install trl==1.16.0), its GRPOTrainer stands beside them: its own loss on the
same tokens, with all behind the first observation as the completion and its mask of what tools said, then
a backward pass, clipping and AdamW, which are what a step of ours does too. Sampling is left out of all.
"""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import Figure, show
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnbench.algorithms.advantages import Turns, multiscale
from turnbench.algorithms.batch import Batch, Episode, collate
from turnbench.algorithms.common import Common
from turnbench.algorithms.grpo import Grpo
from turnbench.algorithms.losses import joint_loss, policy_loss
from turnbench.algorithms.mpo import Mpo
from turnbench.algorithms.ppo import estimate
from turnbench.algorithms.rl import Run
from turnbench.algorithms.settings import checked
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn

VOCABULARY, TURNS, SAID, SEEN, EPISODES = 3000, 8, 16, 32, 16


def save_network(folder: Path) -> str:
    """A random checkpoint of the shipped model's size."""
    backend = Tokenizer(models.WordLevel({str(k): k for k in range(VOCABULARY)}, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="1", pad_token="2")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def episodes() -> list[Episode]:
    """Random conversations: one token in three is an action's."""
    g = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, VOCABULARY, (count,), generator=g).tolist())

    made = []
    for k in range(EPISODES):
        turns, length = [], 0
        for turn in range(TURNS):
            tokens = Tokens(length, ids(SEEN), ids(SAID), (-8.0,) * SAID)
            length += SEEN + SAID
            turns.append(Turn("", "", float(turn == TURNS - 1 and k % 2), None, tokens))
        made.append(Episode(Trajectory(Task("bench", "0"), tuple(turns), "", Outcome.OK), k // 8))
    return made


def begin(kind: type[Common], network: str, out: Path, critic: Any) -> Run:
    settings = checked(
        kind,
        {"model": network, "env": {"id": "turnbench/Toy-v0"}, "steps": 1, "piece_tokens": 10**6},
    )
    return Run(settings, out, critic, 1e-4)


def trl_step(network: str, out: Path, batch: Batch) -> Callable[[], object] | None:
    """A step of TRL's GRPO on a batch; None where TRL isn't installed."""
    if importlib.util.find_spec("trl") is None:
        return None
    from datasets import IterableDataset  # type: ignore[import-not-found]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    args = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=len(batch),
        num_generations=8,
        beta=0.0,
        learning_rate=1e-6,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        max_steps=1,
    )
    trainer = GRPOTrainer(
        model=network,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=IterableDataset.from_generator(lambda: iter([{"prompt": "5"}] * len(batch))),
    )
    trainer.create_optimizer()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    said = batch.acts[:, SEEN:].long()
    inputs = {
        "prompt_ids": batch.ids[:, :SEEN],
        "prompt_mask": torch.ones_like(batch.ids[:, :SEEN]),
        "completion_ids": batch.ids[:, SEEN:],
        "completion_mask": torch.ones_like(said),
        "tool_mask": said,
        "advantages": torch.ones(len(batch)),
        "old_per_token_logps": torch.full(said.shape, -8.0),
        "num_items_in_batch": said.sum(),
    }

    def step() -> None:
        trainer._compute_loss(trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


def seconds(sides: dict[str, Callable[[], object]], times: int) -> dict[str, list[float]]:
    """Durations of each side, in turns, after one that isn't counted."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for k in range(times + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if k:
                found[name].append(time.perf_counter() - began)
    return found


def measure(times: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        network = save_network(Path(folder) / "network")
        grpo = begin(Grpo, network, Path(folder) / "grpo", None)
        mpo = begin(Mpo, network, Path(folder) / "mpo", "shared")
        batch = collate(episodes())
        bare = LlamaForCausalLM.from_pretrained(network, dtype=torch.float32)

        def bare_step() -> None:
            logits = bare(input_ids=batch.ids, use_cache=False).logits[:, :-1]
            torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.ids[:, 1:]).backward()
            bare.zero_grad()

        sides: dict[str, Callable[[], object]] = {
            "bare": bare_step,
            "grpo": lambda: grpo_step(grpo, batch),
            "mpo": lambda: mpo_step(mpo, batch),
        }
        theirs = trl_step(network, Path(folder) / "trl", batch)
        if theirs is not None:
            sides["TRL's grpo"] = theirs
        taken = seconds(sides, times)
        for run in (grpo, mpo):
            run.sampler.close()
        credit = statistics.median(seconds({"credit": big_credit()}, times)["credit"])
    base = statistics.median(taken["bare"])
    figures = [
        Figure(f"{name} step over bare forward and backward", ratio(taken, name), "x", most=1.1)
        for name in ("grpo", "mpo")
    ]
    if theirs is not None:
        name = "TRL's GRPO step over bare forward and backward"
        figures.append(Figure(name, ratio(taken, "TRL's grpo"), "x"))
    step = base * 64 * 4096 / batch.ids.numel()
    return [
        *figures,
        Figure("bare forward and backward", batch.ids.numel() / base, "tokens/s"),
        Figure("multiscale credit of 64 x 4,096 tokens, 32 turns", 1000 * credit, "ms"),
        Figure("that, as a share of a bare step over as many tokens", 100 * credit / step, "%", most=1),
    ]


def ratio(taken: dict[str, list[float]], name: str) -> float:
    """The median of the rounds' quotients: what slows the machine down slows both sides of a round."""
    return statistics.median(a / b for a, b in zip(taken[name], taken["bare"], strict=True))


def grpo_step(run: Run, batch: Batch) -> None:
    full = batch.with_extra(credit=torch.ones_like(batch.old))
    for part in run.minibatches(full):
        run.descend(part, policy_loss(run.settings))


def mpo_step(run: Run, batch: Batch) -> None:
    """With the critic's pass over the batch before the update."""
    assert isinstance(run.settings, Mpo)
    credit, targets = estimate(run.settings, batch, run.critic_says(batch))
    full = batch.with_extra(credit=credit.float(), targets=targets.float())
    for part in run.minibatches(full):
        run.descend(part, joint_loss(policy_loss(run.settings), 0.5))


def big_credit() -> Callable[[], object]:
    index = torch.arange(32).repeat_interleave(128).expand(64, -1)
    mask = torch.arange(4096).remainder(128) >= 32
    values, rewards = torch.randn(64, 4096), torch.zeros(64, 32)
    return lambda: multiscale(Turns.of(mask.expand(64, -1), index, 32), rewards, values, torch.zeros(64))


if __name__ == "__main__":
    torch.set_num_threads(1)
    show("Training", measure(times=7))
