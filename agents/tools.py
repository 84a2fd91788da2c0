"""Tools on the agents' side: native calls for the models that speak them, schemas in the prompt for others.

A world shows its tools in `info["tools"]` and never prints them; what a model sees of them is decided
here and in react.py. An action is always text, the one that the world got: native calls become the
OpenAI message that holds them, as JSON, so that a log replays without knowing the model. Read back from
the log, they and their results become the same messages again.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from turnbench.agents.model import Message, Prompt
from turnbench.envs.core import clean
from turnbench.envs.record import Json, Turn
from turnbench.envs.toolcall import parse
from turnbench.envs.toolset import HOW_TO_CALL

ELSEWHERE = "See the first call's result."

Toolsets = Sequence[tuple[int, tuple[Json, ...]]]

_MARKER = re.compile(r"^[ \t]*Action:", re.MULTILINE)
_THINK = re.compile(r"<think>.*?(</think>\s*|\Z)", re.DOTALL)


def without_thoughts(text: str) -> str:
    """`text` without what stands in <think> tags."""
    return _THINK.sub("", text)


# --- schemas in the prompt ------------------------------------------------------------------------------


def describe(tools: Sequence[Json]) -> str:
    """How tools are called, and one tool's schema a line; nothing where there are no tools."""
    return f"{HOW_TO_CALL}\n\nThe tools:\n{_lines(tools)}" if tools else ""


def _lines(tools: Sequence[Json]) -> str:
    return "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)


def describe_change(before: Sequence[Json], now: Sequence[Json]) -> str:
    """What a model is told when the tools have changed; nothing where they are the same."""
    new = [tool for tool in now if tool not in before]
    names = [_name(tool) for tool in now]
    gone = [_name(tool) for tool in before if _name(tool) not in names]
    told = f"\n\nNew tools:\n{_lines(new)}" if new else ""
    return told + (f"\n\nTools that are gone: {', '.join(gone)}" if gone else "")


def _name(tool: Json) -> str:
    return str(tool["function"]["name"])


def tools_after(toolsets: Toolsets, played: int) -> tuple[Json, ...]:
    """The tools as they stood after `played` turns."""
    return next((tools for turn, tools in reversed(toolsets) if turn <= played), ())


def change_after(toolsets: Toolsets, played: int) -> str:
    """What is said about tools that changed with the turn before."""
    if not played or all(turn != played for turn, _ in toolsets):
        return ""
    return describe_change(tools_after(toolsets, played - 1), tools_after(toolsets, played))


def tool_action(text: str) -> str:
    """How a Thought/Action reply is read in a world of tools: all that follows the last line that
    begins with "Action:". Without one, the whole text if it holds a call; else the action is empty.
    """
    text = without_thoughts(text).removesuffix("</s>")
    marker = None
    for marker in _MARKER.finditer(text):  # noqa: B007
        pass
    if marker is not None:
        return text[marker.end() :].strip()
    return text.strip() if parse(text).calls else ""


# --- native calls ---------------------------------------------------------------------------------------


def native_action(message: Json, content: str) -> str:
    """A server's message with tool calls as an action; "" where it has none. Each call gets an id."""
    given = message.get("tool_calls")
    calls: list[Json] = []
    for row in given if isinstance(given, list) else ():
        function = row.get("function") if isinstance(row, dict) else None
        if isinstance(function, dict):
            calls.append(_call(row.get("id"), function, calls))
    if not calls:
        return ""
    text = {"content": content} if content else {}
    return clean(json.dumps({**text, "tool_calls": calls}, ensure_ascii=False))


def _call(given: Any, function: Json, before: Sequence[Json]) -> Json:
    taken = {call["id"] for call in before}
    call_id = given if isinstance(given, str) and given and given not in taken else ""
    arguments = function.get("arguments")
    said = {
        "name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
    }
    number = next(k for k in range(len(before) + 1, 2 * len(before) + 3) if f"call_{k}" not in taken)
    return {"id": call_id or f"call_{number}", "type": "function", "function": said}


def native_turn(turn: Turn, observation: str, keep_thoughts: bool) -> list[Message]:
    """A past turn and what was seen after it, as a model that speaks native calls is told."""
    said = _native_message(turn.action)
    if said is None:
        text = turn.text if keep_thoughts else without_thoughts(turn.text)
        return [Message("assistant", text), Message("user", observation)]
    content, calls = said
    text = content if keep_thoughts else without_thoughts(content)
    ids = [call["id"] for call in calls]
    results = zip(ids, _results(observation, ids), strict=True)
    called = Message("assistant", text, json.dumps(calls, ensure_ascii=False))
    return [called, *(Message("tool", result, "", call_id) for call_id, result in results)]


def _native_message(action: str) -> tuple[str, list[Json]] | None:
    """The content and calls of an action that `native_action` wrote."""
    if not action.startswith("{"):
        return None
    try:
        row = json.loads(action)
        calls = row["tool_calls"]
        whole = all(isinstance(c["id"], str) and isinstance(c["function"], dict) for c in calls)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (str(row.get("content", "")), calls) if calls and whole else None


def _results(observation: str, ids: Sequence[str]) -> list[str]:
    """The result of each call: worlds answer one as it is, and several by a JSON list with ids.

    Where an observation is neither, the first call gets all of it.
    """
    whole = [observation, *[ELSEWHERE] * (len(ids) - 1)]
    if len(ids) == 1 or not observation.startswith("["):
        return whole
    try:
        rows = json.loads(observation)
        found = [(row["id"], row["content"]) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError):
        return whole
    texts = [text for _, text in found]
    same = [call_id for call_id, _ in found] == list(ids) and all(isinstance(t, str) for t in texts)
    return texts if same else whole


# --- what is sent ---------------------------------------------------------------------------------------


def message_row(message: Message) -> Json:
    """A message as chat servers take it."""
    row: Json = {"role": message.role, "content": clean(message.content)}
    if message.tool_calls:
        row |= {"content": row["content"] or None, "tool_calls": json.loads(message.tool_calls)}
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    return row


def conversation_key(prompt: Prompt) -> Json:
    """Messages and tools as they stand in a cache's key; what only tools need is left out without them."""
    messages = [
        list(message if message.tool_calls or message.tool_call_id else message[:2])
        for message in prompt.messages
    ]
    return {"messages": messages, **({"tools": list(prompt.tools)} if prompt.tools else {})}
