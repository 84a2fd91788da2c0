"""The pool of live ScienceWorld simulators, and what is known without them.

A world is a function of its task and its actions. So a tree keeps what each action led to (`Node`):
what was played before is answered from there, and only a new action needs a live world. Worlds that
nobody holds are kept for a while where they stand, because forks go on from there; a world that
leaves a state where another environment stands leaves a copy. Where none is left, a world is brought
to its place by replaying what it has missed. A Java process that dies or hangs is replaced, and the
worlds that were in it are made again when they are next needed, in the same way.
"""

import _thread
import atexit
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from turnbench.envs.sciworld_jvm import Jvm, JvmGone, JvmLost, Lane, World
from turnbench.envs.sciworld_states import Node
from turnbench.envs.sciworld_tasks import Spec

T = TypeVar("T")

WORLDS_PER_JVM = 128
"""A world takes about 0.4 MB of the heap."""
IDLE_WORLDS = 32
"""How many worlds of a lane that nobody holds are kept where they stood."""
AWAITED_WORLDS = 128
"""How many more are kept where an environment stands."""
TREES = 64
TREE_SIZE = 1_000_000
"""How many tasks' trees are kept, and how many characters one may hold before it is begun anew."""


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
        return [process.pid for process in known if process is not None and process.poll() is None]

    def join(self) -> None:
        """One lease more."""
        with self._lock:
            self._leases += 1

    def leave(self, world: World | None) -> None:
        """One lease less."""
        self.abandoned.append(world)
        self.settle()

    def settle(self) -> None:
        """Take back what was abandoned; with the last lease the processes end."""
        with self._lock:
            self._collect()
            if self._leases <= 0:
                self.close()

    def _collect(self) -> None:
        while self.abandoned:
            self.release(self.abandoned.popleft())
            self._leases -= 1

    def tree(self, spec: Spec) -> Node | None:
        """The root of what is known of a task."""
        with self._lock:
            root = self._trees.get(spec)
            if root is None or root.size > TREE_SIZE:
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

    def process(self, lane: Lane, target: Node | None) -> Jvm:
        """The process to play in: that of the world which `take` would take among all, else one with room."""
        with self._lock:
            self._collect()
            world = self._nearest(lane, target) or self._spent(lane)
            if world is not None:
                return world.jvm
            jvms = self._jvms.setdefault(lane, [])
            room = next((jvm for jvm in jvms if jvm.worlds < WORLDS_PER_JVM), None)
            if room is None:
                room = Jvm(lane)
                jvms.append(room)
            return room

    def take(self, jvm: Jvm, target: Node | None) -> World | None:
        """The idle world of a process that has the shortest way to `target`, else one that can be loaded
        anew; None where there is no room for one.

        Only within `jvm.calls()`: a world taken sooner would wait there, where the others can't see it.
        """
        with self._lock:
            world = self._nearest(jvm.lane, target, jvm)
            if world is not None:
                self._idle[jvm.lane].remove(world)
                return world
            return self._spare(jvm)

    def _nearest(self, lane: Lane, target: Node | None, jvm: Jvm | None = None) -> World | None:
        """The idle world (of a process) that has the shortest way to `target`, if any has one."""
        if target is None:
            return None
        idle = [w for w in self._idle.get(lane, []) if w.node and jvm in (None, w.jvm)]
        ways = [(target.since(w.node), w) for w in idle]
        fits = [(len(way), w) for way, w in ways if way is not None]
        return min(fits, key=lambda fit: fit[0])[1] if fits else None

    def _spent(self, lane: Lane, jvm: Jvm | None = None, full: bool = False) -> World | None:
        """A world (of a process) to be used for something else; None where there is room for more."""
        idle = self._idle.get(lane, [])
        spent = [w for w in idle if w.node is None or not w.node.awaited()]
        many = full or len(spent) >= IDLE_WORLDS
        fits = [w for w in spent if jvm in (None, w.jvm) and (many or w.node is None)]
        if not fits and len(idle) - len(spent) >= AWAITED_WORLDS:
            fits = [w for w in idle if jvm in (None, w.jvm)]
        return min(fits, key=lambda w: w.node is not None, default=None)

    def _spare(self, jvm: Jvm) -> World | None:
        """A world of a process to be loaded anew or made a copy; None where there is no room for one."""
        full = jvm.worlds >= WORLDS_PER_JVM
        world = self._spent(jvm.lane, jvm, full)
        if world is not None:
            self._idle[jvm.lane].remove(world)
            world.node = None
        elif not full:
            jvm.worlds += 1
            world = World(jvm)
        return world

    def leave_copy(self, world: World) -> None:
        """Before a world goes on: leave a copy of it where it stands, if somebody else stands there."""
        node, jvm = world.node, world.jvm
        with self._lock:
            idle = self._idle.get(jvm.lane, [])
            if node is None or not node.awaited() or any(w.node is node for w in idle):
                return
            spare = self._spare(jvm)
        if spare is None:
            return
        spare.become(world)
        self.release(spare)

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
        self._abandoned = POOL.abandoned
        self._open = True
        POOL.join()

    def __del__(self) -> None:
        if self._open:  # a collector may run anywhere, so no lock may be taken here, nor by `threading`
            self._abandoned.append(self.world)
            if self._abandoned is POOL.abandoned:  # else it is from before this process was forked
                with suppress(RuntimeError):  # Python is ending, and the pool with it
                    _thread.start_new_thread(POOL.settle, ())

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

    def retire(self) -> None:
        """Give back a world that has come to its end."""
        if self.world is not None:
            self.world.node = None
        self.release()

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
        """The simulator's own solution of a task; empty where its search runs out of memory or time."""
        self.release()
        try:
            return self._with_world(spec, None, lambda world: world.gold(spec), attempts=1)
        except JvmLost:
            return []

    def _with_world(
        self, spec: Spec, target: Node | None, work: Callable[[World], T], attempts: int = 2
    ) -> T:
        """Do something in a live world; again in a new process where one fails, if `attempts` are left."""
        failures = 0
        while True:
            try:
                return self._try(spec, target, work)
            except JvmGone:
                continue
            except JvmLost:
                failures += 1
                if failures == attempts:
                    raise

    def _try(self, spec: Spec, target: Node | None, work: Callable[[World], T]) -> T:
        self.release()
        while True:
            jvm = POOL.process(spec.lane, target)
            try:
                with jvm.calls():
                    world = self.world = POOL.take(jvm, target)
                    if world is not None:  # else others have filled the process meanwhile
                        world.enter()
                        POOL.leave_copy(world)
                        return work(world)
            except JvmLost:
                self.world = None
                POOL.drop(jvm)
                raise


def _play(world: World, node: Node, action: str) -> tuple[Node, int]:
    replayed = world.go_to(node)
    if replayed:
        POOL.leave_copy(world)
    world.node = None  # in case of failure
    world.node = node.add(action, world.play(action, node.result))
    return world.node, replayed
