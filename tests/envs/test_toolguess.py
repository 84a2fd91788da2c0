"""What a world of tools offers to who plays blindly: calls that fit, and nothing of the ground truth."""

import json

from turnbench.envs.toolcall import parse
from turnbench.envs.toolguess import guesses
from turnbench.envs.toolset import ToolSet
from turnbench.envs.toolworld import ToolWorld


def test_calls_are_well_formed_and_made_of_what_was_seen() -> None:
    env = ToolWorld()
    env.reset(seed=0, options={"task": "base-1-20000"})
    *calls, answer = env.example_actions()
    assert not parse(answer).calls and len(calls) == len(env.tools.schemas)
    for text in calls:
        (call,) = parse(text).calls
        bound = env.tools.bind(call)
        assert not isinstance(bound, str), bound
    assert not set(env.solution()) & set(calls)


def test_each_type_has_a_value() -> None:
    types = ["string", "integer", "number", "boolean", "object", "null"]
    wanted = {name: {"type": name} for name in types} | {
        "array": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "chosen": {"enum": ["a"]},
        "any": {},
    }
    parameters = {"type": "object", "properties": wanted, "required": list(wanted)}
    tools = ToolSet([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    (text,) = guesses(tools, "Mail ada@x.org.")
    made = json.loads(text)["arguments"]
    assert made["string"] == made["any"] == "ada@x.org."
    assert made["array"] == ["ada@x.org."] and made["either"] == 1 and made["chosen"] == "a"
    assert not isinstance(tools.bind(parse(text).calls[0]), str)
    assert guesses(tools, "") and "Mail" in guesses(tools, "Mail")[0]
