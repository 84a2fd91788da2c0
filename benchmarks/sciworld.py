"""ScienceWorld: start, reset, steps, forks by depth, memory, many episodes, and simple policies' scores.

    python benchmarks/sciworld.py [--json] [--gold FILE] [--soak EPISODES] [--only]

Figures are printed as they come; with --json as one object a line {name, value, unit, goal}. --gold is
a file of recorded gold paths, all of which must replay exactly; without it, and by default, the
simulator's own solutions are played. --soak plays so many short episodes and watches memory, threads
and processes; --only leaves out all that isn't asked for. What simple policies score is told by
benchmarks/policies.py.
"""

import argparse
import gzip
import json
import os
import sys
import threading
import time
from pathlib import Path

from turnbench import envs
from turnbench.envs.sciworld_pool import POOL

ID = "turnbench/ScienceWorld-v0"
TASKS = ("find-plant/262", "use-thermometer/472", "test-conductivity/787", "lifespan-shortest-lived/109")
DEPTHS = (0, 5, 10, 20, 30)
as_json = False


def show(name, value, unit, goal=None):
    value = round(value, 4) if isinstance(value, float) else value
    if as_json:
        print(json.dumps({"name": name, "value": value, "unit": unit, "goal": goal}), flush=True)
    else:
        print(f"{name:48} {value:>12} {unit}" + (f"   (goal: {goal})" if goal else ""), flush=True)


def timed(work):
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def cpu():
    """CPU seconds so far of this process and of Java: steadier than a clock where others work too."""
    spent = time.process_time()
    for pid in POOL.processes():
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def cpu_ms(works):
    """CPU milliseconds of each of several pieces of work, on average."""
    before = cpu()
    for work in works:
        work()
    return 1000 * (cpu() - before) / len(works)


def make(**kwargs):
    return envs.make(ID, **{"max_turns": 10_000, **kwargs})


def reset(env, task):
    return env.reset(seed=0, options={"task": task})


def memory(pid):
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def java_memory():
    return sum(memory(pid) for pid in POOL.processes())


def start_and_reset(env):
    _, first = timed(lambda: reset(env, "boil/0"))
    show("first reset, with the start of Java", first, "s")
    show("the same in CPU time", cpu(), "s")
    many = [lambda k=k: reset(env, f"find-animal/{k}") for k in range(60)]
    cpu_ms(many[:20])  # until Java has compiled what matters
    show("reset to a task not seen before", cpu_ms(many[20:]), "CPU ms")
    show("reset to a task seen before", 1000 * cpu_ms(many[20:]), "CPU us")


def steps(env):
    for task in TASKS:
        actions = env.gold_path(task)[:60]
        for known in (False, True):
            reset(env, task)
            works = [lambda a=action: env.over or env.step(a) for action in actions]
            took = cpu_ms(works)
            if not known:
                show(f"a step of {task}", took, "CPU ms")
    show("a step that was played before", 1000 * took, "CPU us")


def forks(env):
    """Fork, and the first action after it, by the depth of the state."""
    for depth in DEPTHS:
        reset(env, "boil/25")
        for k in range(depth):
            env.step(("open", "close")[k % 2] + " door to hallway")
        twins, took = timed(lambda: [env.fork() for _ in range(16)])
        show(f"fork at depth {depth}", 1e6 * took / 16, "us")
        known = env.step("look around")
        old, new = twins[:8], twins[8:]
        took = 1000 * cpu_ms([lambda t=twin: t.step("look around") for twin in old])
        assert all(twin.observation == known[0] for twin in old)
        show(f"the parent's action after a fork at depth {depth}", took, "CPU us")
        world = env._lease.world
        took = cpu_ms([lambda w=world: forget(w, copy(w))] * 20)
        show(f"a copy of a world at depth {depth}", took, "CPU ms")
        took = cpu_ms([lambda k=k, t=twin: t.step(f"examine {k}") for k, twin in enumerate(new)])
        show(f"a new action after a fork at depth {depth}", took, "CPU ms")
        for twin in twins:
            twin.close()


def copy(world):
    with world.jvm.calls():
        world.enter()
        return world.jvm.copied(world._simulator, world.generator)


def forget(world, pair):
    for one in pair:
        world.jvm.forget(one)


def heap(jvm):
    """MB of the heap in use, after a collection."""
    with jvm.calls():
        runtime = jvm._gateway.jvm.java.lang.Runtime.getRuntime()
        runtime.gc()
        return (runtime.totalMemory() - runtime.freeMemory()) / 1e6


def copies(env):
    """What a copy takes of the heap, after 20 turns."""
    for task in ("boil/25", "mendelian-genetics-known-plant/60"):
        reset(env, task)
        for k in range(20):
            env.step(f"examine {k}")
        world = env._lease.world
        before, kept = heap(world.jvm), [copy(world) for _ in range(50)]
        show(f"heap for a copy of {task}", (heap(world.jvm) - before) / len(kept), "MB")
        for pair in kept:
            forget(world, pair)


def worlds(env):
    show("memory of Java", java_memory(), "MB", "under 400")
    many = [make() for _ in range(64)]
    for k, one in enumerate(many):
        reset(one, f"find-plant/{k}")
        one.step("wait1")
    show("memory of Java with 64 worlds more", java_memory(), "MB", "under 400")
    show("Java processes for 65 worlds", len(POOL.processes()), "", "1")
    for one in many:
        one.close()


def soak(env, episodes):
    reset(env, "boil/0")  # the Java process lasts as long as this
    for episode in range(episodes):
        task = f"find-non-living-thing/{episode % 300}"
        other = make()
        reset(other, task)
        other.step("look around")
        twin = other.fork()
        other.step(f"examine {episode}")
        twin.step(f"look at {episode}")
        twin.close()
        other.close()
        if episode % (episodes // 20) == episodes // 20 - 1:
            show(f"after {episode + 1} episodes: memory of Python", memory("self"), "MB", "flat")
            show(f"after {episode + 1} episodes: memory of Java", java_memory(), "MB", "flat")
            show(f"after {episode + 1} episodes: threads", threading.active_count(), "", "1")
            show(f"after {episode + 1} episodes: processes", len(POOL.processes()), "", "1")


def gold(path):
    """Replay recorded gold paths: [action, observation, score 0-1, completed, moves] by task|variation."""
    env = make(step_limit=10_000)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        recorded = json.load(file)
    same = turns = 0
    started = time.perf_counter()
    for key, rows in recorded.items():
        reset(env, key.replace("|", "/") + "@moves=10000")
        for row in rows:
            seen, _, over, _, info = env.step(row[0])
            if [seen, info["score"], over, info["moves"]] != [row[1], round(100 * row[2]), *row[3:]]:
                print(f"{key} differs at {row[0]!r}", file=sys.stderr)
                break
            turns += 1
            if over:
                break
        same += over and info["success"]
    show("gold paths replayed exactly, to success", same, f"of {len(recorded)}", "all")
    show("their steps", turns / (time.perf_counter() - started), "steps/s")
    env.close()


def main():
    global as_json
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gold", type=Path)
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--only", action="store_true")
    options = parser.parse_args()
    as_json = options.json
    env = make()
    for part in () if options.only else (start_and_reset, steps, forks, worlds, copies):
        part(env)
    if options.soak:
        soak(env, options.soak)
    env.close()
    if options.gold:
        gold(options.gold)


if __name__ == "__main__":
    main()
