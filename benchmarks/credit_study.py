"""Study of credit: PPO, the steps from it to MPO, and GRPO's kin, at equal environment steps.

python benchmarks/credit_study.py run --out runs/credit      trains everything that isn't done yet
python benchmarks/credit_study.py show --out runs/credit     writes docs/mpo_network_study.json and the table

A run that is interrupted goes on where it stood. The world is in credit_world.py; the start is a
model of 0.05 M parameters that has learned to speak from a demonstrator with three keys in five
right, and so opens all three doors one time in five.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnbench.algorithms import trainer

sys.path.insert(0, str(Path(__file__).parent))
import credit_world as world  # noqa: E402

OFF_POLICY = {"epochs": 2, "minibatches": 2}
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "ppo": ("ppo", {}),
    "ppo + turn GAE": ("ppo", {"advantage": "turn"}),
    "ppo + turn GAE + residual": ("ppo", {"advantage": "multiscale", "lam_token": 0.9}),
    "mpo (+ turn ratio)": ("mpo", {}),
    "mpo, beta 0 (turn ppo)": ("mpo", {"beta": 0.0}),
    "mpo, beta 1": ("mpo", {"beta": 1.0}),
    "grpo": ("grpo", {}),
    "gspo": ("gspo", {"clip_low": 0.05, "clip_high": 0.05}),
    "sao": ("sao", {}),
}
CRITICS = {"critic": "own", "critic_lr": 2e-3, "critic_warmup": 1, "critic_steps": 2}
COMMON = {"steps": 30, "tasks": 8, "group": 8, "lr": 1e-3, "save_every": 10, "piece_tokens": 16_384}
DOORS = 3


def start_model(folder: Path, filler: int) -> Path:
    """A model that speaks as the demonstrator does, from 1,000 steps of supervised learning."""
    if (folder / "config.json").exists():
        return folder
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.15,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        told = [chat(world.demonstrate(rng, DOORS, filler)) for _ in range(16)]
        ids = [torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in told]
        batch = torch.nn.utils.rnn.pad_sequence(ids, True, 0)
        logits = model(input_ids=batch).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["door", "corridor", "end", "take", "walk", *world.COLOURS, *world.KEYS, *world.MANNERS]
    special = ["<pad>", "<eos>", "<user>", "<assistant>", "<unk>"]
    vocabulary = {word: k for k, word in enumerate([*special, *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}<user> {{ m.content }} {% else %}"
        "<assistant> {{ m.content }}<eos> {% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    return tokenizer


def chat(talk: list[tuple[str, str]]) -> str:
    return " ".join(f"<user> {seen} <assistant> {said}<eos>" for seen, said in talk)


def run(out: Path, fillers: list[int], seeds: int, methods: list[str], minutes: float) -> None:
    """Seeds outermost, so that whenever time is up all methods have as many."""
    began = time.monotonic()
    for seed in range(seeds):
        for filler in fillers:
            for name in methods:
                if time.monotonic() - began > 60 * minutes:
                    print("time is up; the same command goes on")
                    return
                one(out, filler, name, seed)


def one(out: Path, filler: int, name: str, seed: int) -> None:
    folder = out / f"filler{filler}" / name.replace(" ", "_") / str(seed)
    if (folder / "model").exists():
        return
    algorithm, keys = METHODS[name]
    critic = CRITICS if algorithm in ("ppo", "mpo", "sao") else {}
    if algorithm == "sao":  # one attempt a task: as many episodes, from more tasks
        keys = keys | {"tasks": 64, "group": 1}
    config = COMMON | OFF_POLICY | critic | keys
    config["model"] = str(start_model(out / f"start{filler}", filler))
    config["env"] = {"id": "Doors-v0", "options": {"doors": DOORS, "filler": filler}}
    config["play"] = {"instructions": False, "max_tokens": 6 + 2 * filler}
    config["seed"] = seed
    trainer(algorithm)(config, folder)


def show(out: Path, to: Path) -> None:
    """The mean success over the last five steps and over all, with the spread over seeds."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for metrics in sorted(out.glob("filler*/*/*/metrics.jsonl")):
        if not (metrics.parent / "model").exists():
            continue
        filler, method, seed = metrics.parts[-4:-1]
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        cell = found.setdefault(filler, {}).setdefault(method.replace("_", " "), {"curves": {}})
        cell["curves"][seed] = [round(row["reward"], 4) for row in rows]  # type: ignore[index]
        for key in ("eta2", "eta2_above_half", "explained_variance", "clip_fraction"):
            if key in rows[-1]:
                cell.setdefault(key, {})[seed] = round(rows[-1][key], 4)  # type: ignore[attr-defined]
    to.write_text(
        json.dumps({"common": COMMON | OFF_POLICY, "results": found}, indent=1), encoding="utf-8"
    )
    for filler, cells in found.items():
        print(f"\n| {filler} | last 5 steps | all steps | seeds |\n|---|---|---|---|")
        for method in METHODS:
            if method in cells:
                curves = np.array(list(cells[method]["curves"].values()))  # type: ignore[attr-defined]
                print(f"| {method} | {told(curves[:, -5:])} | {told(curves)} | {len(curves)} |")


def told(curves: np.ndarray) -> str:
    means = curves.mean(1)
    spread = f" +- {means.std(ddof=1) / len(means) ** 0.5:.3f}" if len(means) > 1 else ""
    return f"{means.mean():.3f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--to", type=Path, default=Path("docs/mpo_network_study.json"))
    parser.add_argument("--fillers", type=int, nargs="+", default=[0, 24])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--minutes", type=float, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "run":
        run(options.out, options.fillers, options.seeds, options.methods, options.minutes)
    else:
        show(options.out, options.to)


if __name__ == "__main__":
    main()
