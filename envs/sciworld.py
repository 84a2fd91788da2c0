"""ScienceWorld: primary-school science in a simulated house, by text (Wang et al. 2022).

The simulator is the published one (the package scienceworld 1.2.3), played as AgentGym plays it:
without simplifications, the task and one look around as the first observation, the simulator's own
text as every other. It needs the extra `sciworld`.

It is made deterministic: the same task and actions give the same bytes in any process. See
docs/sciworld.md for how, for the two readings of AgentGym's task numbers, and for what forks cost.
"""

import hashlib
import importlib
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from turnbench.envs import sciworld_tasks as tasks_
from turnbench.envs.core import Step, TextEnv, mix
from turnbench.envs.errors import ConfigError

if TYPE_CHECKING:
    from turnbench.envs.sciworld_pool import Lease
    from turnbench.envs.sciworld_states import Node, Stay

INSTRUCTIONS = """\
You are a lab assistant who solves science tasks in a simulated house by typing commands. After each \
command you are told what you see or what happened. These are the commands, OBJ being an object and \
LOC a place:
open OBJ, close OBJ: open or close a container or a door
activate OBJ, deactivate OBJ: turn a device on or off
connect OBJ to OBJ, disconnect OBJ: join or part electrical components
use OBJ [on OBJ]: use a tool or device, on something where needed
look around: describe the place you are in
look at OBJ, look in OBJ: describe an object, or what a container holds
examine OBJ: the same as look at
read OBJ: read a note or a book
move OBJ to OBJ: put an object into a container
pick up OBJ, put down OBJ: take into or out of your inventory
pour OBJ into OBJ, dunk OBJ into OBJ: pour a liquid, or dip a container into one
mix OBJ: combine chemically what a container holds
go to LOC: move to an adjoining place
eat OBJ: eat a food
flush OBJ: flush a toilet
focus on OBJ: mark the object that the task asks about; the wrong one fails the task
wait: let ten steps pass
wait1: let one step pass
task: repeat your task
inventory: list what you carry
Where a command could mean several things you are shown numbered choices: answer with the number."""


FORMS = (
    *("look around", "inventory", "task", "wait", "wait1", "open OBJ", "close OBJ", "activate OBJ"),
    *("deactivate OBJ", "connect OBJ to OBJ", "disconnect OBJ", "use OBJ", "use OBJ on OBJ"),
    *("look at OBJ", "look in OBJ", "read OBJ", "move OBJ to OBJ", "pick up OBJ", "put down OBJ"),
    *("pour OBJ into OBJ", "dunk OBJ into OBJ", "mix OBJ", "go to OBJ", "eat OBJ", "flush OBJ"),
    "focus on OBJ",
)


@cache
def _data_digest() -> str:
    try:
        jvm = importlib.import_module("turnbench.envs.sciworld_jvm")
    except ModuleNotFoundError as error:
        raise ConfigError(tasks_.MISSING.format(f"the package {error.name}")) from error
    return hashlib.sha256(jvm.jar_path().read_bytes()).hexdigest()[:16]


class ScienceWorld(TextEnv):
    """Science tasks in a house. The return is the final score over 100, in [-1, 1].

    Each reward is the change of the simulator's score, over 100; a wrong focus costs everything and
    ends the episode at -1. `info` has `score` (-100 to 100), `clipped_score` (0 to 100), `success`
    (the score is 100) and `moves`. An episode ends when the task is done or failed, or after more than
    `step_limit` moves of the simulator's clock, or after `max_turns` turns.

    `index` is the reading of AgentGym's test numbers, "intended" or "released"; `types` keeps only
    tasks of these types ("boil" or "1-1"); `simplifications` is ScienceWorld's comma-separated list.
    Simplifications and step limit are part of the task ids.

    Splits: AgentGym's `train` and `test`; `train-policy` and `train-value`, which part the train tasks
    two to one; `full-train`, `full-dev`, `full-test`, ScienceWorld's own over all 30 types.
    """

    splits = tasks_.SPLITS
    default_turns = 30
    instructions = INSTRUCTIONS
    quick_solution = False
    reply_format = "last-action"
    return_range = (-1.0, 1.0)
    has_success = True

    def __init__(
        self,
        *,
        index: str = "intended",
        types: Sequence[str] = (),
        simplifications: str = "",
        step_limit: int = tasks_.STEP_LIMIT,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if step_limit < 1:
            raise ConfigError(f"step_limit is {step_limit}; it must be at least 1")
        tasks_.index_map(index)
        tasks_.only_types((), types)
        self.index, self.types, self.step_limit = index, tuple(types), step_limit
        self.simplifications = tasks_.simplified(simplifications)
        self._suffix = tasks_.variant(self.simplifications, step_limit)
        self._lease: Lease | None = None
        self._node: Node | None = None
        self._stay: Stay | None = None

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of the split's tasks that belong to the wanted types and that can start."""
        known = tasks_.only_types(tasks_.split_tasks(split, self.index), self.types)
        return [task + self._suffix for task in known if tasks_.can_start(task, self.simplifications)]

    def data_digest(self) -> str:
        """Digest of the simulator."""
        return _data_digest()

    def example_actions(self) -> Sequence[str]:
        """Each form of command once, with words of the present observation for its objects."""
        rng = np.random.default_rng(mix(self.seed, self.task, self.observation, str(len(self.history))))
        words = [w for w in re.findall(r"[a-z]+", self.observation) if len(w) > 2] or ["air"]
        return [re.sub("OBJ", lambda _: words[int(rng.integers(len(words)))], f) for f in FORMS]

    def solution(self) -> Sequence[str]:
        """The simulator's own solution, for which it may search some minutes."""
        return self.gold_path(self.task)

    def gold_path(self, task: str) -> list[str]:
        """The simulator's own solution of a task (24 of all 7,207 fail); empty where it finds none."""
        return self._leased().gold(tasks_.read_task(task, self.simplifications, self._suffix))

    def _leased(self) -> "Lease":
        if self._lease is None:
            try:
                pool = importlib.import_module("turnbench.envs.sciworld_pool")
            except ModuleNotFoundError as error:
                raise ConfigError(tasks_.MISSING.format(f"the package {error.name}")) from error
            self._lease = pool.Lease()
        return self._lease

    def _reset(self, task: str) -> str:
        spec = tasks_.read_task(task, self.simplifications, self._suffix)
        self._node = self._leased().start(spec)
        self._stay = self._node.stay()
        return self._node.result.observation

    def _step(self, action: str) -> Step:
        assert self._node is not None
        before = self._node.result.score
        lease = self._leased()
        self._stay = None
        self._node, replayed = lease.advance(self._node, action)
        self.counts.replayed += replayed
        observation, score, completed, moves = self._node.result
        done = completed or score < 0 or moves > self.step_limit
        if done or len(self.history) >= self.max_turns:
            lease.retire()
        return Step(observation, (score - before) / 100, done, _info(score, moves))

    def fork(self) -> Self:
        """A copy, in constant time: its world is made when it first does what nobody did before it."""
        if self._lease is not None:
            self._lease.release()  # for whoever goes on first
        if self._node is not None:
            self._stay = self._node.stay()
        twin = self._shallow_copy()
        twin._lease = None
        return twin

    def close(self) -> None:
        """Give the world back; with the last environment the Java processes end."""
        lease, self._lease = self._lease, None
        self._stay = None
        if lease is not None:
            lease.close()


def _info(score: int, moves: int) -> dict[str, Any]:
    return {"score": score, "clipped_score": max(score, 0), "success": score == 100, "moves": moves}
