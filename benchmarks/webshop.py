"""Speed, memory and simple policies' scores in WebShop: `python benchmarks/webshop.py [--json]`.

Times are CPU seconds of one thread. The published shop made 29 steps/s on the machine that this was
written on, and opened in 1.0 s (1,000 products, its search engine left out).

    --products N   the size of the synthetic catalogue (1000); a large one is first built into the cache
    --data DIR     play the official 1k catalogue instead
    --scores       the mean reward of oracle, first-action and random policies
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
Policy = Callable[[WebShop, random.Random], str]


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def resident() -> float:
    """Resident memory in MB: (all of it, file-backed pages included)."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


# --- policies -------------------------------------------------------------------------------------------


def oracle(env: WebShop, rng: random.Random) -> str:
    """Find the goal's product by its title, choose what the goal names, buy."""
    goal, page = env.goal, env.page
    assert goal is not None
    asin = f"click[{goal.product.asin.lower()}]"
    if page.product is None:
        return asin if goal.product in page.shown else f"search[{goal.product.title}]"
    chosen = dict(page.options).values()
    wanted = [value if isinstance(value, str) else value[1] for value in goal.options]
    return next((f"click[{value}]" for value in wanted if value not in chosen), "click[buy now]")


def first_action(env: WebShop, rng: random.Random) -> str:
    """Search for the instruction, take the first result, buy it as it is."""
    if env.page.place == "search":
        return f"search[{env.instruction}]"
    if env.page.product is None and env.page.shown:
        return f"click[{env.page.shown[0].asin}]"
    return "click[buy now]"


def at_random(env: WebShop, rng: random.Random) -> str:
    """Anything that can be clicked or, as often as one of these, a search for some of the words."""
    names = [name for name in env.available_actions()["clickables"] if name != "search"]
    pick = rng.randrange(len(names) + 1)
    words = env.instruction.split()
    return f"click[{names[pick]}]" if pick < len(names) else f"search[{' '.join(rng.sample(words, 4))}]"


def score(policy: Policy, split: str, **options: Any) -> dict[str, float]:
    env, paid, solved = make("turnbench/WebShop-v0", **options), [], 0
    for task in env.tasks(split):
        rng = random.Random(int(task))
        env.reset(seed=0, options={"task": task})
        reward = 0.0
        while not env.over:
            _, reward, _, _, info = env.step(policy(env, rng))
            solved += bool(info.get("success"))
        paid.append(reward)
    return {"reward": statistics.mean(paid), "success": solved / len(paid), "tasks": len(paid)}


# --- speed ----------------------------------------------------------------------------------------------


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


def searches(envs: list[WebShop], count: int) -> list[float]:
    """CPU milliseconds of searches that were not made before: by whole instructions, and by parts."""
    spent = []
    tasks, rng = envs[0].tasks("train"), random.Random(1)
    for k in range(count):
        env = envs[k % len(envs)]
        env.reset(seed=k, options={"task": tasks[(k * 7919) % len(tasks)]})
        words = env.instruction.split()
        query = env.instruction if k % 2 else " ".join(rng.sample(words, 4))
        spent.append(1000 * seconds(lambda env=env, query=query: env.step(f"search[{query}]")))  # type: ignore[misc]
    return spent


def measure(options: dict[str, Any]) -> dict[str, float]:
    before = resident()
    start = time.perf_counter()
    env = make("turnbench/WebShop-v0", **options)
    opened = time.perf_counter() - start
    assert isinstance(env, WebShop)
    envs = [env, *(env.spawn() for _ in range(63))]
    spent = searches(envs, 600)
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
        "memory_mb_64_envs": resident() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--data", help="folder of the official files")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--nouns", default="simple", help="the noun rule for --scores")
    parser.add_argument("--scores", action="store_true")
    args = parser.parse_args()
    options: dict[str, Any] = {"products": args.products}
    if args.data:
        options = {"catalogue": "1k", "data": args.data, "verify": args.verify}
    rows: dict[str, Any] = {}
    if args.scores:
        for policy in (oracle, first_action, at_random):
            rows[policy.__name__] = score(policy, "test", nouns=args.nouns, **options)
    else:
        rows = measure(options)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for name, value in rows.items():
        values = value if isinstance(value, dict) else {"": value}
        print(f"{name:20}", "  ".join(f"{k} {v:.3f}".strip() for k, v in values.items()))


if __name__ == "__main__":
    main()
