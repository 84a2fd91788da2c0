"""The table of a run, for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

from turnbench.leaderboards.progress import human

Entry = Mapping[str, Any]


def table(entries: Iterable[Entry]) -> Table:
    """One row a system, best first: score with interval, success, what is missing, what it cost."""
    entries = list(entries)
    suite = entries[0]["suite"]
    made = Table(title=f"{suite['name']} v{suite['version']}", box=box.SIMPLE_HEAD, title_style="bold")
    made.title_justify = made.caption_justify = "left"
    for name in ("system", "model"):
        made.add_column(name)
    for name in ("score", "95 % interval", "success", "episodes", "turns", "calls", "tokens", "cost"):
        made.add_column(name, justify="right")
    made.add_column("used")
    for entry in entries:
        made.add_row(*_row(entry))
    made.caption = "score: mean return of the submitted trajectory; interval: bootstrap over tasks"
    return made


def _row(entry: Entry) -> list[str]:
    score, compute = entry["score"], entry["compute"]
    cost = "unknown" if compute["cost"] is None else f"${compute['cost']:.2f}"
    return [
        entry["system"]["name"],
        (entry["system"]["model"] or {}).get("name", "-"),
        f"{score['mean']:.3f}" if score else "-",
        "{:.3f} - {:.3f}".format(*score["ci95"]) if score else "-",
        _success(entry),
        _episodes(entry),
        _turns(entry),
        human(compute["model_calls"]),
        human(compute["prompt_tokens"] + compute["completion_tokens"]),
        cost,
        ", ".join(entry["privileges"]) or "-",
    ]


def _episodes(entry: Entry) -> str:
    counts = [result["episodes"] for result in entry["results"]]
    wanted, missing, left = (sum(c[name] for c in counts) for name in ("wanted", "missing", "left"))
    notes = [f"{n} {what}" for n, what in ((missing, "missing"), (left, "left")) if n]
    return f"{wanted - missing - left}" + (f" ({', '.join(notes)})" if notes else "")


def _success(entry: Entry) -> str:
    rates = [result["success"]["mean"] for result in entry["results"] if result["success"]]
    return f"{sum(rates) / len(rates):.0%}" if rates else "-"


def _turns(entry: Entry) -> str:
    turns = [result["turns"] for result in entry["results"] if result["turns"] is not None]
    return f"{sum(turns) / len(turns):.1f}" if turns else "-"
