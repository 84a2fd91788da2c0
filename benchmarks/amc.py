"""What Agentic Monte Carlo costs beside best-of-N: python benchmarks/amc.py [--json] [--value FOLDER].

Both play the same TextCraft tasks with the same local model, N and turns, in turns of one episode, so
that a busy machine slows both. Without --value the value function is the model's own trunk with an
untrained head, which costs the same. Resampling follows the paper's schedule, and all of it is timed
where it happens: value calls and forks, included in the total.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from turnbench.agents import shipped_path
from turnbench.agents.amc import AMC
from turnbench.agents.best_of_n import BestOfN
from turnbench.agents.hf import HfModel
from turnbench.agents.model import Sampling
from turnbench.agents.regression import Card, Regressor, TrainedValue, load_backbone, save_value
from turnbench.agents.rollout import Rollout
from turnbench.envs import make
from turnbench.envs.record import Task

ENV = "turnbench/TextCraft-v0"


class Figure(NamedTuple):
    name: str
    value: float
    unit: str
    goal: str


class Clock:
    """Seconds spent in wrapped calls."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started
                self.calls += 1

        return timed


def untrained(model: str, folder: Path) -> Path:
    """A value function of the right size: the model's trunk and a random head."""
    tokenizer, trunk = load_backbone(shipped_path(model))
    network = Regressor(trunk, "last")
    card = Card(
        env=ENV, text="chat", history=None, max_tokens=1024, pool="last", predicts="return",
        target="binary", beta=0.2, low=0.0, high=1.0,
    )  # fmt: skip
    save_value(folder, card, network, tokenizer)
    return folder


def measure(model: str, value: str | None, n: int, episodes: int) -> list[Figure]:
    policy = HfModel(model, sampling=Sampling(1.0, 1.0, 48))
    folder = Path(value) if value else untrained(model, Path(tempfile.mkdtemp()) / "value")
    trained = TrainedValue(folder)
    values, forks, env = Clock(), Clock(), make(ENV)
    trained.returns = values.around(trained.returns)  # type: ignore[method-assign]
    seconds = {"best_of_n": 0.0, "amc": 0.0}
    turns = dict.fromkeys(seconds, 0)
    original, Rollout.fork = Rollout.fork, forks.around(Rollout.fork)  # type: ignore[method-assign]
    tasks = env.tasks("test")[31 : 31 + episodes]
    for k, task in enumerate(["warm-up", *tasks]):
        agents: dict[str, Any] = {
            "best_of_n": BestOfN(policy, n=n, instructions=False),
            "amc": AMC(policy, n=n, value=trained, beta=0.2, instructions=False),
        }
        for name in sorted(agents, reverse=bool(k % 2)):
            started, before = time.perf_counter(), env.counts.steps
            what = Task(ENV, tasks[0] if k == 0 else task, "test", k)
            agents[name].solve(env, what, np.random.default_rng(k))
            if k:
                seconds[name] += time.perf_counter() - started
                turns[name] += env.counts.steps - before
        if k == 0:
            values.seconds = forks.seconds = 0.0
            values.calls = forks.calls = 0
    Rollout.fork = original  # type: ignore[method-assign]
    policy.close()
    per_turn = {name: seconds[name] / turns[name] for name in seconds}
    return [
        Figure("amc_to_best_of_n", seconds["amc"] / seconds["best_of_n"], "ratio", "<= 1.2"),
        Figure("amc_to_best_of_n_per_turn", per_turn["amc"] / per_turn["best_of_n"], "ratio", ""),
        Figure("best_of_n_episode", seconds["best_of_n"] / episodes, "s", ""),
        Figure("amc_episode", seconds["amc"] / episodes, "s", ""),
        Figure("share_of_value_calls", values.seconds / seconds["amc"], "of AMC", ""),
        Figure("share_of_forks", forks.seconds / seconds["amc"], "of AMC", ""),
        Figure("value_calls", values.calls / episodes, "an episode", ""),
        Figure("forks", forks.calls / episodes, "an episode", ""),
        Figure("value_tokens", trained.passes.tokens / (episodes + 1), "an episode", ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--model", default="turnbench/tiny", help="checkpoint of the policy")
    parser.add_argument("--value", help="folder of a value function")
    parser.add_argument("-n", type=int, default=15, help="particles")
    parser.add_argument("--episodes", type=int, default=10, help="tasks played by each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for figure in measure(options.model, options.value, options.n, options.episodes):
        text = f"{figure.name:28} {figure.value:10.4g} {figure.unit:12} {figure.goal}"
        print(json.dumps(figure._asdict()) if options.json else text)


if __name__ == "__main__":
    main()
