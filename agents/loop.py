"""One background event loop per process, shared by all API models, so that agents stay sync code."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a thread of its own. `acquire` and `release` share one and count its users."""

    _lock = threading.Lock()
    _shared: "BackgroundLoop | None" = None
    _users = 0

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="turnbench-api", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> "BackgroundLoop":
        """The process's loop, started for the first user."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._users += 1
            return cls._shared

    @classmethod
    def release(cls) -> None:
        """One user less; the last one stops the loop and its thread."""
        with cls._lock:
            cls._users -= 1
            last = cls._shared if cls._users == 0 else None
            if last is not None:
                cls._shared = None
        if last is not None:
            last._stop()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop; cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
