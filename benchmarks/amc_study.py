"""Selectors of a search study side by side, and paired differences: python benchmarks/amc_study.py RUN...

Reads run folders of one suite (leaderboards/suites/amc-textcraft.yaml) and prints Markdown: for each row
the mean of every selector with a 95 % interval (tasks resampled), model calls and tokens an episode, then
each row's difference to the row named by --against on the episodes that both played, with its interval.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from turnbench.leaderboards.cells import SELECTORS
from turnbench.leaderboards.log import Episode, Key, read_episodes
from turnbench.leaderboards.statistics import cluster_bootstrap, mean

Values = dict[str, list[float]]


def cell(values: Mapping[str, list[float]], *, sign: bool = False) -> str:
    """Mean and interval."""
    low, high = cluster_bootstrap(values)
    form = "+.3f" if sign else ".3f"
    return f"{mean(values):{form}} [{low:{form}}, {high:{form}}]"


def chosen(name: str, episode: Episode) -> float:
    """A selector's value; a single path answers for all of them."""
    return SELECTORS[name](episode.population, episode)


def by_row(folders: list[Path]) -> dict[str, dict[Key, Episode]]:
    """Episodes of each row that count, by key."""
    rows: dict[str, dict[Key, Episode]] = defaultdict(dict)
    for folder in folders:
        for episode in read_episodes(folder):
            if not episode.population.best.missing:
                rows[episode.key.agent][episode.key] = episode
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--against", default="best-of-15", help="row that others are compared with")
    options = parser.parse_args()
    rows = by_row(options.runs)
    print("| row | episodes | submitted |", " | ".join(SELECTORS), "| calls | tokens | fallbacks |")
    print("|---" * (len(SELECTORS) + 6) + "|")
    for name, episodes in rows.items():
        columns = []
        for selector in ("", *SELECTORS):
            values: Values = defaultdict(list)
            for key, e in episodes.items():
                values[key.task].append(chosen(selector, e) if selector else e.population.best.ret)
            columns.append(cell(values))
        usage = [e.population.usage for e in episodes.values()]
        calls = np.mean([u.model_calls for u in usage])
        tokens = np.mean([u.prompt_tokens + u.completion_tokens for u in usage])
        fallbacks = sum(e.population.fallbacks for e in episodes.values())
        print(
            f"| {name} | {len(episodes)} |",
            " | ".join(columns),
            f"| {calls:.0f} | {tokens:.0f} | {fallbacks} |",
        )
    print(f"\nDifference to {options.against}, the same task and seed:\n")
    print("| row | pairs | submitted |", " | ".join(SELECTORS), "|")
    print("|---" * (len(SELECTORS) + 3) + "|")
    base = {key._replace(agent=""): e for key, e in rows[options.against].items()}
    for name, episodes in rows.items():
        if name == options.against:
            continue
        columns, pairs = [], 0
        for selector in ("", *SELECTORS):
            gaps: Values = defaultdict(list)
            for key, e in episodes.items():
                other = base.get(key._replace(agent=""))
                if other is not None:
                    mine = chosen(selector, e) if selector else e.population.best.ret
                    theirs = chosen(selector, other) if selector else other.population.best.ret
                    gaps[key.task].append(mine - theirs)
            pairs = sum(map(len, gaps.values()))
            columns.append(cell(gaps, sign=True))
        print(f"| {name} | {pairs} |", " | ".join(columns), "|")


if __name__ == "__main__":
    main()
