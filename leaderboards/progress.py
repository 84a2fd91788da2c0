"""Progress of a run for people: a live display on a terminal, plain lines elsewhere."""

import time
from collections import defaultdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnbench.envs.record import Usage
from turnbench.leaderboards.runner import Played, Watcher

EVERY = 10.0  # seconds between plain lines


class Show(Watcher):
    """Shows episodes, rate, time left, the running score of each row, tokens and dollars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.returns: dict[str, list[float]] = defaultdict(list)
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
                TextColumn("{task.description}"),
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
            self.returns[episode.key.agent].append(best.ret)
        now = time.monotonic()
        if self.bar:
            self.bar.update(self.task, completed=self.done, description=self.line(now))
        elif now - self.shown > EVERY or self.done == self.total:
            self.shown = now
            self.console.print(
                f"{self.done:,}/{self.total:,}  {self.line(now)}{self._left(now)}", highlight=False
            )

    def line(self, now: float) -> str:
        """Rate, running scores, tokens, dollars and missing episodes, in one line."""
        rate = self.fresh / max(now - self.started, 1e-9)
        tokens = self.usage.prompt_tokens + self.usage.completion_tokens
        cost = "cost unknown" if self.usage.cost is None else f"${self.usage.cost:.2f}"
        scores = "  ".join(f"{a} {sum(r) / len(r):.2f}" for a, r in sorted(self.returns.items()))
        missing = f"  {self.missing} missing" if self.missing else ""
        return f"{rate:.1f}/s  {scores}  {human(tokens)} tokens  {cost}{missing}"

    def _left(self, now: float) -> str:
        left = (self.total - self.done) * (now - self.started) / max(self.fresh, 1)
        return f"  {left:.0f} s left" if left else ""

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
