"""How the particles of Agentic Monte Carlo approach the exact posterior as their number grows.

    python docs/amc_convergence.py            # writes docs/amc_convergence.svg, prints the numbers

The toy world has 12 paths, all known. Total variation between the weighted particles and the exact
posterior, mean of many runs; resampling after turns 1 and 3 of 4.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

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


# --- the picture: two logarithmic axes, nothing else ----------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 70, 230, 20, 50
LOWEST, HIGHEST = 0.005, 1.0
COLOURS = ("#1b7837", "#2166ac", "#777777", "#d6604d", "#762a83")


def across(size: float) -> float:
    """Horizontal place of a number of particles."""
    part = math.log(size / SIZES[0]) / math.log(SIZES[-1] / SIZES[0])
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def down(value: float) -> float:
    """Vertical place of a distance."""
    part = math.log(HIGHEST / max(value, LOWEST)) / math.log(HIGHEST / LOWEST)
    return TOP + part * (HEIGHT - TOP - BOTTOM)


def picture(found: dict[str, list[float]]) -> str:
    """The curves as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13">',
        "<title>Total variation to the exact posterior against the number of particles</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in (0.01, 0.03, 0.1, 0.3, 1):
        y = down(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for size in SIZES:
        text = (
            f'<text x="{across(size):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size}</text>'
        )
        parts.append(text)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">particles N</text>')
    parts.append(
        f'<text transform="translate(18 {HEIGHT / 2 - 10}) rotate(-90)" text-anchor="middle">'
        "total variation to the posterior</text>"
    )
    ends = sorted(((down(values[-1]), name) for name, values in found.items()))
    places: dict[str, float] = {}
    for y, name in ends:  # labels keep clear of each other
        places[name] = max([y, *(place + 17 for place in places.values())])
    for (name, values), colour in zip(found.items(), COLOURS, strict=True):
        points = " ".join(f"{across(n):.1f},{down(v):.1f}" for n, v in zip(SIZES, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = WIDTH - RIGHT + 8, places[name] + 4
        parts.append(f'<text x="{x}" y="{y:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    target.write_text(picture(curves()), encoding="utf-8")
    print(f"wrote {target.name}")
