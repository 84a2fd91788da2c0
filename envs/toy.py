"""Toy: a small text world that can be solved exactly, and its solution.

`ToyMDP` is the world as data; `Toy` plays it as text. The functions below give what search and
learning should find in it: path probabilities, values, soft values, the posterior over paths, the
KL-optimal policy. Shapes: S states, A actions, H turns. A policy is an array [S, A] or [H, S, A] of
probabilities. All of it is plain dynamic programming, or enumeration where the name says so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError, UnknownName

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ToyMDP:
    """A finite world: in state s, action a leads to s' with probability `transitions[s, a, s']`.

    Entering s' pays `rewards[s']`. A `terminal` state ends the episode, and so do `horizon` turns.
    Task k starts in state `starts[k]`, in which nothing is paid.
    """

    states: tuple[str, ...]
    actions: tuple[str, ...]
    transitions: Array
    rewards: Array
    terminal: NDArray[np.bool_]
    horizon: int
    starts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        size, wide = len(self.states), len(self.actions)
        if self.transitions.shape != (size, wide, size):
            raise ConfigError(
                f"transitions have shape {self.transitions.shape}, not {(size, wide, size)}"
            )
        if not np.allclose(self.transitions.sum(-1), 1) or self.transitions.min() < 0:
            raise ConfigError("each transitions[s, a] must be a distribution over states")
        if self.rewards.shape != (size,) or self.terminal.shape != (size,) or self.horizon < 1:
            raise ConfigError("rewards and terminal need one entry a state, horizon at least 1")

    @property
    def deterministic(self) -> bool:
        """Whether every action has one result."""
        return bool(np.all((self.transitions == 0) | (self.transitions == 1)))

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        *,
        states: int = 4,
        actions: int = 2,
        horizon: int = 4,
        deterministic: bool = False,
    ) -> Self:
        """A world drawn at random: normal rewards, Dirichlet(1) transitions, the last state terminal."""
        transitions = rng.dirichlet(np.ones(states), (states, actions))
        if deterministic:
            transitions = np.eye(states)[rng.integers(states, size=(states, actions))]
        return cls(
            tuple(f"room {k}" for k in range(states)),
            tuple(f"door {k}" for k in range(actions)),
            transitions,
            rng.normal(size=states),
            np.arange(states) == states - 1,
            horizon,
        )


def corridor(*, slip: float = 0.0, shaped: bool = False) -> ToyMDP:
    """Rooms 0 to 4 in a row; room 4 pays 1, room 0 pays 0, both end the walk of 4 turns at most.

    A step fails with probability `slip`. `shaped` pays 0.25 for each arrival in room 3.
    """
    transitions = np.zeros((5, 3, 5))
    for room in range(5):
        for action, move in enumerate((-1, 1, 0)):
            transitions[room, action, min(4, max(0, room + move))] += 1 - slip
            transitions[room, action, room] += slip
    rewards = np.array([0, 0, 0, 0.25 if shaped else 0, 1])
    terminal = np.array([True, False, False, False, True])
    rooms = tuple(f"room {k}" for k in range(5))
    return ToyMDP(rooms, ("left", "right", "wait"), transitions, rewards, terminal, 4, (2, 1, 3))


VARIANTS: dict[str, ToyMDP] = {
    "deterministic": corridor(),
    "stochastic": corridor(slip=0.25),
    "shaped": corridor(shaped=True),
    "stochastic-shaped": corridor(slip=0.25, shaped=True),
}


class Toy(TextEnv):
    """A `ToyMDP` as text. `variant` is one of VARIANTS; `mdp` gives a world of one's own instead."""

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    has_success = True

    def __init__(
        self,
        variant: str = "deterministic",
        *,
        mdp: ToyMDP | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if mdp is None and variant not in VARIANTS:
            raise UnknownName("Toy variant", variant, VARIANTS)
        self.mdp = mdp or VARIANTS[variant]
        self.instructions = f"Your actions are: {', '.join(self.mdp.actions)}."
        self.state = 0

    def tasks(self, split: str) -> Sequence[str]:
        """One task for each start, the same in both splits."""
        self.check_split(split)
        return [str(k) for k in range(len(self.mdp.starts))]

    def example_actions(self) -> Sequence[str]:
        """All actions."""
        return self.mdp.actions

    def _reset(self, task: str) -> str:
        if task not in self.tasks("test"):
            raise UnknownName("Toy task", task, self.tasks("test"))
        self.state = self.mdp.starts[int(task)]
        return describe(self.mdp, self.state, self.mdp.horizon)

    def _step(self, action: str) -> Step:
        mdp, left = self.mdp, self.mdp.horizon - len(self.history)
        if action not in mdp.actions:
            said = f"That is no action; the actions are: {', '.join(mdp.actions)}. "
            return Step(said + describe(mdp, self.state, left), 0.0, left <= 0)
        odds = mdp.transitions[self.state, mdp.actions.index(action)]
        self.state = int(self.rng.choice(len(odds), p=odds))
        reward, over = float(mdp.rewards[self.state]), bool(mdp.terminal[self.state]) or left <= 0
        info = {"success": bool(mdp.terminal[self.state]) and reward > 0} if over else {}
        return Step(describe(mdp, self.state, left), reward, over, info)

    def fork(self) -> Self:
        """A copy, in constant time."""
        return self._shallow_copy()


def describe(mdp: ToyMDP, state: int, left: int) -> str:
    """The observation in `state` with `left` turns to go."""
    return f"You are in {mdp.states[state]}. Turns left: {left}."


def understand(mdp: ToyMDP, observation: str) -> tuple[int, int]:
    """(turn, state) of an observation; inverse of `describe`."""
    found = re.search(r"You are in (.*)\. Turns left: (\d+)\.$", observation)
    if found is None:
        raise ValueError(f"no observation of the toy world: {observation!r:.80}")
    return mdp.horizon - int(found[2]), mdp.states.index(found[1])


# --- exact solutions --------------------------------------------------------------------------------


def uniform(mdp: ToyMDP) -> Array:
    """The policy [S, A] that chooses blindly."""
    return np.full((len(mdp.states), len(mdp.actions)), 1 / len(mdp.actions))


def _by_turn(mdp: ToyMDP, policy: Array) -> Array:
    return np.broadcast_to(policy, (mdp.horizon, len(mdp.states), len(mdp.actions)))


class Path(NamedTuple):
    """A whole path: states (one more than actions), action indices, rewards, probability."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    probability: float

    @property
    def ret(self) -> float:
        """The sum of rewards."""
        return sum(self.rewards)


def enumerate_paths(mdp: ToyMDP, policy: Array, start: int | None = None) -> list[Path]:
    """Every path of positive probability from `start` (the first task's by default)."""
    first = mdp.starts[0] if start is None else start
    return list(_extend(mdp, _by_turn(mdp, policy), Path((first,), (), (), 1.0)))


def _extend(mdp: ToyMDP, policy: Array, path: Path) -> Iterator[Path]:
    turn, state = len(path.actions), path.states[-1]
    if turn == mdp.horizon or (turn and mdp.terminal[state]):
        yield path
        return
    odds = policy[turn, state][:, None] * mdp.transitions[state]
    for action, after in np.argwhere(odds > 0).tolist():
        yield from _extend(
            mdp,
            policy,
            Path(
                (*path.states, after),
                (*path.actions, action),
                (*path.rewards, float(mdp.rewards[after])),
                path.probability * float(odds[action, after]),
            ),
        )


def values(mdp: ToyMDP, policy: Array) -> Array:
    """[H + 1, S]: the expected sum of rewards still to come, at each turn and state."""
    policy, future = _by_turn(mdp, policy), np.zeros((mdp.horizon + 1, len(mdp.states)))
    for turn in reversed(range(mdp.horizon)):
        future[turn] = (policy[turn] * action_values(mdp, future[turn + 1])).sum(-1)
    return future


def action_values(mdp: ToyMDP, after: Array) -> Array:
    """[S, A]: the expected reward of each action plus what `after` [S] says is still to come then."""
    return np.asarray(mdp.transitions @ (mdp.rewards + np.where(mdp.terminal, 0.0, after)))


def soft_values(mdp: ToyMDP, policy: Array, beta: float) -> Array:
    """[H + 1, S] in nats: log E exp(rewards still to come / beta) under `policy`.

    AMC's value of the future only; `with_reward` adds the reward of the state itself.
    """
    policy, future = _by_turn(mdp, policy), np.zeros((mdp.horizon + 1, len(mdp.states)))
    for turn in reversed(range(mdp.horizon)):
        then = mdp.rewards / beta + np.where(mdp.terminal, 0.0, future[turn + 1])
        odds = np.einsum("sa,sax->sx", policy[turn], mdp.transitions)
        with np.errstate(divide="ignore"):
            future[turn] = np.logaddexp.reduce(np.log(odds) + then, axis=-1)
    return future


def with_reward(mdp: ToyMDP, future: Array, beta: float) -> Array:
    """V_t(s) = r(s)/beta + the future's soft value, as AMC defines it; at turn 0 nothing was paid."""
    paid = np.where(np.arange(mdp.horizon + 1)[:, None] > 0, mdp.rewards / beta, 0.0)
    stop = (np.arange(mdp.horizon + 1)[:, None] > 0) & mdp.terminal
    return np.asarray(paid + np.where(stop, 0.0, future))


def log_evidence(mdp: ToyMDP, policy: Array, beta: float, start: int | None = None) -> float:
    """log Z = log E exp(return / beta), in nats."""
    first = mdp.starts[0] if start is None else start
    return float(soft_values(mdp, policy, beta)[0, first])


def posterior(paths: Sequence[Path], beta: float) -> Array:
    """The probability of each of all paths under policy(path) exp(return / beta) / Z."""
    logs = np.array([np.log(path.probability) + path.ret / beta for path in paths])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


class SoftOptimum(NamedTuple):
    """The best policy under `return - beta KL(policy || reference)`, with its values.

    q [H, S, A], v [H + 1, S], policy [H, S, A]. Progress Advantage is `q - v`, which equals
    beta log(policy / reference) wherever the reference is positive.
    """

    q: Array
    v: Array
    policy: Array

    @property
    def advantage(self) -> Array:
        """[H, S, A]: Q* - V*, the soft-optimal advantage."""
        return self.q - self.v[:-1, :, None]


def soft_optimum(mdp: ToyMDP, reference: Array, beta: float) -> SoftOptimum:
    """V*(s) = beta log sum_a reference(a|s) exp(Q*(s, a)/beta): luck is averaged outside the log."""
    reference = _by_turn(mdp, reference)
    q, v = np.zeros(reference.shape), np.zeros((mdp.horizon + 1, len(mdp.states)))
    policy = np.zeros(reference.shape)
    for turn in reversed(range(mdp.horizon)):
        q[turn] = action_values(mdp, v[turn + 1])
        top = q[turn].max(-1, keepdims=True)
        tilted = reference[turn] * np.exp((q[turn] - top) / beta)
        policy[turn] = tilted / tilted.sum(-1, keepdims=True)
        v[turn] = top[:, 0] + beta * np.log(tilted.sum(-1))
    return SoftOptimum(q, v, policy)
