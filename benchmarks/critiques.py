"""Critiques for a process reward model to learn from: python benchmarks/critiques.py ROLLOUTS OUT.jsonl

ROLLOUTS is a value function's run folder, or its file `rollouts.jsonl`. Each path is shown as the scorer `prm`
shows it, and each of its turns is judged correct where the path succeeded and incorrect where it didn't: labels
by outcome, one rollout a turn (Math-Shepherd's, with N = 1), as no person has labelled any. Paths that the
context of --backbone doesn't hold with their critique are left out. Then

    turnbench train algorithms/configs/prm-textcraft.yaml --out runs/prm-textcraft
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from turnbench.agents.hf import read_context
from turnbench.agents.model import Message
from turnbench.agents.readers import load_tokenizer
from turnbench.agents.reward_models import critique_prompt
from turnbench.algorithms.rollouts import rollouts_in
from turnbench.algorithms.tokenizer import encode
from turnbench.envs.errors import TurnbenchError
from turnbench.envs.record import Trajectory


def critique(path: Trajectory) -> str:
    """The verdicts on a path's turns, and nothing else: nobody has written down why."""
    verdict = "correct" if path.success else "incorrect"
    return "\n".join(f"Turn {k + 1}: \\boxed{{{verdict}}}" for k in range(len(path.turns)))


def paths_in(rollouts: Path) -> Iterator[Trajectory]:
    """The paths that can be judged by their outcome."""
    for population in rollouts_in(rollouts):
        for path in population.trajectories:
            if path.turns and path.success is not None:
                yield path


def write(rollouts: Path, out: Path, backbone: str) -> None:
    """Lines that `algorithm: sft` reads."""
    tokenizer, context = load_tokenizer(backbone), read_context(backbone)
    paths = list(paths_in(rollouts))  # before an earlier file is replaced
    written = left = 0
    with out.open("w", encoding="utf-8") as file:
        for path in paths:
            said = (("user", critique_prompt(path)), ("assistant", critique(path)))
            messages = [Message(role, content) for role, content in said]
            if context is not None and len(encode(tokenizer, messages).ids) > context:
                left += 1
                continue
            rows = [{"role": role, "content": content} for role, content in said]
            file.write(json.dumps({"messages": rows}) + "\n")
            written += 1
    print(f"{written} critiques in {out}; {left} paths left out, as they exceed a context of {context}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rollouts", type=Path, help="a value function's run folder or rollouts.jsonl")
    parser.add_argument("out", type=Path, help="JSON Lines file to write")
    parser.add_argument("--backbone", default="turnbench/tiny", help="checkpoint that will learn")
    options = parser.parse_args()
    try:
        write(options.rollouts, options.out, options.backbone)
    except (TurnbenchError, OSError) as error:
        sys.exit(f"critiques.py: {error}")


if __name__ == "__main__":
    main()
