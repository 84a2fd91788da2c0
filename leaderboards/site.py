"""The site: boards as static pages that work from a file, without a build step.

    OUT/index.html                one line a suite
    OUT/SUITE.html                ranking with intervals and ties, plots of score against cost
    OUT/SUITE/ENTRY.html, .yaml   one entry: every number, and the command that made it
    OUT/SUITE/ENTRY/run.html      its episodes, where the trajectory file is at hand

Entries may come from anybody: templates escape them, and only https addresses become links.
"""

import json
import math
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnbench.envs.errors import BoardError
from turnbench.leaderboards.board import nondeterministic, rows, status
from turnbench.leaderboards.board import read_entry as read
from turnbench.leaderboards.entry import Entry
from turnbench.leaderboards.log import NAME
from turnbench.leaderboards.pages import MAX_EMBEDDED, asset, render, run_page
from turnbench.leaderboards.progress import human
from turnbench.leaderboards.view import copy_log, run_folder, write_page

WIDE, HIGH, LEFT, TOP, BOTTOM = 420, 240, 40, 10, 34  # of a plot, in pixels


def build_site(boards: Path, out: Path, logs: Path | None = None) -> list[Path]:
    """Write the pages of all boards; `logs` is a folder with trajectory files. Returns what was written.

    Raises BoardError for a damaged entry, LogError for a damaged trajectory file.
    """
    suites = sorted(path.name for path in boards.iterdir() if path.is_dir()) if boards.is_dir() else []
    written: list[Path] = []
    listed = []
    for suite in suites:
        found = {p.stem: (read(p), p) for p in sorted((boards / suite).glob("*.yaml"))}
        if not found:
            continue
        tables = _tables(found)
        listed.append({"name": suite, "entries": len(found), "best": tables[0]["rows"][0]})
        written.append(_write(out / f"{suite}.html", _suite_page(suite, tables)))
        (out / suite).mkdir(exist_ok=True)
        for name, (entry, path) in found.items():
            shutil.copyfile(path, out / suite / path.name)
            run = _run_pages(name, out / suite, logs)
            page = _entry_page(entry, status(entry, path), run)
            written.append(_write(out / suite / f"{name}.html", page))
    if not listed:
        raise BoardError(f"{boards} holds no entries")
    page = render("index.html", "", title="turnbench boards", suites=listed, number=number)
    return [*written, _write(out / "index.html", page)]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _tables(found: Mapping[str, tuple[Entry, Path]]) -> list[dict[str, Any]]:
    """One table a protocol, newest version first; each row with what its line and filters need."""
    groups: dict[tuple[int, str], list[tuple[Entry, str]]] = {}
    for entry, path in found.values():
        key = entry["suite"]["version"], entry["suite"]["digest"]
        groups.setdefault(key, []).append((entry, status(entry, path)))
    return [
        {
            "version": version,
            "digest": digest,
            "protocol": group[0][0]["protocol"],
            "rows": [_shown(row, found[row["entry"]][0]) for row in rows(group)],
        }
        for (version, digest), group in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def _shown(row: Entry, entry: Entry) -> Entry:
    rates = [r["success"]["mean"] for r in entry["results"] if r["success"]]
    return {
        **row,
        "success": sum(rates) / len(rates) if rates else None,
        "results": entry["results"],
        "oracle": "oracle" in row["privileges"],
        "open": nondeterministic(entry),
        "episodes": sum(r["episodes"]["wanted"] for r in entry["results"]),
        "submitter": entry.get("submitter", {}).get("name", ""),
    }


def _suite_page(suite: str, tables: Sequence[Mapping[str, Any]]) -> str:
    for table in tables:
        for row in table["rows"]:
            tied = [r for r in table["rows"] if r["rank"] == row["rank"]]
            row["tied"] = row["rank"] is not None and len(tied) > 1
    first = [row for row in tables[0]["rows"] if row["score"]]
    everything = [row for table in tables for row in table["rows"]]
    return render(
        "suite.html",
        asset("site.js"),
        title=f"{suite} board",
        suite=suite,
        tables=tables,
        plots=[plot(first, "tokens", "tokens"), plot(first, "cost", "US dollars")],
        models=sorted({row["model"] or "no model" for row in everything}),
        tracks=sorted({row["track"] for row in everything}),
        envs=sorted({result["env"] for row in everything for result in row["results"]}),
        number=number,
        human=human,
    )


def _entry_page(entry: Entry, status: str, run: str | None) -> str:
    return render(
        "entry.html",
        "",
        title=entry["entry"],
        entry=entry,
        status=status,
        open=nondeterministic(entry),
        run=run,
        command=command(entry),
        verify=f"turnbench verify {entry['entry']}.yaml --log {entry['entry']}.jsonl.gz",
        system=json.dumps(entry["system"], indent=1, ensure_ascii=False),
        protocol=json.dumps(entry["protocol"], indent=1, ensure_ascii=False),
        number=number,
        human=human,
    )


def command(entry: Mapping[str, Any]) -> str:
    """The command that runs an entry's row again."""
    return f"turnbench run {entry['suite']['name']} --agent {shlex.quote(entry['system']['name'])}"


def _run_pages(name: str, folder: Path, logs: Path | None) -> str | None:
    """The run's page of an entry, as an address; None where its trajectory file isn't at hand."""
    file = None if logs is None else logs / f"{name}.jsonl.gz"
    if file is None or not file.is_file():
        return None
    out = folder / name
    out.mkdir(exist_ok=True)
    with run_folder(file) as unpacked:
        if (unpacked / NAME).stat().st_size <= MAX_EMBEDDED:
            write_page(unpacked, out / "run.html")
        else:  # too large for one file: this page must be served
            copy_log(unpacked, out / NAME)
            _write(out / "run.html", run_page(unpacked, embed=False))
    return f"{name}/run.html"


def number(value: float | None, digits: int = 3) -> str:
    """A number as it is shown; what is unknown is a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


# --- plots ----------------------------------------------------------------------------------------


def plot(rows: Iterable[Mapping[str, Any]], key: str, label: str) -> dict[str, Any]:
    """Where each row stands in a plot of its score against what it cost, on a logarithmic axis.

    What cost nothing, or an unknown sum, isn't shown but counted.
    """
    rows = list(rows)
    shown = [row for row in rows if row[key]]
    made = {"label": label, "points": [], "xs": [], "ys": [], "left_out": len(rows) - len(shown)}
    if not shown:
        return made
    low, high = (math.log10(f(row[key] for row in shown)) for f in (min, max))
    first, last = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    bottom, top = _range([end for row in shown for end in row["score"]["ci95"]])
    right, base = WIDE - 12, HIGH - BOTTOM

    def x(value: float) -> float:
        return round(LEFT + (math.log10(value) - first) / (last - first) * (right - LEFT), 1)

    def y(value: float) -> float:
        return round(base - (value - bottom) / (top - bottom) * (base - TOP), 1)

    made["points"] = [
        {
            "x": x(row[key]),
            "y": y(row["score"]["mean"]),
            "low": y(row["score"]["ci95"][0]),
            "high": y(row["score"]["ci95"][1]),
            "row": row,
        }
        for row in shown
    ]
    step = max(1, math.ceil((last - first) / 5))
    made["xs"] = [{"x": x(10.0**k), "text": _power(k)} for k in range(first, last + 1, step)]
    ticks = [bottom + (top - bottom) * k / 4 for k in range(5)]
    made["ys"] = [{"y": y(value), "text": f"{value:.3g}"} for value in ticks]
    return made


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _power(k: int) -> str:
    return human(10**k) if k >= 0 else f"{10.0**k:g}"
