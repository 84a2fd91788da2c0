"""How much of a server's capacity ApiModel uses: `python benchmarks/api.py [--json]`.

A server on the loopback answers after a fixed latency; it runs in a process of its own. "ideal" is
prompts / in flight x latency; the bare loop is aiohttp alone, posting the same requests.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from aiohttp import web

from turnbench.agents.api import ApiModel
from turnbench.agents.model import Completion, Message, Prompt, Sampling

MESSAGES = tuple(Message("user" if k % 2 == 0 else "assistant", "get 1 oak log " * 10) for k in range(9))
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "craft"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 300, "completion_tokens": 5},
}


def serve(latency: float, pipe: Connection) -> None:
    body = json.dumps(ANSWER).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(latency)
        return web.Response(body=body, content_type="application/json")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await asyncio.Event().wait()

    asyncio.run(main())


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def through_model(url: str, count: int, in_flight: int) -> tuple[float, float]:
    prompts = [Prompt(MESSAGES, seed) for seed in range(count)]
    model = ApiModel("m", base_url=url, max_in_flight=in_flight)

    def work() -> None:
        assert all(isinstance(a, Completion) for a in model.generate(prompts))

    work()  # opens the connections
    best = min(timed(work) for _ in range(3))
    model.close()
    return best


def bare(url: str, count: int, in_flight: int) -> tuple[float, float]:
    sampling = Sampling()
    body = {
        "model": "m",
        "messages": [m._asdict() for m in MESSAGES],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": 0,
    }

    async def main() -> tuple[float, float]:
        slots = asyncio.Semaphore(in_flight)
        connector = aiohttp.TCPConnector(limit=in_flight)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def call() -> Any:
                async with slots, session.post(f"{url}/chat/completions", json=body) as response:
                    return json.loads(await response.read())["choices"][0]["message"]["content"]

            figures = []
            for _ in range(4):
                wall, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(call() for _ in range(count)))
                figures.append((time.perf_counter() - wall, time.process_time() - cpu))
            return min(figures[1:])

    return asyncio.run(main())


def measure(latency: float, count: int, in_flight: int, goal: float | None) -> list[dict[str, Any]]:
    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(latency, far), daemon=True
    )
    process.start()
    url = near.recv()
    ideal = count / in_flight * latency
    wall, cpu = through_model(url, count, in_flight)
    bare_wall, _ = bare(url, count, in_flight)
    process.terminate()
    process.join()
    case = f"{count} prompts, {in_flight} in flight, {1000 * latency:g} ms"
    return [
        {"name": f"{case}: share of the ideal", "value": ideal / wall, "unit": "ratio", "goal": goal},
        {
            "name": f"{case}: bare loop's share",
            "value": ideal / bare_wall,
            "unit": "ratio",
            "goal": None,
        },
        {"name": f"{case}: CPU per call", "value": 1000 * cpu / count, "unit": "ms", "goal": None},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    as_json = parser.parse_args().json
    os.environ["OPENAI_API_KEY"] = "none"
    for latency, count, in_flight in (
        (0.05, 256, 64),
        (0.05, 256, 256),
        (0.5, 256, 256),
        (0.5, 1024, 512),
    ):
        for figure in measure(latency, count, in_flight, goal=0.9):
            if as_json:
                print(json.dumps(figure), flush=True)
            else:
                goal = f"goal {figure['goal']}" if figure["goal"] else ""
                print(
                    f"{figure['name']:56} {figure['value']:8.3f} {figure['unit']:6} {goal}", flush=True
                )


if __name__ == "__main__":
    main()
