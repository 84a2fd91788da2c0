"""A watch over what a world does besides answering: files written, sockets, processes, text run as code."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

_WATCHED = ("socket.connect", "subprocess.Popen", "os.system", "exec")
_state: dict[str, Any] = {"on": False, "seen": [], "hooked": False}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which can't be taken away again; it looks only while the watch is on."""
    if not _state["on"]:
        return
    wrote = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if wrote or event in _WATCHED:
        _state["seen"].append((event, arguments[0]))


@pytest.fixture
def watched() -> Callable[[], AbstractContextManager[None]]:
    """A context in which nothing of that may happen."""
    if not _state["hooked"]:
        sys.addaudithook(_hook)
        _state["hooked"] = True

    @contextmanager
    def watch() -> Iterator[None]:
        _state["on"], _state["seen"] = True, []
        try:
            yield
        finally:
            _state["on"] = False
        assert not _state["seen"], _state["seen"]

    return watch
