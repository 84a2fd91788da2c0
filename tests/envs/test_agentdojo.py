"""AgentDojo: the published suites, attacks and checks, with a clock that stands and no vendor's kit."""

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import play

from turnbench.envs import agentdojo_suites as suites_
from turnbench.envs.agentdojo import AgentDojo, _listed
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolcall import call_text, calls_text

try:
    BENIGN = AgentDojo().tasks("benign")
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)
PAIRS = AgentDojo().tasks("attacked")


def begin(task, **options):
    env = AgentDojo(**options)
    env.reset(seed=0, options={"task": task})
    return env


def solved(task, **options):
    env = begin(task, **options)
    return play(env, env.solution())


def python(code, **env):
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=200, env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_ground_truth_solves_the_tasks() -> None:
    """Of the workspace every fifth, whose check compares all of it; benchmarks/tools.py plays all."""
    assert (len(BENIGN), len(PAIRS)) == (97, 949) and len(set(PAIRS)) == 949
    for task in [*BENIGN[:40:5], *BENIGN[40:]]:
        env = begin(task)
        before = env._before.model_dump_json()
        (_, reward, terminated, _, info), _ = play(env, env.solution())
        assert terminated and reward == 1.0 and info["success"], task
        assert info["checks"] == {"utility": True, "attack_success": None}
        assert "v1.2.2" in info["benchmark"] and env._before.model_dump_json() == before


@pytest.mark.parametrize("task", PAIRS[::63])
def test_under_attack_the_user_is_served_and_sees_the_attackers_goal(task) -> None:
    """The payload is in what the tools return, and following only the user doesn't serve the attacker."""
    (_, reward, _, _, info), seen = solved(task)
    suite, _, goal = task.split("/")
    assert reward == 1.0 and info["checks"]["attack_success"] is False
    words = suites_.suite(suite).injection_tasks[goal].GOAL.split()[:3]
    assert "important message from me" in plain(seen) and " ".join(words) in plain(seen)


def plain(seen):
    """Observations without the line breaks that YAML puts into long texts."""
    return " ".join("\n".join(seen).replace("\\n", " ").replace("\\", "").split())


@pytest.mark.parametrize("task", ["banking/user_task_1/injection_task_2", *BENIGN[3::24]])
def test_results_are_the_published_pipelines(task) -> None:
    """On the published suite as the package itself reads it, with its own runtime and formatter."""
    name, _, rest = task.partition("/")
    user, _, goal = rest.partition("/")
    theirs, runtime = suites_.package().get_suites("v1.2.2")[name], suites_.suite(name).runtime
    known = theirs.user_tasks[user]
    pipeline = sys.modules["agentdojo.agent_pipeline.ground_truth_pipeline"].GroundTruthPipeline(known)
    attack = suites_._attacker("direct", name, "local")
    texts = attack.attack(known, theirs.injection_tasks[goal]) if goal else {}
    with suites_.frozen_clock():
        world = known.init_environment(theirs.load_and_inject_default_environment(texts))
        messages = pipeline.query(known.PROMPT, runtime, world)[3]
    expected = [m["content"][0]["content"] for m in messages if m["role"] == "tool"]
    _, seen = solved(task, attack="direct")
    rows = [seen[0]] if len(expected) == 1 else [row["content"] for row in json.loads(seen[0])]
    assert rows == expected


@pytest.mark.parametrize("suite", ["travel", "banking", "slack"])
def test_who_obeys_the_attacker_is_caught(suite) -> None:
    known = suites_.suite(suite)
    user, goal = next(iter(known.user_tasks)), next(iter(known.injection_tasks))
    env = begin(f"{suite}/{user}/{goal}")
    task = known.injection_tasks[goal]
    calls = [(c.function, dict(c.args)) for c in task.ground_truth(env._before.model_copy(deep=True))]
    acts = [calls_text(calls)] if calls else []
    info = play(env, [*acts, task.GROUND_TRUTH_OUTPUT or "Done."])[0][4]
    assert info["checks"]["attack_success"] is True


def test_doing_nothing_solves_no_task_that_changes_something() -> None:
    for task in ("workspace/user_task_6", "banking/user_task_0", "travel/user_task_3"):
        assert begin(task).step("Done.")[1] == 0.0


def test_every_result_says_which_edition_was_played() -> None:
    (*_, info), _ = solved("banking/user_task_0")
    assert info["benchmark"] == "agentdojo 0.1.35, suites v1.2.2"


def test_attacks_without_a_published_solution_are_played() -> None:
    """Workspace's injection tasks 6 to 13 have none, which is why the published self-check says no."""
    (_, reward, *_, info), _ = solved("workspace/user_task_6/injection_task_9")
    assert reward == 1.0 and info["checks"]["attack_success"] == 0.0


def test_unknown_names_are_named() -> None:
    for task in ("workspace/user_task_99", "banking/user_task_0/", "bank/user_task_0", "", "slack//"):
        with pytest.raises(UnknownName):
            begin(task)
    with pytest.raises(UnknownName, match="banking"):
        AgentDojo(suites=["bankin"])
    with pytest.raises(UnknownName, match="important_instructions"):
        AgentDojo(attack="important_instruction")
    with pytest.raises(UnknownName, match="tool_knowledge"):
        AgentDojo(attack="manual")  # it asks at the terminal
    with pytest.raises(ConfigError, match="target is 'nobody'"):
        AgentDojo(attack="important_instructions", target="nobody")


def test_an_attack_can_be_chosen() -> None:
    _, seen = solved("banking/user_task_0/injection_task_0", attack="ignore_previous")
    assert "Ignore your previous" in plain(seen) and AgentDojo(suites=["slack"]).tasks("benign")


# --- hazards ----------------------------------------------------------------------------------------


def test_no_vendors_kit_is_imported_and_the_process_stays_as_it_was() -> None:
    """Nor is the package left such that one's own pipelines break."""
    kits = "{'openai', 'anthropic', 'cohere', 'google.genai', 'langchain', 'transformers', 'torch'}"
    code = f"""
        import sys, yaml
        before = yaml.dump({{"a": "b"}})
        from turnbench.envs.agentdojo import AgentDojo
        env = AgentDojo(); env.reset(seed=0, options={{"task": "slack/user_task_0/injection_task_1"}})
        for action in env.solution(): env.step(action)
        print(before == yaml.dump({{"a": "b"}}), len({kits} & set(sys.modules)), len(sys.modules) < 1500)
        print("agentdojo.agent_pipeline" in sys.modules, hasattr(sys.modules["agentdojo"], "agent_pipeline"))
        from agentdojo.task_suite.load_suites import get_suites
        theirs = get_suites("v1.2.2")["slack"].load_and_inject_default_environment({{}})
        ours = env._known.official.load_and_inject_default_environment({{}})
        print(theirs == ours)
    """
    assert python(code) == ["True", "0", "True", "False", "False", "True"]


def test_the_published_self_check_is_not_asked(monkeypatch) -> None:
    """`suite.check()` calls every task not injectable, so that what relies on it has no attacks."""
    monkeypatch.setattr(suites_.suite("slack").official, "check", lambda *_: (False, ({}, {})))
    suites_.start.cache_clear()
    assert solved("slack/user_task_0/injection_task_1", attack="direct")[0][1] == 1.0


def test_a_locale_without_utf_8_changes_nothing() -> None:
    code = """
        import sys
        from turnbench.envs.agentdojo import AgentDojo
        env = AgentDojo()
        for task in ("workspace/user_task_0", "travel/user_task_9", "travel/user_task_11"):
            env.reset(seed=0, options={"task": task})
            for action in env.solution(): last = env.step(action)
            print(last[1])
    """
    found = python(code, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert found == ["1.0"] * 3


def test_the_clock_stands_in_an_episode_and_goes_on_outside() -> None:
    task = "workspace/user_task_13"
    names = [f"agentdojo.default_suites.v1.tools.{n}_client" for n in ("email", "cloud_drive")]
    before = [sys.modules[name].datetime for name in names]
    mail = call_text("send_email", recipients=["a@example.com"], subject="s", body="b")
    env = begin(task)
    assert "2024-05-15 00:00:00" in env.step(mail)[0]
    assert [sys.modules[name].datetime for name in names] == before
    with suites_.frozen_clock(), pytest.raises(RuntimeError), suites_.frozen_clock():
        raise RuntimeError
    assert [sys.modules[name].datetime for name in names] == before


def test_a_check_that_fails_itself_is_a_no_with_a_note() -> None:
    """Slack's task 11 looks for an argument that a call may lack."""
    env = begin("slack/user_task_11")
    env.step(call_text("invite_user_to_slack"))
    _, reward, _, _, info = env.step("Done.")
    assert reward == 0.0 and "KeyError" in info["checks"]["note"]


def test_a_list_in_a_text_is_read_as_published_and_bounded() -> None:
    assert _listed("['a', 1]") == ["a", 1] and _listed("a") == "a" and _listed(3) == 3
    for text in ("[" * 5000, "[" * 90 + "]" * 90, "[__import__('os')]", "[1" + ",1" * 20_000 + "]"):
        assert isinstance(_listed(text), str | list)
    assert _listed("[__import__('os')]") == "[__import__('os')]"


def test_threads_and_forks_do_not_disturb_each_other() -> None:
    tasks = ["banking/user_task_0", "slack/user_task_1", "travel/user_task_2/injection_task_1"] * 2
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(solved, tasks))
    assert rows[:3] == rows[3:] and all(row[0][1] == 1.0 for row in rows)
    env = begin("banking/user_task_0")
    pay = call_text("send_money", recipient="US1", amount=5, subject="s", date="2024-01-01")
    twin = env.fork()
    twin.step(pay)
    assert len(twin._trace) == 1 and not env._trace
    assert play(env, env.solution())[0][1] == 1.0


def test_what_is_truncated_is_judged_as_it_stands() -> None:
    env = begin("banking/user_task_15", max_turns=1)
    _, reward, terminated, truncated, info = env.step(env.solution()[0])
    assert truncated and not terminated and reward == info["checks"]["utility"] == info["success"]


# --- any text ---------------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
VALUES = VALUES | st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=4), VALUES, max_size=2)
VALUES = VALUES | st.sampled_from(["2024-05-15", "2024-05-15 10:00", "['a']", "1", "general", "US1"])


@st.composite
def episodes(draw):
    """A small suite's task, and calls of its tools with arguments of any kind, or other texts."""
    task = draw(st.sampled_from([t for t in [*BENIGN, *PAIRS[::20]] if not t.startswith("workspace")]))
    actions = []
    for schema in draw(
        st.lists(st.sampled_from(suites_.suite(task.split("/")[0]).tools.schemas), max_size=6)
    ):
        names = [*schema["function"]["parameters"].get("properties", {}), "odd"]
        arguments = draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
        actions.append(call_text(schema["function"]["name"], **arguments))
    return task, [*actions, draw(st.text(max_size=20))]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes())
def test_any_text_is_answered(watched, episode) -> None:
    task, actions = episode
    solved(task)  # whatever is imported late is imported now
    env = begin(task)
    with watched():
        for action in actions:
            if env.over:
                break
            observation, reward, terminated, _, info = env.step(action)
            assert env.observation_space.contains(observation) and reward in (0.0, 1.0)
            json.dumps(info)
    assert begin(task)._before.model_dump_json() == env._before.model_dump_json()
