"""Speed of scoring logged paths, as ratios measured in one run: python benchmarks/scoring.py [--json].

Best-of-8 pools of TextCraft, played by the shipped model, are read by a policy and a reference (the same
weights: only the work counts). The plain loop does what one writes with transformers alone: one path at a
time, a forward pass with all logits, log-softmax, gather. It gets one CPU thread or all of
them, whichever is faster; ours takes its own choice. Both are timed by the clock, so the machine should be idle.
Peak memory is that of a process that does nothing else.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from figures import Figure, show

from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.hf import HfModel, load_checkpoint
from turnbench.agents.model import Sampling
from turnbench.agents.readers import LocalReader
from turnbench.agents.spans import Pair
from turnbench.envs import make
from turnbench.envs.record import Task

MODEL = "turnbench/tiny"
TASKS = 8


def played(tasks: int) -> list[list[Pair]]:
    """The paths of pools of eight, as token ids."""
    env, model = make("turnbench/TextCraft-v0"), HfModel(MODEL, sampling=Sampling(max_tokens=48))
    agent = BestOfN(model, n=8, scorer="random", instructions=False)
    ids = env.tasks("test")[:: len(env.tasks("test")) // tasks][:tasks]
    pools = [
        agent.solve(env, Task("turnbench/TextCraft-v0", task), np.random.default_rng(k))
        for k, task in enumerate(ids)
    ]
    model.close()
    return [path.sequences() for pool in pools for path in pool.trajectories if path.turns]


@torch.inference_mode()
def plain(network: torch.nn.Module, paths: list[list[Pair]]) -> list[list[float]]:
    """One path at a time, as every turn starts with the one before it."""
    found = []
    for pairs in paths:
        prompt, ids = pairs[-1]
        whole = torch.tensor([[*prompt, *ids]])
        logprobs = network(input_ids=whole).logits[0].log_softmax(-1)
        said = logprobs[:-1].gather(1, whole[0, 1:, None])[:, 0].tolist()
        found.append([x for p, a in pairs for x in said[len(p) - 1 : len(p) - 1 + len(a)]])
    return found


def ours(reader: LocalReader, paths: list[list[Pair]]) -> list[list[float]]:
    rows = iter(reader.measure([pair for pairs in paths for pair in pairs]))
    return [[x for _ in pairs for x in next(rows)["logprob"]] for pairs in paths]


def seconds(works: dict[str, object], repeats: int = 3) -> dict[str, float]:
    """The best of some runs of each, taken in turns, after one to warm up."""
    best: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()  # type: ignore[operator]
            took = time.perf_counter() - start
            if repeat:
                best[name] = min(best.get(name, took), took)
    return best


def peak(side: str, file: Path) -> float:
    """MiB at most of a process that reads the paths with one model."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", side, str(file)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def alone(side: str, file: Path) -> None:
    torch.set_num_threads(1)
    paths = json.loads(file.read_text(encoding="utf-8"))
    paths = [[(tuple(p), tuple(a)) for p, a in pairs] for pairs in paths]
    if side == "plain":
        plain(load_checkpoint(MODEL, "cpu")[1], paths)
    elif side == "ours":
        ours(LocalReader(MODEL, device="cpu"), paths)
    else:
        load_checkpoint(MODEL, "cpu")
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # rusage has the parent's peak in it
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def on_threads(count: int, work: Callable[..., object], *arguments: object) -> None:
    """Do something with so many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    work(*arguments)
    torch.set_num_threads(before)


def measure(tasks: int) -> list[Figure]:
    paths = played(tasks)
    _, network = load_checkpoint(MODEL, "cpu")
    reader = LocalReader.of(network, None, MODEL)
    apart = max(
        abs(a - b)
        for one, two in zip(plain(network, paths), ours(reader, paths), strict=True)
        for a, b in zip(one, two, strict=True)
    )
    threads = torch.get_num_threads()
    took = seconds(
        {
            "plain on one thread": lambda: [on_threads(1, plain, network, paths) for _ in range(2)],
            "plain": lambda: [on_threads(threads, plain, network, paths) for _ in range(2)],
            "ours": lambda: [ours(reader, paths) for _ in range(2)],
        }
    )
    took["plain"] = min(took["plain"], took["plain on one thread"])
    reader.close()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paths.json"
        file.write_text(json.dumps(paths), encoding="utf-8")
        memory = {side: peak(side, file) for side in ("none", "plain", "ours")}
    tokens = sum(len(pairs[-1][0]) + len(pairs[-1][1]) for pairs in paths)
    return [
        Figure("paths", len(paths), "", None, None),
        Figure("tokens_a_path", tokens / len(paths), "tokens"),
        Figure("largest_difference_of_log_probs", apart, "nats", most=1e-3),
        Figure("plain_loop", len(paths) / took["plain"], "paths/s"),
        Figure("scoring", len(paths) / took["ours"], "paths/s"),
        Figure("scoring_over_plain_loop", took["plain"] / took["ours"], "ratio", least=2.0),
        Figure("peak_memory_model_loaded", memory["none"], "MiB"),
        Figure("peak_memory_plain_loop", memory["plain"], "MiB"),
        Figure("peak_memory_scoring", memory["ours"], "MiB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks, with a pool of eight each")
    parser.add_argument("--peak", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        alone(options.peak[0], Path(options.peak[1]))
        return
    show("scoring of logged paths by two models", measure(options.tasks))


if __name__ == "__main__":
    main()
