"""Held-out measurement of a policy under training: return, success and pass@k."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnbench.algorithms.batch import Episode
from turnbench.algorithms.collect import Collector, Job, World
from turnbench.algorithms.pass_k import pass_at_k
from turnbench.envs.core import TextEnv
from turnbench.envs.record import Task


class Evaluation(BaseModel):
    """Episodes on tasks that are not learned from, and the model that did best in them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(20, ge=1, description="Steps between two evaluations.")
    episodes: int = Field(32, ge=1, description="Episodes an evaluation.")
    attempts: int = Field(1, ge=1, description="Of these, attempts at each task, for pass@k.")
    final: int | None = Field(
        None, ge=1, description="Episodes for the last model and the best at the end; null: as many."
    )
    split: str = Field("test", description="Split whose tasks are played, in their order.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for key in ("episodes", "final"):
            if (count := getattr(self, key)) and count % self.attempts:
                raise ValueError(f"{key} is {count}, which is no multiple of attempts ({self.attempts})")
        return self

    def jobs(self, world: World, env: TextEnv, *, final: bool = False) -> list[Job]:
        """What an evaluation plays. The final one plays other episodes than those on the way, by which
        the best model was picked."""
        count = self.final or self.episodes if final else self.episodes
        known, first = env.tasks(self.split), self.episodes if final else 0
        numbers = [k // self.attempts for k in range(first, first + count)]
        return [
            (n, Task(world.id, known[n % len(known)], self.split, n), np.random.default_rng(first + k))
            for k, n in enumerate(numbers)
        ]


class Result(NamedTuple):
    """How an episode ended: the task's number, the return, and whether it was a success where the world says."""

    task: int
    ret: float
    success: bool | None


def measure(
    how: Evaluation, collector: Collector, model: Any, accelerator: Accelerator, *, final: bool = False
) -> dict[str, float]:
    """What held-out episodes say (see `told`), and how many of them failed; played by all processes."""
    jobs = how.jobs(collector.world, collector.envs[0], final=final)
    mine = jobs[accelerator.process_index :: accelerator.num_processes]
    found = results(collector.play(model, mine))
    found = gather_object(found) if accelerator.num_processes > 1 else found
    return told(found) | {"failed": float(len(jobs) - len(found))}


def results(episodes: Sequence[Episode]) -> list[Result]:
    """Those of the episodes that say something about the policy."""
    return [Result(e.group, e.path.ret, e.path.success) for e in episodes if not e.path.missing]


def told(found: Sequence[Result]) -> dict[str, float]:
    """Mean return; where the world judges also success and pass@k for k = 2, 4, ... attempts at a task.

    A task with less than k attempts left isn't counted for that k. Empty where there are no results.
    """
    if not found:
        return {}
    said = {"reward": float(np.mean([r.ret for r in found]))}
    by_task: dict[int, list[bool]] = defaultdict(list)
    for result in found:
        if result.success is not None:
            by_task[result.task].append(result.success)
    if not by_task:
        return said
    said["success"] = float(np.mean([s for tries in by_task.values() for s in tries]))
    k = 2
    while enough := [tries for tries in by_task.values() if len(tries) >= k]:
        said[f"pass@{k}"] = float(np.mean([pass_at_k(sum(t), len(t), k) for t in enough]))
        k *= 2
    return said
