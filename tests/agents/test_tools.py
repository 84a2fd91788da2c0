"""Tools on the agents' side: who is shown what, once; and native calls that replay from their text."""

import json

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.model import Completion, Message, Prompt, ScriptedModel
from turnbench.agents.react import PLAIN_FORMAT, THOUGHT_FORMAT, ReAct, ReActPolicy
from turnbench.agents.rollout import Rollout
from turnbench.agents.tools import ELSEWHERE, native_action, native_turn, tool_action
from turnbench.envs import make
from turnbench.envs.core import PlainEnv
from turnbench.envs.record import Outcome, Task, Turn
from turnbench.envs.toolcall import call_text, calls_text, parse
from turnbench.envs.toolset import HOW_TO_CALL

SEARCH, WORLD = "turnbench/ClosedSearch-v0", "turnbench/ToolWorld-v0"


def scripted(*answers: str | Completion, native: bool = False) -> tuple[ScriptedModel, list[Prompt]]:
    """A model that gives the answers in order, and the prompts it was asked."""
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> str | Completion:
        asked.append(prompt)
        return answers[min(len(asked), len(answers)) - 1]

    model = ScriptedModel(answer)
    model.native_tools = native  # type: ignore[attr-defined]
    return model, asked


def native(*calls: tuple[str, dict], content: str = "") -> Completion:
    """A completion such as an API model gives for native calls."""
    rows = [
        {"id": f"call_x{k}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for k, (name, arguments) in enumerate(calls)
    ]
    return Completion(native_action({"tool_calls": rows}, content), calls=True)


def search(**options) -> tuple:
    env = make(SEARCH, documents=400, **options)
    return env, Task(SEARCH, "8-0", "test", 0)


def solve(env, task, model, **options):
    return ReAct(model, **options).solve(env, task, np.random.default_rng(0)).best


# --- schemas in the prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize(("style", "form"), [("plain", PLAIN_FORMAT), ("thought", THOUGHT_FORMAT)])
def test_other_models_see_the_schemas_once(style, form) -> None:
    env, task = search()
    model, asked = scripted("Action: Answer: nobody")
    solve(env, task, model, style=style)
    (prompt,) = asked
    opening = prompt.messages[0].content
    assert not prompt.tools and opening.endswith(form) and env.instructions in opening
    text = "\n".join(m.content for m in prompt.messages)
    assert text.count(HOW_TO_CALL) == 1 and text.count('"name": "open_document"') == 1
    assert prompt.messages[-1].content == f"Question: {env.question.text}"


def test_a_world_that_prints_its_tools_has_them_shown_no_second_time() -> None:
    env, task = search(tools_in_observation=True)
    model, asked = scripted("nobody")
    solve(env, task, model)
    text = "\n".join(m.content for m in asked[0].messages)
    assert text.count("open_document(") == 1 and '"name": "open_document"' not in text
    rollout, hidden = missing_tool(tools_in_observation=True)
    last = ReActPolicy(scripted("x")[0]).prompt(rollout).messages[-1].content
    assert last.startswith("New tools:") and last.count(f"{hidden}(") == 1 and f'"{hidden}"' not in last


def test_a_world_without_tools_is_asked_as_ever() -> None:
    env = make("turnbench/TextCraft-v0")
    prompts = []
    for native_tools in (False, True):
        model, asked = scripted("inventory", native=native_tools)
        solve(env, Task("turnbench/TextCraft-v0", "0"), model)
        assert all(p.tools == () for p in asked)
        prompts.append([p.messages for p in asked])
    assert (
        prompts[0] == prompts[1] and prompts[0][0][0].content == f"{env.instructions}\n\n{PLAIN_FORMAT}"
    )


def missing_tool(**options) -> tuple[Rollout, str]:
    """ToolWorld at the point where a tool that was missing has been given back."""
    env = make(WORLD, variant="miss_func", **options)
    rollout = Rollout.start(env, Task(WORLD, "miss_func-1-20000"), np.random.default_rng(0))
    model, _ = scripted("I have no tool for that.")
    policy = ReActPolicy(model)
    (move,) = policy.act([rollout])
    rollout.advance(move)
    (hidden,) = env.problem.stages[0].hidden
    return rollout, hidden


def test_a_tool_that_comes_later_is_shown_when_it_comes() -> None:
    rollout, hidden = missing_tool()
    assert [turn for turn, _ in rollout.toolsets] == [0, 1]
    messages = ReActPolicy(scripted("x")[0]).prompt(rollout).messages
    name = f'"name": "{hidden}"'
    assert name not in messages[0].content and messages[-1].content.count(name) == 1
    assert "New tools:" in messages[-1].content
    forgetful = ReActPolicy(scripted("x")[0], history=0).prompt(rollout).messages
    assert name in forgetful[0].content and name not in forgetful[-1].content
    twin = rollout.fork()
    assert ReActPolicy(scripted("x")[0]).prompt(twin).messages == messages


def test_a_native_model_is_given_the_tools_as_they_stand() -> None:
    rollout, hidden = missing_tool()
    policy = ReActPolicy(scripted("x", native=True)[0])
    named = [tool["function"]["name"] for tool in policy.prompt(rollout).tools]
    assert hidden in named and len(named) == len(set(named))
    assert all(hidden not in m.content for m in policy.prompt(rollout).messages[:-1])


class Shelf(gymnasium.Env):
    """A plain world of tools, or of something else called tools."""

    def __init__(self, tools) -> None:
        self.tools = tools

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "go", {"tools": self.tools}

    def step(self, action):
        return "gone", 1.0, True, False, {}


def test_a_plain_world_shows_its_tools() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    env, (model, asked) = PlainEnv(Shelf, tools=[tool]), scripted("x", native=True)
    assert solve(env, Task("Shelf-v0", "0"), model).ret == 1.0
    assert asked[0].tools == (tool,)
    assert solve(env, Task("Shelf-v0", "0"), scripted("x")[0]).ret == 1.0


@pytest.mark.parametrize("tools", ["look", [1], [{"name": "look"}], [{"function": {"name": 1}}], 7])
def test_what_are_no_schemas_is_the_worlds_failure(tools) -> None:
    path = solve(PlainEnv(Shelf, tools=tools), Task("Shelf-v0", "0"), scripted("x")[0])
    assert path.outcome is Outcome.ENV_ERROR and "schemas" in path.failure


# --- replies --------------------------------------------------------------------------------------------

CALL = call_text("search", query="x")
READINGS = {
    f"Thought: hm\nAction: {CALL}": CALL,
    f"Thought: the Action: is next\nAction: {CALL}</s>": CALL,
    "Action: a\nAction: Answer: b": "Answer: b",
    f"<think>Action: no</think>\n{CALL}": CALL,  # no marker, but a call
    f"I look.\n<tool_call>{CALL}</tool_call>": f"I look.\n<tool_call>{CALL}</tool_call>",
    "Thought: I am cut off": "",
    "<think>never ends": "",
    "": "",
}


@pytest.mark.parametrize(("reply", "action"), READINGS.items())
def test_thought_and_action_replies_in_a_world_of_tools(reply, action) -> None:
    assert tool_action(reply) == action


@given(st.text())
def test_any_reply_is_read(reply) -> None:
    assert isinstance(tool_action(reply), str)
    assert isinstance(native_turn(Turn("o", reply, 0.0), "o", True), list)


def test_thoughts_in_tags_are_no_part_of_a_plain_action() -> None:
    env, task = search()
    path = solve(env, task, scripted(f"<think>so</think>\n{CALL}", "<think>x</think>Answer: y")[0])
    assert [turn.action for turn in path.turns] == [CALL, "Answer: y"]
    assert path.turns[0].text == f"<think>so</think>\n{CALL}"


# --- native calls ---------------------------------------------------------------------------------------


def test_native_calls_are_played_and_told_back_as_tool_messages() -> None:
    env, task = search()
    _, _ = env.reset(seed=0, options={"task": task.id})
    first, second = env.question.plan[0], env.question.gold[0]
    both = native(("search", {"query": first}), ("open_document", {"id": second}), content="I look.")
    model, asked = scripted(both, f"Answer: {env.question.answer}", native=True)
    path = solve(env, task, model, style="thought")
    assert path.ret == 1.0 and [turn.action for turn in path.turns][0] == both.text
    assert {tool["function"]["name"] for tool in asked[0].tools} == {"search", "open_document"}
    assert asked[0].messages[0].content == env.instructions
    called, found, opened = asked[1].messages[-3:]
    assert (called.role, called.content) == ("assistant", "I look.")
    ids = [call["id"] for call in json.loads(called.tool_calls)]
    assert ids == [found.tool_call_id, opened.tool_call_id] == ["call_x0", "call_x1"]
    assert found.role == opened.role == "tool" and opened.content.startswith(f"[{second}]")
    assert found.content.startswith("[d") and "\n" in found.content


def test_a_log_of_native_calls_replays_exactly() -> None:
    env, task = search()
    calls = native(("search", {"query": "mayor"}), ("search", {"limit": 99, "query": "é"}), ("find", {}))
    path = solve(env, task, scripted(calls, "Answer: x", native=True)[0])
    twin = make(SEARCH, documents=400)
    seen = [twin.reset(seed=0, options={"task": task.id})[0]]
    seen += [twin.step(turn.action)[0] for turn in path.turns]
    assert seen == [*(turn.observation for turn in path.turns), path.final]
    assert [row["id"] for row in json.loads(seen[1])] == ["call_x0", "call_x1", "call_x2"]


def test_calls_are_read_alike_in_native_and_in_plain_form() -> None:
    rows = [("search", {"query": "é", "limit": 3}), ("open_document", {"id": "d1"})]
    read = [[call[1:3] for call in parse(text).calls] for text in (native(*rows).text, calls_text(rows))]
    assert read[0] == read[1] == rows


@pytest.mark.parametrize(
    ("row", "call"),
    [
        ({"function": {"name": "f", "arguments": {"a": 1}}}, ("call_1", '{"a": 1}')),
        ({"id": "", "function": {"name": "f", "arguments": None}}, ("call_1", "{}")),
        ({"id": 7, "function": {"name": "f", "arguments": '{"a"'}}, ("call_1", '{"a"')),
        ({"id": "x", "function": {"name": "f", "arguments": "{}"}}, ("x", "{}")),
    ],
)
def test_what_servers_leave_out_of_a_call_is_filled_in(row, call) -> None:
    (made,) = json.loads(native_action({"tool_calls": [row]}, ""))["tool_calls"]
    assert (made["id"], made["function"]["arguments"]) == call


def test_every_call_has_an_id_of_its_own() -> None:
    rows = [{"id": i, "function": {"name": "f"}} for i in ("call_2", "call_2", None, "a", "a")]
    made = json.loads(native_action({"tool_calls": rows}, ""))["tool_calls"]
    assert len({call["id"] for call in made}) == 5 and made[0]["id"] == "call_2"


@pytest.mark.parametrize("calls", [None, [], "x", [1], [{"function": "f"}], {"a": 1}])
def test_a_message_without_calls_is_no_native_action(calls) -> None:
    assert native_action({"tool_calls": calls}, "text") == ""


def test_an_observation_without_ids_is_told_with_the_first_call() -> None:
    action = native(("f", {}), ("g", {})).text
    for observation in ("User: stop", "[1, 2]", '[{"id": "other", "content": "x"}]', "[{"):
        _, first, second = native_turn(Turn("", action, 0.0), observation, True)
        assert (first.content, second.content) == (observation, ELSEWHERE)


def test_past_thoughts_are_dropped_where_they_are_to_be() -> None:
    turn = Turn("", native(("f", {}), content="<think>a</think>b").text, 0.0)
    assert [native_turn(turn, "o", keep)[0].content for keep in (True, False)] == [
        "<think>a</think>b",
        "b",
    ]
    spoken = Turn("", "<think>a</think>b", 0.0)
    assert native_turn(spoken, "o", False) == [Message("assistant", "b"), Message("user", "o")]
