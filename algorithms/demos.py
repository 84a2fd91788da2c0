"""Where conversations to learn from come from: a world's demonstrator, or a file.

The k-th example is a function of (seed, k) and of the step: nothing else has to be kept
to resume, and every process of a run can make the same batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnbench import envs
from turnbench.agents import find
from turnbench.agents.model import Message
from turnbench.envs.core import MAX_SEED, TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Task, Trajectory

TRIES = 100
KEPT: dict[str, dict[tuple[int, int], "Conversation | None"]] = {}
"""Demonstrations that are drawn again, by source: a tokenizer's texts and the data are often the same."""
Demonstrator = Callable[[TextEnv, Task, np.random.Generator, float], Trajectory]

DEMONSTRATORS: dict[str, str] = {
    "turnbench/TextCraft-v0": "turnbench.envs.textcraft_plan:demonstrate",
    "turnbench/TextCraftMadeUp-v0": "turnbench.envs.textcraft_plan:demonstrate",
    "turnbench/ToolWorld-v0": "turnbench.envs.toolworld_plan:demonstrate",
    "turnbench/WebShop-v0": "turnbench.envs.webshop_plan:demonstrate",
}

SOLVE = "turnbench.envs.demonstrate:solve"


class Source(BaseModel):
    """One stream of examples: demonstrations in an environment, or a file of conversations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = Field(None, description="Environment id to demonstrate in.")
    options: dict[str, Any] = Field({}, description="Arguments of the environment.")
    split: str = Field("train", description="Split whose tasks are played.")
    demonstrator: str | None = Field(
        None,
        description='"module:function" that plays; null for the one registered for the environment, else '
        "the world's own solution.",
    )
    repeat: int | None = Field(
        None,
        ge=1,
        description="So many different demonstrations of a task, which are kept and drawn again; null: a "
        "new one each time.",
    )
    mistakes: float = Field(0.0, ge=0, lt=1, description="Probability of a wrong action a turn.")
    file: Path | None = Field(
        None, description='JSONL file, one {"messages": [{"role": ..., "content": ...}, ...]} a line.'
    )
    share: float = Field(1.0, gt=0, description="How often it is drawn from, relative to the others.")
    begin: int = Field(0, ge=0, description="Step from which on it is drawn from.")
    end: int | None = Field(None, ge=1, description="Step before which it is drawn from; null: always.")

    @model_validator(mode="after")
    def _one_kind(self) -> "Source":
        if (self.env is None) == (self.file is None):
            raise ValueError("a source names either env or file")
        if self.end is not None and self.begin >= self.end:
            raise ValueError(f"begin ({self.begin}) must be less than end ({self.end})")
        return self

    def share_at(self, step: int) -> float:
        """The share with which it is drawn from at a step."""
        return self.share * (self.begin <= step and (self.end is None or step < self.end))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to learn from. The assistant messages numbered in `wrong` are seen, but not learned."""

    messages: tuple[Message, ...]
    wrong: frozenset[int] = frozenset()


def conversation(path: Trajectory) -> Conversation:
    """A trajectory as an agent with no instructions sees it: observations and plain actions."""
    messages = []
    for turn in path.turns:
        messages += [Message("user", turn.observation), Message("assistant", turn.text)]
    return Conversation(tuple(messages), frozenset(path.info.get("mistakes", ())))


class EnvStream:
    """Demonstrations of a world's own demonstrator, task and seed drawn anew each time (or see `repeat`)."""

    def __init__(self, source: Source) -> None:
        assert source.env is not None
        self.source = source
        self.env = _make(source.env, source.options)
        self.tasks = self.env.tasks(source.split)
        if not self.tasks:
            raise ConfigError(
                f"split {source.split!r} of {source.env} has no tasks with {source.options}"
            )
        self.play, self.again = demonstrator(source), source.repeat
        played_alike = source.model_dump_json(exclude={"share", "begin", "end"})
        self.kept = KEPT.setdefault(played_alike, {})

    def draw(self, rng: np.random.Generator) -> Conversation:
        """A successful demonstration of a random task of the split."""
        for _ in range(TRIES):
            number = int(rng.integers(len(self.tasks)))
            found = self.keep(number, rng) if self.again else self.demonstrate(number, rng)
            if found is not None:
                return found
        raise ConfigError(f"{TRIES} demonstrations in {self.source.env} failed: are its turns too few?")

    def keep(self, number: int, rng: np.random.Generator) -> Conversation | None:
        """One of the demonstrations of a task, played if it was not drawn before."""
        key = number, int(rng.integers(self.again or 1))
        if key not in self.kept:
            self.kept[key] = self.demonstrate(number, np.random.default_rng(key))
        return self.kept[key]

    def demonstrate(self, number: int, rng: np.random.Generator) -> Conversation | None:
        """A demonstration of a task; None if it fails."""
        seed = int(rng.integers(MAX_SEED))
        task = Task(str(self.source.env), self.tasks[number], self.source.split, seed)
        path = self.play(self.env, task, rng, self.source.mistakes)
        if not isinstance(path, Trajectory):
            who = self.source.demonstrator
            raise ConfigError(f"demonstrator {who!r} returned a {type(path).__name__}, no Trajectory")
        told = conversation(path)
        said = sum(message.role == "assistant" for message in told.messages)
        good = path.success is not False and path.failure is None and len(told.wrong) < said
        return told if good else None


class FileStream:
    """Conversations of a JSONL file, which is read into memory."""

    def __init__(self, source: Source) -> None:
        assert source.file is not None
        self.rows = read_conversations(source.file)

    def draw(self, rng: np.random.Generator) -> Conversation:
        """A random line."""
        return self.rows[int(rng.integers(len(self.rows)))]


class Examples:
    """A mixture of sources as one endless, random-access row of examples."""

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        if not sources:
            raise ConfigError("there is nothing to learn from: the list of sources is empty")
        self.sources, self.seed = tuple(sources), seed
        self.streams = [FileStream(s) if s.file else EnvStream(s) for s in sources]

    def draw(self, index: int, step: int = 0) -> Conversation:
        """Example `index`, from the sources that are open at `step`."""
        rng = np.random.default_rng([self.seed, index])
        shares = np.array([source.share_at(step) for source in self.sources])
        if not shares.any():
            raise ConfigError(f"no source is open at step {step}: see begin and end")
        return self.streams[int(rng.choice(len(shares), p=shares / shares.sum()))].draw(rng)


def demonstrator(source: Source) -> Demonstrator:
    """The demonstrator that a source names, else the one of its environment, else its own solution."""
    own = source.env if source.env in DEMONSTRATORS else SOLVE
    return find("demonstrator", source.demonstrator or own, DEMONSTRATORS)  # type: ignore[no-any-return]


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a JSONL file. Raises ConfigError that names the file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}") from error
    rows = [_read_line(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError(f"{path} holds no conversations")
    return rows


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    messages: list[Message]


def _read_line(line: str, where: str) -> Conversation:
    try:
        messages = tuple(_Line.model_validate_json(line).messages)
    except ValueError as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())[:300]}") from error
    if not any(message.role == "assistant" for message in messages):
        raise ConfigError(f"{where}: no assistant message to learn from")
    return Conversation(messages)


def _make(env_id: str, options: dict[str, Any]) -> TextEnv:
    try:
        return envs.make(env_id, **options)
    except TypeError as error:
        raise ConfigError(f"{env_id} can't be made with options {options}: {error}") from error
