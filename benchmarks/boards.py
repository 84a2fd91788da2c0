"""Speed of verification and pages: `python benchmarks/boards.py [--json]`, about two minutes.

Verifies 1,000 episodes of TextCraft played by a planner with some mistakes, opens the page of a run of
100,000 episodes in Chromium (where Playwright has one), and makes the site of 100 entries.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, show

from turnbench.agents.core import Population
from turnbench.envs.record import Task, Usage
from turnbench.envs.textcraft_plan import demonstrate
from turnbench.leaderboards.board import write_entries
from turnbench.leaderboards.log import NAME, Key, LogWriter, episode_line
from turnbench.leaderboards.runner import header_of, keys_of
from turnbench.leaderboards.site import build_site
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.suite import Suite, make_env
from turnbench.leaderboards.verify import Case, verify
from turnbench.leaderboards.view import server
from turnbench.leaderboards.yamlfile import dump_yaml

EPISODES, LISTED, ENTRIES = 1000, 100_000, 100
ABOUT = {"submitter": {"name": "A planner"}, "code_url": "https://example.org/", "notes": "a planner"}


def suite(tasks: int, seeds: int) -> Suite:
    world = {"id": "turnbench/TextCraft-v0", "split": "test", "tasks": tasks, "max_turns": 40}
    agents = {"planner": {"agent": "boards:Planner"}}
    return Suite.model_validate(
        {"suite": "boards", "seeds": list(range(seeds)), "envs": [world], "agents": agents}
    )


def planned(folder: Path, chosen: Suite) -> None:
    """A run in which a planner that errs in a tenth of its turns has played every episode."""
    header = header_of(chosen)
    env, rng = make_env(chosen.envs[0]), np.random.default_rng(0)
    with LogWriter(folder, header) as log:
        for key in keys_of(chosen, header["worlds"]):
            task = Task(chosen.envs[0].id, key.task, "test", key.seed)
            path = demonstrate(env, task, rng, mistakes=0.1)
            population = Population((path,), usage=Usage(env_steps=len(path.turns)))
            log.write(episode_line(key, population, (), 0.1))


def verification(folder: Path) -> Iterator[Figure]:
    chosen = suite(100, EPISODES // 100)
    planned(folder / "run", chosen)
    (folder / "suite.yaml").write_text(dump_yaml(chosen.model_dump(mode="json")), encoding="utf-8")
    entries = submit(folder / "run", folder / "boards" / "boards", ABOUT)
    path = write_entries(entries, folder / "boards")[0]
    started, worked = time.perf_counter(), cpu()
    findings = list(verify(Case(path, suite_file=folder / "suite.yaml", workers=2)))
    seconds, worked = time.perf_counter() - started, cpu() - worked
    assert not findings[-1].code, findings[-1]
    print(f"replay: {next(f.text for f in findings if f.check == 'replay')}", file=sys.stderr)
    yield Figure(f"verify {EPISODES:,} TextCraft episodes, 2 processes", seconds, "s", most=20)
    yield Figure("of which processor time", worked, "s")


def cpu() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def site(folder: Path) -> Iterator[Figure]:
    """A hundred entries made from the one that was verified, each with other scores."""
    (entry,) = submit(folder / "run", folder / "other", ABOUT)
    rng = np.random.default_rng(1)
    entries = []
    for k in range(ENTRIES):
        one: dict[str, Any] = copy.deepcopy(entry)
        one["entry"] = f"entry-{k}"
        one["results"][0]["per_task"] = [float(x) for x in rng.random(100) < 0.3 + k / 200]
        entries.append(one)
    write_entries(entries, folder / "hundred")
    started, worked = time.perf_counter(), cpu()
    build_site(folder / "hundred", folder / "site")
    yield Figure(f"site of {ENTRIES} entries", time.perf_counter() - started, "s", most=5)
    yield Figure("of which processor time", cpu() - worked, "s")


def page(folder: Path) -> Iterator[Figure]:
    """The page of a large run: the index is made once, when the server starts."""
    source, big = folder / "run", folder / "big"
    big.mkdir()
    lines = (source / NAME).read_bytes().splitlines(keepends=True)
    with (big / NAME).open("wb") as log:
        log.write(lines[0])
        for k in range(LISTED):
            row = lines[1 + k % EPISODES]
            head, rest = row.split(b"]", 1)
            key = json.loads(head[len(b'{"key": ') :] + b"]")
            log.write(b'{"key": ' + json.dumps(Key(*key[:3], k)).encode() + rest)
    started, worked = time.perf_counter(), cpu()
    with server(big) as made:
        yield Figure(f"index of {LISTED:,} episodes", time.perf_counter() - started, "s")
        yield Figure("of which processor time", cpu() - worked, "s")
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield from opened(f"http://127.0.0.1:{made.server_port}/")
        made.shutdown()


def opened(address: str) -> Iterator[Figure]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("no Chromium with Playwright: the page isn't opened", file=sys.stderr)
        return
    with sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = started.chromium.launch(executable_path=chromium, args=flags)
        tab = browser.new_page()
        tab.goto("about:blank")
        metrics = tab.context.new_cdp_session(tab)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        begun = time.perf_counter()
        tab.goto(address)
        tab.wait_for_selector("article")
        yield Figure(f"page of {LISTED:,} episodes opens", time.perf_counter() - begun, "s", most=1)
        for _ in range(100):
            tab.keyboard.press("j")
        busy = {m["name"]: m["value"] for m in metrics.send("Performance.getMetrics")["metrics"]}
        yield Figure("processor time of the page, with 100 episodes", busy["TaskDuration"], "s")
        processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
        most = max(resident(process["id"]) for process in processes if process["type"] == "renderer")
        yield Figure("its memory in the browser after 100 episodes", most, "MiB", most=300)
        browser.close()


def resident(process: int) -> float:
    """MiB of memory that a process holds for itself."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        yield from verification(Path(name))
        yield from site(Path(name))
        yield from page(Path(name))


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    show("Boards", figures())
