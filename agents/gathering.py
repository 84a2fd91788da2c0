"""Gathering: what many threads ask at once goes into one call of a batched function."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Merger(Generic[Item]):
    """A function of a list, called from many threads: what has gathered goes into one call."""

    def __init__(self, function: Callable[[list[Item]], list[float]]) -> None:
        self._function = function
        self._waiting: list[tuple[list[Item], Future[list[float]]]] = []
        self._mutex, self._turn = threading.Lock(), threading.Lock()

    def __call__(self, items: list[Item]) -> list[float]:
        """The function's values of `items`. Raises what the function raises."""
        future: Future[list[float]] = Future()
        with self._mutex:
            self._waiting.append((items, future))
        with self._turn:
            if not future.done():
                self._serve()
        return future.result()

    def _serve(self) -> None:
        with self._mutex:
            taken, self._waiting = self._waiting, []
        try:
            values = iter(self._function([item for items, _ in taken for item in items]))
            for items, future in taken:
                future.set_result([next(values) for _ in items])
        except BaseException as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
