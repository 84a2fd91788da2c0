"""Entry: what one system (agent and model) did in a run, computed from its log alone."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from turnbench.agents import core
from turnbench.agents.core import Population
from turnbench.envs.core import mix
from turnbench.envs.errors import LogError
from turnbench.envs.record import MISSING, Outcome, Usage
from turnbench.leaderboards.log import NAME, Episode, read_episodes, read_header
from turnbench.leaderboards.statistics import cluster_bootstrap, macro_bootstrap, mean
from turnbench.leaderboards.suite import EnvSpec, Suite, digest_of, slug

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
    privileges: set[str] = field(default_factory=set)
    usage: Usage = Usage()
    seconds: float = 0.0

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        best, population = episode.population.best, episode.population
        self.outcomes[episode.outcome] += 1
        self.usage += population.usage
        self.seconds += episode.seconds
        self.privileges.update(episode.privileges)
        self.lost_paths += sum(path.missing for path in population.trajectories)
        if best.missing:
            return
        self.scores[best.task.id].append(best.ret)
        self.by_seed[best.task.seed].append(best.ret)
        self.turns.append(len(best.turns))
        self.successes[best.task.id].append(best.success)
        if len(population.trajectories) > 1:
            for name, select in SELECTORS.items():
                with suppress(ValueError):  # only lost paths have weight: nothing to select from
                    value = select(population, episode)
                    self.selectors[name][best.task.id].append(value)


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


def entries_of(run: Path) -> list[Entry]:
    """The board entries of a run folder, one a system, best first. Raises LogError."""
    header = read_header(run)
    try:
        suite = Suite.model_validate(header["suite"])
        worlds, checkpoints = header["worlds"], header["checkpoints"]
        about = {
            "date": header["started"][:10],
            "protocol": suite.protocol,
            "provenance": {
                "versions": header["versions"],
                "code": header["code"],
                "worlds": [world["data"] for world in worlds],
                "log": {"sha256": _sha256(run / NAME), "bytes": (run / NAME).stat().st_size},
            },
        }
    except (LookupError, TypeError, ValidationError) as error:
        raise LogError(f"{run / NAME} line 1 is damaged: {' '.join(str(error).split())}") from error
    cells: dict[tuple[str, int], Cell] = defaultdict(Cell)
    for episode in read_episodes(run):
        cells[episode.key.agent, episode.key.env].add(episode)
    made = []
    for name, agent in suite.agents.items():
        row = [cells[name, k] for k in range(len(suite.envs))]
        system = {"name": name, **suite.system(name), "checkpoint": checkpoints.get(agent.model)}
        made.append({**_entry(suite, system, row, worlds, about), **about})
    return sorted(made, key=rank_key)


def rank_key(entry: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Complete entries before others, then by score, then by name."""
    score = entry["score"]
    return (not entry["complete"], -score["mean"] if score else float("inf"), entry["entry"])


def _entry(
    suite: Suite, system: Entry, row: Sequence[Cell], worlds: Sequence[Entry], about: Entry
) -> Entry:
    results = [
        _result(spec, cell, len(world["tasks"]) * len(suite.seeds), world["returns"])
        for spec, cell, world in zip(suite.envs, row, worlds, strict=True)
    ]
    digest = digest_of([suite.digest, system, about["provenance"]["code"]])
    model = (system["model"] or {"name": "no-model"})["name"]
    return {
        "schema": SCHEMA,
        "entry": f"{slug(system['name'])}_{slug(model)}_{digest[:8]}",
        "suite": {"name": suite.suite, "version": suite.version, "digest": suite.digest},
        "system": system,
        "privileges": sorted(set().union(*(cell.privileges for cell in row))),
        "complete": all(r["episodes"]["missing"] == r["episodes"]["left"] == 0 for r in results),
        "score": rounded(_overall(row)),
        "results": rounded(results),
        "compute": rounded(_compute(row)),
    }


def rounded(value: Any) -> Any:
    """`value` with all its floats at 6 significant digits."""
    match value:
        case dict():
            return {key: rounded(v) for key, v in value.items()}
        case list():
            return [rounded(v) for v in value]
        case float():
            return float(f"{value:.6g}")
    return value


def _result(spec: EnvSpec, cell: Cell, wanted: int, returns: list[float] | None) -> Entry:
    missing = sum(n for outcome, n in cell.outcomes.items() if Outcome(outcome) in MISSING)
    result: Entry = {
        "env": spec.id,
        "split": spec.split,
        "episodes": {"wanted": wanted, "missing": missing, "left": wanted - cell.outcomes.total()},
        "tasks": len(cell.scores),
        "score": _summary(cell.scores),
        "per_seed": {seed: float(np.mean(v)) for seed, v in sorted(cell.by_seed.items())},
        "success": _success(cell),
        "bounds": _bounds(cell, missing, returns),
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
    if returns is None or not played and not missing:
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
