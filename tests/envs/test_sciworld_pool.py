"""The pool of ScienceWorld simulators: forks, lost processes, leaks."""

import gc
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("py4j", reason="the extra sciworld isn't installed")
pytest.importorskip("scienceworld", reason="the extra sciworld isn't installed")

from turnbench import envs  # noqa: E402
from turnbench.envs import sciworld, sciworld_jvm, sciworld_pool  # noqa: E402
from turnbench.envs.errors import ConfigError, EnvError, ForkError  # noqa: E402

try:
    sciworld_jvm.java_command()
except ConfigError:
    pytest.skip("no Java", allow_module_level=True)

POOL = sciworld_pool.POOL
TASK = "find-plant/262"
PATH = ("open door to hallway", "objects", "look at door", "1", "wait1", "pick up jug", "inventory")


def make(**kwargs):
    return envs.make("turnbench/ScienceWorld-v0", **{"max_turns": 1000, **kwargs})


@pytest.fixture(scope="module")
def keeper():
    """Keeps the Java process alive between tests."""
    env = make()
    env.reset(seed=0, options={"task": TASK})
    yield env
    env.close()


@pytest.fixture
def env(keeper):
    POOL._trees.clear()
    world = make()
    world.reset(seed=0, options={"task": TASK})
    yield world
    world.close()
    for jvm in [jvm for lane, jvms in POOL._jvms.items() if lane != ("", False) for jvm in jvms]:
        POOL.drop(jvm)


def running(pid):
    """Whether a process runs (one that is waited for does not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_all():
    for pid in POOL.processes():
        os.kill(pid, signal.SIGKILL)


# --- forks ------------------------------------------------------------------------------------------


def test_fork_equals_replay_at_every_depth(env):
    for action in PATH:
        env.step(action)
        twin, anew = env.fork(), make()
        POOL._trees.clear()
        anew.reset(seed=0, options={"task": TASK})
        assert [anew.step(a) for a in env.history][-1][0] == twin.observation
        assert twin.step("objects") == anew.step("objects")
        twin.close()
        anew.close()


def test_forks_do_not_alias(env):
    env.step("open door to hallway")
    twin = env.fork()
    assert twin.step("go to hallway")[0] == "You move to the hallway."
    assert env.step("look around")[0].startswith("This room is called the greenhouse")
    assert twin.step("look around")[0].startswith("This room is called the hallway")
    assert twin.history == ["open door to hallway", "go to hallway", "look around"]
    twin.close()


def test_a_fork_costs_nothing_until_it_does_something_new(env, monkeypatch):
    for action in PATH:
        env.step(action)
    before = env.counts.replayed
    twins = [env.fork() for _ in range(5)]
    said = env.step("wait1")
    with monkeypatch.context() as patch:
        patch.setattr(sciworld_pool.Pool, "take", None)
        assert [twin.step("wait1") for twin in twins] == [said] * 5
    assert env.counts.replayed == before and env.counts.forks == 5
    assert twins[0].step("look around")[0] == env.step("look around")[0]
    assert env.counts.replayed == before + 1  # from the state where it was forked
    for twin in twins:
        twin.close()


def test_a_fork_goes_on_in_the_world_that_its_parent_left(env):
    for action in PATH:
        env.step(action)
    world = env._lease.world
    twin = env.fork()
    env.reset(seed=0, options={"task": TASK})
    twin.step("wait")
    assert twin._lease.world is world and env.counts.replayed == 0
    twin.close()


@pytest.fixture
def made(monkeypatch):
    """How many worlds have been loaded, and how many copied."""
    counts = Counter()
    load, copy = sciworld_jvm.World.open, sciworld_jvm.World.become

    def counted_load(world, *args, **kwargs):
        counts["loaded"] += 1
        return load(world, *args, **kwargs)

    def counted_copy(world, other):
        done = copy(world, other)
        counts["copied" if done else "refused"] += 1
        return done

    monkeypatch.setattr(sciworld_jvm.World, "open", counted_load)
    monkeypatch.setattr(sciworld_jvm.World, "become", counted_copy)
    return counts


@pytest.mark.parametrize("parent_first", [True, False])
def test_forks_that_each_do_something_new_load_and_replay_nothing(env, made, parent_first):
    for action in PATH:
        env.step(action)
    twins = [env.fork() for _ in range(15)]
    everybody = [env, *twins] if parent_first else [*twins, env]
    for k, one in enumerate(everybody):
        assert one.step(f"examine {k}")[-1]["moves"] == env._node.result.moves
    assert made == {"copied": 15} and env.counts.replayed == 0  # the last one goes on in the last copy
    for twin in twins:
        twin.close()


@pytest.mark.parametrize("attempt", range(3))
def test_forks_in_threads_load_nothing(env, made, attempt):
    for action in PATH:
        env.step(action)
    twins = [env.fork() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda k: twins[k].step(f"examine {k}"), range(6)))
    assert made == {"copied": 6} and env.counts.replayed == 0
    for twin in twins:
        twin.close()


def test_no_world_waits_for_its_process_where_nobody_sees_it(env, made, monkeypatch):
    """A fork that has chosen its process, and not begun, keeps nobody from the copy left for all."""
    for action in PATH:
        env.step(action)
    chosen, choose = threading.Barrier(3), POOL.process

    def chosen_slowly(*args):
        jvm = choose(*args)
        chosen.wait(60)  # all have chosen before anyone begins
        return jvm

    twins = [env.fork() for _ in range(3)]
    monkeypatch.setattr(POOL, "process", chosen_slowly)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda k: twins[k].step(f"examine {k}"), range(3)))
    assert made == {"copied": 3} and env.counts.replayed == 0
    for twin in twins:
        twin.close()


def test_a_state_without_its_world_is_replayed_once_for_all_its_forks(env, made):
    for action in PATH:
        env.step(action)
    twins = [env.fork() for _ in range(5)]
    kill_all()
    for k, twin in enumerate(twins):
        assert twin.step(f"examine {k}")[0] == env.fork().step(f"examine {k}")[0]
    assert made["loaded"] == 1 and env.counts.replayed == len(PATH)
    for twin in twins:
        twin.close()


def test_a_killed_process_takes_its_copies_with_it_and_all_go_on(env, made):
    for action in PATH:
        env.step(action)
    twins = [env.fork() for _ in range(3)]
    for turn, action in enumerate(("wait1", "objects", "look around")):
        for k, twin in enumerate(twins):
            twin.step(f"{action}" if k else f"examine {turn}")
        kill_all()
    want = make()
    POOL._trees.clear()
    want.reset(seed=0, options={"task": TASK})
    said = [want.step(action) for action in twins[0].history]
    assert said[-1][0] == twins[0].observation
    assert twins[0].step("inventory") == want.step("inventory")
    assert made["refused"] == 0
    for one in (*twins, want):
        one.close()


COPIED = (
    "mendelian-genetics-known-plant/60",
    "power-component/3",
    "grow-fruit/20",
    "chemistry-mix/5",
    "boil/25",
)
DEEDS = ("open door to hallway", "go to hallway", "open door to workshop", "go to workshop", "wait1")
ASIDE = ("pick up battery", "move battery to floor", "connect battery to red wire", "wait1", "objects")


@pytest.mark.parametrize("task", COPIED)
def test_a_copied_world_goes_on_as_a_replayed_one(env, made, task):
    """From each depth, while the parent goes on otherwise in between."""
    env.reset(seed=0, options={"task": task})
    played, said = [], []
    for action in DEEDS:
        twin = env.fork()
        first = twin.step(ASIDE[0])
        said.append(env.step(action))
        played.append((twin.history, [*said[:-1], first, *(twin.step(one) for one in ASIDE[1:])]))
        twin.close()
    played.append((env.history, said))
    assert made == {"loaded": 1, "copied": len(DEEDS)} and env.counts.replayed == 0
    for history, answers in played:
        POOL._trees.clear()
        anew = make()
        anew.reset(seed=0, options={"task": task})
        assert [anew.step(action) for action in history] == answers
        anew.close()


def test_what_cannot_be_copied_is_replayed(env, made, monkeypatch):
    """A lock stands for all of Java's classes that nobody has looked at."""
    for action in PATH:
        env.step(action)
    copied = sciworld_jvm.Jvm.copied

    def with_a_lock(jvm, simulator, generator):
        lock = jvm._gateway.jvm.java.util.concurrent.locks.ReentrantLock()
        return copied(jvm, simulator, lock)

    monkeypatch.setattr(sciworld_jvm.Jvm, "copied", with_a_lock)
    twin = env.fork()
    assert env.step("wait1") == twin.step("wait1")
    assert twin.step("inventory")[0] == env.step("inventory")[0]
    assert made["copied"] == 0 and made["refused"] and made["loaded"] == 1
    assert env.counts.replayed == len(PATH) + 1
    twin.close()


def test_copies_are_bounded_and_dropped_with_the_forks(env, made, monkeypatch):
    monkeypatch.setattr(sciworld_pool, "IDLE_WORLDS", 3)
    monkeypatch.setattr(sciworld_pool, "AWAITED_WORLDS", 4)
    monkeypatch.setattr(POOL, "_idle", {})
    twins = []
    for _ in range(12):
        twins.append(env.fork())
        env.step("wait1")
    idle = POOL._idle[("", False)]
    assert made["copied"] == 12
    assert len(idle) == 4
    for k, twin in enumerate(twins):  # those whose copy is gone are replayed
        assert twin.step(f"examine {k}")[-1]["moves"] == 2 * k
        twin.close()
    assert 0 < env.counts.replayed < sum(range(12)) and len(idle) <= 3 + 4
    assert not any(world.node is not None and world.node.awaited() for world in idle)


def test_a_full_process_has_no_room_for_copies(env, made, monkeypatch):
    for action in PATH:
        env.step(action)
    world = env._lease.world
    monkeypatch.setattr(sciworld_pool, "WORLDS_PER_JVM", 1)
    monkeypatch.setattr(POOL, "_idle", {})
    twin = env.fork()
    env.step("wait1")
    assert env._lease.world is world and made == {}
    assert twin.step("look around")[0].startswith("This room") and twin.counts.replayed == len(PATH)
    second = twin._lease.world.jvm
    twin.close()
    POOL.drop(second)


def test_the_compiled_copier_is_of_the_source_beside_it(tmp_path):
    folder = sciworld_jvm.COPIER
    sums = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text("utf-8").splitlines())
    files = {path.name: path.read_bytes() for path in folder.glob("WorldCopy*")}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == sums
    javac = shutil.which("javac")
    if (
        javac is None
        or " 17." not in subprocess.run([javac, "--version"], capture_output=True, text=True).stdout
    ):
        return  # another compiler may write another class
    command = [javac, "--release", "11", "-d", str(tmp_path), str(folder / "WorldCopy.java")]
    subprocess.run(command, check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: data for name, data in files.items() if name.endswith(".class")}


def test_replay_for_effect_is_as_play(env):
    """Which compares the text, the score and the moves at the end, also after special inputs."""
    for action in (*PATH, "help", "\x01TASK\x02", "wait1", "objects"):
        env.step(action)
    path = env._node.since(None)
    world = env._lease.world
    for target in (path[2], path[5], path[-3], path[-1]):
        with world.jvm.calls():
            world.node = None
            assert world.go_to(target) == len(target.since(None)) - 1


def test_a_world_that_answers_otherwise_is_an_error(env):
    for action in ("wait1", "look around"):
        env.step(action)
    twin = env.fork()
    twin._node.result = twin._node.result._replace(observation="something else")
    kill_all()  # else the twin goes on where its parent stood
    with pytest.raises(ForkError, match="something else"):
        twin.step("inventory")
    twin.close()


# --- processes that die, hang or can't start --------------------------------------------------------


def test_a_killed_process_is_replaced_and_the_episode_goes_on(env):
    reference = make()
    reference.reset(seed=0, options={"task": TASK})
    want = [reference.step(action) for action in PATH]
    POOL._trees.clear()
    env.reset(seed=0, options={"task": TASK})
    other = make()
    other.reset(seed=0, options={"task": "find-plant/263"})
    other.step("wait1")
    got = []
    for turn, action in enumerate(PATH):
        if turn in (2, 5):
            kill_all()
        got.append(env.step(action))
    assert got == want
    assert env.counts.replayed == 2 + 5
    assert other.step("look around")[0].startswith("This") and other.counts.replayed == 1
    assert len(POOL.processes()) == 1
    other.close()
    reference.close()


def test_processes_that_had_ended_before_are_no_failures_of_the_call(env, monkeypatch):
    monkeypatch.setattr(sciworld_pool, "WORLDS_PER_JVM", 1)
    monkeypatch.setattr(POOL, "_idle", {})
    twin = env.fork()
    env.step("wait1")
    twin.step("look around")
    first, second = env._lease.world.jvm, twin._lease.world.jvm
    twin.close()
    kill_all()
    for jvm in (first, second):
        jvm.process.wait()
    assert first is not second and env.step("look around")[0].startswith("This room")


def test_a_hung_process_is_replaced(env):
    env.step("wait1")
    (pid,) = POOL.processes()
    world = env._lease.world
    world.jvm.client.deadline = 0.5
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)  # a busy machine stops it late
    observation, *_, info = env.step("inventory")
    assert observation.startswith("In your inventory") and info["moves"] == 2
    assert not running(pid) and world.jvm.lost and env._lease.world is not world


def test_a_process_that_always_fails_is_an_error_and_ends(env, monkeypatch):
    play = sciworld_jvm.World.play

    def deadly(world, action, before):
        if action == "die":
            world.jvm.process.kill()
        return play(world, action, before)

    monkeypatch.setattr(sciworld_jvm.World, "play", deadly)
    env.step("wait1")
    with pytest.raises(EnvError, match="Java process failed"):
        env.step("die")
    assert POOL.processes() == []
    twin = env.fork()
    twin.over = False
    assert env.step("look around")[0].startswith("This room") and env.history[-1] == "look around"
    twin.close()


def test_a_lack_of_memory_is_not_the_players_failure():
    assert "-XX:+ExitOnOutOfMemoryError" in sciworld_jvm.JVM_OPTIONS


def test_without_java_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(sciworld_jvm, "java_command", lambda: "/nowhere/java")
    jvm = sciworld_jvm.Jvm(("", False))
    with pytest.raises(EnvError, match="/nowhere/java"), jvm.calls():
        pass
    monkeypatch.undo()
    monkeypatch.setattr(sciworld_jvm.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sciworld_jvm.shutil, "which", lambda *a, **k: None)
    for missing in (sciworld_jvm.java_command, sciworld_jvm.jar_path):
        with pytest.raises(ConfigError, match=r"pip install 'turnbench\[sciworld\]'"):
            missing()


def test_without_the_extra_the_way_out_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'py4j'", name="py4j")

    env = make()
    monkeypatch.setattr(sciworld.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"py4j; run: pip install 'turnbench\[sciworld\]'"):
        env.reset(options={"task": TASK})


def test_what_java_says_at_a_failed_start_is_shown(monkeypatch):
    monkeypatch.setattr(sciworld_jvm, "JVM_OPTIONS", ("-XX:NoSuchOption",))
    jvm = sciworld_jvm.Jvm(("", False))
    with pytest.raises(sciworld_jvm.JvmLost, match="NoSuchOption"), jvm.calls():
        pass


# --- nothing leaks ----------------------------------------------------------------------------------


def test_many_episodes_leave_nothing_behind(env, monkeypatch):
    """Threads, processes, files and worlds stay as they are."""
    monkeypatch.setattr(sciworld_pool, "IDLE_WORLDS", 4)

    def held():
        gc.collect()
        worlds = sum(jvm.worlds for jvms in POOL._jvms.values() for jvm in jvms)
        files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        return threading.active_count(), len(POOL.processes()), files, worlds

    env.step("wait1")
    for episode in range(20):
        other = make()
        other.reset(seed=0, options={"task": f"find-plant/{episode}"})
        other.step("look around")
        twin = other.fork()
        twin.step("wait1")
        twin.close()
        other.close()
        if episode == 9:
            before = held()
    assert held() == before


def test_trees_are_bounded(env, monkeypatch):
    monkeypatch.setattr(sciworld_pool, "TREES", 2)
    for k in range(4):
        env.reset(seed=0, options={"task": f"find-plant/{k}"})
    assert [spec.variation for spec in POOL._trees] == [2, 3]
    monkeypatch.setattr(sciworld_pool, "TREE_SIZE", 1)
    root = env._node
    env.reset(seed=0, options={"task": "find-plant/3"})
    assert env._node is not root and env._node.result == root.result


def eventually(true):
    """What a thread of its own does in the background."""
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_an_environment_that_is_not_closed_gives_its_world_back(env):
    lost = make()
    lost.reset(seed=0, options={"task": TASK})
    lost.step("wait1")
    world, leases = lost._lease.world, POOL._leases
    del lost
    gc.collect()
    assert eventually(lambda: POOL._leases == leases - 1)
    assert world in POOL._idle[("", False)]
    assert env.step("look around")[0].startswith("This room")


def test_java_ends_with_the_last_environment_although_nobody_closed_it(keeper):
    pids = POOL.processes()
    keeper.close()
    lost = make()
    lost.reset(seed=0, options={"task": TASK})
    twin = lost.fork()
    twin.step("wait1")
    assert POOL.processes() != pids
    del lost, twin
    gc.collect()
    assert eventually(lambda: POOL.processes() == [])
    keeper.reset(seed=0, options={"task": TASK})


def test_threads_play_side_by_side(env):
    """Many threads in one process see what one would see alone."""
    seen = {}

    def work(k):
        mine = make()
        mine.reset(seed=0, options={"task": TASK})
        seen[k] = [
            mine.step(action)[0]
            for action in ("objects", f"look at door to {('hallway', 'outside')[k % 2]}", "wait1")
        ]
        mine.close()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 6 and all(seen[k] == seen[k % 2] for k in seen)


def test_closing_the_last_environment_ends_java(keeper):
    pids = POOL.processes()
    keeper.close()
    keeper.close()
    assert POOL.processes() == [] and not any(running(pid) for pid in pids)
    keeper.reset(seed=0, options={"task": TASK})
    assert keeper.step("look around")[0].startswith("This room") and len(POOL.processes()) == 1


def test_java_ends_with_its_parent():
    script = (
        "from turnbench import envs; from turnbench.envs import sciworld_pool as p;"
        "e = envs.make('turnbench/ScienceWorld-v0'); e.reset(options={'task': 'boil/0'});"
        "print(*p.POOL.processes(), flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pid, deadline = int(done.stdout), time.monotonic() + 30
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)
