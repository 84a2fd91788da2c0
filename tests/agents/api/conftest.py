"""A server on the loopback that plays every misbehaviour, and models that ask it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from turnbench.agents import retry
from turnbench.agents.api import ApiModel

KEY = "sk-very-secret-0123456789"


def response(
    body: Any = None,
    status: int = 200,
    headers: dict[str, str] | None = None,
    text: Any = "hi",
    finish: str = "stop",
    message: dict[str, Any] | None = None,
    usage: bool = True,
    top: dict[str, Any] | None = None,
    **choice: Any,
) -> tuple[bytes, bytes]:
    """Head and body of an HTTP response: of `body`, else of a well-formed chat completion."""
    if body is None:
        spoken = {"role": "assistant", "content": text, **(message or {})}
        body = {"choices": [{"index": 0, "message": spoken, "finish_reason": finish, **choice}]}
        if usage:
            cached = {"cached_tokens": 40}
            body["usage"] = {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "prompt_tokens_details": cached,
            }
        body |= top or {}
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), content


class Server:
    """Answers with the `response` of what `play` says: arguments, or a function of the request's body
    that gives them, or a list of arguments whose last entry stays. Besides: `delay` in seconds, and
    `cut`, after how many bytes of the body the connection is closed.
    """

    def __init__(self) -> None:
        self.play: Callable[[dict[str, Any]], dict[str, Any]] | list[dict[str, Any]] = [{}]
        self.models: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.now = self.peak = 0
        self.loop = asyncio.new_event_loop()
        self.connections: set[asyncio.StreamWriter] = set()
        self.thread = threading.Thread(target=self.loop.run_forever, name="test-server")
        self.thread.start()
        self.server = self.run(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while await self.exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            header, content = response(body={"data": self.models})
            writer.write(header + content)
            await writer.drain()
            return True
        length = next(int(v[15:]) for v in head.lower().split("\r\n") if v.startswith("content-length:"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        self.headers.append(head)
        self.now += 1
        self.peak = max(self.peak, self.now)
        if callable(self.play):
            chosen = self.play(body)
        else:
            chosen = self.play.pop(0) if len(self.play) > 1 else self.play[0]
        arguments = dict(chosen)
        delay, cut = arguments.pop("delay", 0), arguments.pop("cut", None)
        await asyncio.sleep(delay)
        self.now -= 1
        header, content = response(**arguments)
        writer.write(header + content[:cut])
        await writer.drain()
        return cut is None

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        self.server.close()
        for writer in self.connections:
            writer.close()
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def make(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ApiModel]]:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    made: list[ApiModel] = []

    def model(name: str = "gpt-4o-mini", **options: Any) -> ApiModel:
        made.append(ApiModel(name, **options))
        return made[-1]

    yield model
    for one in made:
        one.close()
