"""Entry: what one system (agent and model) did in a run, computed from its log alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from turnbench.agents import AGENTS
from turnbench.algorithms.pass_k import pass_at_k, pass_hat_k
from turnbench.envs.errors import LogError
from turnbench.envs.record import MISSING, Outcome, Usage
from turnbench.leaderboards import schema
from turnbench.leaderboards.cells import ByTask, Cell, Cells
from turnbench.leaderboards.log import NAME, Episode, read_header, read_lines
from turnbench.leaderboards.statistics import (
    cluster_bootstrap,
    macro_bootstrap,
    mean,
)
from turnbench.leaderboards.suite import EnvSpec, Suite, digest_of, slug
from turnbench.leaderboards.trajectories import Digests, header_line

Entry = dict[str, Any]


def entries_of(run: Path) -> list[Entry]:
    """The board entries of a run folder, one a system, best first. Raises LogError."""
    return make_entries(read_header(run), read_lines(run), str(run / NAME))


def make_entries(
    header: Mapping[str, Any], lines: Iterable[tuple[bytes, Episode]], source: str
) -> list[Entry]:
    """The entries of all systems in a log: its header, and its episodes with their lines.

    Raises LogError, which names `source`.
    """
    try:
        suite = Suite.model_validate(header["suite"])
        digests = {name: Digests(header_line(header, name)) for name in suite.agents}
        worlds, checkpoints = header["worlds"], dict(header["checkpoints"])
        told = [schema.World.model_validate(world) for _, world in zip(suite.envs, worlds, strict=True)]
        about = {
            "date": str(header["started"])[:10],
            "protocol": suite.protocol,
            "provenance": {
                "versions": header["versions"],
                "code": header["code"],
                "worlds": [world.data for world in told],
            },
        }
        known = [set(world.tasks) for world in told]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LogError(f"{source} line 1 is damaged: {' '.join(str(error).split())}") from error
    cells: Cells = defaultdict(Cell)
    for line, episode in lines:
        row, env, task, _ = episode.key
        if row not in digests or not 0 <= env < len(known) or task not in known[env]:
            raise LogError(f"{source}: the episode {list(episode.key)} isn't the suite's")
        digests[row].add(line, episode)
        cells[row, env].add(episode)
    made = []
    for name, spec in suite.agents.items():
        system = {"name": name, **suite.system(name), "checkpoint": checkpoints.get(spec.model)}
        if (value := f"{name}'s value") in checkpoints:
            system["value"] = checkpoints[value]
        mine = [cells[name, k] for k in range(len(suite.envs))]
        computed = {**_entry(suite, system, mine, worlds, about), **about}
        made.append(_checked({**computed, "trajectories": digests[name].to_json()}, source))
    return sorted(made, key=order_key)


def _checked(entry: Entry, source: str) -> Entry:
    try:
        return schema.plain(schema.Entry.model_validate(entry))
    except ValidationError as error:
        raise LogError(f"{source} makes no valid entry: {' '.join(str(error).split())}") from error


def order_key(entry: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Complete entries before others, then by score, then by name."""
    score = entry["score"]
    return (not entry["complete"], -score["mean"] if score else float("inf"), entry["entry"])


def entry_id(system: Mapping[str, Any], suite_digest: str, code: str) -> str:
    """What an entry is called: its system, its model, and a digest of what it ran."""
    digest = digest_of([suite_digest, system, code])
    model = (system["model"] or {"name": "no-model"})["name"]
    return f"{slug(system['name'])[:24]}_{slug(model)[:30]}_{digest[:8]}"


def track_of(agent: str, privileges: Iterable[str]) -> str:
    """Which ranking a system belongs to (schema.Entry.track)."""
    if "oracle" in privileges:
        return "oracle"
    return "standard" if agent in AGENTS else "custom"


def _entry(
    suite: Suite, system: Entry, row: Sequence[Cell], worlds: Sequence[Entry], about: Entry
) -> Entry:
    seeds = len(suite.seeds)
    results = [
        _result(spec, cell, world, seeds)
        for spec, cell, world in zip(suite.envs, row, worlds, strict=True)
    ]
    privileges = sorted(set().union(*(cell.privileges for cell in row)))
    return {
        "schema": schema.SCHEMA,
        "entry": entry_id(system, suite.digest, about["provenance"]["code"]),
        "suite": {"name": suite.suite, "version": suite.version, "digest": suite.digest},
        "track": track_of(system["agent"], privileges),
        "system": system,
        "privileges": privileges,
        "complete": all(_is_complete(result) for result in results),
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


def _is_complete(result: Entry) -> bool:
    """Whether every episode counts, and in some of them a turn was played: else nothing was measured."""
    episodes = result["episodes"]
    return episodes["missing"] == episodes["left"] == 0 and bool(result["turns"])


def _result(spec: EnvSpec, cell: Cell, world: Entry, seeds: int) -> Entry:
    missing = sum(n for outcome, n in cell.outcomes.items() if Outcome(outcome) in MISSING)
    wanted = len(world["tasks"]) * seeds
    played = cell.scores
    result: Entry = {
        "env": spec.id,
        "split": spec.split,
        "episodes": {"wanted": wanted, "missing": missing, "left": wanted - cell.outcomes.total()},
        "tasks": len(played),
        "score": _summary(played),
        "per_seed": _per_seed(played),
        "per_task": [_mean_of(played.get(task)) for task in world["tasks"]],
        "success": _success(cell),
        "passes": _passes(cell, seeds),
        "bounds": _bounds(cell, missing, world["returns"]),
        "outcomes": {outcome.value: cell.outcomes.get(outcome, 0) for outcome in Outcome},
        "turns": float(np.mean(cell.turns)) if cell.turns else None,
    }
    if world["returns"] is not None and world["returns"][0] < 0:
        result["clipped"] = _summary(_clipped(played))
    if world.get("nondeterministic"):
        result["nondeterministic"] = True
    if cell.checks:
        result["checks"] = {name: _summary(values) for name, values in sorted(cell.checks.items())}
    if cell.selectors:
        result["selectors"] = {name: _summary(values) for name, values in cell.selectors.items()}
        result["lost_paths"] = cell.lost_paths
    return result


def _summary(values: ByTask[float]) -> Entry | None:
    if not values:
        return None
    interval = cluster_bootstrap(values.lists())
    return {"mean": mean(values.lists()), "ci95": [interval.low, interval.high]}


def _clipped(values: ByTask[float]) -> ByTask[float]:
    clipped: ByTask[float] = ByTask()
    for task, of_task in values.items():
        clipped[task] = {seed: max(value, 0.0) for seed, value in of_task.items()}
    return clipped


def _mean_of(of_task: Mapping[int, float] | None) -> float | None:
    return float(np.mean([of_task[seed] for seed in sorted(of_task)])) if of_task else None


def _per_seed(values: ByTask[float]) -> dict[str, float]:
    by_seed: dict[int, list[float]] = defaultdict(list)
    for task in sorted(values):
        for seed, value in values[task].items():
            by_seed[seed].append(value)
    return {str(seed): float(np.mean(of)) for seed, of in sorted(by_seed.items())}


def _success(cell: Cell) -> Entry | None:
    """Share of episodes that solved their task; None where the world doesn't tell."""
    if not cell.tells_success:
        return None
    wins: ByTask[float] = ByTask()
    for task, of_task in cell.wins.items():
        wins[task] = {seed: float(won) for seed, won in of_task.items()}
    return _summary(wins)


def _passes(cell: Cell, seeds: int) -> Entry | None:
    """pass@k and pass^k over the tasks that were played under every seed."""
    whole = [sum(of.values()) for of in cell.wins.values() if len(of) == seeds]
    if seeds < 2 or not whole or not cell.tells_success:
        return None
    ks = range(1, seeds + 1)
    return {
        "at_k": [float(np.mean([pass_at_k(won, seeds, k) for won in whole])) for k in ks],
        "hat_k": [float(np.mean([pass_hat_k(won, seeds, k) for won in whole])) for k in ks],
    }


def _bounds(cell: Cell, missing: int, returns: list[float] | None) -> list[float] | None:
    """The mean if every missing episode had the lowest, or the highest, return there is."""
    played = [v for of_task in cell.scores.values() for v in of_task.values()]
    if returns is None or not played and not missing:
        return None
    return [(sum(played) + missing * end) / (len(played) + missing) for end in returns]


def _overall(row: Iterable[Cell]) -> Entry | None:
    groups = [cell.scores.lists() for cell in row]
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
