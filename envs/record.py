"""The one record of what happened: Task, Turn, Trajectory, Failure, Usage, and their JSON.

Boards, pages, statistics and training batches are functions of these and of nothing else.
"""

import math
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from turnbench.envs.errors import LogError

Json = dict[str, Any]


class Outcome(StrEnum):
    """How an episode ended. `MISSING` ones say nothing about the agent and stay out of every mean."""

    OK = "ok"
    """The environment ended the episode."""
    TRUNCATED = "truncated"
    """The turn limit or the model's context was used up."""
    TIMEOUT = "timeout"
    """The budget of model calls or seconds was used up."""
    AGENT_ERROR = "agent_error"
    """The agent's own code failed."""
    ENV_ERROR = "env_error"
    """The environment's code failed."""
    INFRA_ERROR = "infra_error"
    """A server, a disk or a process failed."""


MISSING = frozenset({Outcome.ENV_ERROR, Outcome.INFRA_ERROR})


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: which world, which task in it, from which split, under which seed."""

    env: str
    id: str
    split: str = "test"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something ended early. `message` is one line fit to be shown; it never holds a key. `usage` is
    what was paid for nothing, where that is known.
    """

    outcome: Outcome
    message: str
    usage: "Usage | None" = None

    @classmethod
    def of(cls, error: BaseException, outcome: Outcome) -> "Failure":
        """The failure that `error` amounts to, as one bounded line."""
        text = " ".join(str(error).split()) or "no message"
        return cls(outcome, f"{type(error).__name__}: {text}"[:500])


class Tokens(NamedTuple):
    """A turn's tokens, exactly as they were sent and sampled.

    The turn's prompt is the first `keep` ids of the previous turn's whole sequence (prompt + ids),
    followed by `prompt`; `ids` were then sampled with natural-log probabilities `logprobs`
    (under the model at temperature 1, before top-p, so that they are comparable).
    """

    keep: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange. The turn boundary *is* this object, so it can't be lost.

    `observation` is what the agent saw, `action` what the environment got, `reward` what it paid.
    `completion` is the model's whole text where that isn't the action itself.
    """

    observation: str
    action: str
    reward: float
    completion: str | None = None
    tokens: Tokens | None = None

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.action if self.completion is None else self.completion


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished path: the task, its turns, the last observation and how it ended.

    `success` is the environment's own word (None where it has none).
    """

    task: Task
    turns: tuple[Turn, ...]
    final: str
    outcome: Outcome
    failure: str | None = None
    success: bool | None = None
    info: Json = field(default_factory=dict)

    @property
    def ret(self) -> float:
        """The return: the sum of rewards over all turns."""
        return math.fsum(turn.reward for turn in self.turns)

    @property
    def missing(self) -> bool:
        """Whether this path says nothing about the agent (environment or infrastructure failed)."""
        return self.outcome in MISSING

    def sequences(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt ids, action ids) of each turn, rebuilt from the tokens kept.

        Raises LogError where a turn has none.
        """
        pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        whole: tuple[int, ...] = ()
        for index, turn in enumerate(self.turns):
            if turn.tokens is None or len(turn.tokens.ids) != len(turn.tokens.logprobs):
                raise LogError(f"turn {index} of task {self.task.id} has no token ids")
            prompt = whole[: turn.tokens.keep] + turn.tokens.prompt
            pairs.append((prompt, turn.tokens.ids))
            whole = prompt + turn.tokens.ids
        return pairs


@dataclass(frozen=True, slots=True)
class Usage:
    """What something cost. `cost` is in US dollars, None where a price is unknown (never 0).

    `cache_hits` of the model calls were answered from a response cache: their tokens count, but
    nothing was paid for them again. `shared_tokens` of prompts were not sent, because samples of one
    conversation were asked for in one call.
    """

    model_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    env_steps: int = 0
    replayed_steps: int = 0
    forks: int = 0
    cache_hits: int = 0
    shared_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Usage(
            self.model_calls + other.model_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            cost,
            self.env_steps + other.env_steps,
            self.replayed_steps + other.replayed_steps,
            self.forks + other.forks,
            self.cache_hits + other.cache_hits,
            self.shared_tokens + other.shared_tokens,
        )


# --- JSON: short keys for what repeats in every turn; defaults are left out ------------------------

LARGEST = sys.float_info.max  # comparing with it refuses infinities and what is no number


def _turn_to_json(turn: Turn) -> Json:
    row: Json = {"obs": turn.observation, "act": turn.action, "rew": turn.reward}
    if turn.completion is not None:
        row["text"] = turn.completion
    if turn.tokens is not None:
        row["tok"] = turn.tokens
    return row


def _turn_from_json(row: Json) -> Turn:
    tokens = row.get("tok")
    if tokens is not None:
        keep, prompt, ids, logprobs = tokens
        tokens = Tokens(keep, tuple(prompt), tuple(ids), tuple(logprobs))
    turn = Turn(row["obs"], row["act"], row["rew"], row.get("text"), tokens)
    _all(str, turn.observation, turn.action, turn.text)
    if not -LARGEST <= turn.reward <= LARGEST:
        raise ValueError(f"the reward {turn.reward} is no finite number")
    return turn


def trajectory_to_json(trajectory: Trajectory) -> Json:
    """JSON object of a trajectory without its task (a population's line holds that once)."""
    row: Json = {
        "outcome": trajectory.outcome.value,
        "turns": [_turn_to_json(turn) for turn in trajectory.turns],
        "final": trajectory.final,
    }
    if trajectory.failure is not None:
        row["failure"] = trajectory.failure
    if trajectory.success is not None:
        row["success"] = trajectory.success
    if trajectory.info:
        row["info"] = trajectory.info
    return row


def trajectory_from_json(row: Json, task: Task) -> Trajectory:
    """Inverse of `trajectory_to_json`. Raises LookupError, TypeError, ValueError for what is none."""
    _all(str, row["final"], row.get("failure") or "")
    _all(bool, row.get("success", True))
    _all(dict, row.get("info", {}))
    return Trajectory(
        task,
        tuple(_turn_from_json(turn) for turn in row["turns"]),
        row["final"],
        Outcome(row["outcome"]),
        row.get("failure"),
        row.get("success"),
        row.get("info", {}),
    )


def task_from_json(row: Json) -> Task:
    """Inverse of `fields_to_json`. Raises TypeError for what is no task."""
    task = Task(**row)
    _all(str, task.env, task.id, task.split)
    _all(int, task.seed)
    return task


def usage_from_json(row: Json) -> Usage:
    """Inverse of `fields_to_json`. Raises TypeError, ValueError for what isn't counts and a cost."""
    usage = Usage(**row)
    counts = {name: value for name, value in fields_to_json(usage).items() if name != "cost"}
    _all(int, *counts.values())
    if min(counts.values()) < 0 or not 0 <= (usage.cost or 0.0) <= LARGEST:
        raise ValueError(f"the bill {row} is none")
    return usage


def _all(kind: type, *values: object) -> None:
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r:.80} is no {kind.__name__}")


def fields_to_json(value: Task | Usage) -> Json:
    """A flat record's fields by name."""
    return {name: getattr(value, name) for name in value.__slots__}
