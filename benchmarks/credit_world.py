"""Doors: a world for studies of credit. One reward at the very end, and talk in between that earns none.

Every door has one of six colours and every colour one of three keys; the episode pays 1 if all doors were
opened with the right key, else 0. After each key the world says whether the door opened or is stuck, and
there is a corridor, in which whatever is said changes nothing. `filler` is how many words the demonstrator
says there: the more, the longer the way from the choice of a key to its reward, in tokens but not in turns.
"""

from typing import Any

import gymnasium
import numpy as np

COLOURS = ("red", "green", "blue", "white", "black", "grey")
KEYS = ("brass", "iron", "gold")
MANNERS = ("please", "kindly", "now")


class Doors(gymnasium.Env[str, str]):
    instructions = ""
    return_range = (0.0, 1.0)

    def __init__(self, doors: int = 4) -> None:
        self.doors = doors

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.colours = [int(k) for k in self.np_random.integers(len(COLOURS), size=self.doors)]
        self.turn, self.right = 0, True
        return f"door {COLOURS[self.colours[0]]}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        door, in_corridor = divmod(self.turn, 2)
        self.turn += 1
        if not in_corridor:
            fits = action.split()[-1:] == [KEYS[self.colours[door] % len(KEYS)]]
            self.right &= fits
            return "open" if fits else "stuck", 0.0, False, False, {}
        if door + 1 < self.doors:
            return f"door {COLOURS[self.colours[door + 1]]}", 0.0, False, False, {}
        return "end", float(self.right), True, False, {"success": self.right}


def demonstrate(
    rng: np.random.Generator, doors: int, filler: int, right: float
) -> list[tuple[str, str]]:
    """(observation, action) of an episode in which all is said well and a key is right so often."""
    talk = []
    for _ in range(doors):
        colour = int(rng.integers(len(COLOURS)))
        fits = rng.random() < right
        key = (colour + (0 if fits else rng.integers(1, len(KEYS)))) % len(KEYS)
        talk.append((f"door {COLOURS[colour]}", f"{rng.choice(MANNERS)} take {KEYS[key]}"))
        talk.append(("open" if fits else "stuck", " ".join(["walk"] * (1 + rng.poisson(filler)))))
    return talk


gymnasium.register(id="Doors-v0", entry_point=Doors)
