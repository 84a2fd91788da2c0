"""Search at equal budgets: the table, the differences and the picture of docs/amc.md from run folders.

    python benchmarks/amc_study.py runs/amc-textcraft... [--whole best-of-25] [--svg docs/amc_study.svg]

Reads run folders of one suite (leaderboards/suites/amc-textcraft.yaml) and prints Markdown: for each row
the mean of every selector with a 95 % interval (tasks resampled), model calls and tokens an episode; each
row's difference to the row named by --against on the episodes that both played; the same apart for tasks
that a single attempt solves seldom, sometimes and nearly always.

Best-of-N below the N of the row named by --whole is the mean over all subsets of its paths (the estimator
of pass@k), so that it needs no run of its own.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from turnbench.agents.core import Population
from turnbench.leaderboards.cells import SELECTORS
from turnbench.leaderboards.log import Episode, Key, read_episodes
from turnbench.leaderboards.statistics import cluster_bootstrap, mean

SIZES = (1, 2, 4, 8, 15, 25)
SUBMITTED = "submitted"
STRATA = {"seldom (below .2)": (0.0, 0.2), "sometimes": (0.2, 0.8), "nearly always (.8 on)": (0.8, 1.01)}

Row = dict[Key, dict[str, float]]
"""What each selector makes of each episode, by task and seed (the key without its agent)."""


def by_row(folders: Iterable[Path]) -> dict[str, dict[Key, Episode]]:
    """Episodes of each row that count, by key."""
    rows: dict[str, dict[Key, Episode]] = defaultdict(dict)
    for folder in folders:
        for episode in read_episodes(folder):
            if not episode.population.best.missing:
                rows[episode.key.agent][episode.key._replace(agent="")] = episode
    return rows


def selected(episodes: Mapping[Key, Episode]) -> Row:
    """Every selector's value; a single path answers for all of them."""
    return {
        key: {SUBMITTED: e.population.best.ret}
        | {name: select(e.population, e) for name, select in SELECTORS.items()}
        for key, e in episodes.items()
    }


def of_subsets(episodes: Mapping[Key, Episode], n: int) -> Row:
    """Best-of-n from rows of more paths: the expectation over a random subset of n of them."""
    return {
        key: {
            SUBMITTED: best_of_subset(returns(e.population), e.population.scores, n),
            "oracle_max": best_of_subset(returns(e.population), returns(e.population), n),
            "population_mean": float(np.mean(returns(e.population))),
        }
        for key, e in episodes.items()
    }


def returns(population: Population) -> list[float]:
    """True returns of the paths."""
    return [path.ret for path in population.trajectories]


def best_of_subset(values: Sequence[float], scores: Sequence[float], n: int) -> float:
    """Expected value of the path with the highest score among n drawn without replacement.

    The path of rank r (0 the highest of m) is the best of a subset with probability
    C(m - 1 - r, n - 1) / C(m, n).
    """
    size = len(values)
    order = np.argsort(scores, kind="stable")[::-1]
    shares = [math.comb(size - 1 - rank, n - 1) / math.comb(size, n) for rank in range(size)]
    return math.fsum(share * values[k] for share, k in zip(shares, order, strict=True))


# --- tables -----------------------------------------------------------------------------------------------


def cell(values: Iterable[tuple[Key, float]], *, sign: bool = False) -> str:
    """Mean and interval; tasks are the clusters."""
    tasks: dict[str, list[float]] = defaultdict(list)
    for key, value in values:
        tasks[key.task].append(value)
    if not tasks:
        return "-"
    low, high = cluster_bootstrap(tasks)
    form = "+.3f" if sign else ".3f"
    return f"{mean(tasks):{form}} [{low:{form}}, {high:{form}}]"


def difference(row: Row, base: Row, name: str, kept: Callable[[Key], bool] = lambda _: True) -> str:
    """Paired difference of a selector."""
    both = [key for key in row if key in base and kept(key) and name in row[key] and name in base[key]]
    return cell(((key, row[key][name] - base[key][name]) for key in both), sign=True)


def spent(episodes: Mapping[Key, Episode]) -> tuple[str, str, str]:
    """Model calls, tokens and replaced value estimates, the first two an episode."""
    usage = [e.population.usage for e in episodes.values()]
    calls = np.mean([u.model_calls for u in usage])
    tokens = np.mean([u.prompt_tokens + u.completion_tokens for u in usage])
    fallbacks = sum(e.population.fallbacks for e in episodes.values())
    return f"{calls:.0f}", f"{tokens:.0f}", str(fallbacks)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def strata_of(base: Row) -> dict[str, Callable[[Key], bool]]:
    """Tasks parted by how often a single attempt solves them."""
    tasks: dict[str, list[float]] = defaultdict(list)
    for key, values in base.items():
        tasks[key.task].append(values["population_mean"])
    rate = {task: float(np.mean(found)) for task, found in tasks.items()}

    def within(low: float, high: float) -> Callable[[Key], bool]:
        return lambda key: low <= rate[key.task] < high

    return {name: within(low, high) for name, (low, high) in STRATA.items()}


# --- the picture ------------------------------------------------------------------------------------------

LINES = {"amc": ("AMC", "#1b7837"), "best-of": ("best-of-N", "#2166ac")}


def curve(rows: Mapping[str, Row], kind: str, selector: str) -> dict[int, float]:
    """Mean return by N. Best-of-N is read from subsets; one path is that for both kinds."""
    names = {n: f"{kind}-{n}*" if kind == "best-of" else f"{kind}-{n}" for n in SIZES}
    names[1] = "best-of-1*"
    return {
        n: float(np.mean([values[selector] for values in rows[name].values()]))
        for n, name in names.items()
        if name in rows
    }


def picture(rows: Mapping[str, Row], path: Path) -> None:
    """Mean return against N."""
    from pictures import Curve, draw

    curves = {}
    for kind, (said, colour) in LINES.items():
        for selector in ("oracle_max", SUBMITTED):
            if points := curve(rows, kind, selector):
                x, y = list(points), list(points.values())
                name = f"{said}, {selector.replace('_', ' ')}"
                curves[name] = Curve(x, y, colour=colour, dashed=selector == SUBMITTED)
    ticks = {"xticks": SIZES, "xticklabels": SIZES}
    title = "Mean return against the number of paths"
    draw(path, title, {"": curves}, "paths N", "mean return", xscale="log", ylim=(0, None), **ticks)


def widest(names: Iterable[str]) -> str:
    """The row of best-of-N with the most paths; "" where there is none."""
    sizes = {int(n[8:]): n for n in names if n.startswith("best-of-") and n[8:].isdigit()}
    return sizes[max(sizes)] if sizes else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--against", default="best-of-15", help="row that others are compared with")
    parser.add_argument(
        "--whole", help="row that best-of-N is read from; that of most paths if left out"
    )
    parser.add_argument("--svg", type=Path, help="where to draw mean return against N")
    options = parser.parse_args()
    played = by_row(options.runs)
    rows = {name: selected(episodes) for name, episodes in played.items()}
    options.whole = options.whole or widest(played)
    whole = played.get(options.whole, {})
    most = min((len(e.population.trajectories) for e in whole.values()), default=0)
    rows |= {f"best-of-{n}*": of_subsets(whole, n) for n in SIZES if n <= most}

    names = (SUBMITTED, *SELECTORS)
    print(
        table(
            ["row", "episodes", *names, "calls", "tokens", "fallbacks"],
            (
                [
                    name,
                    str(len(row)),
                    *(cell((k, v[s]) for k, v in row.items() if s in v) for s in names),
                    *(spent(played[name]) if name in played else ("", "", "")),
                ]
                for name, row in rows.items()
            ),
        )
    )
    print("\n* mean over all subsets of the paths of", options.whole)
    base = rows[options.against]
    print(f"\nDifference to {options.against}, the same task and seed:\n")
    print(
        table(["row", *names], ([n, *(difference(r, base, s) for s in names)] for n, r in rows.items()))
    )
    if whole:
        parted = strata_of(rows[options.whole])
        print(f"\nThe same, apart by how often one attempt solves the task ({SUBMITTED}; oracle_max):\n")
        print(
            table(
                ["row", *parted],
                (
                    [
                        name,
                        *(
                            f"{difference(row, base, SUBMITTED, kept)}; "
                            f"{difference(row, base, 'oracle_max', kept)}"
                            for kept in parted.values()
                        ),
                    ]
                    for name, row in rows.items()
                ),
            )
        )
    if options.svg:
        picture(rows, options.svg)


if __name__ == "__main__":
    main()
