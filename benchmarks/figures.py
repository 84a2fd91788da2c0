"""Figures of a benchmark, printed as a table or, with --json, as one JSON object a line."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import NamedTuple


class Figure(NamedTuple):
    """One measured number. `most` and `least` bound what is wanted; without them it only informs."""

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None

    @property
    def goal(self) -> str:
        if self.most is None and self.least is None:
            return ""
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"

    @property
    def met(self) -> bool:
        low = -float("inf") if self.least is None else self.least
        high = float("inf") if self.most is None else self.most
        return low <= self.value <= high


def show(title: str, figures: Iterable[Figure]) -> None:
    """The whole command line of a benchmark: measure and print; exits with 1 if a goal is missed.

    `figures` should be lazy, as the arguments are read first.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    report(title, figures, parser.parse_args().json)


def report(title: str, figures: Iterable[Figure], as_json: bool) -> None:
    """Measure and print, for a benchmark with a command line of its own; exits as `show` does."""
    measured = []
    for figure in figures:
        measured.append(figure)
        if as_json:
            print(json.dumps({**figure._asdict(), "met": figure.met}), flush=True)
    if not as_json:
        _table(title, measured)
    sys.exit(not all(figure.met for figure in measured))


def _table(title: str, figures: Iterable[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("figure", "value", "unit", "goal", "met"):
        table.add_column(name, justify="right" if name in ("value", "goal") else "left")
    for figure in figures:
        met = ("yes" if figure.met else "NO") if figure.goal else ""
        table.add_row(figure.name, f"{figure.value:.3g}", figure.unit, figure.goal, met)
    Console(width=100).print(table)
