"""A model's own rollouts, that a value function or a reward model learns from, kept as Population lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnbench import envs
from turnbench.agents import make_model
from turnbench.agents.core import Population, population_from_json, population_to_json
from turnbench.agents.react import ReActPolicy
from turnbench.agents.rollout import finish_all, play, start_many
from turnbench.algorithms.progress import counted
from turnbench.envs.core import TextEnv, mix
from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import Task

FILE = "rollouts.jsonl"
TOGETHER = 64  # rollouts that are played side by side, so that each turn is one batch


class Rollouts(BaseModel):
    """Whose rollouts a trainer learns from: a model's, at a split's tasks, or those of another run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(description="Environment id.")
    options: dict[str, Any] = Field({}, description="Arguments of the environment.")
    split: str = Field("train", description="Split whose tasks are played.")
    seeds: tuple[int, ...] = Field(
        (0,), min_length=1, description="World seeds each task is played under."
    )
    tasks: int | None = Field(None, ge=2, description="Number of tasks, drawn at random; null for all.")
    group: int = Field(8, ge=1, description="Rollouts of each task and seed.")
    model: dict[str, Any] | None = Field(None, description="Model that plays, as a suite describes it.")
    policy: dict[str, Any] = Field({}, description="ReAct's options: style, instructions, history.")
    rollouts: Path | None = Field(None, description="Rollouts of another run to use instead of playing.")
    held_out: float = Field(0.2, gt=0, lt=1, description="Part of the tasks kept for early stopping.")
    seed: int = Field(0, ge=0, description="Seed of the head, the order and the held-out tasks.")

    @model_validator(mode="after")
    def _one_source(self) -> "Rollouts":
        if (self.model is None) == (self.rollouts is None):
            raise ValueError("name either model (which plays) or rollouts (of another run)")
        return self

    @classmethod
    def free(cls) -> set[str]:
        """The keys that a folder with rollouts may be started again with other values of."""
        played = {
            "algorithm",
            "env",
            "options",
            "split",
            "seeds",
            "tasks",
            "group",
            "model",
            "policy",
            "seed",
        }
        return cls.model_fields.keys() - played


def read_rollouts(path: Path) -> list[Population]:
    """The populations of a file; a torn last line is left out. Raises LogError for another."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(population_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise LogError(f"{path}:{number} is no population: {error}") from error
    return found


def collect(
    path: Path, env: TextEnv, tasks: Sequence[Task], group: int, model: Any, policy: dict[str, Any]
) -> Iterator[Population]:
    """Play each task `group` times, a line a task; tasks that the file holds are not played again."""
    found = read_rollouts(path)
    _drop_torn_line(path)
    yield from found
    done = {population.best.task for population in found}
    todo = [task for task in tasks if task not in done]
    if not todo:
        return
    asked = make_model(model)
    try:
        size = max(1, TOGETHER // group)
        with path.open("a", encoding="utf-8") as file:
            for start in range(0, len(todo), size):
                played = _play(env, todo[start : start + size], group, ReActPolicy(asked, **policy))
                for population in played:
                    file.write(json.dumps(population_to_json(population)) + "\n")
                    file.flush()
                    yield population
    finally:
        asked.close()


def _play(env: TextEnv, tasks: Sequence[Task], group: int, policy: ReActPolicy) -> list[Population]:
    """Many tasks at once, in step. The rollouts of a task depend on that task alone."""
    groups = []
    for task in tasks:
        rng = np.random.default_rng(mix(task.seed, task.env, task.id, "value"))
        groups.append(start_many(env.spawn(), task, rng, group))
    play([rollout for rollouts in groups for rollout in rollouts], policy)
    return [Population(finish_all(rollouts, env)) for rollouts in groups]


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def tasks_of(env_id: str, options: dict[str, Any], split: str, seeds: Sequence[int]) -> list[Task]:
    """All tasks of a split under all seeds. Raises ConfigError where there are none."""
    env = envs.make(env_id, **options)
    tasks = [Task(env_id, task, split, seed) for seed in seeds for task in env.tasks(split)]
    env.close()
    if not tasks:
        raise ConfigError(f"split {split!r} of {env_id} has no tasks with {options}")
    return tasks


def split_tasks(tasks: Iterable[Task], held_out: float, seed: int) -> set[str]:
    """The ids of the tasks that are kept for early stopping: all seeds of a task go together."""
    ids = sorted({task.id for task in tasks})
    count = max(1, round(held_out * len(ids)))
    if count >= len(ids):
        raise ConfigError(f"{len(ids)} tasks are too few to hold {held_out:g} of them out")
    chosen = np.random.default_rng([seed, 1]).permutation(len(ids))[:count]
    return {ids[k] for k in chosen}


def populations_of(settings: Rollouts, out: Path) -> list[Population]:
    """The rollouts that a trainer's settings name; those played are kept in its run folder `out`.

    Rollouts that an interrupted run has collected are used. Raises ConfigError, ModelError, LogError.
    """
    if settings.rollouts is not None:
        found = rollouts_in(settings.rollouts)
        foreign = {p.best.task.env for p in found} - {settings.env}
        if foreign or not found:
            theirs = ", ".join(sorted(foreign)) or "nothing"
            raise ConfigError(f"{settings.rollouts} holds rollouts of {theirs}, not of {settings.env}")
        return found
    tasks = tasks_of(settings.env, settings.options, settings.split, settings.seeds)
    if settings.tasks is not None and settings.tasks < len(tasks):
        chosen = np.random.default_rng([settings.seed, 0]).permutation(len(tasks))[: settings.tasks]
        tasks = [tasks[k] for k in sorted(chosen)]
    env = envs.make(settings.env, **settings.options)
    model = dict(settings.model or {})
    played = collect(out / FILE, env, tasks, settings.group, model, settings.policy)
    return list(counted(played, len(tasks), f"tasks played, {settings.group} rollouts each"))


def rollouts_in(path: Path) -> list[Population]:
    """The rollouts of a run folder or a file. Raises ConfigError where there are none, and LogError."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"there are no rollouts in {path}")
    return read_rollouts(file)
