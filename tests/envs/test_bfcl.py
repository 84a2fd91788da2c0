"""BFCL: the published tasks, APIs and checkers, without what makes them unsafe."""

import decimal
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playing import play

from turnbench.envs import bfcl_backend, bfcl_data, wheels
from turnbench.envs.bfcl import BFCL, MAX_STEPS, UNSOLVED
from turnbench.envs.bfcl_backend import Backend
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.toolcall import call_text
from turnbench.envs.toolset import ToolSet

try:
    ALL = BFCL().tasks("test")
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)
SAMPLE = ALL[::23]


def begin(task, **options):
    env = BFCL(**options)
    env.reset(seed=0, options={"task": task})
    return env


def backend(*classes, **config):
    return Backend.start(classes, config, False)


def test_the_ground_truth_solves_all_tasks_but_the_listed() -> None:
    env, failed = BFCL(), set()
    assert len(ALL) == 800 and [len(env.tasks(split)) for split in env.splits[1:]] == [200] * 4
    for task in ALL:
        env.reset(seed=0, options={"task": task})
        (_, reward, terminated, _, info), _ = play(env, env.solution())
        assert terminated and reward == info["success"]
        failed |= set() if reward else {task}
    assert failed == set(UNSOLVED)


def test_an_unknown_task_and_split_are_named() -> None:
    with pytest.raises(UnknownName, match="multi_turn_base_1"):
        begin("multi_turn_base_1x")
    with pytest.raises(UnknownName, match="miss_func"):
        BFCL().tasks("miss_fun")


# --- the same verdict as the published checker -------------------------------------------------------


def variants(entry):
    """The ground truth by turn and step, whole and spoilt in different ways."""
    truth = [[[call] for call in turn] for turn in entry.truth]
    yield truth
    yield [[[call for (call,) in turn]] if turn else [] for turn in truth]  # all calls in one reply
    yield [*truth[:-1], []]
    yield [turn[::-1] for turn in truth]
    yield [turn[:-1] for turn in truth]
    yield [turn * 2 for turn in truth]
    first = next(k for k, turn in enumerate(truth) if turn)
    yield [[] if k == first else turn for k, turn in enumerate(truth)]


def official(entry, turns, number):
    """The published checker, and its objects forgotten, which it would keep for good."""
    checker = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    utils = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    before = set(vars(utils))
    row = {"id": entry.id, "initial_config": entry.config, "involved_classes": list(entry.classes)}
    truth = [list(turn) for turn in entry.truth]
    verdict = checker.multi_turn_checker(turns, truth, row, "", f"model{number}")
    for name in set(vars(utils)) - before:
        delattr(utils, name)
    return verdict["valid"]


@pytest.mark.parametrize("task", SAMPLE)
def test_the_verdict_is_the_published_checkers(task) -> None:
    entry = bfcl_data.entry(task)
    verdicts = []
    for number, turns in enumerate(variants(entry)):
        env = begin(task)
        for turn in turns:
            for step in turn:
                env.step(f"[{', '.join(step)}]")
            last = env.step("Done.")
        assert last[1] == official(entry, turns, number), number
        verdicts.append(last[1])
    assert verdicts[0] == 1.0 and 0.0 in verdicts


def test_results_are_the_published_executors() -> None:
    utils = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    for number, task in enumerate(SAMPLE):
        entry = bfcl_data.entry(task)
        calls = [call for turn in entry.truth for call in turn]
        results, _ = utils.execute_multi_turn_func_call(
            calls, entry.config, entry.classes, f"results{number}", task, entry.long_context
        )
        ours = [text for turn in bfcl_data.references(task) for text in turn.results]
        assert ours == results


# --- hazards ----------------------------------------------------------------------------------------


def test_text_is_not_evaluated(tmp_path) -> None:
    env, mark = begin("multi_turn_base_0"), tmp_path / "owned"
    for action in (
        f"ls(a=__import__('pathlib').Path({str(mark)!r}).touch())",
        "open('/etc/hostname').read()",
        f"[ls(), __import__('os').system('touch {mark}')]",
    ):
        observation, *_, info = env.step(action)
        assert "root" not in observation and (info["n_calls"] == 0 or "Error" in observation)
    assert not mark.exists()


def test_a_second_episode_starts_afresh_and_nothing_is_kept() -> None:
    utils = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    before = len(vars(utils))
    first = play(begin("multi_turn_base_0"), begin("multi_turn_base_0").solution())
    assert first == play(begin("multi_turn_base_0"), begin("multi_turn_base_0").solution())
    assert len(vars(utils)) == before


def test_long_contexts_share_no_objects() -> None:
    """The published classes put parts of module globals into their state, and change them."""
    one, two = (Backend.start(["TravelAPI"], {}, True).instances["TravelAPI"] for _ in range(2))
    card = next(iter(one.credit_card_list))
    assert one.credit_card_list[card] is not two.credit_card_list[card]
    one.credit_card_list[card]["balance"] = -1
    fresh = Backend.start(["TravelAPI"], {}, True).instances["TravelAPI"]
    assert fresh.credit_card_list == two.credit_card_list != one.credit_card_list


ENDLESS = (
    ("power", {"base": 7, "exponent": 30_000_000}),
    ("power", {"base": -7, "exponent": 30_000_000}),
    ("logarithm", {"value": 10.0, "base": 2.0, "precision": 100_000}),
    ("logarithm", {"value": 10.0, "base": 2.0, "precision": "100000"}),
    ("logarithm", {"value": "1e999999999", "base": 2.0, "precision": 10}),
    ("square_root", {"number": 2.0, "precision": 2_000_000}),
    ("round_number", {"number": 7, "decimal_places": -(10**9)}),
)


@pytest.mark.timeout(20)  # each of these takes minutes where it isn't refused
@pytest.mark.parametrize(("name", "arguments"), ENDLESS)
def test_endless_mathematics_is_refused(name, arguments) -> None:
    assert backend("MathAPI").call(name, arguments).startswith("Error")


def test_ordinary_mathematics_is_not() -> None:
    ask = backend("MathAPI").call
    assert ask("power", {"base": 2, "exponent": 10}) == '{"result": 1024}'
    assert ask("power", {"base": 2.5, "exponent": 2}) == '{"result": 6.25}'
    assert "0.30102999566398119" in ask("logarithm", {"value": 2, "base": 10, "precision": 17})
    assert "1.4142135623730950488" in ask("square_root", {"number": 2, "precision": 20})
    assert ask("round_number", {"number": 2.345, "decimal_places": 1}) == '{"result": 2.3}'


def test_the_process_keeps_its_precision_and_clock() -> None:
    mpmath = wheels.load("mpmath")
    travel = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.func_source_code.travel_booking")
    before = (mpmath.mp.dps, decimal.getcontext().prec, travel.datetime)
    world = backend("MathAPI", "TravelAPI")
    world.call("logarithm", {"value": 2, "base": 10, "precision": 77})
    world.call("square_root", {"number": 2, "precision": 77})
    assert (mpmath.mp.dps, decimal.getcontext().prec, travel.datetime) == before


def test_the_age_of_a_traveller_depends_on_no_clock() -> None:
    config = {"user_first_name": "A", "user_last_name": "B"}
    who = {"first_name": "A", "last_name": "B", "passport_number": "US1"}
    ask = backend("TravelAPI", TravelAPI=config).call
    grown = ask("verify_traveler_information", {**who, "date_of_birth": "2008-03-23"})
    young = ask("verify_traveler_information", {**who, "date_of_birth": "2008-03-24"})
    assert json.loads(grown)["verification_status"] and not json.loads(young)["verification_status"]


def test_the_weather_that_all_share_is_told_one_at_a_time(monkeypatch) -> None:
    """In long contexts the published class answers with a dict of its module, which it changes."""
    module = wheels.load("bfcl_eval.eval_checker.multi_turn_eval.func_source_code.vehicle_control")

    class Watched(dict):
        def __setitem__(self, key, value):
            assert bfcl_backend._LOCK.locked()
            super().__setitem__(key, value)

        def items(self):
            assert bfcl_backend._LOCK.locked()
            return super().items()

    monkeypatch.setattr(module, "LONG_WEATHER_EXTENSION", Watched(module.LONG_WEATHER_EXTENSION))
    world = Backend.start(["VehicleControlAPI"], {}, True)
    texts = {world.call("get_outside_temperature_from_google", {}) for _ in range(3)}
    assert len(texts) == 3 and all('"outsideTemperature"' in text for text in texts)


def test_what_is_withheld_can_not_be_called() -> None:
    task = next(t for t in ALL if bfcl_data.entry(t).withheld)
    entry = bfcl_data.entry(task)
    (turn, names), *_ = entry.withheld.items()
    env = begin(task)
    assert names[0] not in env.tools.names
    observation, *_ = env.step(f"{names[0]}()")
    assert observation.startswith("Error: unknown tool")
    for _ in range(turn):
        observation, *_, info = env.step("Done.")
    assert observation == bfcl_data.MORE_TOOLS
    assert names[0] in {tool["function"]["name"] for tool in info["tools"]}


def test_withheld_tools_are_shown_to_who_reads_text_only() -> None:
    task = next(t for t in ALL if 1 in bfcl_data.entry(t).withheld)
    env = begin(task, tools_in_observation=True)
    assert f"{bfcl_data.entry(task).withheld[1][0]}(" in env.step("Done.")[0]


def test_acting_too_early_is_forgiven_as_published_unless_strict() -> None:
    """The calls of the turn after the withheld one, made early, and one trivial call in that turn."""
    task = "multi_turn_miss_param_0"
    truth = bfcl_data.entry(task).truth
    turn = truth.index(())
    for strict in (False, True):
        env = begin(task, strict_withheld=strict)
        for k, calls in enumerate(truth):
            early = truth[k + 1] if k == turn else ("pwd()",) if k == turn + 1 else calls
            env.step(f"[{', '.join(early)}]")
            last = env.step("Done.")
        assert last[1] == (0.0 if strict else 1.0)
        assert (last[4]["checks"]["turns"][turn] == "called_what_is_withheld") == strict


def test_a_read_that_moves_the_generator_changes_what_follows() -> None:
    """As published: ids and temperatures come from it, and a fork keeps its state."""
    task = "multi_turn_base_91"
    env = begin(task)
    env.step("get_current_speed()")
    assert play(env, begin(task).solution())[0][1] == 0.0


def test_twenty_replies_a_turn_and_no_more() -> None:
    env = begin("multi_turn_base_0")
    for _ in range(MAX_STEPS):
        assert not env.step("pwd()")[2]
    _, reward, terminated, _, info = env.step("pwd()")
    assert terminated and reward == 0 and info["checks"]["turns"] == ["too_many_steps"]


def test_a_folder_moved_into_itself_ends_nothing() -> None:
    """The published file system loses it; copied into itself it even has no bottom."""
    env = begin("multi_turn_base_0")
    actions = [*["[mkdir('a'), cp('a', 'a'), find(), du()]"] * 3, "[mv('a', 'a'), find('.'), ls()]"]
    for action in actions:
        assert env.step(action)[0]
    assert env.fork().step("Done.")[0]


@pytest.mark.timeout(20)
def test_folders_that_double_are_not_walked() -> None:
    env = begin("multi_turn_base_0")
    env.step("[mkdir('d0'), cd('d0'), touch('f'), cd('..')]")
    for k in range(18):
        here, there = f"d{k}", f"d{k + 1}"
        env.step(
            f"[cp('{here}', 'twin'), mkdir('{there}'), mv('{here}', '{there}'), mv('twin', '{there}')]"
        )
        env._steps = 0
    assert "hold more than" in env.step("find()")[0]
    assert "hold more than" in env.step("du()")[0]


def test_folders_too_deep_to_be_copied_are_forked_by_replay() -> None:
    env = begin("multi_turn_base_0")
    for _ in range(13):
        env.step("\n".join(["mkdir('a')", "cd('a')"] * 32))
    with pytest.raises(RecursionError):
        env._backend.copy()
    twin = env.fork()
    assert twin.step("pwd()")[0] == env.step("pwd()")[0]


def test_many_long_results_fit_into_an_observation() -> None:
    env = begin("multi_turn_base_0")
    env.step(f"[touch('f'), echo({'x' * 90_000!r}, 'f')]")
    observation, *_ = env.step("\n".join(["cat('f')"] * 40))
    assert env.observation_space.contains(observation) and observation.endswith("(cut)")


def test_a_fork_is_independent() -> None:
    for task in SAMPLE[::3]:
        env = begin(task)
        actions = env.solution()
        play(env, actions[:2])
        twin = env.fork()
        for action in reversed(actions):
            if not twin.over:
                twin.step(action)
        assert play(env, actions[2:])[0][1] == 1.0


def test_nothing_is_written_and_nothing_imported_beside(tmp_path) -> None:
    """The benchmark's own readers make folders beside the installed packages."""
    code = (
        "import sys; from turnbench.envs.bfcl import BFCL; env = BFCL(); env.reset(seed=0)\n"
        "for action in env.solution(): last = env.step(action)\n"
        "odd = {'bfcl_eval.utils', 'bfcl_eval.constants.eval_config', 'tree_sitter', 'faiss'}\n"
        "print(last[1], odd & set(sys.modules))"
    )
    home = bfcl_data.folder().parents[1]
    before = sorted(os.listdir(home))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["1.0", "set()"], done.stderr
    assert not list(tmp_path.iterdir()) and sorted(os.listdir(home)) == before


def test_threads_do_not_disturb_each_other() -> None:
    tasks = [t for t in ALL if "long_context" in t][:60:10]
    with ThreadPoolExecutor(3) as pool:
        rewards = list(pool.map(lambda t: play(begin(t), begin(t).solution())[0][1], tasks * 2))
    assert rewards == [1.0] * len(rewards)


def test_schemas_are_json_schemas() -> None:
    for owner in ("GorillaFileSystem", "TravelAPI", "VehicleControlAPI"):
        text = json.dumps(bfcl_data.schemas(owner))
        assert '"response"' not in text and '"dict"' not in text and '"float"' not in text
        assert len(ToolSet(bfcl_data.schemas(owner)).names) == len(bfcl_data.schemas(owner))


# --- any text ---------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def calls(draw):
    """A call of one of all tools, with arguments of any kind under the right names, or wrong ones."""
    owner = draw(st.sampled_from(["GorillaFileSystem", "MathAPI", "TravelAPI", "VehicleControlAPI"]))
    function = draw(st.sampled_from(bfcl_data.schemas(owner)))["function"]
    names = [*function["parameters"]["properties"], draw(st.text(max_size=5))]
    return owner, function["name"], draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(calls(), max_size=5))
def test_any_call_is_answered(watched, made) -> None:
    world = backend("GorillaFileSystem", "MathAPI", "TravelAPI", "VehicleControlAPI")
    world.call("pwd", {})  # whatever is imported late is imported now
    with watched():
        for _, name, arguments in made:
            assert isinstance(world.call(name, arguments), str)
    assert world.instances.keys() == world.copy().instances.keys()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(ALL),
    st.lists(st.text(max_size=30) | calls().map(lambda c: call_text(c[1], **c[2])), max_size=10),
)
def test_any_text_is_answered(watched, task, actions) -> None:
    play(begin("multi_turn_base_0"), begin("multi_turn_base_0").solution())
    datetime.strptime("1", "%d")  # and so whatever is imported late is imported now
    env = begin(task)
    with watched():
        for action in actions:
            if env.over:
                break
            observation, reward, terminated, _, info = env.step(action)
            assert env.observation_space.contains(observation) and reward in (0.0, 1.0)
            assert terminated == ("success" in info)
