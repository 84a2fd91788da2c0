"""How the particles of Agentic Monte Carlo approach the exact posterior as their number grows.

    python benchmarks/amc_convergence.py      # writes docs/amc_convergence.svg, prints the numbers

The toy world has 12 paths, all known. Total variation between the weighted particles and the exact
posterior, mean of many runs; resampling after turns 1 and 3 of 4.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pictures import Curve, draw

from turnbench.agents.amc import AMC, Cloud
from turnbench.agents.core import Population
from turnbench.agents.model import ScriptedModel
from turnbench.agents.resampling import Weights
from turnbench.agents.rollout import Move, Rollout
from turnbench.agents.values import Computed, Constant, Value
from turnbench.envs import toy
from turnbench.envs.record import Task
from turnbench.envs.toy import Array, Toy, ToyMDP

BETA, SCHEDULE, SIZES = 0.7, (1, 3), (8, 32, 128, 512, 2048)
RUNS = {8: 200, 32: 100, 128: 40, 512: 15, 2048: 6}
WORLD = ToyMDP.random(np.random.default_rng(16), deterministic=True)
PRIOR = np.random.default_rng(11).dirichlet(np.ones(2), 4)
TASK = Task("turnbench/Toy-v0", "0")


class Drawn:
    """The prior, by table."""

    def act(self, rollouts: Sequence[Rollout]) -> list[Move]:
        """One move a rollout."""
        states = [rollout.env.state for rollout in rollouts]  # type: ignore[attr-defined]
        second = np.array([rollout.rng.random() for rollout in rollouts]) > PRIOR[states, 0]
        return [Move(WORLD.actions[int(k)]) for k in second]


class Unweighted(AMC):
    """The released code's habit: the last weighting is left out."""

    def _weigh(self, cloud: Cloud) -> None:
        if cloud.live:
            super()._weigh(cloud)


def table(soft: Array) -> Value:
    """A value function by turn and state, in units of reward."""
    return Computed(lambda r: r.ret + float(soft[len(r.turns), r.env.state]))  # type: ignore[attr-defined]


def learned(rollouts: int = 200) -> Array:
    """Mean return to go by turn and state over blind rollouts: eq. 7, the paper's stand-in."""
    total, count = np.zeros((2, WORLD.horizon + 1, len(WORLD.states)))
    for path in run(AMC, Constant(), rollouts, 0, ()).trajectories:
        left = path.ret
        for turn in path.turns:
            at = toy.understand(WORLD, turn.observation)
            total[at], count[at], left = total[at] + left, count[at] + 1, left - turn.reward
    return total / np.maximum(count, 1)


def run(
    kind: type[AMC], value: Value, size: int, seed: int, schedule: tuple[int, ...] = SCHEDULE
) -> Population:
    """One population."""
    agent = kind(ScriptedModel(lambda _: ""), n=size, value=value, beta=BETA, resample_at=schedule)
    agent.policy = Drawn()  # type: ignore[assignment]
    return agent.solve(Toy(mdp=WORLD), TASK, np.random.default_rng([seed, size]))


def distance(population: Population) -> float:
    """Total variation to the exact posterior."""
    gap: Counter[tuple[int, ...]] = Counter()
    paths = toy.enumerate_paths(WORLD, PRIOR)
    for path, probability in zip(paths, toy.posterior(paths, BETA), strict=True):
        gap[path.states] += probability
    weights = Weights(population.log_weights).normalised
    for weight, path in zip(weights, population.trajectories, strict=True):
        seen = [*(turn.observation for turn in path.turns), path.final]
        gap[tuple(toy.understand(WORLD, observation)[1] for observation in seen)] -= weight
    return math.fsum(map(abs, gap.values())) / 2


def curves() -> dict[str, list[float]]:
    """Mean distance at each size, by name."""
    soft = BETA * toy.soft_values(WORLD, PRIOR, BETA)
    made: dict[str, Callable[[], tuple[type[AMC], Value]]] = {
        "exact value": lambda: (AMC, table(soft)),
        "learned from 200 rollouts": lambda: (AMC, table(learned())),
        "no value (constant)": lambda: (AMC, Constant()),
        "wrong value (negated)": lambda: (AMC, table(-soft)),
        "learned, final weights left out": lambda: (Unweighted, table(learned())),
    }
    found = {}
    for name, make in made.items():
        kind, value = make()
        found[name] = [
            float(np.mean([distance(run(kind, value, n, seed)) for seed in range(RUNS[n])]))
            for n in SIZES
        ]
        print(
            f"{name:34}", *(f"{n}: {d:.3f}" for n, d in zip(SIZES, found[name], strict=True)), flush=True
        )
    return found


COLOURS = ("#1b7837", "#2166ac", "#777777", "#d6604d", "#762a83")

if __name__ == "__main__":
    found = curves().items()
    lines = {
        name: Curve(SIZES, y, colour=colour) for (name, y), colour in zip(found, COLOURS, strict=True)
    }
    ticks = {
        "xticks": SIZES,
        "xticklabels": SIZES,
        "yticks": (0.01, 0.1, 1),
        "yticklabels": (0.01, 0.1, 1),
    }
    target = Path(__file__).parents[1] / "docs" / "amc_convergence.svg"
    draw(
        target,
        "Total variation to the exact posterior against the number of particles",
        {"": lines},
        "particles N",
        "total variation to the posterior",
        xscale="log",
        yscale="log",
        **ticks,
    )
    print(f"wrote {target.name}")
