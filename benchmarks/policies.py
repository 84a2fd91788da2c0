"""What simple policies score in the worlds of AgentGym: oracle, random and first action.

    python benchmarks/policies.py [--json] [--world NAME] [--turns N] [--tasks N] [--data DIR] [--nouns RULE]

Each plays the whole test split (or --tasks of it, evenly spread) once, under seed 0, by the agent
`baseline`. --turns is another limit than the world's own. --data plays the official small catalogue of
WebShop, and --nouns names its noun rule. Rows are printed as they come; with --json as JSON Lines.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from turnbench import envs
from turnbench.agents.baseline import Baseline
from turnbench.envs.core import TextEnv, mix
from turnbench.envs.record import Task, Trajectory

WORLDS = ("TextCraft", "WebShop", "ScienceWorld")
POLICIES = ("random", "first", "oracle")  # the slowest last


def main() -> None:
    options = arguments()
    for world in [options.world] if options.world else WORLDS:
        env = envs.make(f"turnbench/{world}-v0", max_turns=options.turns, **arguments_of(world, options))
        for policy in POLICIES:
            paths = list(play(env, f"turnbench/{world}-v0", policy, options.tasks))
            show(
                {"world": world, "policy": policy, "turns": env.max_turns, **figures(paths)},
                options.json,
            )
        env.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--world", choices=WORLDS)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--data")
    parser.add_argument("--nouns", default="simple")
    return parser.parse_args()


def arguments_of(world: str, options: argparse.Namespace) -> dict[str, Any]:
    if world != "WebShop":
        return {}
    official = {"catalogue": "1k", "data": options.data, "verify": False} if options.data else {}
    return {"nouns": options.nouns, **official}


def play(env: TextEnv, env_id: str, policy: str, count: int | None) -> Iterator[Trajectory]:
    known = list(env.tasks("test"))
    for name in known[:: max(1, len(known) // count)] if count else known:
        rng = np.random.default_rng(mix(0, env_id, name, policy))
        yield Baseline(policy=policy).solve(env, Task(env_id, name), rng).best


def figures(paths: list[Trajectory]) -> dict[str, float]:
    returns = np.array([path.ret for path in paths if not path.missing])
    return {
        "tasks": len(returns),
        "missing": len(paths) - len(returns),
        "score": float(returns.mean()),
        "clipped": float(returns.clip(0).mean()),
        "success": float(np.mean([bool(path.success) for path in paths if not path.missing])),
    }


def show(row: dict[str, Any], as_json: bool) -> None:
    told = (
        json.dumps(row)
        if as_json
        else "  ".join(
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
        )
    )
    print(told, flush=True)


if __name__ == "__main__":
    main()
