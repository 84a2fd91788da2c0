"""Speed of scoring logged paths, as ratios measured in one run: python benchmarks/scoring.py [--json]
    [--model FOLDER] [--worlds textcraft toolworld] [--tasks N].

Pools of eight attempts are read by a policy and a reference (the same weights, the shipped model's or those of
--model: only the work counts): TextCraft as the shipped model plays it, whose prompts are short, and ToolWorld
as a planner plays it that errs at every third turn, whose prompts describe the tools. The plain loop does what
one writes with transformers alone: one path at a time, a forward pass with all logits, log-softmax, gather. It
gets one CPU thread or all of them, whichever is faster; ours takes its own choice. Of one's own runs the log
holds what the policy said, so that only the reference reads; the plain loop has no log. All are timed by the
clock, so the machine should be idle. Peak memory is that of a process that does nothing else.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from figures import Figure, report

from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.hf import HfModel, load_checkpoint
from turnbench.agents.model import Sampling
from turnbench.agents.readers import LocalReader, scribe_of
from turnbench.agents.spans import Pair
from turnbench.agents.transcripts import conversation
from turnbench.envs import make
from turnbench.envs.record import Task, Trajectory
from turnbench.envs.toolworld_plan import demonstrate

MODEL = "turnbench/tiny"
TASKS = 8
N = 8
Ids = list[list[Pair]]
"""Of a pool: its paths, and of each the turns."""


def textcraft(tasks: int) -> Iterator[list[Trajectory]]:
    """Pools at so many test tasks, evenly spread, as they go from easy to hard."""
    env = make("turnbench/TextCraft-v0")
    known = env.tasks("test")
    with closing(HfModel(MODEL, sampling=Sampling(max_tokens=48))) as model:
        agent = BestOfN(model, n=N, scorer="random", instructions=False)
        for k, task in enumerate(known[:: max(1, len(known) // tasks)]):
            rng = np.random.default_rng(k)
            yield [*agent.solve(env, Task("turnbench/TextCraft-v0", task), rng).trajectories]


def toolworld(tasks: int) -> Iterator[list[Trajectory]]:
    """Pools at all test tasks, as not every one may fit a model's context."""
    options = {"variant": "base", "level": 1, "distractors": 3, "tools_in_observation": True}
    env = make("turnbench/ToolWorld-v0", **options)
    for k, task in enumerate(env.tasks("test")):
        rngs = [np.random.default_rng([k, attempt]) for attempt in range(N)]
        yield [demonstrate(env, Task("turnbench/ToolWorld-v0", task), rng, 1 / 3) for rng in rngs]


WORLDS = {"textcraft": textcraft, "toolworld": toolworld}


def written(pools: Iterator[list[Trajectory]], reader: LocalReader, tasks: int) -> list[Ids]:
    """The first pools that the reader's context holds, as token ids."""
    scribe, found = scribe_of(reader, "chat"), list[Ids]()
    for pool in pools:
        ids = [scribe.pairs(conversation(path)) for path in pool if path.turns]
        if all(len(whole(pairs)) <= (reader.context or math.inf) for pairs in ids):
            found.append(ids)
        if len(found) == tasks:
            break
    return found


def whole(pairs: list[Pair]) -> tuple[int, ...]:
    """The ids of a path, as every turn starts with the one before it."""
    prompt, ids = pairs[-1]
    return (*prompt, *ids)


@torch.inference_mode()
def plain(network: torch.nn.Module, paths: list[list[Pair]]) -> list[list[float]]:
    """One path at a time."""
    found = []
    for pairs in paths:
        ids = torch.tensor([whole(pairs)])
        logprobs = network(input_ids=ids).logits[0].log_softmax(-1)
        said = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        found.append([x for p, a in pairs for x in said[len(p) - 1 : len(p) - 1 + len(a)]])
    return found


def ours(reader: LocalReader, paths: list[list[Pair]]) -> list[list[float]]:
    rows = iter(reader.measure([pair for pairs in paths for pair in pairs]))
    return [[x for _ in pairs for x in next(rows)["logprob"]] for pairs in paths]


def seconds(works: dict[str, object], repeats: int) -> dict[str, float]:
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


def peak(side: str, model: str, file: Path) -> float:
    """MiB at most of a process that reads the paths with one model."""
    command = [sys.executable, __file__, "--model", model, "--peak", side, str(file)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def alone(side: str, model: str, file: Path) -> None:
    torch.set_num_threads(1)
    paths = json.loads(file.read_text(encoding="utf-8"))
    paths = [[(tuple(p), tuple(a)) for p, a in pairs] for pairs in paths]
    if side == "plain":
        plain(load_checkpoint(model, "cpu")[1], paths)
    elif side == "ours":
        ours(LocalReader(model, device="cpu"), paths)
    else:
        load_checkpoint(model, "cpu")
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # rusage has the parent's peak in it
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def on_threads(count: int, work: Callable[..., object], *arguments: object) -> None:
    """Do something with so many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    work(*arguments)
    torch.set_num_threads(before)


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    tokenizer, network = load_checkpoint(options.model, "cpu")
    reader = LocalReader.of(network, tokenizer, options.model)
    for world in options.worlds:
        pools = written(WORLDS[world](options.tasks), reader, options.tasks)
        for figure in figures(pools, network, reader, options):
            yield figure._replace(name=f"{world}_{figure.name}")
    reader.close()


def figures(
    pools: list[Ids], network: torch.nn.Module, reader: LocalReader, options: argparse.Namespace
) -> Iterator[Figure]:
    paths = [pairs for pool in pools for pairs in pool]
    tokens = sum(len(whole(pairs)) for pairs in paths)
    alike = sum(
        len(os.path.commonprefix([whole(pairs) for pairs in pool])) * len(pool) for pool in pools
    )
    yield Figure("paths", len(paths), "")
    yield Figure("tokens_a_path", tokens / len(paths), "tokens")
    yield Figure("tokens_that_a_pool_begins_with", alike / tokens, "of all")
    yield Figure("tokens_that_differ", len(beginnings(paths)) / tokens, "of all")
    apart = max(
        abs(a - b)
        for one, two in zip(plain(network, paths), ours(reader, paths), strict=True)
        for a, b in zip(one, two, strict=True)
    )
    yield Figure("largest_difference_of_log_probs", apart, "nats", most=1e-3)
    threads = torch.get_num_threads()
    took = seconds(
        {
            "plain on one thread": lambda: [on_threads(1, plain, network, paths) for _ in range(2)],
            "plain": lambda: [on_threads(threads, plain, network, paths) for _ in range(2)],
            "ours": lambda: [ours(reader, paths) for _ in range(2)],
            "own runs": lambda: ours(reader, paths),
        },
        options.repeats,
    )
    took["plain"] = min(took["plain"], took["plain on one thread"])
    yield Figure("plain_loop", len(paths) / took["plain"], "paths/s")
    yield Figure("scoring", len(paths) / took["ours"], "paths/s")
    yield Figure("scoring_own_runs", len(paths) / took["own runs"], "paths/s")
    yield Figure("scoring_over_plain_loop", took["plain"] / took["ours"], "ratio", least=2.0)
    yield Figure(
        "scoring_own_runs_over_plain_loop", took["plain"] / took["own runs"], "ratio", least=2.0
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paths.json"
        file.write_text(json.dumps(paths), encoding="utf-8")
        for side, name in (("none", "model_loaded"), ("plain", "plain_loop"), ("ours", "scoring")):
            yield Figure(f"peak_memory_{name}", peak(side, options.model, file), "MiB")


def beginnings(paths: Ids) -> set[int]:
    """One number for each different beginning of the paths: what has to be computed at least."""
    found = set()
    for pairs in paths:
        running = 0
        for token in whole(pairs):
            running = hash((running, token))
            found.add(running)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks, with a pool of eight each")
    parser.add_argument("--model", default=MODEL, help="folder of the checkpoint that reads")
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--repeats", type=int, default=3, help="timings, of which the best counts")
    parser.add_argument("--peak", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        alone(options.peak[0], options.model, Path(options.peak[1]))
        return
    report("scoring of logged paths by two models", measure(options), options.json)


if __name__ == "__main__":
    main()
