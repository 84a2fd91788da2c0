"""The states that ScienceWorld's worlds go through: what is known of them, and who stands there."""

import weakref
from typing import NamedTuple

from turnbench.envs.sciworld_tasks import Spec


class Result(NamedTuple):
    """What the simulator answers: text, score (-100 to 100), whether the task is over, moves made."""

    observation: str
    score: int
    completed: bool
    moves: int


class Stay:
    """What all environments that stand at a state hold, for as long as they stand there."""

    __slots__ = ("__weakref__",)


class Node:
    """A state: the result on arrival, and the states that actions lead to from here."""

    __slots__ = ("_stay", "action", "children", "parent", "result", "root", "size", "spec")

    def __init__(
        self, spec: Spec, result: Result, parent: "Node | None" = None, action: str = ""
    ) -> None:
        self.spec, self.result, self.parent, self.action = spec, result, parent, action
        self.root: Node = self if parent is None else parent.root
        self.children: dict[str, Node] = {}
        self.size = len(action) + len(result.observation)
        self._stay: weakref.ref[Stay] | None = None

    def stay(self) -> Stay:
        """To be held by an environment that stands here, so that a live world is kept for it."""
        stay = self._stay and self._stay()
        if not stay:
            stay = Stay()
            self._stay = weakref.ref(stay)
        return stay

    def awaited(self) -> bool:
        """Whether an environment stands here, which may need a live world to go on."""
        return self._stay is not None and self._stay() is not None

    def add(self, action: str, result: Result) -> "Node":
        """The state that `action` leads to."""
        child = self.children.setdefault(action, Node(self.spec, result, self, action))
        self.root.size += child.size
        return child

    def since(self, start: "Node | None") -> "list[Node] | None":
        """The states after `start` up to this one; None where `start` doesn't lead here."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None and node is not start:
            path.append(node)
            node = node.parent
        return path[::-1] if node is start else None
