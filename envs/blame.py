"""Blame: read the log of a failed run and say which agent made the decisive error at which step.

One turn: the log is the observation, the answer is the action. The logs are ToolWorld's with one wrong
step (blame_logs.py), or Who&When's from a folder.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Self

from turnbench.envs.blame_files import WHO_AND_WHEN, read_who_and_when
from turnbench.envs.blame_log import Log
from turnbench.envs.blame_logs import SOURCES, TOOLWORLD, VERSION, toolworld_log
from turnbench.envs.blame_metrics import hits, read_verdict
from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolworld import ToolWorld

INSTRUCTIONS = """\
You are given the log of a run in which several agents failed at a task. One step was decisive: had its \
agent done it right, and the others gone on from there, the task would have been solved. Steps are \
numbered from 0. Say which agent made that error at which step, in this form:
{"agent": "NAME", "step": NUMBER}"""


class Blame(TextEnv):
    """One turn; reward 1 for the right step. `info` tells `agent_correct` and `step_correct`, whether the
    answer could be read (`answered`), and the label; success is both agent and step right.

    `source`: "toolworld", of which `variant` chooses tasks, or "who_and_when", from the folder `data`
    and, if one is named, of one `subset`. `reveal_answer`: show the task's known answer, as Who&When's
    prompts do. `compat`: score as its published scorer does, which takes step 12 for step 1.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    default_turns: ClassVar[int] = 1
    has_success = True
    recorded = ("answered", "agent_correct", "step_correct")
    return_range = (0.0, 1.0)
    instructions = INSTRUCTIONS

    def __init__(
        self,
        source: str = TOOLWORLD,
        *,
        variant: str = "all",
        data: str | None = None,
        subset: str | None = None,
        reveal_answer: bool = True,
        compat: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        if source not in SOURCES:
            raise UnknownName("source of logs", source, SOURCES)
        if source == TOOLWORLD and (data or subset):
            raise ConfigError("data and subset go with source who_and_when")
        if source == WHO_AND_WHEN and not data:
            raise ConfigError(
                "source who_and_when needs `data`: docs/blame.md says where logs come from"
            )
        self.reveal_answer, self.compat = reveal_answer, compat
        self._world = ToolWorld(variant)
        self._files: dict[str, Log] = {}
        if data:
            self._files = _from_files(data, subset)
            self.splits = ("test",)  # type: ignore[misc]  # Who&When has no other
        self.log: Log | None = None

    def tasks(self, split: str) -> Sequence[str]:
        """Ids of ToolWorld's tasks, or of Who&When's files. Raises UnknownName."""
        self.check_split(split)
        return list(self._files) or self._world.tasks(split)

    def data_digest(self) -> str:
        """Digest of the logs and labels."""
        made = repr(self._files) if self._files else f"{VERSION}-{self._world.data_digest()}"
        return sha256(made.encode("utf-8")).hexdigest()

    def solution(self) -> list[str]:
        """The labelled answer. Never shown to an agent."""
        assert self.log is not None
        return [json.dumps({"agent": self.log.agent, "step": self.log.step})]

    def example_actions(self) -> Sequence[str]:
        """Each step with the agent that took it: one of them at random is the uniform guess of steps."""
        assert self.log is not None
        return [json.dumps({"agent": a, "step": k}) for k, a in enumerate(self.log.agents)]

    def fork(self) -> Self:
        """A copy, in constant time."""
        return self._shallow_copy()

    def _reset(self, task: str) -> str:
        if self._files and task not in self._files:
            raise UnknownName("Who&When log", task, self._files)
        self.log = self._files[task] if self._files else toolworld_log(task)
        return render(self.log, self.reveal_answer)

    def _step(self, action: str) -> Step:
        assert self.log is not None
        verdict = read_verdict(action)
        hit = hits(verdict, self.log.agent, self.log.step, self.compat)
        info: dict[str, Any] = {
            "success": hit.agent and hit.step,
            "agent_correct": hit.agent,
            "step_correct": hit.step,
            "answered": bool(verdict.agent and verdict.step),
            "label": {"agent": self.log.agent, "step": self.log.step, "reason": self.log.reason},
        }
        return Step("The answer has been taken.", float(hit.step), True, info)


def render(log: Log, reveal_answer: bool = True) -> str:
    """A log as a judge reads it: the task, its answer where it is known and wanted, then each step."""
    steps = [f"Step {k} - {agent}: {log.text(k)}" for k, agent in enumerate(log.agents)]
    answer = f"Right answer: {log.answer}\n" if log.answer and reveal_answer else ""
    return f"Task: {log.question}\n{answer}\n" + "\n".join(steps)


@lru_cache(maxsize=8)
def _from_files(data: str, subset: str | None) -> dict[str, Log]:
    return {log.id: log for log in read_who_and_when(data, subset)}
