"""Failure attribution by scores of turns: python benchmarks/blame_study.py OUT --reference ... --policy ...

The logs are ToolWorld's of variant base and level 1: one step of each is the decisive mistake
(envs/blame_logs.py). They are shown as the small model of algorithms/configs/tiny-toolworld.yaml knows the
world, which is the reference; a policy is an RL checkpoint trained from it:

    turnbench train algorithms/configs/grpo-toolworld.yaml --out runs/grpo-toolworld
    python benchmarks/blame_study.py runs/blame --reference runs/tiny-toolworld/model \\
        --policy grpo=runs/grpo-toolworld/model

Prints the share of logs whose decisive step a rule finds, by scorer, with a 95 % interval over logs; the
rules are those of the paper, for which see agents/attribution.py. Beside them what a uniform guess and
always the same place are worth: mistakes in these logs come late. The dev logs are for choosing, the test logs
for reporting.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from turnbench.agents.attribution import RULES, Label, chance, decisive_step, judge
from turnbench.agents.turn_scores import Aggregation, Rated
from turnbench.envs import make
from turnbench.envs.blame_log import Log
from turnbench.envs.blame_logs import toolworld_log
from turnbench.envs.core import TextEnv
from turnbench.envs.demonstrate import Plan, guided
from turnbench.envs.record import Task, Trajectory
from turnbench.leaderboards import said, scored
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.said import Measures, Said
from turnbench.leaderboards.statistics import cluster_bootstrap

WORLD = "turnbench/ToolWorld-v0"
OPTIONS = {"variant": "base", "level": 1, "distractors": 3, "tools_in_observation": True}
PLACES = (0, 1, -1, -2)  # what a rule that never looks at a number could name
HOWS = {"progress (mean)": Aggregation(), "progress (sum)": Aggregation("sum", "sum")}


def cases_of(split: str) -> list[Case]:
    """The labelled logs of a split's tasks, played again in the world as the model knows it."""
    env = make(WORLD, **OPTIONS)
    logs = {task: toolworld_log(task) for task in env.tasks(split)}
    return [
        Case(
            log.id,
            log.id,
            task,
            split,
            played(env, log, task, split),
            None,
            False,
            Label(log.step, log.agent),
            log.agents,
        )
        for task, log in logs.items()
    ]


def played(env: TextEnv, log: Log, task: str, split: str) -> Trajectory:
    """The actions of a log, with the observations that this world gives to them."""
    actions = [turn.action for turn in log.trajectory.turns]
    rng = np.random.default_rng(0)  # nothing is drawn, as there are no mistakes
    return guided(env, Task(WORLD, task, split), rng, 0.0, lambda: Plan(env, actions))


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


Steps = list[int | None]


def told(cases: list[Case], steps: Steps) -> dict[str, Any]:
    """How well predicted steps meet the labels; the interval of steps is a bootstrap over logs."""
    labels = [case.label for case in cases if case.label is not None]
    right = {c.id: [float(s == label.step)] for c, s, label in zip(cases, steps, labels, strict=True)}
    verdict = judge(steps, labels, [case.speakers for case in cases])
    return verdict._asdict() | {"interval": cluster_bootstrap(right)}


def fixed(cases: list[Case], place: int) -> Steps:
    """The same place in every log: from the front if it isn't negative, else from the end."""
    counts = [len(case.path.turns) for case in cases]
    return [max(0, min(place, n - 1) if place >= 0 else n + place) for n in counts]


def predictions(cases: list[Case], rated: dict[str, Rated]) -> dict[str, Steps]:
    """What each rule names; None where a case couldn't be scored."""
    return {
        rule: [decisive_step(rule, rated[c.id][0]) if c.id in rated else None for c in cases]
        for rule in RULES
    }


def cell(found: dict[str, Any]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(found["step"], *found["interval"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the study; the same command goes on")
    parser.add_argument("--reference", required=True, help="checkpoint that RL began from")
    parser.add_argument("--policy", action="append", required=True, help="NAME=FOLDER; repeat")
    options = parser.parse_args()
    whole: dict[str, Any] = {}
    for split in ("dev", "test"):
        cases = cases_of(split)
        kept = Measures(options.out / "measures" / split)
        guess = chance([c.label for c in cases if c.label], [c.speakers for c in cases])
        whole[split] = {"guessing": guess._asdict()}
        print(f"\n{split}: {len(cases)} logs; a uniform guess is right for {guess.step:.3f}\n")
        for place in PLACES:
            whole[split][f"always step {place}"] = found = told(cases, fixed(cases, place))
            print(f"* always step {place}: {cell(found)}")
        reference = said.say(options.reference, cases, kept, names=said.WHOLE)
        for name, folder in (pair.split("=", 1) for pair in options.policy):
            policy = said.say(folder, cases, kept, names=said.WHOLE)
            print(f"\n| {name}: scorer | {' | '.join(RULES)} |\n|{'---|' * (len(RULES) + 1)}")
            for scorer, rated in scores(cases, policy, reference).items():
                steps = predictions(cases, rated)
                found = {rule: told(cases, said) for rule, said in steps.items()}
                whole[split].setdefault(name, {})[scorer] = found
                print(f"| {scorer} | {' | '.join(cell(found[rule]) for rule in RULES)} |")
    (options.out / "study.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
