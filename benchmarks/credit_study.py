"""Study of credit: PPO, the steps from it to MPO, and GRPO's kin, at equal environment steps.

python benchmarks/credit_study.py run --out runs/credit      trains everything that isn't done yet
python benchmarks/credit_study.py show --out runs/credit     writes docs/mpo_network_study.json and the tables

The world of most settings is in credit_world.py: four doors, eight turns, a reward only at the end. The start
is a language model of 0.05 M parameters that speaks as a demonstrator with two keys in three right, and so
opens all four doors one time in five. Every run plays 32 episodes a step, and is measured on others. The
setting "textcraft" goes on with the shipped model, in the tasks of depth 1 and 2 that it was trained on, and
is measured on those that it wasn't.

The order of `run` is by setting, within a setting by seed, and within a seed by method, so that whenever it
is stopped the methods have been given as many seeds (but for one). The settings, in their order: the main one
(8 words of filler, 4 epochs), then 2 and 24 words, then 1, 2 and 3 epochs, then TextCraft. Run again, it goes
on where it stood, also within a run. Two processes may share the work by --settings or --methods. A run of the
main setting takes about 30 CPU s with a critic and 20 without, on one thread; one of TextCraft 100 and 75.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turnbench.algorithms import trainer

sys.path.insert(0, str(Path(__file__).parent))
import credit_world as world  # noqa: E402

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {}),
    "ppo, turn GAE": ("ppo", {"advantage": "turn"}),
    "mpo, token ratio": ("mpo", {"ratio": "token"}),
    "mpo": ("mpo", {}),
    "mpo, beta 0 (turn ppo)": ("mpo", {"beta": 0.0}),
    "mpo, beta 0.25": ("mpo", {"beta": 0.25}),
    "mpo, beta 1": ("mpo", {"beta": 1.0}),
    "grpo": ("grpo", {}),
    "gspo": ("gspo", {"clip_low": 0.05, "clip_high": 0.05}),
    "sao": ("sao", {}),
    "start": ("grpo", {"steps": 1, "lr": 1e-12}),  # what all begin with, measured as they are
}
CLAIMS = [  # each step of the way from PPO to MPO, then MPO against the others
    ("ppo, turn GAE", "ppo"),
    ("mpo, token ratio", "ppo, turn GAE"),
    ("mpo", "mpo, token ratio"),
    *[("mpo", other) for other in METHODS if other not in ("mpo", "mpo, token ratio", "ppo, turn GAE")],
]
CRITICS = {"critic": "own", "critic_lr": 2e-3, "critic_warmup": 3, "critic_steps": 2}
COMMON: dict[str, Any] = {
    "steps": 20,
    "tasks": 4,
    "group": 8,
    "lr": 2e-4,
    "save_every": 5,
    "evaluation": {"every": 5, "episodes": 64, "attempts": 8, "final": 256},
}
TEXTCRAFT: dict[str, Any] = {
    "model": "turnbench/tiny",
    "env": {
        "id": "turnbench/TextCraft-v0",
        "split": "train-policy",
        "options": {"max_depth": 2, "max_turns": 10},
    },
    "play": {"instructions": False, "max_tokens": 24},
    "steps": 15,
    "group": 6,
    "lr": 5e-4,
    "critic_lr": 1e-3,
    "critic_warmup": 2,
    "critic_steps": 1,
    "bootstrap": False,  # running out of turns is failure
    "minibatches": 2,  # so that half of the updates are off-policy
    "evaluation": {"split": "train-value", "every": 15, "episodes": 64, "attempts": 4, "final": 128},
}
DOORS, RIGHT = 4, 0.67


def start_model(folder: Path, filler: int) -> Path:
    """A model that speaks as the demonstrator does, by supervised learning."""
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
        max_position_embeddings=1024,
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
    for _ in range(500):
        told = [chat(world.demonstrate(rng, DOORS, filler, RIGHT)) for _ in range(16)]
        ids = [torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in told]
        batch = torch.nn.utils.rnn.pad_sequence(ids, True, 0)
        logits = model(input_ids=batch).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def doors(out: Path, filler: int, epochs: int) -> dict[str, Any]:
    """What the methods share in the world of doors. With one epoch all ratios are 1."""
    world = {"id": "Doors-v0", "options": {"doors": DOORS}}
    play = {"instructions": False, "max_tokens": 6 + 2 * filler}
    model = str(start_model(out / f"start {filler}", filler).resolve())
    return COMMON | {"model": model, "env": world, "play": play, "epochs": epochs}


def textcraft(out: Path) -> dict[str, Any]:
    """What they share in TextCraft."""
    return COMMON | TEXTCRAFT


SETTINGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{
        f"filler {filler}, epochs {epochs}": partial(doors, filler=filler, epochs=epochs)
        for filler, epochs in [(8, 4), (2, 4), (24, 4), (8, 1), (8, 2), (8, 3)]
    },
    "textcraft": textcraft,
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["door", "open", "stuck", "end", "take", "walk", *world.COLOURS, *world.KEYS, *world.MANNERS]
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


def run(out: Path, settings: list[str], seeds: int, methods: list[str], minutes: float) -> None:
    began = time.monotonic()
    for setting in settings:
        for seed in range(seeds):
            for method in methods:
                if time.monotonic() - began > 60 * minutes:
                    print("time is up; the same command goes on")
                    return
                one(out, setting, method, seed)


def one(out: Path, setting: str, method: str, seed: int) -> None:
    folder = out / setting / method / str(seed)
    config = config_of(out, setting, method, seed)
    if rows_of(folder, "last_reward"):
        if not holds(json.loads((folder / "config.json").read_text("utf-8")), config):
            raise SystemExit(f"{folder} was run with other settings: remove it, or name another --out")
        return
    began = time.process_time()
    trainer(METHODS[method][0])(config, folder)
    print(f"{setting}; {method}; seed {seed}: {time.process_time() - began:.0f} CPU s", flush=True)


def config_of(out: Path, setting: str, method: str, seed: int) -> dict[str, Any]:
    """The trainer's config of a run."""
    algorithm, keys = METHODS[method]
    config = SETTINGS[setting](out)
    if algorithm in ("ppo", "mpo", "sao"):
        config = CRITICS | config
    else:
        config = {key: value for key, value in config.items() if key not in (*CRITICS, "bootstrap")}
    if algorithm == "sao":  # one attempt a task: as many episodes, from more tasks
        config |= {"tasks": config["tasks"] * config["group"], "group": 1}
    return config | keys | {"seed": seed}


def holds(theirs: Any, mine: Any) -> bool:
    """Whether a run's recorded config says all that `mine` does; it has the defaults besides."""
    if isinstance(mine, dict):
        return isinstance(theirs, dict) and all(holds(theirs.get(key), mine[key]) for key in mine)
    return bool(theirs == mine)


def rows_of(folder: Path, name: str) -> list[dict[str, float]]:
    """The rows of a run that have a number of this name."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if name in row]


Found = dict[str, dict[str, dict[str, dict[str, Any]]]]


def collect(out: Path) -> Found:
    """Setting, method, seed -> the curves and last measurements of each run that is done."""
    found: Found = {}
    for setting in SETTINGS:
        for method in METHODS:
            for folder in sorted((out / setting / method).glob("*"), key=lambda p: int(p.name)):
                if final := rows_of(folder, "last_reward"):
                    cell = found.setdefault(setting, {}).setdefault(method, {})
                    cell[folder.name] = summary(folder, final[-1])
    return found


def summary(folder: Path, final: dict[str, float]) -> dict[str, Any]:
    steps, measured = rows_of(folder, "reward"), rows_of(folder, "held_out_success")
    told: dict[str, Any] = {
        name: [round(row[name], 4) for row in steps if name in row]
        for name in ("reward", "env_steps", "clip_fraction", "kl_old", "explained_variance", "eta2")
    }
    told["held_out"] = [round(row["held_out_success"], 4) for row in measured]
    return told | {k: round(v, 4) for k, v in final.items() if k.startswith(("last_", "best_"))}


COLUMNS = {
    "mean over steps": lambda run: float(np.mean(run["reward"])),
    "last": lambda run: run["last_success"],
    "best": lambda run: run["best_success"],
    "last pass@2": lambda run: run["last_pass@2"],
    "best pass@2": lambda run: run["best_pass@2"],
}


def show(out: Path, to: Path, svg: Path | None) -> None:
    """A picture of the curves, tables of means over seeds with 95 % intervals by Student's t, and of the
    claims, paired by seed. Runs that `out` doesn't hold are kept as the file has them."""
    found: Found = json.loads(to.read_text("utf-8"))["results"] if to.exists() else {}
    for setting, cells in collect(out).items():
        for method, runs in cells.items():
            found.setdefault(setting, {}).setdefault(method, {}).update(runs)
    told = {"common": COMMON, "critics": CRITICS, "textcraft": TEXTCRAFT, "methods": METHODS}
    to.write_text(json.dumps(told | {"results": found}, separators=(",", ":")), "utf-8")
    if svg is not None:
        picture(found, svg)
    for setting, cells in found.items():
        print(
            f"\n| {setting} | {' | '.join(COLUMNS)} | clipped | seeds |\n|{'---|' * (len(COLUMNS) + 3)}"
        )
        for method, runs in cells.items():
            numbers = [interval([of(r) for r in runs.values()]) for of in COLUMNS.values()]
            clipped = np.mean([np.mean(r["clip_fraction"]) for r in runs.values()])
            print(f"| {method} | {' | '.join(numbers)} | {clipped:.3f} | {len(runs)} |")
        print(
            f"\n| {setting}: difference | {' | '.join(COLUMNS)} | seeds |\n|{'---|' * (len(COLUMNS) + 2)}"
        )
        for one, two in CLAIMS:
            both = sorted(cells.get(one, {}).keys() & cells.get(two, {}).keys())
            if len(both) > 1:
                numbers = [
                    interval([of(cells[one][s]) - of(cells[two][s]) for s in both], sign="+")
                    for of in COLUMNS.values()
                ]
                print(f"| {one} - {two} | {' | '.join(numbers)} | {len(both)} |")


DRAWN = ("ppo", "ppo, turn GAE", "mpo", "grpo", "gspo", "sao")
PANELS = {
    "filler 2, epochs 4": "doors, 2 words of filler",
    "filler 8, epochs 4": "doors, 8 words",
    "filler 24, epochs 4": "doors, 24 words",
    "textcraft": "TextCraft",
}


def picture(found: Found, path: Path) -> None:
    """Success of each step's episodes, mean over seeds, with 95 % intervals as bands but in TextCraft, where
    seeds differ in their tasks by more than methods do."""
    from pictures import Curve, draw

    panels = {}
    for setting, title in PANELS.items():
        panels[title] = {}
        for method in DRAWN:
            runs = np.array([run["reward"] for run in found.get(setting, {}).get(method, {}).values()])
            if len(runs) > 1:
                spread = () if setting == "textcraft" else half_width(runs)
                panels[title][method] = Curve(range(1, runs.shape[1] + 1), runs.mean(0), spread)
    title = "Success in training by method"
    draw(path, title, panels, "step", "success in training", ylim=(0, 1))


def interval(numbers: list[float], sign: str = "") -> str:
    count = len(numbers)
    if count < 2:
        return f"{np.mean(numbers):{sign}.3f}"
    return f"{np.mean(numbers):{sign}.3f} ± {half_width(np.array(numbers)):.3f}"


def half_width(samples: np.ndarray) -> np.ndarray:
    """Half of a 95 % interval of the mean over the first axis (Student's t)."""
    count = len(samples)
    return stats.t.ppf(0.975, count - 1) * samples.std(0, ddof=1) / count**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--to", type=Path, default=Path("docs/mpo_network_study.json"))
    parser.add_argument(
        "--svg", type=Path, help="where to draw the curves, as docs/mpo_network_study.svg"
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "run":
        run(options.out, options.settings, options.seeds, options.methods, options.minutes)
    else:
        show(options.out, options.to, options.svg)


if __name__ == "__main__":
    main()
