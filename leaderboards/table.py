"""The table of a run, for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.markup import escape
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
        made.add_column(name, overflow="fold")
    for name in ("score", "95 % interval", *_worlds(entries[0]), "success", "episodes"):
        made.add_column(name, justify="right")
    for name in ("turns", "calls", "tokens", "cost"):
        made.add_column(name, justify="right")
    made.add_column("used")
    for entry in entries:
        made.add_row(*map(escape, _row(entry)))
    made.caption = escape("\n".join([_legend(entries[0]), *_notes(entries)]))
    return made


def _worlds(entry: Entry) -> list[str]:
    """Names of the environments, where there are several."""
    names = [result["env"].rpartition("/")[2] for result in entry["results"]]
    return names if len(names) > 1 else []


def _legend(entry: Entry) -> str:
    of = "mean over environments of the " if len(entry["results"]) > 1 else ""
    return f"score: {of}mean return of the submitted trajectory; interval: bootstrap over tasks"


def _notes(entries: Iterable[Entry]) -> Iterable[str]:
    """What the scores would be, had missing episodes not been missing; what is worth a warning."""
    for entry in entries:
        name = entry["system"]["name"]
        for result in entry["results"]:
            missing, bounds = result["episodes"]["missing"], result["bounds"]
            if missing and bounds:
                low, high = bounds
                yield (
                    f"{name}: with its {missing} missing episodes at the lowest or the highest "
                    f"return, {low:.3f} or {high:.3f} on {result['env']}"
                )
            if failed := result["outcomes"]["agent_error"]:
                yield f"{name}: {failed} episodes on {result['env']} ended by an error of the agent"


def _row(entry: Entry) -> list[str]:
    score, compute, results = entry["score"], entry["compute"], entry["results"]
    cost = "unknown" if compute["cost"] is None else f"${compute['cost']:.2f}"
    worlds = [_mean(result["score"]) for result in results] if len(results) > 1 else []
    return [
        entry["system"]["name"],
        (entry["system"]["model"] or {}).get("name", "-"),
        _mean(score),
        "{:.3f} - {:.3f}".format(*score["ci95"]) if score else "-",
        *worlds,
        _success(entry),
        _episodes(entry),
        _turns(entry),
        human(compute["model_calls"]),
        human(compute["prompt_tokens"] + compute["completion_tokens"]),
        cost,
        ", ".join(entry["privileges"]) or "-",
    ]


def _mean(score: Entry | None) -> str:
    return f"{score['mean']:.3f}" if score else "-"


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
