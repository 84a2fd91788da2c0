"""ToolEnv: a text world of tools, the base of every tool-use world here.

An author writes `tasks`, `_reset`, `_visible`, `_call`, `_say`, `_score` and `solution`. Each step
is one action: tool calls, which are made in order, or plain text. `info` then holds `turn_index` (the
user's turn it belongs to, from 0), `turn_end`, `n_calls`, `tool_errors`; `tools` at the reset and
whenever the list changes; and at the end `success`, `checks` and `benchmark`.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from turnbench.envs.core import Info, Step, TextEnv
from turnbench.envs.toolcall import Call, Said, parse, results_text
from turnbench.envs.toolguess import guesses
from turnbench.envs.toolset import ToolSet

MAX_OBSERVATION = 900_000


class Score(NamedTuple):
    """How an episode is judged: what it pays, whether it is solved, and the single checks by name."""

    reward: float
    success: bool
    checks: dict[str, Any]


class ToolEnv(TextEnv):
    """A world whose actions are tool calls or plain text (toolcall.py says how both are written).

    A world never prints its tools: they are in `info["tools"]`, and agents show them to their models
    (agents/react.py). `tools_in_observation` is for agents that know nothing of that: the first
    observation then begins with the tools' signatures, a later one with those of new tools, and ours
    show them no second time.
    """

    benchmark: str = ""
    """Name and version of what is measured, kept in the last step's info."""
    checks_arguments: ClassVar[bool] = True
    """Whether a call's arguments must fit the schema; else the world itself refuses them."""
    has_success = True
    recorded = ("checks", "benchmark")
    return_range = (0.0, 1.0)
    reply_format = "tool-action"

    def __init__(
        self,
        *,
        tools_in_observation: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.tools_in_observation = tools_in_observation
        self.tools = ToolSet(())
        self.turn_index = 0
        self.done = False

    # --- what an author writes ---------------------------------------------------------------

    @abstractmethod
    def _visible(self) -> ToolSet:
        """The tools that can be called now: the same object as long as nothing changes."""

    @abstractmethod
    def _call(self, call: Call) -> str:
        """Make one call of a visible tool: its result, or a text that begins "Error".

        Sets `self.done` to end the episode after this action. Must not raise.
        """

    @abstractmethod
    def _say(self, text: str) -> Step:
        """Take plain text: a turn's end, a final answer or a message to the user."""

    @abstractmethod
    def _score(self, ended: bool) -> Score:
        """Judge the episode. `ended`: by the world or the agent, not by the limit of turns."""

    @abstractmethod
    def solution(self) -> list[str]:
        """Actions that solve this episode's task from its start. Never shown to an agent."""

    # --- what everybody calls ----------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """As TextEnv.reset; `info["tools"]` lists the schemas, which are not to be changed."""
        self.turn_index, self.done = 0, False
        observation, info = super().reset(seed=seed, options=options)
        self.tools = self._visible()
        if self.tools_in_observation:
            observation = self.observation = f"Tools:\n{self.tools.compact}\n\n{observation}"
        return observation, {**info, "tools": list(self.tools.schemas)}

    def example_actions(self) -> list[str]:
        """A call of each visible tool with what was seen last, and a plain answer."""
        return [*guesses(self.tools, self.observation), "Done."]

    def _step(self, action: str) -> Step:
        said = parse(action, self.tools.names)
        info: Info = {"turn_index": self.turn_index, "turn_end": not said.calls, "n_calls": 0}
        step = self._make_calls(said, info) if said.calls else self._talk(said.text, info)
        over = step.terminated or self.done
        reward = float(step.reward)
        if over or len(self.history) >= self.max_turns:
            score = self._score(over)
            reward += score.reward
            info.update(success=score.success, checks=score.checks, benchmark=self.benchmark)
        observation, tools = step.observation, self._visible()
        if tools is not self.tools:
            if self.tools_in_observation and (new := tools.without(self.tools.names)).names:
                observation = f"New tools:\n{new.compact}\n\n{observation}"
            self.tools, info["tools"] = tools, list(tools.schemas)
        return Step(observation, reward, over, info)

    def _make_calls(self, said: Said, info: Info) -> Step:
        results = [self._answer(call) for call in said.calls]
        info["n_calls"] = len(results)
        info["tool_errors"] = sum([result.startswith("Error") for result in results])
        return Step(_cut(results_text(said.calls, results)))

    def _answer(self, call: Call) -> str:
        if self.done:
            return "Error: not called, since the call before it ended the episode"
        bound = self.tools.bind(call, check=self.checks_arguments)
        return bound if isinstance(bound, str) else self._call(bound)

    def _talk(self, text: str, info: Info) -> Step:
        info["tool_errors"] = 0
        step = self._say(text)
        info.update(step.info or {})
        self.turn_index += 1
        return step


def _cut(text: str) -> str:
    """`text`, or its beginning where many long results don't fit into an observation."""
    return text if len(text) <= MAX_OBSERVATION else f"{text[:MAX_OBSERVATION]}... (cut)"
