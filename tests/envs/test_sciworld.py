"""ScienceWorld as played: exact replay, the simulator's oddities, and the complaints about it."""

import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("py4j", reason="the extra sciworld isn't installed")
pytest.importorskip("scienceworld", reason="the extra sciworld isn't installed")

import numpy as np  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from turnbench import envs  # noqa: E402
from turnbench.agents.rollout import Move, Rollout  # noqa: E402
from turnbench.envs import sciworld_jvm, sciworld_pool  # noqa: E402
from turnbench.envs.errors import ConfigError, EpisodeOver  # noqa: E402
from turnbench.envs.record import Task  # noqa: E402
from turnbench.envs.sciworld_tasks import DRAWING  # noqa: E402

try:
    sciworld_jvm.java_command()
except ConfigError:
    pytest.skip("no Java", allow_module_level=True)

GOLD = Path(__file__).parents[3] / "shared/data/sciworld/gold_replay_hashCode2.json.gz"
UNKNOWN = "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "
NO_MATCH = "No known action matches that input."
TASK = "find-animal/262"


@pytest.fixture(scope="module")
def keeper():
    """Keeps the Java process alive between tests."""
    env = make()
    env.reset(seed=0, options={"task": TASK})
    yield env
    env.close()


@pytest.fixture
def env(keeper):
    world = make()
    yield world
    world.close()


def make(**kwargs):
    return envs.make("turnbench/ScienceWorld-v0", **{"max_turns": 1000, **kwargs})


def play(env, task, *actions):
    """The last answer to some actions in a task."""
    answer = None
    env.reset(seed=0, options={"task": task})
    for action in actions:
        answer = env.step(action)
    return answer


def gold():
    if not GOLD.is_file():
        pytest.skip("the reference data isn't there")
    with gzip.open(GOLD, "rt", encoding="utf-8") as file:
        return {key.replace("|", "/"): path for key, path in json.load(file).items()}


def assert_gold(env, path):
    """Play (a piece of) a gold path and compare everything."""
    for action, seen, score, completed, moves in path:
        observation, _, terminated, _, info = env.step(action)
        assert (observation, info["score"], info["moves"]) == (seen, round(100 * score), moves)
        assert terminated == completed
        if terminated:
            break


# --- exactness --------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)  # half a minute where nobody else works
def test_gold_paths_replay_exactly(keeper):
    """All, to their ends; those that draw random numbers, which have a process of their own, beside
    the others."""
    paths = gold()
    drawing = [task for task in paths if task.split("/")[0] in DRAWING]

    def replay(tasks):
        env = make(step_limit=1000)
        for task in tasks:
            env.reset(seed=0, options={"task": f"{task}@moves=1000"})
            assert_gold(env, paths[task])
            assert env.over, task
        env.close()
        return len(tasks)

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(replay, (paths.keys() - set(drawing), drawing))) == len(paths) == 20


PLAYED = ("mendelian-genetics-known-plant", "freeze")


def test_worlds_played_in_turns_are_as_if_alone(keeper):
    """Two that draw random numbers in one process, and two others in another."""
    paths = {task: path for task, path in gold().items() if task.split("/")[0] in PLAYED}
    played = [(make(step_limit=1000), task, path) for task, path in paths.items() for _ in range(2)]
    for env, task, _ in played:
        env.reset(seed=0, options={"task": f"{task}@moves=1000"})
        sciworld_pool.POOL._trees.clear()  # else the second is answered from the first
    for turn in range(50):
        for env, _, path in played:
            assert_gold(env, path[turn : turn + 1])
    for env, _, _ in played:
        env.close()


def test_heat_is_the_same_every_time(keeper):
    actions = ("teleport to kitchen", "pour counter into sink", "activate sink", "use lighter on drawer")
    seen = set()
    for _ in range(3):
        env = make(simplifications="easy")
        seen.add(play(env, "boil/0@easy", *actions, "wait1", "look in sink")[0])
        sciworld_pool.POOL._trees.clear()
        env.close()
    assert len(seen) == 1 and "steam" in seen.pop()


def test_simplified_worlds_leave_plain_ones_alone(env):
    easy = make(simplifications="easy")
    assert play(easy, "boil/0@easy", "teleport to kitchen")[0] == "You teleport to the kitchen."
    assert play(env, "boil/0", "teleport to kitchen")[0] == NO_MATCH
    assert easy.step("teleport to hallway")[0] == "You teleport to the hallway."
    easy.close()


def test_other_processes_say_the_same(env):
    task, actions = "find-living-thing/262", ("objects", "wait", "look around", "objects")
    script = (
        "from turnbench import envs; e = envs.make('turnbench/ScienceWorld-v0'); "
        f"print(ascii([e.reset(options={{'task': {task!r}}})[0]] + [e.step(a)[0] for a in {actions}]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONHASHSEED": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
        text=True,
    )
    first, _ = env.reset(seed=7, options={"task": task})
    assert done.stdout.strip() == ascii([first] + [env.step(a)[0] for a in actions])
    assert done.stderr == ""  # although it has closed nothing


@pytest.mark.parametrize("task", ["find-plant/262", "chemistry-mix/3", "test-conductivity/787"])
def test_answers_are_those_of_the_published_interface(env, task):
    """Random commands, against the calls that the package scienceworld makes at each step."""
    rng = np.random.default_rng(0)
    env.reset(seed=0, options={"task": task})
    jvm = env._lease._try(env._node.spec, env._node, lambda world: world.jvm)
    other = sciworld_jvm.World(jvm)
    with jvm.calls():
        other.enter()
        other.open(env._node.spec)
    forms = env.step("help")[0].split("\n\t")[1:]
    names = []
    for turn in range(30):
        if turn % 5 == 0:
            names = env.step("objects")[0].split("\n\t")[1:]
        form = rng.choice([f for f in forms if not f.startswith("focus")])
        action = " ".join(rng.choice(names) if word == "OBJ" else word for word in form.split())
        observation, *_, info = env.step(action)
        with jvm.calls():
            other.enter()
            shell = other._simulator
            if turn % 5 == 0:
                shell.step("objects")
            assert observation == shell.step(action)
            assert info["score"] == int(round(100 * shell.getScore()))
            assert info["moves"] == shell.getNumMoves() and env.over == shell.getCompleted()
        if env.over:
            break


# --- what the simulator does ------------------------------------------------------------------------


def test_first_observation_is_the_task_and_a_look_around(env):
    first, _ = env.reset(seed=0, options={"task": TASK})
    task, _, look = first.partition("\n")
    assert task.startswith("Your task is to find a(n) animal.")
    assert look == env.step("look around")[0] and look.startswith("This room is called")
    assert env.step("task")[0] == f"Task description:\n{task}"


def test_help_and_objects_reach_the_agent(env):
    assert play(env, TASK, "help")[0].startswith("Possible actions: \n\tactivate OBJ\n\tclose OBJ")
    answer = play(env, TASK, " OBJECTS ")
    assert answer[0].startswith("Possible object references: \n\t") and "\n\tjug" in answer[0]
    assert answer[4]["moves"] == 0


def test_input_without_meaning_costs_a_turn_but_no_move(env):
    for action in ("", "look around.", "fly", "0"):
        observation, reward, *_, info = play(env, TASK, action)
        assert (observation, reward, info["moves"]) == (NO_MATCH, 0, 0)


def test_case_does_not_matter(env):
    assert play(env, TASK, "LOOK Around")[0] == play(env, TASK, "look around")[0]


def test_moves_are_counted_as_the_simulator_does(env):
    moves = [
        play(env, TASK, action)[4]["moves"] for action in ("look around", "inventory", "wait1", "wait")
    ]
    assert moves == [0, 0, 2, 11]


def test_a_number_answers_an_ambiguity(env):
    seen = play(env, TASK, "look at door")[0]
    assert seen.startswith("Ambiguous request: Please enter the number for the action you intended")
    observation, *_, info = env.step("1")
    assert observation == "A door to the outside (that is closed)" and info["moves"] == 1


def test_anything_else_cancels_an_ambiguity_and_costs_a_move(env):
    for lost in ("look around", "", "99", "task"):
        play(env, TASK, "look at door")
        observation, *_, info = env.step(lost)
        if lost == "task":  # answered before the parser sees it: the question stays open
            assert observation.startswith("Task description") and info["moves"] == 0
            assert env.step("0")[0] == "A door to the hallway (that is closed)"
        else:
            assert (observation, info["moves"]) == (UNKNOWN, 1)


def test_reset_task_forgets_the_progress(env):
    focus = play(env, "find-plant/262", "focus on cherry tree")
    assert focus[4]["score"] == 50 and focus[1] == 0.5
    observation, reward, *_, info = env.step("reset task")
    assert observation == "You reset the goal progress and focus."
    assert reward == -0.5 and info["score"] == 0 and info["moves"] == 2


def test_go_works_with_and_without_to(env):
    for go in ("go hallway", "go to hallway"):
        assert play(env, TASK, "open door to hallway", go)[0] == "You move to the hallway."


def test_doors_have_two_names(env):
    for name in ("door to hallway", "hallway door"):
        assert play(env, TASK, f"open {name}")[0] == "The door is now open."


def test_a_door_can_be_looked_at(env):
    assert play(env, TASK, "look at door to hallway")[0] == "A door to the hallway (that is closed)"


def test_the_valid_action_list_is_never_called(env, monkeypatch):
    """It draws from the world's random numbers, and loses what is in focus."""
    asked = []
    send = sciworld_jvm.Client.send_command
    monkeypatch.setattr(
        sciworld_jvm.Client, "send_command", lambda *a, **k: asked.append(a[1]) or send(*a, **k)
    )
    play(env, "find-plant/263", "wait1")
    env.fork().step("wait1")
    assert asked and not any("getValid" in command or "Combinations" in command for command in asked)


# --- rewards and ends -------------------------------------------------------------------------------


def test_a_wrong_focus_is_minus_100_with_the_clipped_score_beside_it(env):
    rewards = [play(env, TASK, "open door to hallway")[1]]
    observation, reward, terminated, truncated, info = env.step("focus on jug")
    assert observation == "You focus on the jug." and terminated and not truncated
    assert info == {"score": -100, "clipped_score": 0, "success": False, "moves": 2}
    assert sum(rewards) + reward == pytest.approx(-1)


def test_nothing_can_be_played_after_the_end(env, monkeypatch):
    play(env, TASK, "focus on orange")
    monkeypatch.setattr(sciworld_pool.Lease, "advance", None)
    with pytest.raises(EpisodeOver):
        env.step("look around")
    assert env._lease.world is None


def test_ten_waits_end_the_episode(env):
    for turn in range(1, 11):
        _, reward, terminated, _, info = env.step("wait") if turn > 1 else play(env, "boil/25", "wait")
        assert reward == 0 and terminated == (turn == 10)
    assert info["moves"] == 110 and not info["success"]


def test_a_time_out_is_no_success_whatever_its_score(keeper):
    env = make(max_turns=2)
    _, _, terminated, truncated, info = play(env, "find-plant/262", "focus on cherry tree", "wait1")
    assert truncated and not terminated and info["score"] == 50 and not info["success"]
    env.close()
    env = make(step_limit=1)
    _, _, terminated, _, info = play(env, "find-plant/262@moves=1", "focus on cherry tree", "wait1")
    assert terminated and info["score"] == 50 and not info["success"]
    env.close()


def test_return_is_the_score_and_success_is_apart(env):
    """The simulator's own solution wins."""
    actions = env.gold_path("find-plant/262")
    env.reset(seed=0, options={"task": "find-plant/262"})
    rewards = []
    for action in actions:
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
        assert sum(rewards) == pytest.approx(info["score"] / 100)
        assert info["success"] == (info["score"] == 100) == terminated
    assert env.over and env.return_range[0] <= sum(rewards) <= env.return_range[1] + 1e-9


# --- any text ---------------------------------------------------------------------------------------

WORDS = ["open", "door", "to", "hallway", "focus on", "air", "look at", "jug", "pour", "into", "wait1"]
WORDS += ["pick up", "connect", "0", "1", "inventory", "examine", "go", "mix", "sink", "objects", "move"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.text(max_size=30) | st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), max_size=12
    )
)
def test_any_text_is_answered(keeper, actions):
    env = make(max_turns=12)
    env.reset(seed=0, options={"task": "use-thermometer/472"})
    score, moves = 0, 0
    for action in actions:
        if env.over:
            break
        observation, reward, terminated, _, info = env.step(action)
        assert (
            observation and observation.encode("utf-8") and env.observation_space.contains(observation)
        )
        assert info["score"] == score + round(100 * reward) and -100 <= info["score"] <= 100
        assert info["moves"] >= moves and terminated == (abs(info["score"]) == 100)
        score, moves = info["score"], info["moves"]
    env.close()


@pytest.mark.parametrize(
    "action", ["x" * 1_000_000, "open " * 10_000, "\x00", "\ud800", "a\nb\r\nc", "!y\ne\n", "%s${x}"]
)
def test_odd_text_is_answered(env, action):
    observation, *_, info = play(env, TASK, action, "look around")
    assert observation.startswith("This room is called") and info["moves"] == 0


def test_success_reaches_the_record() -> None:
    env: Any = envs.make("turnbench/ScienceWorld-v0", max_turns=100)
    task = Task("turnbench/ScienceWorld-v0", "find-animal/262", "test")
    rollout = Rollout.start(env, task, np.random.default_rng(0))
    failed = Rollout.start(env.spawn(), task, np.random.default_rng(0))
    for action in env.gold_path(task.id):
        if not rollout.over:
            rollout.advance(Move(action))
    failed.advance(Move("look around"))
    assert rollout.finish().success is True and rollout.finish().ret == pytest.approx(1.0)
    assert failed.finish().success is False
    env.close()
    failed.env.close()
