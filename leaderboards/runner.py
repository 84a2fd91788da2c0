"""run(suite): play every episode that the log doesn't hold yet, in threads, and append it.

Everything an episode needs is derived from its key, so neither the number of workers nor a crash
changes what is played. Whatever goes wrong inside an episode becomes its outcome; only a wrong
configuration, a full disk or the user stops a run.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnbench.envs.errors import ConfigError
from turnbench.envs.record import MISSING, Outcome
from turnbench.leaderboards.crew import Crew, Played
from turnbench.leaderboards.log import Key, LogWriter
from turnbench.leaderboards.provenance import provenance
from turnbench.leaderboards.suite import Suite


class Watcher:
    """What a run tells while it goes on; every method may be left as it is (progress.py shows)."""

    def begin(self, total: int, done: int) -> None:
        """`total` episodes, of which `done` are in the log already."""

    def played(self, episode: Played) -> None:
        """One more episode is in the log."""

    def say(self, message: str) -> None:
        """Something a person should read."""

    def end(self) -> None:
        """The run is over, however it ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended. It is complete when no episode is left and none is missing."""

    total: int
    done: int
    missing: int
    interrupted: bool

    @property
    def complete(self) -> bool:
        """Whether every episode has an outcome that counts."""
        return self.done == self.total and not self.missing


def run(suite: Suite, out: Path, *, workers: int = 16, watcher: Watcher | None = None) -> Report:
    """Play what is left of `suite` into the folder `out`.

    Raises ConfigError, LogError, ModelError; whatever was played before is in the log. In the main
    thread the first Ctrl-C lets the episodes in flight end, and the second one leaves at once.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; at least 1 is needed")
    watcher = watcher or Watcher()
    header = header_of(suite)
    keys = keys_of(suite, header["worlds"])
    with LogWriter(out, header) as log:
        outcomes = dict(log.done)
        todo = [key for key in keys if key not in outcomes or outcomes[key] in MISSING]
        watcher.begin(len(keys), len(keys) - len(todo))
        try:
            interrupted = bool(todo) and _play(suite, todo, workers, log, outcomes, watcher)
        finally:
            watcher.end()
    counted = [outcomes[key] for key in keys if key in outcomes]
    return Report(len(keys), len(counted), sum(o in MISSING for o in counted), interrupted)


def header_of(suite: Suite) -> dict[str, Any]:
    """The first line of a log: what is run, with what, and when it began."""
    header = {
        "suite": suite.model_dump(mode="json"),
        "digest": suite.digest,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(suite),
    }
    return json.loads(json.dumps(header))  # type: ignore[no-any-return]  # tuples become lists


def keys_of(suite: Suite, worlds: list[dict[str, Any]]) -> list[Key]:
    """Every episode of a suite, agents innermost, so that all rows grow together."""
    return [
        Key(agent, k, task, seed)
        for k, world in enumerate(worlds)
        for task in world["tasks"]
        for seed in suite.seeds
        for agent in suite.agents
    ]


def _play(
    suite: Suite,
    todo: list[Key],
    workers: int,
    log: LogWriter,
    outcomes: dict[Key, Outcome],
    watcher: Watcher,
) -> bool:
    """Play episodes and write them down. True if the user interrupted it."""
    with Crew(suite, todo, workers, watcher.say) as crew, _interrupts() as pressed:
        heard = 0
        while crew.busy:
            episode = crew.next(timeout=0.2)
            if episode is not None:
                log.write(episode.line)
                outcomes[episode.key] = episode.population.best.outcome
                watcher.played(episode)
            log.sync(every=1)
            if len(pressed) > heard:
                heard = len(pressed)
                _on_interrupt(heard, crew, watcher)
    if crew.error is not None:
        raise crew.error
    return bool(pressed)


def _on_interrupt(times: int, crew: Crew, watcher: Watcher) -> None:
    crew.stop()
    if times > 1:
        watcher.end()
        os._exit(130)  # workers may hang in a call that can't be interrupted
    watcher.say(
        f"Stopping: {crew.in_flight} episodes in flight are played to their ends. "
        "Press Ctrl-C again to leave at once; the same command goes on where this one stopped."
    )


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collects Ctrl-C instead of raising it in the middle of a line; the third one always leaves."""
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        pressed.append(number)
        if len(pressed) > 2:
            os._exit(130)

    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
