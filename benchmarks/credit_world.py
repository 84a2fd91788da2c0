"""Doors: a world for studies of credit. One reward at the very end, and talk in between that earns none.

Every door has a colour and every colour one right key; the episode pays 1 if all doors were opened with
the right key, else 0. After each door there is a corridor, in which whatever is said changes nothing.
`filler` is how many words the demonstrator says there: the more, the longer the way from the choice of
a key to its reward, in tokens but not in turns.
"""

from typing import Any

import gymnasium
import numpy as np

COLOURS = ("red", "green", "blue")
KEYS = ("brass", "iron", "gold")
MANNERS = ("please", "kindly", "now")


class Doors(gymnasium.Env[str, str]):
    instructions = ""
    return_range = (0.0, 1.0)

    def __init__(self, doors: int = 3, filler: int = 0) -> None:
        self.doors, self.filler = doors, filler

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.colours = [COLOURS[k] for k in self.np_random.integers(3, size=self.doors)]
        self.turn, self.right = 0, True
        return f"door {self.colours[0]}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        door, in_corridor = divmod(self.turn, 2)
        if not in_corridor:
            key = KEYS[COLOURS.index(self.colours[door])]
            self.right &= action.split()[-1:] == [key]
        self.turn += 1
        over = self.turn == 2 * self.doors
        seen = "end" if over else "corridor" if not in_corridor else f"door {self.colours[door + 1]}"
        info = {"success": self.right} if over else {}
        return seen, float(over and self.right), over, False, info


def demonstrate(rng: np.random.Generator, doors: int, filler: int) -> list[tuple[str, str]]:
    """(observation, action) of an episode in which all is said well and three keys in five are right."""
    talk = []
    for _ in range(doors):
        k = int(rng.integers(3))
        key = KEYS[(k + rng.choice(3, p=(0.6, 0.2, 0.2))) % 3]
        talk.append((f"door {COLOURS[k]}", f"{rng.choice(MANNERS)} take {key}"))
        talk.append(("corridor", " ".join(["walk"] * (1 + rng.poisson(filler)))))
    return talk


gymnasium.register(id="Doors-v0", entry_point=Doors)
