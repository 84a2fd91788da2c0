"""ReAct: one rollout, one completion a turn (Yao et al. 2023), in the forms that AgentGym uses."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnbench.agents.core import Population
from turnbench.agents.model import Completion, Message, Model, Prompt
from turnbench.agents.rollout import Move, Rollout, play, start_many
from turnbench.agents.tools import (
    change_after,
    describe,
    native_turn,
    tool_action,
    tools_after,
    without_thoughts,
)
from turnbench.envs.core import MAX_SEED, TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Failure, Task

THOUGHT_FORMAT = """\
Answer each observation in exactly this form, with nothing after it:
Thought: your reasoning
Action: your one next action"""
PLAIN_FORMAT = "Answer each observation with your next action and nothing else."
READY = "Ready."


@dataclass(slots=True)
class ReActPolicy:
    """Asks a model for the next move: how the prompt is built and how the answer is read.

    A world's tools are shown once: to models with `native_tools` as tools, to others as schemas in the
    opening (so only with `instructions`), unless the world was asked to print them itself.

    `style`: "plain" takes the completion as the action, "thought" asks for Thought/Action.
    `instructions`: whether the environment's instructions and the format open the conversation.
    `history`: how many past turns the prompt carries besides the first observation; None for all.
    `reasoning`: whether later prompts keep or drop what stands in <think> tags.
    """

    model: Model
    style: Literal["plain", "thought"] = "plain"
    instructions: bool = True
    history: int | None = None
    reasoning: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        for name, known in (("style", ("plain", "thought")), ("reasoning", ("keep", "drop"))):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}"
                )
        if self.history is not None and self.history < 0:
            raise ConfigError(f"history is {self.history}; it must be at least 0, or null for all turns")

    def act(self, rollouts: Sequence[Rollout]) -> list[Move | Failure]:
        """The next move of each rollout, from one batch of completions."""
        answers = self.model.generate([self.prompt(rollout) for rollout in rollouts])
        return [self.read(r, answer) for r, answer in zip(rollouts, answers, strict=True)]

    def prompt(self, rollout: Rollout) -> Prompt:
        """The conversation that the model is to continue, with a fresh seed."""
        turns = rollout.turns
        first = 0 if self.history is None else max(0, len(turns) - self.history)
        messages = [*self._opening(rollout, first), Message("user", self._first(rollout))]
        seen = [turn.observation for turn in turns[1:]] + [rollout.observation]
        for number in range(first, len(turns)):
            messages += self._exchange(rollout, number, seen[number])
        append_only = first == 0 and self.reasoning == "keep"
        covered = len(messages) - 1 if append_only and rollout.context else 0
        context = rollout.context if covered else ()
        tools = tools_after(rollout.toolsets, len(turns)) if self._native(rollout) else ()
        return Prompt(tuple(messages), int(rollout.rng.integers(MAX_SEED)), context, covered, tools)

    def read(self, rollout: Rollout, answer: Completion | Failure) -> Move | Failure:
        """The move that an answer stands for."""
        if isinstance(answer, Failure):
            return answer
        if answer.calls:
            return Move(answer.text, answer)
        if self.style == "plain" or self._native(rollout):
            text = without_thoughts(answer.text) if rollout.toolsets else answer.text
            return Move(text.strip(), answer)
        return Move(REPLY_FORMATS[rollout.env.reply_format](answer.text), answer)

    def _native(self, rollout: Rollout) -> bool:
        """Whether the model is given the world's tools as tools, and so no form to answer in."""
        return bool(rollout.toolsets) and getattr(self.model, "native_tools", False)

    def _opening(self, rollout: Rollout, first: int) -> list[Message]:
        """Instructions, tools as they stood before turn `first`, and the form of answers."""
        if not self.instructions:
            return []
        parts = [rollout.env.instructions]
        if not self._native(rollout):
            if not _prints_tools(rollout.env):
                parts.append(describe(tools_after(rollout.toolsets, first)))
            parts.append(THOUGHT_FORMAT if self.style == "thought" else PLAIN_FORMAT)
        text = "\n\n".join(filter(None, parts)).strip()
        return [Message("user", text), Message("assistant", READY)] if text else []

    def _exchange(self, rollout: Rollout, number: int, observation: str) -> list[Message]:
        """Turn `number` and what was seen after it."""
        turn = rollout.turns[number]
        if self._native(rollout):
            return native_turn(turn, observation, self.reasoning == "keep")
        if not _prints_tools(rollout.env):
            observation += change_after(rollout.toolsets, number + 1)
        return [Message("assistant", self._past(turn.text)), Message("user", observation)]

    def _first(self, rollout: Rollout) -> str:
        return rollout.turns[0].observation if rollout.turns else rollout.observation

    def _past(self, text: str) -> str:
        return text if self.reasoning == "keep" else without_thoughts(text)


def _prints_tools(env: TextEnv) -> bool:
    """Whether a world was asked to show its tools in what it observes."""
    return getattr(env, "tools_in_observation", False)


_SINGLE = re.compile(r"Action:\s*(.*?)(?=\n|$)")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9, ]+")


def last_action(text: str) -> str:
    """AgentGym's reading for WebShop and ScienceWorld: all that follows the last "Action:".

    Without the marker the action is empty, unless the text holds a WebShop command: then all of it.
    """
    text = text.removesuffix("</s>")
    _, marker, action = text.rpartition("Action:")
    if marker:
        return action.strip()
    return text if "search[" in text or "click[" in text else ""


def single_action(text: str) -> str:
    """AgentGym's reading for TextCraft: the rest of the line after the only "Action:", letters,
    digits, commas and single blanks kept. Several actions are passed on as they are, so that the
    environment can refuse them; none is an empty action.
    """
    found = _SINGLE.findall(text.removesuffix("</s>"))
    if len(found) > 1:
        return text
    action = _FORBIDDEN.sub("", found[0]) if found else ""
    return " ".join(action.split())


REPLY_FORMATS: dict[str, Callable[[str], str]] = {
    "last-action": last_action,
    "single-action": single_action,
    "tool-action": tool_action,
}


class ReAct:
    """One rollout of a model. Options are ReActPolicy's."""

    privileges: tuple[str, ...] = ()

    def __init__(
        self,
        model: Model,
        *,
        style: Literal["plain", "thought"] = "plain",
        instructions: bool = True,
        history: int | None = None,
        reasoning: Literal["keep", "drop"] = "keep",
    ) -> None:
        self.policy = ReActPolicy(model, style, instructions, history, reasoning)

    def solve(self, env: TextEnv, task: Task, rng: np.random.Generator) -> Population:
        """Play the task once."""
        rollouts = start_many(env, task, rng, 1)
        play(rollouts, self.policy)
        return Population((rollouts[0].finish(),))
