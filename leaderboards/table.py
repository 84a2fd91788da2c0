"""The table of a run, for the terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from turnbench.leaderboards.progress import human

Entry = Mapping[str, Any]
FOLDED = 8  # characters that a folded name has at least
GAP = 2  # characters between columns


class Column(NamedTuple):
    """A column of the table. One that `folds` breaks its words where there is no room."""

    name: str
    cells: Sequence[str]
    folds: bool

    def least(self) -> int:
        """The width it needs, in characters."""
        natural = max(map(cell_len, (self.name, *self.cells)))
        return min(natural, FOLDED) if self.folds else natural


def table(entries: Iterable[Entry], width: int = 110) -> Table:
    """One row a system, best first: score with interval, success, what is missing, what it cost.

    A model that all systems share stands in the title. In fewer characters than all of it needs,
    names fold; then columns are left out, the least important first, which a note tells.
    """
    entries = list(entries)
    suite, models = entries[0]["suite"], list(dict.fromkeys(map(_model, entries)))
    title = f"{suite['name']} v{suite['version']}" + (
        f", {models[0]}" if len(models) == 1 and models != ["-"] else ""
    )
    made = Table(title=escape(title), title_style="bold", title_justify="left", caption_justify="left")
    made.box, made.pad_edge, made.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    columns = [column for column in _columns(entries) if column.name != "model" or len(models) > 1]
    shown, left_out = _fitting(columns, _worlds(entries[0]), width)
    for name, _, folds in shown:
        side: Literal["left", "right"] = "left" if name in ("system", "model", "used") else "right"
        made.add_column(escape(name), justify=side, no_wrap=not folds, overflow="fold")
    for cells in zip(*(column.cells for column in shown), strict=True):
        made.add_row(*map(escape, cells))
    notes = [_legend(entries[0]), *_notes(entries)]
    if left_out:
        notes.append(f"left out, as the terminal is {width} columns wide: {', '.join(left_out)}")
    made.caption = escape("\n".join(dict.fromkeys(notes)))
    return made


def _columns(entries: Sequence[Entry]) -> list[Column]:
    worlds, clipped = _worlds(entries[0]), any(map(_clipped, entries))
    figures = ("success", "episodes", "calls", "tokens", "cost", "used")
    names = ["system", "model", "score (95 %)", *worlds, *(["clipped"] if clipped else []), *figures]
    cells = zip(*(_row(entry, clipped) for entry in entries), strict=True)
    folds = {"system", "model", *worlds}
    return [Column(name, column, name in folds) for name, column in zip(names, cells, strict=True)]


def _fitting(
    columns: Sequence[Column], worlds: Sequence[str], width: int
) -> tuple[list[Column], list[str]]:
    """The columns that there is room for, and the names of the others."""
    shown, left_out = list(columns), list[str]()
    for name in ("calls", "tokens", "cost", *worlds, "episodes", "clipped", "success", "used"):
        if sum(column.least() + GAP for column in shown) <= width:
            break
        if any(column.name == name for column in shown):
            shown = [column for column in shown if column.name != name]
            left_out.append(name)
    return shown, left_out


def _model(entry: Entry) -> str:
    return str((entry["system"]["model"] or {}).get("name", "-"))


def _worlds(entry: Entry) -> list[str]:
    """Names of the environments, where there are several."""
    names = [result["env"].rpartition("/")[2] for result in entry["results"]]
    return names if len(names) > 1 else []


def _legend(entry: Entry) -> str:
    of = "mean over environments of the " if len(entry["results"]) > 1 else ""
    rest = "; clipped: returns below 0 count as 0" if _clipped(entry) else ""
    return f"score: {of}mean return of the submitted path; interval by bootstrap over tasks{rest}"


def _notes(entries: Iterable[Entry]) -> Iterator[str]:
    """What is worth knowing: what is missing and could change, what is left, errors, worlds' checks."""
    for entry in entries:
        for result in entry["results"]:
            of, episodes, bounds = result["env"], result["episodes"], result["bounds"]
            if episodes["missing"]:
                between = "; {:.3f} or {:.3f} with these at the lowest or highest return"
                could = between.format(*bounds) if bounds else ""
                yield f"{entry['system']['name']}: {episodes['missing']} missing on {of}{could}"
            if episodes["left"]:
                yield f"{entry['system']['name']}: {episodes['left']} left to play on {of}"
            if failed := result["outcomes"]["agent_error"]:
                yield f"{entry['system']['name']}: {failed} ended by an error of the agent on {of}"
            if result.get("nondeterministic"):
                yield f"{of} declares itself non-deterministic: nothing there can be replayed"
            if checks := result.get("checks"):
                means = ", ".join(
                    f"{name} {score['mean']:.3f}" for name, score in checks.items() if score
                )
                yield f"{entry['system']['name']}: {means} on {of}"


def span(low: float, high: float) -> str:
    """An interval as text; a minus would run into the dash."""
    return f"{low:.3f}-{high:.3f}" if low >= 0 else f"{low:.3f} to {high:.3f}"


def _row(entry: Entry, clipped: bool) -> list[str]:
    score, compute, results = entry["score"], entry["compute"], entry["results"]
    cost = "unknown" if compute["cost"] is None else f"${compute['cost']:.2f}"
    worlds = [_mean(result["score"]) for result in results] if len(results) > 1 else []
    interval = f" ({span(*score['ci95'])})" if score else ""
    return [
        entry["system"]["name"],
        _model(entry),
        _mean(score) + interval,
        *worlds,
        *([_clipped(entry)] if clipped else []),
        _success(entry),
        _episodes(entry),
        human(compute["model_calls"]),
        human(compute["prompt_tokens"] + compute["completion_tokens"]),
        cost,
        ", ".join(entry["privileges"]) or "-",
    ]


def _mean(score: Entry | None) -> str:
    return f"{score['mean']:.3f}" if score else "-"


def _clipped(entry: Entry) -> str:
    """The mean with returns below 0 counted as 0, for worlds that have such; "" where none has."""
    results = entry["results"]
    if not any(result.get("clipped") for result in results):
        return ""
    means = [result.get("clipped") or result["score"] for result in results]
    return f"{sum(mean['mean'] for mean in means) / len(means):.3f}" if all(means) else "-"


def _episodes(entry: Entry) -> str:
    counts = [result["episodes"] for result in entry["results"]]
    wanted, missing, left = (sum(c[name] for c in counts) for name in ("wanted", "missing", "left"))
    return f"{wanted}" if missing == left == 0 else f"{wanted - missing - left}/{wanted}"


def _success(entry: Entry) -> str:
    rates = [result["success"]["mean"] for result in entry["results"] if result["success"]]
    return f"{sum(rates) / len(rates):.0%}" if rates else "-"
