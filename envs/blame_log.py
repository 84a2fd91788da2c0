"""Log: a failed run of several agents, and which of them decided the failure at which step."""

import re
from dataclasses import dataclass

from turnbench.envs.record import Trajectory

_ASIDE = re.compile(r"\s*\([^()]*\)\s*$")


@dataclass(frozen=True, slots=True)
class Log:
    """A failed run with its label.

    Turn k of `trajectory` is step k, taken by `agents[k]`; `agent` and `step` are the label, which in
    people's annotations may disagree. `answer` is the task's known answer, "" where it has none.
    `results`: whether what followed an action is its result, and not the next agent's action.
    """

    id: str
    question: str
    answer: str
    trajectory: Trajectory
    agents: tuple[str, ...]
    agent: str
    step: int
    reason: str = ""
    results: bool = False

    def __len__(self) -> int:
        return len(self.agents)

    def text(self, step: int) -> str:
        """What was done in a step, with its result where it has one of its own."""
        turns = self.trajectory.turns
        if not self.results:
            return turns[step].action
        after = turns[step + 1].observation if step + 1 < len(turns) else self.trajectory.final
        return f"{turns[step].action}\nResult: {after}"


def plain_agent(role: str) -> str:
    """An agent's name without the aside that Who&When's roles carry: "Orchestrator (thought)"."""
    return _ASIDE.sub("", role).strip()
