"""Progress Advantage against the exact advantage along training: python benchmarks/progress_toy.py [--json].

In the toy world (deterministic and slippery, apart) a tabular policy is trained from a reference by
policy gradient with a KL price, from sampled episodes as GRPO has them. At several steps the log-ratio is
compared with what it is meant to be, Q* - V* of the soft optimum (exact): correlation over states that the
policy reaches, best-of-8 by the summed log-ratio, AUROC of success. Five seeds, mean and range.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from turnbench.envs.toy import VARIANTS, Array, ToyMDP, soft_optimum, uniform
from turnbench.leaderboards.uncertainty import Undefined, auroc, pearson, spearman

STEPS = (1, 3, 10, 30, 100, 300, 1000)
BETAS = (0.02, 0.1, 0.5)
SEEDS = range(5)
EPISODES = 64
RATE = 1.0
POOLS = 200
WORLDS = {"deterministic": VARIANTS["deterministic"], "stochastic": VARIANTS["stochastic"]}


def softmax(logits: Array) -> Array:
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


class Play:
    """Episodes side by side: states, actions [H, N], whether they were still on, and returns [N]."""

    def __init__(self, mdp: ToyMDP, policy: Array, count: int, rng: np.random.Generator) -> None:
        self.states = np.zeros((mdp.horizon, count), dtype=int)
        self.actions = np.zeros((mdp.horizon, count), dtype=int)
        self.on = np.zeros((mdp.horizon, count), dtype=bool)
        self.rewards = np.zeros((mdp.horizon, count))
        state, alive = np.full(count, mdp.starts[0]), np.ones(count, dtype=bool)
        for turn in range(mdp.horizon):
            action = drawn(policy[turn, state], rng)
            self.states[turn], self.actions[turn], self.on[turn] = state, action, alive
            state = np.where(alive, drawn(mdp.transitions[state, action], rng), state)
            self.rewards[turn] = np.where(alive, mdp.rewards[state], 0.0)
            alive = alive & ~mdp.terminal[state]
        self.won = self.rewards.sum(0) > 0

    def along(self, table: Array) -> Array:
        """[H, N]: a table [H, S, A] at what was done; 0 where it was over."""
        turns = np.arange(len(self.states))[:, None]
        return np.where(self.on, table[turns, self.states, self.actions], 0.0)


def drawn(odds: Array, rng: np.random.Generator) -> Any:
    return (odds.cumsum(-1) < rng.random(len(odds))[:, None]).sum(-1).clip(max=odds.shape[-1] - 1)


def training(mdp: ToyMDP, beta: float, rng: np.random.Generator) -> Iterator[tuple[int, Array]]:
    """The policy after each of STEPS: REINFORCE on return - beta log ratio, with a baseline by state."""
    reference = np.broadcast_to(uniform(mdp), (mdp.horizon, len(mdp.states), len(mdp.actions)))
    logits = np.log(reference).copy()
    baseline = np.zeros(logits.shape[:2])
    for step in range(1, max(STEPS) + 1):
        policy = softmax(logits)
        ratio = np.log(policy) - np.log(reference)
        play = Play(mdp, policy, EPISODES, rng)
        to_go = (play.rewards - beta * play.along(ratio))[::-1].cumsum(0)[::-1]
        gradient = np.zeros_like(logits)
        for turn in range(mdp.horizon):
            on = play.on[turn]
            state, action = play.states[turn][on], play.actions[turn][on]
            gain = to_go[turn][on] - baseline[turn, state]
            np.add.at(gradient[turn], (state, action), gain)
            np.add.at(gradient[turn], state, -gain[:, None] * policy[turn, state])
            for s in np.unique(state):
                baseline[turn, s] += 0.2 * (to_go[turn][on][state == s].mean() - baseline[turn, s])
        logits += RATE * gradient / EPISODES / beta**0.5
        if step in STEPS:
            yield step, softmax(logits)


def reached(mdp: ToyMDP, policy: Array) -> Array:
    """[H, S]: how likely each state is at each turn."""
    odds = np.zeros(policy.shape[:2])
    odds[0, mdp.starts[0]] = 1
    for turn in range(mdp.horizon - 1):
        on = np.where(mdp.terminal, 0.0, odds[turn])
        odds[turn + 1] = np.einsum("s,sa,sax->x", on, policy[turn], mdp.transitions)
    return np.where(mdp.terminal, 0.0, odds)


def figures(mdp: ToyMDP, beta: float, policy: Array, rng: np.random.Generator) -> dict[str, float]:
    reference = np.broadcast_to(uniform(mdp), policy.shape)
    ratio = np.log(policy) - np.log(reference)
    exact = soft_optimum(mdp, uniform(mdp), beta).advantage
    seen = reached(mdp, policy) > 0.01
    play = Play(mdp, policy, 8 * POOLS, rng)
    score = play.along(ratio).sum(0)
    pools = score.reshape(POOLS, 8)
    won = play.won.reshape(POOLS, 8)
    told = {
        "pearson": pearson(ratio[seen].ravel(), exact[seen].ravel()),
        "spearman": spearman(ratio[seen].ravel().tolist(), exact[seen].ravel().tolist()),
        "success": float(won.mean()),
        "best_of_8": float(won[np.arange(POOLS), pools.argmax(1)].mean()),
        "oracle_of_8": float(won.any(1).mean()),
    }
    try:
        told["auroc"] = auroc(score.tolist(), play.won.tolist())
    except Undefined:
        told["auroc"] = float("nan")
    return told


def study(seeds: Sequence[int], betas: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for name, mdp in WORLDS.items():
        for beta in betas:
            by_step: dict[int, list[dict[str, float]]] = {}
            for seed in seeds:
                rng = np.random.default_rng([seed, 1])
                for step, policy in training(mdp, beta, rng):
                    told = figures(mdp, beta, policy, np.random.default_rng([seed, 2]))
                    by_step.setdefault(step, []).append(told)
            rows += [_row(name, beta, step, found) for step, found in by_step.items()]
    return rows


def _row(name: str, beta: float, step: int, found: list[dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"world": name, "beta": beta, "steps": step}
    for key in found[0]:
        values = [f[key] for f in found if np.isfinite(f[key])]
        row[key] = [float(np.mean(values)), min(values), max(values)] if values else None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds")
    options = parser.parse_args()
    rows = study(range(options.seeds), BETAS)
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return
    names = ["pearson", "spearman", "auroc", "success", "best_of_8", "oracle_of_8"]
    print("| world | beta | steps |", " | ".join(names), "|")
    print("|---" * (3 + len(names)) + "|")
    for row in rows:
        cells = ["-" if row[n] is None else "{:.3f} [{:.3f}, {:.3f}]".format(*row[n]) for n in names]
        print(f"| {row['world']} | {row['beta']} | {row['steps']} |", " | ".join(cells), "|")


if __name__ == "__main__":
    sys.exit(main())
