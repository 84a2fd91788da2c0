"""ReAct: prompts for every way of carrying history, and AgentGym's reading of replies, row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.model import Completion, Message, Prompt, ScriptedModel
from turnbench.agents.react import (
    PLAIN_FORMAT,
    READY,
    THOUGHT_FORMAT,
    ReAct,
    ReActPolicy,
    last_action,
    single_action,
)
from turnbench.agents.rollout import Move, Rollout
from turnbench.agents.toy import toy_model
from turnbench.envs import make
from turnbench.envs.core import Step, TextEnv
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Failure, Outcome, Task
from turnbench.envs.toy import VARIANTS, Toy, uniform, values

# --- AgentGym's rules ----------------------------------------------------------------------------------

LAST_ACTION = {
    "Thought: go\nAction: open door": "open door",
    "Action: a\nAction: b": "b",  # the last marker counts
    "Action: a\nand more\n lines ": "a\nand more\n lines",  # and all that follows it
    "Action:": "",
    "Action:  \n ": "",
    "action: look": "",  # case counts
    "look around": "",  # no marker
    "": "",
    "I will search[red shoes]": "I will search[red shoes]",  # unless it holds a WebShop command
    " click[Buy Now] ": " click[Buy Now] ",
    "Search[red shoes]": "",
    "Action: click[x]</s>": "click[x]",  # the end token is cut
    "search[x]</s>": "search[x]",
    "Thought: Action: in a thought\nAction: wait": "wait",
}

SINGLE_ACTION = {
    "Thought: hm\nAction: get 2 oak logs": "get 2 oak logs",
    "Action: get 2 oak logs\nand nothing else": "get 2 oak logs",  # the rest of the line only
    "Action: craft 1 x using 2 y, 1 z": "craft 1 x using 2 y, 1 z",
    "Action: get 2 `oak-logs`!": "get 2 oaklogs",  # other characters are deleted
    "Action: get 1 minecraft:oak_log": "get 1 minecraftoaklog",
    "Action: get  2\toak   logs": "get 2oak logs",  # a tab is another character; blanks collapse
    "Action: inventory</s>": "inventory",
    "Action: a\nAction: b": "Action: a\nAction: b",  # passed on, for the environment to refuse
    "get 2 oak logs": "",
    "action: inventory": "",
    "": "",
    "Action:": "",
    "Action:\ninventory": "inventory",  # \s* runs over the line's end
}


@pytest.mark.parametrize(("reply", "action"), LAST_ACTION.items())
def test_last_action(reply, action) -> None:
    assert last_action(reply) == action


@pytest.mark.parametrize(("reply", "action"), SINGLE_ACTION.items())
def test_single_action(reply, action) -> None:
    assert single_action(reply) == action


@given(st.text())
def test_any_reply_is_read(reply) -> None:
    assert isinstance(last_action(reply), str) and isinstance(single_action(reply), str)


# --- prompts -------------------------------------------------------------------------------------------


class Parrot(TextEnv):
    """Answers "saw <action>"."""

    instructions = "Talk to the parrot."
    reply_format = "last-action"

    def tasks(self, split):
        return ["0"]

    def _reset(self, task):
        return "o0"

    def _step(self, action):
        return Step(f"o{len(self.history)}")


def rollout(turns: int, text: str = "a{}") -> Rollout:
    live = Rollout.start(Parrot(), Task("parrot", "0"), np.random.default_rng(0))
    for k in range(turns):
        live.advance(Move(f"a{k}", Completion(text.format(k))))
    return live


def conversation(policy: ReActPolicy, live: Rollout) -> list[str]:
    """The messages as "u:" and "a:" lines."""
    return [f"{m.role[0]}:{m.content}" for m in policy.prompt(live).messages]


def policy(**options) -> ReActPolicy:
    return ReActPolicy(ScriptedModel(lambda p: "x"), **{"instructions": False, **options})


def test_the_first_prompt_is_the_first_observation() -> None:
    assert conversation(policy(), rollout(0)) == ["u:o0"]


def test_full_history() -> None:
    assert conversation(policy(), rollout(3)) == ["u:o0", "a:a0", "u:o1", "a:a1", "u:o2", "a:a2", "u:o3"]


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (0, ["u:o0"]),
        (1, ["u:o0", "a:a2", "u:o3"]),
        (2, ["u:o0", "a:a1", "u:o2", "a:a2", "u:o3"]),
        (3, ["u:o0", "a:a0", "u:o1", "a:a1", "u:o2", "a:a2", "u:o3"]),
        (9, ["u:o0", "a:a0", "u:o1", "a:a1", "u:o2", "a:a2", "u:o3"]),
    ],
)
def test_the_last_turns_only(last, wanted) -> None:
    assert conversation(policy(history=last), rollout(3)) == wanted


@pytest.mark.parametrize(("style", "form"), [("plain", PLAIN_FORMAT), ("thought", THOUGHT_FORMAT)])
def test_instructions_open_the_conversation(style, form) -> None:
    lines = conversation(policy(style=style, instructions=True), rollout(1))
    assert lines == [f"u:Talk to the parrot.\n\n{form}", f"a:{READY}", "u:o0", "a:a0", "u:o1"]


THINKING = "<think>well\n{0}</think>\n\na{0}"


def test_reasoning_is_kept_or_dropped_from_later_prompts() -> None:
    live = rollout(2, THINKING)
    assert conversation(policy(), live)[1] == "a:" + THINKING.format(0)
    assert conversation(policy(reasoning="drop"), live)[1::2] == ["a:a0", "a:a1"]
    assert [t.text for t in live.turns] == [THINKING.format(0), THINKING.format(1)], (
        "the record keeps it"
    )


def test_unfinished_reasoning_is_dropped_to_its_end() -> None:
    assert conversation(policy(reasoning="drop"), rollout(1, "a<think>and on and on {}"))[1] == "a:a"


@given(st.integers(0, 4))
def test_prompts_alternate_and_end_with_what_is_seen_now(turns) -> None:
    for history in (None, 0, 1, 3):
        messages = policy(history=history, instructions=True).prompt(rollout(turns)).messages
        assert [m.role for m in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
        if turns and history != 0:
            assert messages[-1].content == f"o{turns}"


def with_tokens(turns: int) -> Rollout:
    live = rollout(0)
    for k in range(turns):
        live.advance(
            Move("x", Completion("x", prompt_ids=(*live.context, k), ids=(9,), logprobs=(-1.0,)))
        )
    return live


def test_sampled_tokens_are_passed_on_only_where_prompts_grow() -> None:
    live = with_tokens(2)
    grown = policy().prompt(live)
    assert grown.context == (0, 9, 1, 9)
    assert grown.messages[grown.covered :] == (Message("user", "o2"),)
    for options in ({"history": 1}, {"reasoning": "drop"}):
        prompt = policy(**options).prompt(live)
        assert (prompt.context, prompt.covered) == ((), 0)
    first = policy().prompt(with_tokens(0))
    assert (first.context, first.covered) == ((), 0)


def test_each_prompt_has_a_seed_of_its_own_repeatably() -> None:
    seeds = [[policy().prompt(live).seed for _ in range(5)] for live in (rollout(0), rollout(0))]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "poem"}, "'poem'.*plain, thought"),
        ({"reasoning": "hide"}, "'hide'.*keep, drop"),
        ({"history": -1}, "history is -1"),
    ],
)
def test_wrong_options_are_refused(options, words) -> None:
    with pytest.raises(ConfigError, match=words):
        policy(**options)


# --- reading and solving -------------------------------------------------------------------------------


def test_plain_style_takes_the_whole_reply() -> None:
    move = policy().read(rollout(0), Completion(" Action: look\n"))
    assert move == Move("Action: look", Completion(" Action: look\n"))


@pytest.mark.parametrize(("world", "action"), [("last-action", "a-b\nc"), ("single-action", "ab")])
def test_thought_style_reads_as_the_world_says(world, action) -> None:
    live = rollout(0)
    live.env.reply_format = world
    assert policy(style="thought").read(live, Completion("Action: a-b\nc")).action == action


def test_failures_pass_through() -> None:
    failure = Failure(Outcome.INFRA_ERROR, "gone")
    assert policy().read(rollout(0), failure) is failure


def test_react_plays_one_path() -> None:
    model = ScriptedModel(lambda p: "Thought: on\nAction: right")
    agent = ReAct(model, style="thought")
    population = agent.solve(Toy(), Task("turnbench/Toy-v0", "0"), np.random.default_rng(0))
    path = population.best
    assert len(population.trajectories) == 1 and agent.privileges == ()
    assert [t.action for t in path.turns] == ["right", "right"]
    assert (path.ret, path.success, path.outcome) == (1.0, True, Outcome.OK)


def test_react_survives_a_failing_model() -> None:
    model = ScriptedModel(lambda p: Failure(Outcome.INFRA_ERROR, "gone"))
    path = ReAct(model).solve(Toy(), Task("toy", "0"), np.random.default_rng(0)).best
    assert path.missing and path.failure == "gone" and path.turns == ()


def test_two_actions_in_one_reply_are_refused_by_textcraft_itself() -> None:
    env = make("turnbench/TextCraft-v0", max_turns=2)
    model = ScriptedModel(lambda p: "Action: get 1 coal\nAction: inventory")
    path = ReAct(model, style="thought").solve(env, Task("tc", "0"), np.random.default_rng(0)).best
    assert path.final.startswith("Error: Only one 'Action' is allowed")


def test_mean_return_of_a_policy_played_as_a_language_model_is_its_value() -> None:
    mdp = VARIANTS["stochastic-shaped"]
    model, env = toy_model(mdp, uniform(mdp)), Toy("stochastic-shaped")
    rng = np.random.default_rng(0)
    agent = ReAct(model, instructions=False)
    paths = [agent.solve(env, Task("toy", "0", seed=k), rng).best for k in range(1000)]
    returns = [path.ret for path in paths]
    exact = values(mdp, uniform(mdp))[0, mdp.starts[0]]
    assert np.mean(returns) == pytest.approx(exact, abs=4 * np.std(returns) / np.sqrt(len(returns)))
    prompt, ids = paths[0].sequences()[-1]
    assert len(prompt) == 2 * len(paths[0].turns) - 1 and len(ids) == 1


def test_the_same_generator_plays_the_same_game() -> None:
    mdp = VARIANTS["stochastic"]

    def game():
        rng = np.random.default_rng(7)
        return ReAct(toy_model(mdp, uniform(mdp))).solve(
            Toy("stochastic"), Task("toy", "1", seed=2), rng
        )

    assert game() == game()


def test_prompts_are_plain_data() -> None:
    assert hash(policy().prompt(rollout(1))) and isinstance(policy().prompt(rollout(1)), Prompt)
