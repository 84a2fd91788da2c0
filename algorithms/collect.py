"""Collect: the episodes of a training step, played as in evaluation."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from turnbench.agents.hf import HfModel
from turnbench.agents.model import Answer, Model, Prompt, Sampling
from turnbench.agents.react import ReActPolicy
from turnbench.agents.rollout import Rollout, play
from turnbench.algorithms.batch import Episode, Ids
from turnbench.algorithms.served import ServedModel
from turnbench.envs import make, with_turns
from turnbench.envs.core import TextEnv, mix
from turnbench.envs.errors import ConfigError, ModelError
from turnbench.envs.record import Failure, Outcome, Task, trajectory_from_json, trajectory_to_json

LEARNABLE = frozenset({Outcome.OK, Outcome.TRUNCATED})
"""Other outcomes say nothing about the policy, or only half of what it did."""

Job = tuple[int, Task, np.random.Generator]
"""What to play: the group that the attempt belongs to, its task, and its random generator."""


class World(BaseModel):
    """The environment to learn in, and the tasks that are drawn from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(description="Environment id.")
    split: str = Field("train", description="Split whose tasks are played.")
    tasks: int | tuple[str, ...] | None = Field(
        None, description="Only the first so many tasks, or these; null for all."
    )
    max_turns: int | None = Field(
        None, ge=1, description="Turns before truncation; null: the world's own."
    )
    options: dict[str, Any] = Field({}, description="Further arguments of the environment.")

    def make(self) -> TextEnv:
        """A new environment."""
        return make(self.id, **with_turns(self.options, self.max_turns))

    def task_ids(self, env: TextEnv) -> Sequence[str]:
        """The tasks to draw from. Raises ConfigError, UnknownName."""
        known = env.tasks(self.split)
        if isinstance(self.tasks, tuple):
            unknown = sorted(set(self.tasks) - set(known))
            if unknown:
                raise ConfigError(f"env.tasks: {self.id} has no task {unknown[0]!r} in {self.split}")
            known = self.tasks
        elif self.tasks is not None:
            known = known[: self.tasks]
        if not known:
            raise ConfigError(f"env.tasks: no task is left of the split {self.split} of {self.id}")
        return known


class Play(BaseModel):
    """How the policy plays; the first four are ReAct's options. The policy that is improved is the one that
    is sampled: the network's logits divided by the temperature. Top-p is 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    style: Literal["plain", "thought"] = Field("plain", description="Form of the answers.")
    instructions: bool = Field(True, description="Whether the conversation opens with instructions.")
    history: int | None = Field(None, ge=0, description="Past turns in the prompt; null for all.")
    reasoning: Literal["keep", "drop"] = Field("keep", description="Whether later prompts keep it.")
    max_tokens: int = Field(64, ge=1, description="Longest action, in tokens.")
    temperature: float = Field(1.0, gt=0, description="Temperature of what is sampled and improved.")

    def policy(self, model: Model) -> ReActPolicy:
        """The policy that asks `model`."""
        return ReActPolicy(model, self.style, self.instructions, self.history, self.reasoning)

    @property
    def sampling(self) -> Sampling:
        """How completions are drawn."""
        return Sampling(self.temperature, max_tokens=self.max_tokens)


class OnePromptFails:
    """A model that answers a prompt it can't be asked by a Failure, and all others.

    In evaluation such a prompt ends the run, as something is set wrong; a training step has other episodes.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.name, self.sampling = model, model.name, model.sampling

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Answer]:
        """One answer for each prompt, in order. Who is to blame is found by halving."""
        try:
            return self.model.generate(prompts, sampling)
        except ModelError as error:
            if len(prompts) == 1:
                return [Failure.of(error, Outcome.INFRA_ERROR)]
        half = len(prompts) // 2
        return [*self.generate(prompts[:half], sampling), *self.generate(prompts[half:], sampling)]

    def close(self) -> None:
        """The model stays its owner's."""


class Collector:
    """Plays groups of attempts at drawn tasks. What it plays is a function of (seed, step, round)."""

    def __init__(self, world: World, how: Play, seed: int) -> None:
        self.world, self.how, self.seed = world, how, seed
        self.envs = [world.make()]
        self.known = world.task_ids(self.envs[0])

    def collect(
        self,
        model: HfModel | ServedModel,
        at: tuple[int, ...],
        tasks: int,
        group: int,
        share: tuple[int, int],
    ) -> list[Episode]:
        """`group` attempts at each of `tasks` drawn tasks, all under the same seed of the world.

        Of the groups only every `share[1]`-th from `share[0]` on is played: a process's part. What
        failed is among them.
        """
        rng = np.random.default_rng([self.seed, *at])
        drawn = rng.choice(len(self.known), tasks, replace=tasks > len(self.known))
        streams = rng.spawn(tasks)
        jobs = [
            (g, Task(self.world.id, self.known[drawn[g]], self.world.split, self._seed(at, g)), stream)
            for g in range(share[0], tasks, share[1])
            for stream in streams[g].spawn(group)
        ]
        return self.play(model, jobs)

    def _seed(self, at: tuple[int, ...], number: int) -> int:
        return mix(self.seed, *map(str, at), str(number))

    def play(self, model: HfModel | ServedModel, jobs: Sequence[Job]) -> list[Episode]:
        """Play jobs side by side."""
        while len(self.envs) < len(jobs):
            self.envs.append(self.envs[0].spawn())
        rollouts = [
            Rollout.start(env, task, rng) for env, (_, task, rng) in zip(self.envs, jobs, strict=False)
        ]
        policy = self.how.policy(OnePromptFails(model))
        play(rollouts, policy)
        episodes = [
            Episode(r.finish(), g, _tail(policy, model, r))
            for r, (g, _, _) in zip(rollouts, jobs, strict=True)
        ]
        for k, rollout in enumerate(rollouts):
            if rollout.failure is not None and rollout.failure.outcome is Outcome.ENV_ERROR:
                self._replace(k)
        return episodes

    def _replace(self, number: int) -> None:
        """A world that failed may be in any state."""
        broken = self.envs[number]
        self.envs[number] = broken.spawn()
        broken.close()

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()


def _tail(policy: ReActPolicy, model: HfModel | ServedModel, rollout: Rollout) -> Ids:
    """The prompt that would have been next, where the episode was cut short and it fits."""
    path = rollout.finish()
    if path.outcome is not Outcome.TRUNCATED or not rollout.turns:
        return ()
    try:
        ids = model.chat.encode(policy.prompt(rollout))
    except ModelError:
        return ()
    limit = model.context_length
    return ids if limit is None or len(ids) <= limit else ()


def to_json(episode: Episode) -> dict[str, Any]:
    """An episode as JSON, as it travels between processes and is written to a file."""
    task = episode.path.task
    return {
        "task": [task.env, task.id, task.split, task.seed],
        "group": episode.group,
        "tail": list(episode.tail),
        "path": trajectory_to_json(episode.path),
    }


def from_json(row: dict[str, Any]) -> Episode:
    """Inverse of `to_json`."""
    task = Task(*row["task"])
    return Episode(trajectory_from_json(row["path"], task), row["group"], tuple(row["tail"]))
