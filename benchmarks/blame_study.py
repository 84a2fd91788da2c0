"""Failure attribution by scores of turns: python benchmarks/blame_study.py OUT --reference FOLDER --policy NAME=FOLDER

The logs are ToolWorld's of variant base and level 1: one step of each is the decisive mistake
(envs/blame_logs.py). They are shown as the small model of algorithms/configs/tiny-toolworld.yaml knows the
world, which is the reference; a policy is an RL checkpoint trained from it:

    turnbench train algorithms/configs/grpo-toolworld.yaml --out runs/grpo-toolworld
    python benchmarks/blame_study.py runs/blame --reference runs/tiny-toolworld/model \\
        --policy grpo=runs/grpo-toolworld/model

Prints the share of logs whose decisive step a rule finds, by scorer, with a 95 % interval over logs; the
rules are those of the paper, for which see agents/attribution.py. The dev logs are for choosing, the test
logs for reporting.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from turnbench.agents.attribution import RULES, Label, decisive_step
from turnbench.agents.turn_scores import Aggregation
from turnbench.envs import make
from turnbench.envs.blame_log import Log
from turnbench.envs.blame_logs import labelled_logs
from turnbench.envs.record import Outcome, Task, Trajectory, Turn
from turnbench.leaderboards import scored
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.scored import Measures, Rated, Said

WORLD = "turnbench/ToolWorld-v0"
OPTIONS = {"variant": "base", "level": 1, "distractors": 3, "tools_in_observation": True}
HOWS = {"progress (mean)": Aggregation(), "progress (sum)": Aggregation("sum", "sum")}


def cases_of(split: str) -> Iterator[Case]:
    """The labelled logs of a split, played again in the world as the model knows it."""
    env = make(WORLD, **OPTIONS)
    tasks = set(env.tasks(split))
    for log in labelled_logs("toolworld", split, variant="base"):
        task = log.trajectory.task.id
        if task in tasks:
            path = played(env, log, task, split)
            label = Label(log.step, log.agent)
            yield Case(log.id, log.id, task, split, path, None, False, label, log.agents)


def played(env: Any, log: Log, task: str, split: str) -> Trajectory:
    """The actions of a log, with the observations that this world gives to them."""
    seen, _ = env.reset(seed=0, options={"task": task})
    turns = []
    for turn in log.trajectory.turns:
        after, reward, *_ = env.step(turn.action)
        turns.append(Turn(seen, turn.action, reward))
        seen = after
    return Trajectory(Task(WORLD, task, split), tuple(turns), seen, Outcome.OK, success=False)


def scores(cases: list[Case], policy: Said, reference: Said) -> dict[str, dict[str, Rated]]:
    """Numbers by turn, by scorer and case."""
    made = {name: scored.progress_of(cases, policy, reference, how) for name, how in HOWS.items()}
    plain = scored.rate(cases, policy, None, Aggregation(), window=16)
    theirs = scored.rate(cases, reference, None, Aggregation(), window=16)
    unfit = ("return (oracle)", "length")
    return (
        made
        | {name: values for name, values in plain.items() if name not in unfit}
        | {f"reference's {name}": values for name, values in theirs.items() if name == "mean log-prob"}
    )


def accuracy(cases: list[Case], rated: dict[str, Rated], rule: str) -> dict[str, float]:
    """Share of logs whose step a rule finds, with a 95 % bootstrap interval over logs, and mean distance."""
    steps = [
        (decisive_step(rule, rated[c.id][0]), c.label.step) for c in cases if c.id in rated and c.label
    ]
    right = np.array([said == step for said, step in steps], float)
    off = [abs(said - step) for said, step in steps if said is not None]
    rng = np.random.default_rng(0)
    drawn = right[rng.integers(len(right), size=(2000, len(right)))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "step": float(right.mean()),
        "low": float(low),
        "high": float(high),
        "off": float(np.mean(off)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the study; the same command goes on")
    parser.add_argument("--reference", required=True, help="checkpoint that RL began from")
    parser.add_argument("--policy", action="append", required=True, help="NAME=FOLDER; repeat")
    options = parser.parse_args()
    told: dict[str, Any] = {}
    for split in ("dev", "test"):
        cases = list(cases_of(split))
        guess = np.mean([1 / len(c.path.turns) for c in cases])
        print(f"\n{split}: {len(cases)} logs; a uniform guess is right for {guess:.3f}\n")
        kept = Measures(options.out / "measures" / split)
        reference = scored.say(options.reference, cases, kept, names=scored.WHOLE)
        for name, folder in (pair.split("=", 1) for pair in options.policy):
            policy = scored.say(folder, cases, kept, names=scored.WHOLE)
            print(f"| {name}: scorer | {' | '.join(RULES)} |\n|{'---|' * (len(RULES) + 1)}")
            for scorer, rated in scores(cases, policy, reference).items():
                found = {rule: accuracy(cases, rated, rule) for rule in RULES}
                told.setdefault(split, {}).setdefault(name, {})[scorer] = found
                cells = ["{step:.3f} [{low:.3f}, {high:.3f}]".format(**found[rule]) for rule in RULES]
                print(f"| {scorer} | {' | '.join(cells)} |")
    (options.out / "study.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
