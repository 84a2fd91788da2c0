"""Critiques for a process reward model to learn from: python benchmarks/critiques.py ROLLOUTS OUT.jsonl

ROLLOUTS is a file of a value function's rollouts (`rollouts.jsonl`). Each path is shown as the scorer `prm`
shows it, and each of its turns is judged correct where the path succeeded and incorrect where it didn't: labels
by outcome, one rollout a turn (Math-Shepherd's, with N = 1), as no person has labelled any. Then

    turnbench train algorithms/configs/prm-textcraft.yaml --out runs/prm-textcraft
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from turnbench.agents.reward_models import critique_prompt
from turnbench.algorithms.rollouts import read_rollouts
from turnbench.envs.record import Trajectory


def critique(path: Trajectory) -> str:
    """The verdicts on a path's turns, and nothing else: nobody has written down why."""
    verdict = "correct" if path.success else "incorrect"
    return "\n".join(f"Turn {k + 1}: \\boxed{{{verdict}}}" for k in range(len(path.turns)))


def conversations(paths: Iterator[Trajectory]) -> Iterator[str]:
    """Lines that `algorithm: sft` reads."""
    for path in paths:
        said = {"user": critique_prompt(path), "assistant": critique(path)}
        messages = [{"role": role, "content": content} for role, content in said.items()]
        yield json.dumps({"messages": messages}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rollouts", type=Path, help="rollouts.jsonl of a value function's run")
    parser.add_argument("out", type=Path, help="JSON Lines file to write")
    options = parser.parse_args()
    if not options.rollouts.is_file():
        raise SystemExit(f"there is no file {options.rollouts}")
    paths = (
        path
        for population in read_rollouts(options.rollouts)
        for path in population.trajectories
        if path.turns and path.success is not None
    )
    lines = list(conversations(paths))
    options.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} critiques in {options.out}")


if __name__ == "__main__":
    main()
