"""What the harness itself costs: `python benchmarks/overhead.py [--json]`, about a minute.

A counter world of 10 turns with observations of 200 characters, and a model that answers at once or
after 50 ms. Goals are those of the project; ratios are of one run on one machine.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
from figures import Figure, show

from turnbench.agents.model import Completion, Prompt, Sampling
from turnbench.envs.record import Usage
from turnbench.leaderboards.entry import entries_of
from turnbench.leaderboards.log import NAME
from turnbench.leaderboards.runner import header_of, keys_of, run
from turnbench.leaderboards.suite import Suite

TURNS = 10
TEXT = "You see a counter. " * 11  # 209 characters with the number


class Counter(gymnasium.Env[str, str]):
    """Counts its turns; pays 1 at the end."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return f"{TEXT[:197]}{self.count:3}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count == TURNS
        return f"{TEXT[:197]}{self.count:3}", float(over), over, False, {}


if __name__ != "__main__":  # the suite names this module, which is then imported a second time
    gymnasium.register("Counter-v0", Counter)


class Instant:
    """Answers "count on" after `latency` seconds."""

    def __init__(self, *, name: str, sampling: Sampling, latency: float = 0.0) -> None:
        self.name, self.sampling, self.latency = name, sampling, latency

    def generate(self, prompts: list[Prompt], sampling: Sampling | None = None) -> list[Completion]:
        if self.latency:
            time.sleep(self.latency)
        return [Completion("count on", usage=Usage(1, 50, 0, 2)) for _ in prompts]

    def close(self) -> None:
        pass


def suite(episodes: int, latency: float = 0.0, agents: int = 1) -> Suite:
    """A suite of that many episodes of the counter world."""
    per_seed = min(episodes // agents, 1000)
    model = {"backend": "overhead:Instant", "latency": latency}
    return Suite.model_validate(
        {
            "suite": "overhead",
            "seeds": list(range(episodes // agents // per_seed)),
            "envs": [{"id": "overhead:Counter-v0", "tasks": per_seed}],
            "models": {"instant": model},
            "agents": {f"react{k}": {"agent": "react", "model": "instant"} for k in range(agents)},
        }
    )


def cpu(work: Callable[[], Any]) -> float:
    """Seconds of CPU, of all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def wall(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rss() -> float:
    """Resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def bare(episodes: int, path: Path) -> None:
    """The least that anybody would write: the loop, and a JSON line an episode."""
    env, model = Counter(), Instant(name="", sampling=Sampling())
    with path.open("w", encoding="utf-8") as file:
        for seed in range(episodes):
            observation, _ = env.reset(seed=seed)
            turns, over = [], False
            while not over:
                prompt = Prompt(())
                action = model.generate([prompt])[0].text
                seen, reward, over, _, _ = env.step(action)
                turns.append({"obs": observation, "act": action, "rew": reward})
                observation = seen
            file.write(json.dumps({"seed": seed, "turns": turns}) + "\n")
            file.flush()


def costs(folder: Path) -> Iterator[Figure]:
    run(suite(100), folder / "warm", workers=16)
    least = min(cpu(lambda: bare(1000, folder / "bare.jsonl")) for _ in range(3))
    ours = min(cpu(lambda k=k: run(suite(1000), folder / f"cpu{k}", workers=16)) for k in range(3))
    alone = min(cpu(lambda k=k: run(suite(1000), folder / f"one{k}", workers=1)) for k in range(3))
    yield Figure("CPU an episode, 16 workers", ours, "ms", most=1.0)
    yield Figure("CPU an episode, 1 worker", alone, "ms", most=1.0)
    yield Figure("CPU an episode, bare loop with JSONL", least, "ms")
    yield Figure("ours / bare loop", ours / least, "times")


def latency(folder: Path) -> Iterator[Figure]:
    episodes, workers, wait = 64 * 8, 64, 0.05
    calls = episodes * TURNS // workers
    ideal = calls * wait

    def bare_threads() -> None:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda _: [time.sleep(wait) for _ in range(calls)], range(workers)))

    taken = wall(lambda: run(suite(episodes, wait), folder / "latency", workers=workers))
    yield Figure("ideal wall time / ours, 64 in flight, 50 ms a call", ideal / taken, "", least=0.95)
    yield Figure("ideal wall time / that of 64 bare threads", ideal / wall(bare_threads), "")


def memory(folder: Path) -> Iterator[Figure]:
    before = rss()
    run(suite(1000), folder / "memory1", workers=16)
    first = rss()
    run(suite(10_000), folder / "memory10", workers=16)
    yield Figure("memory, growth over 1,000 episodes", first - before, "MB", most=10)
    yield Figure("memory, growth over the next 10,000", rss() - first, "MB", most=10)


def resumption(folder: Path) -> Iterator[Figure]:
    """A log of 100,000 episodes, made from one line and other keys, lacks its last episode."""
    whole, out = suite(100_000), folder / "resume"
    header = header_of(whole)
    line = (folder / "warm" / NAME).read_bytes().splitlines(keepends=True)[1]
    tail = line[line.index(b', "outcome"') :]
    out.mkdir()
    with (out / NAME).open("wb") as file:
        file.write(json.dumps({"turnbench_log": 1, **header}).encode() + b"\n")
        for key in keys_of(whole, header["worlds"])[:-1]:
            file.write(b'{"key": ' + json.dumps(key).encode() + tail)
    yield Figure("log of 100,000 episodes", (out / NAME).stat().st_size / 1e6, "MB")
    yield Figure("read its lines alone", wall(lambda: sum(1 for _ in (out / NAME).open("rb"))), "s")
    yield Figure("resume it and play the last", wall(lambda: run(whole, out)), "s", most=2.0)
    before = rss()
    yield Figure("its board", wall(lambda: entries_of(out)), "s")
    yield Figure("memory, growth over its board", rss() - before, "MB")


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        for part in (costs, latency, memory, resumption):
            yield from part(Path(folder))


if __name__ == "__main__":
    show("The harness' own cost", measure())
