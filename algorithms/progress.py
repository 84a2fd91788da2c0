"""What a training run shows and keeps of itself: a progress line, metrics.jsonl, and the same for TensorBoard."""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from turnbench.algorithms.checkpoint import write_text

T = TypeVar("T")
SHOWN = {
    "loss": "loss",
    "held_out_loss": "held-out",
    "success": "success",
    "reward": "reward",
    "held_out_reward": "held-out",
    "kl": "KL",
    "entropy": "entropy",
    "clip_fraction": "clipped",
    "explained_variance": "explained",
    "eta2": "eta2",
    "ranked": "ranked",
    "pearson": "r",
}
MEASURED = {"held_out_loss", "pearson", "ranked"}  # rows that are always shown
QUIET = 10.0  # seconds between two plain lines where there is no terminal


class Progress:
    """Rows go to `out/metrics.jsonl`, where tensorboardX is there also to `out/tensorboard`, and the newest
    values to the terminal.

    A resumed run first drops the rows after the step it goes on from. Only the main process of
    several shows or writes anything.
    """

    def __init__(self, out: Path, step: int, steps: int, main: bool) -> None:
        self.path, self.first, self.steps, self.main = out / "metrics.jsonl", step, steps, main
        self.console = Console(stderr=True, quiet=not main)
        self.bar = _bar(self.console, "step", TextColumn("{task.fields[note]}"))
        self.job = self.bar.add_task("train", total=steps, completed=step, note="")
        self.latest: dict[str, float] = {}
        self.spoke = 0.0
        self.file: IO[str] | None = None
        self.board: Any = None

    def __enter__(self) -> Self:
        if self.main:
            write_text(self.path, "".join(_rows_until(self.path, self.first)))
            self.file = self.path.open("a", encoding="utf-8")
            self.board = _open_board(self.path.with_name("tensorboard"), self.rows())
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.file:
            self.file.close()
        if self.board:
            self.board.close()

    def row(self, step: int, **values: Any) -> None:
        """Add one row of metrics, by name. What is no number is kept, but not shown."""
        if self.file is None:
            return
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        if self.board:
            _draw(self.board, [{"step": step, **values}])
        self.latest |= _numbers(values)
        self.bar.update(self.job, completed=step, note=self._note())
        now = time.monotonic()
        due = now - self.spoke >= QUIET or step == self.steps or MEASURED & values.keys()
        if due and not self.console.is_terminal:
            self.spoke = now
            self.say(f"step {step}/{self.steps} {self._note()}")

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def rows(self) -> list[dict[str, float]]:
        """The rows of the part of the run that is kept."""
        return [json.loads(line) for line in _rows_until(self.path, self.first)]

    def _note(self) -> str:
        rate = self.latest.get("tokens", 0) / max(self.latest.get("seconds", 0), 1e-9)
        parts = [
            f"{label} {self.latest[name]:.3f}" for name, label in SHOWN.items() if name in self.latest
        ]
        return "  ".join([*parts, f"{rate:,.0f} tokens/s"])


def counted(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, while the terminal shows how many of `total` there have been."""
    console, spoke = Console(stderr=True), time.monotonic()
    with _bar(console, what, transient=True) as bar:
        job = bar.add_task(what, total=total)
        for count, item in enumerate(items, start=1):
            bar.update(job, completed=count)
            if not console.is_terminal and time.monotonic() - spoke >= QUIET:
                spoke = time.monotonic()
                console.print(f"{count}/{total} {what}", highlight=False, soft_wrap=True)
            yield item


def _bar(console: Console, what: str, *more: TextColumn, transient: bool = False) -> Bar:
    columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), *more)
    hidden = not console.is_terminal
    return Bar(*columns, console=console, disable=hidden, transient=transient)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _rows_until(path: Path, step: int) -> list[str]:
    """The rows of a metrics file up to a step; a torn last line is dropped."""
    if not path.exists():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            break
    return kept


def _open_board(folder: Path, rows: Iterable[dict[str, float]]) -> Any:
    """A writer of TensorBoard's event files, begun anew with these rows: what a killed run wrote beyond its
    checkpoint would be there twice. None without the package."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    board = SummaryWriter(str(folder))
    _draw(board, rows)
    return board


def _draw(board: Any, rows: Iterable[dict[str, float]]) -> None:
    for row in rows:
        for name, value in _numbers(row).items():
            if name != "step":
                board.add_scalar(name, value, row["step"])
    board.flush()
