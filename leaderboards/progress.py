"""Progress of a run for people: a live display on a terminal, plain lines elsewhere."""

import time
from collections import Counter, defaultdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnbench.envs.record import MISSING, Outcome, Usage
from turnbench.leaderboards.crew import Played
from turnbench.leaderboards.runner import Watcher

EVERY = 10.0  # seconds between plain lines
REFRESH = 0.1  # seconds between changes of the display
WORTH_TELLING = MISSING | {Outcome.AGENT_ERROR}
TOLD_AT_MOST = 5  # kinds of failure


class Show(Watcher):
    """Shows episodes, rate, time left, the running score of each row, tokens, dollars and failures.

    After a resumption rate, score, tokens and dollars are those of what was played since.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.told: set[str] = set()
        self.missing = 0
        self.usage = Usage()
        self.total = self.done = self.fresh = 0
        self.started = self.shown = time.monotonic()
        self.bar: Progress | None = None

    def begin(self, total: int, done: int) -> None:
        """Start the display; with episodes in the log already it says that the run goes on."""
        self.total, self.done = total, done
        if done:
            self.say(f"{done:,} of {total:,} episodes are in the log already.")
        if self.console.is_terminal and done < total:
            self.bar = Progress(
                BarColumn(24),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("{task.description}", markup=False),
                console=self.console,
                transient=True,
            )
            self.task = self.bar.add_task("loading models", total=total, completed=done)
            self.bar.start()

    def played(self, episode: Played) -> None:
        """Count one more episode."""
        best = episode.population.best
        self.done += 1
        self.fresh += 1
        self.usage += episode.population.usage
        if best.missing:
            self.missing += 1
        else:
            self.sums[episode.key.agent] += best.ret
            self.counts[episode.key.agent] += 1
        if best.outcome in WORTH_TELLING:
            self._tell(episode)
        self._show(time.monotonic())

    def _show(self, now: float) -> None:
        every = REFRESH if self.bar else EVERY
        if now - self.shown < every and self.done < self.total:
            return
        self.shown = now
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=self.line(now))
        else:
            self.say(f"{self.done:,}/{self.total:,}  {self.line(now)}{self._left(now)}")

    def _tell(self, episode: Played) -> None:
        """Each kind of failure once, so that a dead server is noticed at the first episode."""
        best = episode.population.best
        message = f"{best.outcome}: {best.failure}"
        if message in self.told or len(self.told) > TOLD_AT_MOST:
            return
        self.told.add(message)
        if len(self.told) > TOLD_AT_MOST:
            self.say("Further kinds of failure are in the log only.")
        else:
            self.say(f"{episode.key.agent}, task {best.task.id}, seed {best.task.seed}: {message}")

    def line(self, now: float) -> str:
        """Rate, running scores, tokens, dollars and missing episodes, in one line."""
        rate = self.fresh / max(now - self.started, 1e-9)
        tokens = self.usage.prompt_tokens + self.usage.completion_tokens
        cost = "cost unknown" if self.usage.cost is None else f"${self.usage.cost:.2f}"
        scores = [f"{name} {self.sums[name] / n:.2f}" for name, n in sorted(self.counts.items())]
        missing = [f"{self.missing} missing"] if self.missing else []
        return "  ".join([f"{rate:.1f}/s", *scores, f"{human(tokens)} tokens", cost, *missing])

    def _left(self, now: float) -> str:
        left = (self.total - self.done) * (now - self.started) / max(self.fresh, 1)
        return f"  {duration(left)} left" if self.done < self.total else ""

    def say(self, message: str) -> None:
        """Print a line above the display."""
        self.console.print(message, highlight=False, soft_wrap=True, markup=False)

    def end(self) -> None:
        """Take the display away."""
        if self.bar:
            self.bar.stop()


def human(count: float) -> str:
    """A count in three digits: 950, 12.3k, 4.56M."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= bound:
            return f"{count / bound:.3g}{unit}"
    return f"{count:g}"


def duration(seconds: float) -> str:
    """A time to wait: 45 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
