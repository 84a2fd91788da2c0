"""Speed and memory in WebShop: `python benchmarks/webshop.py [--json]`.

Times are CPU seconds of one thread, and for searches also those of the clock (`wall`), which a busy
machine lengthens. The published shop made 29 steps/s on the machine that this was written on, and
opened in 1.0 s (1,000 products, its search engine left out). What simple policies score is told by
benchmarks/policies.py.

    --products N   the size of the synthetic catalogue (1000); a large one is first built into the cache
    --data DIR     play the official 1k catalogue instead
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from turnbench.envs import make
from turnbench.envs.webshop import WebShop

UPSTREAM_STEPS = 29.0


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def resident() -> float:
    """Resident memory in MB: (all of it, file-backed pages included)."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


# --- speed ----------------------------------------------------------------------------------------------


def at_random(env: WebShop, rng: random.Random) -> str:
    """Anything that can be clicked or, as often as one of these, a search for some of the words."""
    names = [name for name in env.available_actions()["clickables"] if name != "search"]
    pick = rng.randrange(len(names) + 1)
    words = env.instruction.split()
    return f"click[{names[pick]}]" if pick < len(names) else f"search[{' '.join(rng.sample(words, 4))}]"


def walk(env: WebShop, episodes: int) -> tuple[int, float]:
    """Random play: the number of steps, and the CPU seconds that they took."""
    rng, steps, spent = random.Random(0), 0, 0.0
    tasks = env.tasks("train")
    for seed in range(episodes):
        env.reset(seed=seed, options={"task": tasks[seed % len(tasks)]})
        while not env.over:
            action = at_random(env, rng)
            start = time.process_time()
            env.step(action)
            spent += time.process_time() - start
            steps += 1
    return steps, spent


def searches(envs: list[WebShop], count: int) -> tuple[list[float], list[float]]:
    """CPU and wall milliseconds of searches not made before: by whole instructions, and by parts."""
    spent, waited = [], []
    tasks, rng = envs[0].tasks("train"), random.Random(1)
    for k in range(count):
        env = envs[k % len(envs)]
        env.reset(seed=k, options={"task": tasks[(k * 7919) % len(tasks)]})
        words = env.instruction.split()
        query = env.instruction if k % 2 else " ".join(rng.sample(words, 4))
        start = time.perf_counter()
        spent.append(1000 * seconds(lambda env=env, query=query: env.step(f"search[{query}]")))  # type: ignore[misc]
        waited.append(1000 * (time.perf_counter() - start))
    return spent, waited


def measure(options: dict[str, Any]) -> dict[str, float]:
    before = resident()
    start = time.perf_counter()
    env = make("turnbench/WebShop-v0", **options)
    opened = time.perf_counter() - start
    assert isinstance(env, WebShop)
    envs = [env, *(env.spawn() for _ in range(63))]
    spent, waited = searches(envs, 600)
    steps, cpu = walk(env, 400)
    tasks = env.tasks("train")
    resets = seconds(lambda: [env.reset(seed=k, options={"task": tasks[k % 500]}) for k in range(1000)])
    env.reset(seed=0)
    env.step(f"search[{env.instruction}]")
    forks = seconds(lambda: [env.fork() for _ in range(10_000)])
    return {
        "open_s": opened,
        "steps_per_s": steps / cpu,
        "times_upstream": steps / cpu / UPSTREAM_STEPS,
        "reset_us": resets * 1e3,
        "fork_us": forks * 100,
        "search_ms_median": statistics.median(spent),
        "search_ms_p95": sorted(spent)[int(0.95 * len(spent))],
        "search_wall_ms_median": statistics.median(waited),
        "search_wall_ms_p95": sorted(waited)[int(0.95 * len(waited))],
        "memory_mb_64_envs": resident() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--data", help="folder of the official files")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    options: dict[str, Any] = {"products": args.products}
    if args.data:
        options = {"catalogue": "1k", "data": args.data, "verify": args.verify}
    rows = measure(options)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for name, value in rows.items():
        print(f"{name:24} {value:.3f}")


if __name__ == "__main__":
    main()
