"""Board: log lines -> one entry for each system -> a ranking, all as YAML.

`boards/SUITE/ENTRY.yaml` holds what one system (agent and model) did; `boards/SUITE.yaml` is made
from all entries with the same protocol and is never edited by hand.
"""

import fcntl
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from turnbench.agents import core
from turnbench.agents.core import Population
from turnbench.envs.core import mix
from turnbench.envs.errors import BoardError, ConfigError
from turnbench.envs.record import MISSING, Outcome, Usage
from turnbench.leaderboards.log import NAME, Episode, read_episodes, read_header
from turnbench.leaderboards.statistics import cluster_bootstrap, macro_bootstrap, mean
from turnbench.leaderboards.suite import Suite, digest_of, slug, tasks_of
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml, write_atomically

SCHEMA = "turnbench-entry/1"
Entry = dict[str, Any]
Values = dict[str, list[float]]


@dataclass(slots=True)
class Cell:
    """What one system did in one environment; lists hold one value an episode, by task or seed."""

    scores: Values = field(default_factory=lambda: defaultdict(list))
    by_seed: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    successes: dict[str, list[bool | None]] = field(default_factory=lambda: defaultdict(list))
    selectors: dict[str, Values] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    outcomes: Counter[str] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    lost_paths: int = 0
    usage: Usage = Usage()
    seconds: float = 0.0

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        best, population = episode.population.best, episode.population
        self.outcomes[episode.outcome] += 1
        self.usage += population.usage
        self.seconds += episode.seconds
        self.lost_paths += sum(path.missing for path in population.trajectories)
        if best.missing:
            return
        self.scores[best.task.id].append(best.ret)
        self.by_seed[best.task.seed].append(best.ret)
        self.turns.append(len(best.turns))
        self.successes[best.task.id].append(best.success)
        if len(population.trajectories) > 1:
            for name, select in SELECTORS.items():
                self.selectors[name][best.task.id].append(select(population, episode))


def _sampled(population: Population, episode: Episode) -> float:
    return core.sample_by_weight(
        population, np.random.default_rng(mix(episode.key.seed, *episode.key[0::2]))
    )


SELECTORS: dict[str, Callable[[Population, Episode], float]] = {
    "oracle_max": lambda population, _: core.oracle_max(population),
    "max_weight": lambda population, _: core.max_weight(population),
    "sample_by_weight": _sampled,
    "population_mean": lambda population, _: core.population_mean(population),
}


# --- entries --------------------------------------------------------------------------------------


def entries_of(run: Path) -> list[Entry]:
    """The board entries of a run folder, one a system, best first. Raises LogError, ConfigError."""
    header = read_header(run)
    suite = Suite.model_validate(header["suite"])
    cells: dict[tuple[str, int], Cell] = defaultdict(Cell)
    for episode in read_episodes(run):
        cells[episode.key.agent, episode.key.env].add(episode)
    log = {"sha256": _sha256(run / NAME), "bytes": (run / NAME).stat().st_size}
    made = [_entry(suite, header, name, cells, log) for name in suite.agents]
    return sorted(made, key=_rank_key)


def _entry(
    suite: Suite, header: Mapping[str, Any], name: str, cells: Mapping[tuple[str, int], Cell], log: Entry
) -> Entry:
    row = [cells.get((name, k), Cell()) for k in range(len(suite.envs))]
    system = suite.system(name)
    checkpoint = header["checkpoints"].get(suite.agents[name].model)
    digest = digest_of([header["digest"], system, checkpoint, header["code"]])
    results = [_result(suite, k, cell, header["worlds"][k]) for k, cell in enumerate(row)]
    return {
        "schema": SCHEMA,
        "entry": slug(f"{name}_{suite.agents[name].model or 'no-model'}_{digest[:8]}"),
        "suite": {"name": suite.suite, "version": suite.version, "digest": header["digest"]},
        "date": datetime.now(UTC).date().isoformat(),
        "system": {"name": name, **system, "checkpoint": checkpoint},
        "privileges": _privileges(name, suite, row),
        "complete": all(
            result["episodes"]["missing"] == result["episodes"]["left"] == 0 for result in results
        ),
        "score": _overall(row),
        "results": results,
        "compute": _compute(row),
        "protocol": suite.protocol,
        "provenance": {
            "versions": header["versions"],
            "code": header["code"],
            "worlds": [world["data"] for world in header["worlds"]],
            "log": log,
        },
    }


def _is_complete(episodes: Mapping[str, int]) -> bool:
    return episodes["missing"] == 0 and episodes["left"] == 0


def _result(suite: Suite, k: int, cell: Cell, world: Mapping[str, Any]) -> Entry:
    spec = suite.envs[k]
    wanted = len(tasks_of(spec)) * len(suite.seeds)
    missing = sum(n for outcome, n in cell.outcomes.items() if Outcome(outcome) in MISSING)
    result: Entry = {
        "env": spec.id,
        "split": spec.split,
        "episodes": {"wanted": wanted, "missing": missing, "left": wanted - cell.outcomes.total()},
        "tasks": len(cell.scores),
        "score": _summary(cell.scores),
        "per_seed": {seed: float(np.mean(v)) for seed, v in sorted(cell.by_seed.items())},
        "success": _success(cell),
        "bounds": _bounds(cell, missing, world.get("returns")),
        "outcomes": {outcome.value: cell.outcomes.get(outcome, 0) for outcome in Outcome},
        "turns": float(np.mean(cell.turns)) if cell.turns else None,
    }
    if cell.selectors:
        result["selectors"] = {name: _summary(values) for name, values in cell.selectors.items()}
        result["lost_paths"] = cell.lost_paths
    return result


def _summary(values: Values) -> Entry | None:
    if not values:
        return None
    interval = cluster_bootstrap(values)
    return {"mean": mean(values), "ci95": [interval.low, interval.high]}


def _success(cell: Cell) -> Entry | None:
    """Share of episodes that solved their task; None where the world doesn't tell."""
    if all(s is None for of_task in cell.successes.values() for s in of_task):
        return None
    return _summary({task: [float(bool(s)) for s in of] for task, of in cell.successes.items()})


def _bounds(cell: Cell, missing: int, returns: list[float] | None) -> list[float] | None:
    """The mean if every missing episode had the lowest, or the highest, return there is."""
    played = [v for of_task in cell.scores.values() for v in of_task]
    if returns is None or not played:
        return None
    return [(sum(played) + missing * end) / (len(played) + missing) for end in returns]


def _overall(row: Iterable[Cell]) -> Entry | None:
    groups = [cell.scores for cell in row]
    if not all(groups):
        return None
    interval = macro_bootstrap(groups)
    return {"mean": float(np.mean([mean(g) for g in groups])), "ci95": [interval.low, interval.high]}


def _compute(row: Iterable[Cell]) -> Entry:
    usage, seconds = Usage(), 0.0
    for cell in row:
        usage += cell.usage
        seconds += cell.seconds
    return {
        **{name: getattr(usage, name) for name in Usage.__slots__},
        "episode_seconds": round(seconds, 1),
    }


def _privileges(name: str, suite: Suite, row: Iterable[Cell]) -> list[str]:
    """What the system used beyond playing: what its agent declares, and forks of the world."""
    from turnbench.leaderboards.runner import make_agent

    declared = list(make_agent(suite, name, _Unasked()).privileges)
    return declared + (["fork"] if any(cell.usage.forks for cell in row) else [])


class _Unasked:
    """Stands for a model where an agent is made only to be looked at."""

    name = "unasked"

    def __getattr__(self, name: str) -> Any:
        raise ConfigError("an agent must not ask its model before it solves a task")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rank_key(entry: Entry) -> tuple[float, str]:
    score = entry["score"]
    return (-score["mean"] if score else float("inf"), entry["entry"])


# --- the boards folder ----------------------------------------------------------------------------


def write_entries(entries: Iterable[Entry], boards: Path) -> list[Path]:
    """Write entries and make their suites' rankings anew, under a lock. Returns the files written."""
    written: list[Path] = []
    try:
        boards.mkdir(parents=True, exist_ok=True)
        with _locked(boards):
            suites = set()
            for entry in entries:
                name = entry["suite"]["name"]
                path = boards / name / f"{entry['entry']}.yaml"
                write_atomically(path, dump_yaml(entry))
                written.append(path)
                suites.add(name)
            for name in sorted(suites):
                written.append(boards / f"{name}.yaml")
                write_atomically(written[-1], dump_yaml(ranking(name, boards)))
    except OSError as error:
        raise BoardError(f"can't write to {boards}: {error.strerror or error}") from error
    return written


def ranking(suite: str, boards: Path) -> Entry:
    """The ranking of a suite's entries: one table for each protocol digest, newest version first."""
    tables: dict[tuple[int, str], list[Entry]] = defaultdict(list)
    for path in sorted((boards / suite).glob("*.yaml")):
        entry = _read_entry(path)
        tables[entry["suite"]["version"], entry["suite"]["digest"]].append(entry)
    return {
        "suite": suite,
        "note": "Made from the entries beside it by `turnbench board --write`; don't edit.",
        "tables": [
            {"version": version, "digest": digest, "rows": _rows(entries)}
            for (version, digest), entries in sorted(tables.items(), reverse=True)
        ],
    }


def _rows(entries: Iterable[Entry]) -> list[Entry]:
    rows = []
    for rank, entry in enumerate(sorted(entries, key=_rank_key), start=1):
        rows.append(
            {
                "rank": rank,
                "entry": entry["entry"],
                "agent": entry["system"]["name"],
                "model": (entry["system"]["model"] or {}).get("name"),
                "score": entry["score"],
                "privileges": entry["privileges"],
                "complete": entry["complete"],
                "model_calls": entry["compute"]["model_calls"],
                "tokens": entry["compute"]["prompt_tokens"] + entry["compute"]["completion_tokens"],
                "cost": entry["compute"]["cost"],
                "date": entry["date"],
            }
        )
    return rows


def _read_entry(path: Path) -> Entry:
    try:
        entry = read_yaml(path).data
        if entry.get("schema") != SCHEMA:
            raise BoardError(f"{path}: schema is {entry.get('schema')!r}, not {SCHEMA!r}")
        for key in ("entry", "suite", "system", "score", "privileges", "complete", "compute", "date"):
            if key not in entry:
                raise BoardError(f"{path}: the key {key!r} is missing")
        return entry
    except ConfigError as error:
        raise BoardError(str(error)) from error


@contextmanager
def _locked(boards: Path) -> Iterator[None]:
    with (boards / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
