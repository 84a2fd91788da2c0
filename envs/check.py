"""check_env: the contract of a text world, tested on any world.

    report = check_env("turnbench/TextCraft-v0")   # or "module:Name-v0", a class, a factory
    print(report)
    assert report.ok

Each check (checks.py lists them) says what it promises and, where it fails, what to change. A check
is skipped where one that it rests on has failed, so that a fault shows once, at its cause. Every
check has a deadline; a world that hangs fails the check in which it hung.
"""

import queue
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from turnbench.envs import probe as p
from turnbench.envs.checks import CHECKS, DECLARED, Broken, Check, Skipped
from turnbench.envs.errors import UnknownName
from turnbench.envs.probe import Maker, Probe
from turnbench.envs.record import Json


@dataclass(frozen=True, slots=True)
class Result:
    """How one check ended. `message` is one line; where it failed it ends with what to change."""

    check: str
    verdict: Literal["pass", "fail", "skip"]
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one environment."""

    env: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(r for r in self.results if r.verdict == "fail")

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return not self.failures

    def to_json(self) -> Json:
        """JSON object of the report."""
        return {"env": self.env, "ok": self.ok, "checks": [asdict(r) for r in self.results]}

    def __str__(self) -> str:
        width = max(len(r.check) for r in self.results)
        rows = [f"  {r.verdict:4}  {r.check:{width}}  {r.message}" for r in self.results]
        counts = ", ".join(
            f"{sum(r.verdict == v for r in self.results)} {v}" for v in ("pass", "fail", "skip")
        )
        return "\n".join([f"{self.env}: {counts}", *rows])


def check_env(env: str | Maker, *, seconds: float = 60.0, **kwargs: Any) -> Report:
    """Run every check on an environment: an id, a class, or a factory of Gymnasium environments.

    `seconds` bounds each check; a world that took long to play at all gets eight times that.
    Other arguments go to the environment. Raises UnknownName for an unknown id; whatever else is
    wrong is in the report.
    """
    name = env if isinstance(env, str) else getattr(env, "__qualname__", repr(env))
    probe = Probe(p.maker(env, kwargs), p.origin(env, kwargs), seconds, seconds)
    results: list[Result] = []
    for check in CHECKS:
        results.append(_run(check, probe, results))
        if check.name == "play":
            probe.deadline = max(seconds, 8 * results[-1].seconds)
    return Report(name, tuple(results))


def _run(check: Check, probe: Probe, before: list[Result]) -> Result:
    started = time.monotonic()
    verdict, message = _verdict(check, probe, {r.check: r for r in before})
    return Result(check.name, verdict, message, round(time.monotonic() - started, 3))


def _verdict(
    check: Check, probe: Probe, before: dict[str, Result]
) -> tuple[Literal["pass", "fail", "skip"], str]:
    for need in check.needs:
        if before[need].verdict != "pass":
            declared = before[need].message == DECLARED
            return "skip", DECLARED if declared else f"rests on `{need}`, which didn't pass"
    if any(HUNG in r.message for r in before.values()):
        return "skip", "an earlier check hung"
    match _within(probe.deadline, lambda: check.run(probe)):
        case None:
            return "pass", check.promise
        case Skipped() as why:
            return "skip", str(why)
        case UnknownName() as error if check.name == "make":
            raise error
        case Broken() as fault:
            return "fail", f"{fault}. {check.remedy}"
        case error:
            return "fail", _raised(error)


def _raised(error: BaseException) -> str:
    """One line: the error and where it came from."""
    text = " ".join(str(error).split())[:300] or "no message"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {text} ({Path(last.filename).name}, line {last.lineno})"


HUNG = "no answer within"


def _within(seconds: float, work: Callable[[], None]) -> BaseException | None:
    """Do `work` in a thread that is given up after `seconds`; what it raised, None if it went well."""
    box: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def job() -> None:
        try:
            work()
            box.put(None)
        except BaseException as error:
            box.put(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threading.Thread(target=job, daemon=True, name="turnbench-check").start()
        try:
            return box.get(timeout=seconds)
        except queue.Empty:
            return Broken(f"{HUNG} {seconds:g} seconds")
