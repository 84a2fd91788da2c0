"""The parser on every form, on what is nearly one, and on noise; the check of arguments; ToolEnv."""

import ast
import builtins
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.envs.core import Step
from turnbench.envs.toolcall import (
    MAX_CALLS,
    MAX_TEXT,
    Call,
    call_text,
    calls_text,
    parse,
    results_text,
)
from turnbench.envs.toolenv import Score, ToolEnv
from turnbench.envs.toolset import ToolSet

ADD = {"a": 1, "b": [True, None, {"c": "é"}]}


def openai(arguments, **more):
    function = {"name": "add", "arguments": arguments}
    return {"id": "x7", "type": "function", "function": function, **more}


FORMS = {
    "message": json.dumps({"role": "assistant", "content": None, "tool_calls": [openai(ADD)]}),
    "tool_calls, arguments as text": json.dumps([openai(json.dumps(ADD))]),
    "one object": json.dumps({"name": "add", "arguments": ADD}),
    "parameters": json.dumps({"name": "add", "parameters": ADD}),
    "list": json.dumps([{"name": "add", "arguments": ADD}], indent=1),
    "fenced": "```json\n" + json.dumps({"name": "add", "arguments": ADD}) + "\n```",
    "block": f"Let me add.\n<tool_call>\n{json.dumps({'name': 'add', 'arguments': ADD})}\n</tool_call>",
    "open block": f"<tool_call>{json.dumps({'name': 'add', 'arguments': ADD})}",
    "python": "add(a=1, b=[True, None, {'c': 'é'}])",
    "python with words of JSON": 'add(a=1, b=[true, null, {"c": "é"}])',
    "python list": "[add(a=+1, b=[True, None, {'c': 'é'}],)]",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_every_form_says_the_same_call(text):
    (call,) = parse(f"  {text}\n").calls
    assert (call.name, call.arguments, call.error) == ("add", ADD, "")
    assert call.id == ("x7" if "x7" in text else "call_1")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": -2}}]),
        '<tool_call>{"name": "f", "arguments": ""}</tool_call> and '
        '<tool_call>{"name": "g", "arguments": {"x": -2}}</tool_call>',
        "f()\ng(x=-2)",
        "[f(), g(x=-2)]",
        "f(); g(x=-2)",
    ],
)
def test_several_calls_keep_their_order(text):
    calls = parse(text).calls
    assert [(c.id, c.name, c.arguments) for c in calls] == [
        ("call_1", "f", {}),
        ("call_2", "g", {"x": -2}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done.",
        "Order(s) sent (all).",
        "42",
        "[1, 2]",
        '{"answer": 1}',
        "[draft] hello",
        "f (x)",
        "a.b",
    ]
    + ["[]", "```\nhello\n```", '"add(a=1)"', "x = f(1)", "f(1) + 2", "[f(1), 2]", "I call add(a=1)."],
)
def test_all_else_is_plain_text(text):
    assert parse(text) == ((), text)


def test_a_message_without_calls_is_its_content():
    assert parse('{"role": "assistant", "content": "Hi"}') == ((), "Hi")
    assert parse('{"role": "assistant", "content": null, "tool_calls": []}') == ((), "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "add", "arguments": {"a": 1}', "not valid JSON"),
        ('[{"name": "add"', "not valid JSON"),
        ('{"name": "add", "arguments": [1]}', "must be a JSON object, not array"),
        ('{"name": "add", "arguments": "{"}', "text that is not valid JSON"),
        ('{"name": 3, "arguments": {}}', 'needs a "name"'),
        ('{"tool_calls": [7]}', "must be a JSON object"),
        ('{"name": "add", "arguments": {"a": NaN}}', "not valid JSON"),
        ('{"name": "add", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "add", "arguments": {"a": 9' + "9" * 99 + "}}", "too large"),
        ('{"name": "add", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}", "nested deeper"),
        ("<tool_call>add</tool_call>", "not valid JSON"),
        ("<tool_call>", "empty"),
        ("add(a=1", "that can be read"),
        ("add(a=b)", "must be literals"),
        ("add(a=__import__('os').system('x'))", "must be literals"),
        ("add(a=f'{1}')", "must be literals"),
        ("add(a=b'1')", "must be literals"),
        ("add(**{'a': 1})", "unpacked"),
        ("add(*[1])", "must be literals"),
        ("add(a=1) + 1", "nothing but calls"),
        ("add(a=" + "[" * 40 + "]" * 40 + ")", "nested deeper"),
        ("add(a=" + "-" * 50_000 + "1)", "nested deeper"),
        ("add(a=" + "9" * 5000 + ")", "that can be read"),
        ("[" * 50_000, "nested deeper"),
        ("{" * 50, "not valid JSON"),
        ('{"a":' * 15_000, "nested deeper"),
        ("x" * (MAX_TEXT + 1), "at most"),
        ("f()\n" * (MAX_CALLS + 1), "at most"),
        ("<tool_call>[]</tool_call>" * 4000, "at most"),
    ],
    ids=range(29),
)
def test_a_broken_call_says_why(text, why):
    said = parse(text, {"add"})
    assert said.calls[0].error.startswith("Error: ") and why in said.calls[0].error


def test_one_broken_call_leaves_the_others_alone():
    first, second = parse('[{"name": "f", "arguments": 1}, {"name": "g", "arguments": {}}]').calls
    assert first.error and not second.error


@pytest.mark.parametrize("text", [r"f(s='a\d\n')", r"f(s=r'a\d' '\n')"])
def test_backslashes_mean_what_python_means(text):
    assert parse(text).calls[0].arguments == {"s": "a\\d\n"}


def test_text_in_arguments_fits_into_utf8():
    arguments = parse('{"name": "f", "arguments": {"\\ud800": ["\\udfff é"]}}').calls[0].arguments
    assert arguments == {"?": ["? é"]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda n: n not in _KEYWORDS)
_KEYWORDS = {"as", "in", "is", "if", "or", "and", "not", "for", "def", "del", "try", "from", "pass"} | {
    *("elif", "else", "with", "while", "class", "raise", "yield", "break", "async", "await", "assert"),
    *("lambda", "return", "global", "import", "except", "finally", "nonlocal", "continue"),
}


@settings(max_examples=30)
@given(
    st.lists(st.tuples(names, st.dictionaries(names, json_values, max_size=3)), min_size=1, max_size=4)
)
def test_what_is_written_is_read_again(calls):
    python = [
        f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls
    ]
    for text in (calls_text(calls), "\n".join(python), f"[{', '.join(python)}]"):
        assert [(c.name, c.arguments) for c in parse(text).calls] == calls


pieces = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": ',
        "{}",
        "}",
        "[",
        "]",
        "f(",
        ")",
        "a=1",
        ",",
    ]
    + [
        '"',
        "'",
        "\\",
        "\n",
        "```",
        "__import__('os')",
        "open('x', 'w')",
        "\ud800",
        "\x00",
        "é",
        "-",
        "f'",
    ]
    + [
        '{"role": "assistant", "tool_calls": ',
        "lambda: 0",
        "**{}",
        "1e999",
        "null",
        "9" * 50,
        "eval(",
        "{{",
    ]
)


@given(st.lists(pieces | st.text(max_size=5), max_size=30).map("".join))
def test_no_text_raises_or_runs(text):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "exec", "open", "__import__"):
            patch.setattr(builtins, name, None)
        said = parse(text, {"f", "eval"})
    for call in said.calls:
        json.dumps(call.arguments, allow_nan=False).encode()
        assert call.error.startswith("Error: ") or (call.name and not call.error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit", ["{", "(", "f(", "-", "not ", "lambda:", "a.", "x[", "1+", "a if b else ", "f'{", "\\"]
)
@pytest.mark.parametrize("times", [60, 190, 1000, MAX_TEXT])
def test_what_is_hard_to_parse_is_refused_in_time(unit, times):
    text = f"f({unit * min(times, (MAX_TEXT - 3) // len(unit))})"
    assert parse(text, {"f"}).calls[0].error.startswith("Error: ")


def test_no_python_is_parsed_unless_it_begins_like_a_call(monkeypatch):
    monkeypatch.setattr(ast, "parse", None)
    assert parse("import os; os.system('x')").text


# --- ToolSet ----------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "count": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "way": {"type": "string", "enum": ["air", "sea"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "box": {"$ref": "#/$defs/Box"},
        "gift": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["to"],
    "$defs": {"Box": {"type": "object", "properties": {"w": {"type": "number"}}, "required": ["w"]}},
}
SEND = {
    "type": "function",
    "function": {"name": "send", "description": "Sends  it.", "parameters": SCHEMA},
}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = ToolSet([SEND, STOP])


def bind(text):
    return TOOLS.bind(parse(text).calls[0])


def test_positional_arguments_are_named_in_the_schemas_order():
    bound = bind("send('Bo', 2, way='sea')")
    assert bound == Call("call_1", "send", {"to": "Bo", "count": 2, "way": "sea"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"to": "Bo"},
        {"to": "Bo", "price": None, "gift": None, "box": {"w": 1}, "tags": []},
        {"to": "", "price": 2, "gift": True, "box": {"w": 1.5}, "tags": ["a"], "count": -1},
    ],
)
def test_good_arguments_pass(arguments):
    assert bind(call_text("send", **arguments)).arguments == arguments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sent('Bo')", "Error: unknown tool 'sent'; did you mean send, stop?"),
        ("zzz()", "Error: unknown tool 'zzz'; known: send, stop"),
        ("send()", "Error: send: argument 'to' is missing"),
        ("send('Bo', cuont=1)", "Error: send: unknown argument 'cuont'; did you mean count?"),
        ("send('Bo', to='Al')", "Error: send: argument 'to' is given twice"),
        ("stop(1)", "Error: stop: takes at most 0 arguments, 1 are given"),
        ("send(1)", "Error: send: argument 'to' must be of type string, not integer"),
        ("send('Bo', True)", "Error: send: argument 'count' must be of type integer, not boolean"),
        ("send('Bo', 2.0)", "Error: send: argument 'count' must be of type integer, not number"),
        (
            "send('Bo', price='1')",
            "Error: send: argument 'price' must be of type number or null, not string",
        ),
        ("send('Bo', way='road')", "Error: send: argument 'way' must be one of air, sea"),
        ("send('Bo', tags=['a', 1])", "Error: send: an item of argument 'tags' must be of type string"),
        ("send('Bo', box={})", "Error: send: argument 'w' of argument 'box' is missing"),
        ("send('Bo', gift=1)", "Error: send: argument 'gift' must be of type boolean"),
    ],
)
def test_bad_arguments_say_what_is_wrong(text, why):
    assert bind(text).startswith(why)


def test_unchecked_arguments_still_need_a_known_tool():
    call = parse("send(count='many')").calls[0]
    assert TOOLS.bind(call, check=False) == call
    assert TOOLS.without(["send"]).bind(call, check=False).startswith("Error: unknown tool")


def test_tools_are_shown_in_short():
    assert TOOLS.compact.splitlines()[1] == "stop()"
    assert TOOLS.compact.startswith(
        "send(to: string, count?: integer, price?: number|null, way?: air|sea, "
    )
    assert TOOLS.compact.splitlines()[0].endswith(": Sends it.")


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["to", "count", "box", "gift", "zz"]), json_values))
def test_any_arguments_are_bound_or_refused(arguments):
    bound = TOOLS.bind(Call("1", "send", arguments))
    assert isinstance(bound, Call) or bound.startswith("Error: ")


# --- ToolEnv ----------------------------------------------------------------------------------------


class Counter(ToolEnv):
    """Count to two; `hide` takes `add` away; saying anything ends the first turn, then the episode."""

    benchmark = "counter 1"
    all = ToolSet(
        {"type": "function", "function": {"name": name, "parameters": {}}}
        for name in ("add", "hide", "quit")
    )
    some = all.without(["add"])

    def tasks(self, split):
        return ["0"]

    def _reset(self, task):
        self.count, self.visible = 0, self.all
        return "Count to two."

    def _visible(self):
        return self.visible

    def _call(self, call):
        if call.name == "hide":
            self.visible = self.all if self.visible is self.some else self.some
        self.done = call.name == "quit"
        self.count += call.name == "add"
        return str(self.count)

    def _say(self, text):
        return Step(f"You said {text}.", 0.0, self.turn_index == 1)

    def _score(self, ended):
        return Score(self.count / 2, self.count == 2, {"counted": self.count, "ended": ended})

    def solution(self):
        return ["[add(), add()]", "done", "bye"]


def played(actions, **options):
    env = Counter(**options)
    env.reset(seed=1, options={"task": "0"})
    return [env.step(action) for action in actions]


def test_an_episode_of_calls_and_talk_is_told_in_info():
    first, second, last = played(Counter().solution())
    assert json.loads(first[0]) == [
        {"id": "call_1", "name": "add", "content": "1"},
        {"id": "call_2", "name": "add", "content": "2"},
    ]
    assert first[4] == {"turn_index": 0, "turn_end": False, "n_calls": 2, "tool_errors": 0}
    assert second[4] == {"turn_index": 0, "turn_end": True, "n_calls": 0, "tool_errors": 0}
    assert last[1:3] == (1.0, True)
    ended = {"success": True, "checks": {"counted": 2, "ended": True}, "benchmark": "counter 1"}
    assert last[4] == {"turn_index": 1, "turn_end": True, "n_calls": 0, "tool_errors": 0, **ended}


def test_the_list_of_tools_is_given_at_reset_and_when_it_changes():
    env = Counter(tools_in_observation=True)
    seen, info = env.reset(seed=1)
    assert seen == env.observation == "Tools:\nadd()\nhide()\nquit()\n\nCount to two."
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "hide", "quit"]
    info = env.step("hide()")[4]
    assert [t["function"]["name"] for t in info["tools"]] == ["hide", "quit"]
    seen, *_, info = env.step("add()")
    assert "unknown tool 'add'" in seen and info["tool_errors"] == 1 and "tools" not in info
    assert env.step("hide()")[0] == "New tools:\nadd()\n\n0"


def test_a_call_can_end_the_episode_and_the_limit_of_turns_is_judged_too():
    (step,) = played(["[add(), quit(), add()]"])
    assert step[2] and step[4]["checks"] == {"counted": 1, "ended": True} and step[1] == 0.5
    assert "ended the episode" in step[0]
    *_, truncated, info = played(["add()"], max_turns=1)[0]
    assert truncated and info["checks"] == {"counted": 1, "ended": False} and not info["success"]


def test_results_are_plain_alone_and_listed_together():
    calls = parse("f(); g()").calls
    assert results_text(calls[:1], ["é"]) == "é"
    assert json.loads(results_text(calls, ["1", "2"]))[1] == {
        "id": "call_2",
        "name": "g",
        "content": "2",
    }
