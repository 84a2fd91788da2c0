"""Study of credit without a network: python benchmarks/credit_table.py [--out docs/mpo_study.json].

The doors of credit_world.py with a policy and a critic that are tables, so that many seeds fit into
minutes and success is known exactly. Credit, ratios and clips are those that the trainers use. Every
method sees the same number of episodes. What is done is kept in the file, so that the study goes on
where it stood.

An episode has four doors of six colours, each a turn of three tokens (a manner, a key, an end) of which only the key
matters, and after each door a turn of `filler` tokens that change nothing. It pays 1 if all keys were
right: (1/3)^4 = .012 at the start. Greatest possible: 1.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnbench.algorithms import advantages as adv
from turnbench.algorithms import objectives as obj
from turnbench.algorithms.advantages import Turns

DOORS, COLOURS, KEYS, TASKS, GROUP, STEPS = 4, 6, 3, 8, 8, 80
LR, CRITIC_LR, EPOCHS, PARTS, CRITIC_STEPS = 0.02, 0.05, 2, 2, 2


class Method(NamedTuple):
    credit: str = "token"
    beta: float = 0.0
    ratio: str = "token"
    low: float = 0.2
    high: float = 0.2
    mask: bool = False
    group: int = GROUP


METHODS = {
    "PPO (token GAE, token ratio)": Method(),
    "+ turn GAE": Method("multiscale"),
    "+ residual, beta 0.5": Method("multiscale", 0.5),
    "+ turn ratio = MPO": Method("multiscale", 0.5, "turn"),
    "MPO, beta 0 = turn PPO": Method("multiscale", 0.0, "turn"),
    "MPO, beta 0.25": Method("multiscale", 0.25, "turn"),
    "MPO, beta 1": Method("multiscale", 1.0, "turn"),
    "MPO, geometric mean": Method("multiscale", 0.5, "geomean", 0.05, 0.05),
    "GRPO": Method("group"),
    "GSPO": Method("group", 0.0, "sequence", 0.05, 0.05),
    "SAO": Method("length", 0.0, "token", 0.8, 3.0, True, 1),
}


@dataclass
class Tables:
    """Logits of manners [3], keys [colour, key] and filler [4]; values [turn, right, colour, position]."""

    manner: Tensor
    key: Tensor
    filler: Tensor
    value: Tensor

    @classmethod
    def new(cls, length: int) -> "Tables":
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, requires_grad=True)

        value = zeros(2 * DOORS, 2, COLOURS, max(3, length))
        return cls(zeros(3), zeros(COLOURS, KEYS), zeros(4), value)

    @property
    def success(self) -> float:
        """The exact probability of opening all doors."""
        chances = self.key.detach().softmax(-1)
        return float(chances[torch.arange(COLOURS), torch.arange(COLOURS) % KEYS].mean() ** DOORS)


@dataclass
class Played:
    """Episodes: tokens [B, door, ...], and what follows from them."""

    colours: Tensor
    manners: Tensor
    keys: Tensor
    fillers: Tensor

    @property
    def right(self) -> Tensor:
        """[B, door + 1] long: whether all keys before each door were right."""
        fits = (self.keys == self.colours % KEYS).long().cumprod(1)
        return torch.cat([torch.ones_like(fits[:, :1]), fits], 1)

    def take(self, chosen: Tensor) -> "Played":
        return Played(*(t[chosen] for t in (self.colours, self.manners, self.keys, self.fillers)))


def play(tables: Tables, group: int, length: int, g: torch.Generator) -> Played:
    tasks = TASKS * GROUP // group
    colours = torch.randint(COLOURS, (tasks, DOORS), generator=g).repeat_interleave(group, 0)
    size = len(colours)

    def draw(probs: Tensor, count: int) -> Tensor:
        return torch.multinomial(probs, count, True, generator=g)

    with torch.no_grad():
        manners = draw(tables.manner.softmax(-1), size * DOORS).view(size, DOORS)
        keys = draw(tables.key.softmax(-1)[colours.flatten()], 1).view(size, DOORS)
        fillers = draw(tables.filler.softmax(-1), size * DOORS * length).view(size, DOORS, length)
    return Played(colours, manners, keys, fillers)


def logprobs(tables: Tables, played: Played) -> Tensor:
    """[B, T] of all action tokens, in the order they are written; an end is certain."""
    manner = tables.manner.log_softmax(-1)[played.manners]
    key = tables.key.log_softmax(-1)[played.colours, played.keys]
    filler = tables.filler.log_softmax(-1)[played.fillers]
    door = torch.stack([manner, key, torch.zeros_like(key)], -1)
    return torch.cat([door, filler], -1).flatten(1)


def values(tables: Tables, played: Played) -> Tensor:
    """[B, T] before each token. The critic sees turn, colour, position, and whether all was right."""
    right, length = played.right, played.fillers.shape[-1]
    door = torch.arange(DOORS)
    before = tables.value[2 * door, right[:, :-1], played.colours]
    after = tables.value[2 * door, right[:, 1:], played.colours]
    door_values = torch.cat([before[..., :2], after[..., 2:3]], -1)
    corridor = tables.value[2 * door + 1, right[:, 1:], 0][..., :length]
    return torch.cat([door_values, corridor], -1).flatten(1)


def layout(size: int, length: int) -> Turns:
    index = torch.tensor([t for d in range(DOORS) for t in [2 * d] * 3 + [2 * d + 1] * length])
    return Turns.of(torch.ones(size, len(index)), index.expand(size, -1), 2 * DOORS)


def give_credit(method: Method, turns: Turns, said: Tensor, ret: Tensor) -> Tensor:
    size, none = len(ret), torch.zeros(len(ret))
    if method.credit == "group":
        groups = torch.arange(size) // method.group
        return adv.group_relative(ret.double(), groups)[:, None].float() * turns.mask
    rewards = torch.zeros(size, 2 * DOORS)
    rewards[:, -1] = ret
    args = turns, rewards, said, none
    if method.credit == "multiscale":
        credit = adv.multiscale(*args, beta=method.beta)
    else:
        lam: Any = (
            0.95 if method.credit == "token" else 1 - 1 / (1.5 * turns.lengths.sum(1, keepdim=True))
        )
        credit = adv.token_gae(*args, gamma=1.0, lam=lam)
    return adv.whiten(credit, turns.mask)


def surrogate(method: Method, turns: Turns, new: Tensor, old: Tensor, credit: Tensor) -> Tensor:
    match method.ratio:
        case "token":
            ratio = obj.token_ratio(new, old)
        case "turn":
            ratio = obj.turn_ratio(turns, new, old)
        case "geomean":
            ratio = obj.turn_ratio(turns, new, old, form="geomean")
        case _:
            ratio = obj.sequence_ratio(turns, new, old)
    if method.mask:
        return obj.masked_ratio(ratio, credit, new, low=method.low, high=method.high)
    return obj.clipped(ratio, credit, low=method.low, high=method.high)


def learn(method: Method, length: int, seed: int) -> dict[str, list[float]]:
    """Exact success before each step and after the last, and the critic's between-turn share."""
    g = torch.Generator().manual_seed(seed)
    tables, told = Tables.new(length), {"success": [], "eta2": []}
    policy = torch.optim.Adam([tables.manner, tables.key, tables.filler], LR)
    critic = torch.optim.Adam([tables.value], CRITIC_LR)
    size = TASKS * GROUP
    turns = layout(size, length)
    for _ in range(STEPS):
        told["success"].append(tables.success)
        played = play(tables, method.group, length, g)
        ret = played.right[:, -1].float()
        with torch.no_grad():
            old, said = logprobs(tables, played), values(tables, played)
        credit = give_credit(method, turns, said, ret)
        told["eta2"].append(float(adv.between_turn_share(turns, said).nanmedian()))
        for _ in range(EPOCHS):
            for chosen in torch.randperm(size, generator=g).chunk(PARTS):
                part, mine = turns.take(chosen), played.take(chosen)
                weight = obj.token_weights(part)
                new = logprobs(tables, mine)
                gain = surrogate(method, part, new, old[chosen], credit[chosen])
                policy.zero_grad()
                (-(weight * gain).sum()).backward()
                policy.step()
                for _ in range(CRITIC_STEPS * (method.credit != "group")):
                    critic.zero_grad()
                    (weight * (values(tables, mine) - ret[chosen, None]).square()).sum().backward()
                    critic.step()
    return {name: [round(v, 4) for v in row] for name, row in told.items()} | {
        "last": [round(tables.success, 4)]
    }


def told(rows: list[dict[str, list[float]]]) -> str:
    def cell(numbers: list[float]) -> str:
        error = np.std(numbers, ddof=1) / len(numbers) ** 0.5 if len(numbers) > 1 else np.nan
        return f"{np.mean(numbers):.3f} ± {1.96 * error:.3f}"

    last, best = [r["last"][0] for r in rows], [max(r["success"] + r["last"]) for r in rows]
    return f"{cell(last)} | {cell(best)} | {cell([float(np.mean(r['success'])) for r in rows])} | {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/mpo_study.json"))
    parser.add_argument("--fillers", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    done = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    for seed in range(options.seeds):  # outermost, so that all methods have as many
        for length in options.fillers:
            for name, method in METHODS.items():
                runs = done.setdefault(f"filler {length}", {}).setdefault(name, {})
                if str(seed) in runs or time.monotonic() - began > 60 * options.minutes:
                    continue
                runs[str(seed)] = learn(method, length, seed)
        options.out.write_text(json.dumps(done, separators=(",", ":")), encoding="utf-8")
    for setting, methods in done.items():
        print(f"\n| {setting} | last | best | mean over steps | seeds |\n|---|---|---|---|---|")
        for name, runs in methods.items():
            if runs:
                print(f"| {name} | {told(list(runs.values()))} |")


if __name__ == "__main__":
    main()
