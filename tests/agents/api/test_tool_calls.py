"""Native tool calls over HTTP: what is sent, what is read, and what the cache's key holds."""

import json
from typing import Any

import numpy as np
import pytest

from turnbench.agents.model import Message, Prompt
from turnbench.agents.react import ReAct
from turnbench.envs import make as make_env
from turnbench.envs.errors import ModelError
from turnbench.envs.record import Task

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASK = Prompt((Message("user", "hello"),), 7, tools=(TOOL,))


def call(name: str, arguments: Any, call_id: str = "id1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return dict(text=None, finish="tool_calls", message={"tool_calls": list(rows)}, **fields)


def test_an_episode_of_native_calls(server: Any, make: Any) -> None:
    env = make_env("turnbench/ClosedSearch-v0", documents=400)
    task = Task("turnbench/ClosedSearch-v0", "8-0", "test", 0)
    env.reset(seed=0, options={"task": "8-0"})
    question = env.question
    server.play = [
        calls(
            call("search", {"query": question.plan[0]}, "a"),
            call("open_document", {"id": question.gold[0]}, "b"),
        ),
        dict(text=f"Answer: {question.answer} [{question.gold[0]}]"),
    ]
    path = ReAct(make()).solve(env, task, np.random.default_rng(0)).best
    assert path.ret == 1.0 and path.success
    first, second = server.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search", "open_document"]
    assert all("open_document" not in m["content"].partition("Question:")[2] for m in first["messages"])
    said, *results = second["messages"][-3:]
    assert said["tool_calls"][0]["function"]["name"] == "search" and said["content"] is None
    assert [(m["role"], m["tool_call_id"]) for m in results] == [("tool", "a"), ("tool", "b")]
    assert results[1]["content"].startswith(f"[{question.gold[0]}]")
    assert json.loads(path.turns[0].action)["tool_calls"] == said["tool_calls"]


def test_a_model_without_native_tools_is_sent_none(server: Any, make: Any) -> None:
    env = make_env("turnbench/ClosedSearch-v0", documents=400)
    task = Task("turnbench/ClosedSearch-v0", "8-0", "test", 0)
    ReAct(make(native_tools=False)).solve(env, task, np.random.default_rng(0))
    (body,) = server.bodies
    assert "tools" not in body and '"name": "open_document"' in body["messages"][0]["content"]


def test_calls_are_read_only_where_tools_were_offered(server: Any, make: Any) -> None:
    server.play = [calls(call("look", {}))]
    with_tools, without = make().generate([ASK, Prompt(ASK.messages)])
    assert with_tools.calls and json.loads(with_tools.text)["tool_calls"][0]["id"] == "id1"
    assert (without.calls, without.text) == (False, "")


def test_tools_are_in_the_key_and_cached_calls_are_the_same(
    server: Any, make: Any, tmp_path: Any
) -> None:
    server.play = [calls(call("look", {"at": "\ud800é"}))]
    model = make(cache=str(tmp_path))
    asked = [ASK, Prompt(ASK.messages, 7), Prompt(ASK.messages, 7, tools=(TOOL, TOOL))]
    results = Message("tool", "seen", "", "id1")
    asked.append(Prompt((*ASK.messages, results), 7, tools=(TOOL,)))
    asked.append(Prompt((*ASK.messages, results._replace(tool_call_id="id2")), 7, tools=(TOOL,)))
    answers = [model.generate([prompt])[0] for prompt in asked]
    assert len(server.bodies) == len(asked)
    again = [model.generate([prompt])[0] for prompt in asked]
    assert len(server.bodies) == len(asked)
    assert [(a.text, a.calls) for a in again] == [(a.text, a.calls) for a in answers]
    assert "tools" in model.explain(Prompt(ASK.messages, 7, tools=({},)))


def test_samples_that_share_a_call_have_the_same_tools(server: Any, make: Any) -> None:
    make(share=True).generate([ASK, Prompt(ASK.messages, 8, tools=(TOOL,)), Prompt(ASK.messages, 9)])
    (shared,) = [body for body in server.bodies if "n" in body]
    assert shared["n"] == 2 and shared["tools"] == [TOOL]


def test_a_server_that_knows_no_tools_says_what_to_change(server: Any, make: Any) -> None:
    error = {"error": {"message": "tools is not supported", "param": "tools"}}
    server.play = [dict(status=400, body=error)]
    with pytest.raises(ModelError, match="set native_tools: false"):
        make().generate([ASK])
