"""Study of Progress Advantage on TextCraft: python benchmarks/progress_study.py OUT --policy NAME=FOLDER ...

Each policy is an RL checkpoint trained from the reference. It, and the reference, play pools of eight at
two temperatures over held-out goals (`train-value`, on which choices are made) and test goals; every model
reads every pool once; all scorers are then functions of those logs. Everything resumes: the same command
goes on where it stopped, and new policies may be added. Prints Markdown; OUT/study.json has it all.

    best-of-8        success of the pool's best-scored attempt, by scorer, on test goals
    AUROC            of success on test goals; off-policy, the reference's attempts are scored
    reference sweep  the reference moved towards the policy, chosen on held-out goals
    aggregation      all of the grid, chosen on held-out goals; beside it what the best of the grid would be
                     if labels meant nothing

TextCraft is deterministic; benchmarks/progress_toy.py has the stochastic world and the exact advantage.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from turnbench.agents.readers import Spec
from turnbench.agents.turn_scores import Aggregation, Rated
from turnbench.envs.record import MISSING
from turnbench.leaderboards import said, scored
from turnbench.leaderboards.cases import Case, read_cases
from turnbench.leaderboards.choices import aggregation_grid, choose
from turnbench.leaderboards.log import has_log, read_done, read_header
from turnbench.leaderboards.runner import Watcher, run
from turnbench.leaderboards.said import Asked, Measures, Said
from turnbench.leaderboards.suite import Suite, parse_suite
from turnbench.leaderboards.yamlfile import dump_yaml, parse_yaml

WORLD = "turnbench/TextCraft-v0"
HELD_OUT, TEST = "train-value", "test"
ALPHAS = (0.25, 0.5, 0.75)
REFERENCE = "reference"
HOWS = {
    "progress (mean/mean)": Aggregation(),
    "progress (sum/sum)": Aggregation("sum", "sum"),
    "progress (mean/min)": Aggregation("mean", "min"),
}

AGAINST = ("mean log-prob", "entropy", "DeepConf lowest group", "length", "random")


class Pool(NamedTuple):
    """Pools of attempts by one player at one temperature."""

    player: str
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.player}-t{self.temperature:g}"


class Study:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.policies = dict(pair.split("=", 1) for pair in options.policy)
        self.models = {REFERENCE: options.reference, **self.policies}
        given = (pair.split("=", 1) for pair in options.scorer)
        self.scorers = {name: yaml.safe_load(spec) for name, spec in given}

    def suite(self, pool: Pool) -> dict[str, Any]:
        o = self.options
        model = {"backend": "hf", "path": self.models[pool.player], "max_tokens": 48}
        return {
            "suite": "progress-study",
            "seeds": list(range(o.seeds)),
            "envs": [
                {"id": WORLD, "split": split, "tasks": self.tasks(split, count), "max_turns": 20}
                for split, count in ((HELD_OUT, o.held_out), (TEST, o.tasks))
            ],
            "models": {"player": {**model, "temperature": pool.temperature}},
            "agents": {
                "pool": {
                    "agent": "best_of_n",
                    "model": "player",
                    "n": o.n,
                    "scorer": "random",
                    "instructions": False,
                }
            },
        }

    def tasks(self, split: str, count: int | None) -> list[str]:
        """So many tasks of a split, evenly spread over it, as it goes from easy to hard."""
        from turnbench.envs import make

        known = list(make(WORLD, max_depth=self.options.max_depth).tasks(split))
        if count is None or count >= len(known):
            return known
        return [known[k * len(known) // count] for k in range(count)]

    def play(self, pool: Pool) -> Path:
        """The run folder of a pool, played as far as it isn't."""
        folder = self.out / "pools" / pool.name
        suite = parse_suite(parse_yaml(dump_yaml(self.suite(pool)), "study"))
        if self.is_played(folder, suite):
            return folder
        report = run(suite, folder, workers=self.options.workers, watcher=Watcher())
        if not report.complete:
            raise SystemExit(f"{folder}: {report.done} of {report.total}; the same command goes on")
        return folder

    def is_played(self, folder: Path, suite: Suite) -> bool:
        """Whether a whole run of that suite is there, by whatever version of the code."""
        if not has_log(folder) or read_header(folder)["suite"] != suite.model_dump(mode="json"):
            return False
        done = read_done(folder).values()
        count = sum(len(spec.tasks) for spec in suite.envs) * len(suite.seeds)
        return len(done) == count and not MISSING.intersection(done)

    def said(self, pool: Pool, spec: Spec, cases: Sequence[Case], *, whole: bool) -> Said:
        kept = Measures(self.out / "measures" / pool.name)
        names = said.WHOLE if whole else ()
        return said.say(spec, cases, kept, text="log", names=names, tell=tell)

    def pools(self) -> Iterator[tuple[Pool, list[str]]]:
        """Each pool, with the policies that score it: its player, or all of them the reference's."""
        for temperature in self.options.temperatures:
            yield Pool(REFERENCE, temperature), list(self.policies)
            for name in self.policies:
                yield Pool(name, temperature), [name]

    def asked(self, pool: Pool, cases: Sequence[Case]) -> list[Asked]:
        """What further scorers say of attempts at test goals; a value function, which would have to read
        each turn by itself, of their ends alone."""
        kept = Measures(self.out / "measures" / pool.name)
        found = []
        for name, spec in self.scorers.items():
            name, _, only = name.partition("@")
            if only in ("", pool.name):
                whole = not isinstance(spec, str)
                found.append(said.ask(spec, cases, kept, by_turn=whole, tell=tell)._replace(name=name))
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        for pool, policies in self.pools():
            cases = read_cases(self.play(pool)).cases
            asked = self.asked(pool, [c for c in cases if c.split == TEST])
            reference = self.said(pool, self.models[REFERENCE], cases, whole=True)
            for name in policies:
                policy = self.said(pool, self.models[name], cases, whole=True)
                yield {
                    "played_by": pool.player,
                    "temperature": pool.temperature,
                    "policy": name,
                    **self.row(pool, name, cases, policy, reference, asked),
                }

    def row(
        self,
        pool: Pool,
        name: str,
        cases: Sequence[Case],
        policy: Said,
        reference: Said,
        asked: Sequence[Asked],
    ) -> dict[str, Any]:
        one = [c for c in cases if c.split == HELD_OUT]
        other = [c for c in cases if c.split == TEST]
        rated = self.rated(other, policy, reference) | {one.name: one.rated for one in asked}
        told = scored.report(other, rated, [policy, reference], asked)
        row = {key: told[key] for key in ("paths", "failed", "best_of_n", "uncertainty")}
        against = (*AGAINST, *(one.name for one in asked))
        row["differences"] = {
            how: {name: scored.difference(other, rated[how], rated[name]) for name in against}
            for how in HOWS
        }
        row["grid"] = aggregation_grid(one, other, policy, reference)
        if self.options.sweep:
            row["references"] = self.sweep(pool, name, one, other, policy, reference)
        return row

    def rated(
        self, cases: Sequence[Case], policy: Said, reference: Said
    ) -> dict[str, Mapping[str, Rated]]:
        """All scorers; confidence with the official signs, and as the released code has it."""
        window = self.options.window
        made: dict[str, Mapping[str, Rated]] = {
            name: scored.progress_of(cases, policy, reference, how) for name, how in HOWS.items()
        }
        plain = scored.rate(cases, policy, None, Aggregation(), window=window)
        compat = scored.rate(cases, policy, None, Aggregation(), window=window, repo_compat=True)
        flipped = {
            f"{name} (released)": compat[name]
            for name in compat
            if name.startswith(("DeepConf", "self-certainty"))
        }
        theirs = scored.rate(cases, reference, None, Aggregation())["mean log-prob"]
        return made | plain | flipped | {"reference's mean log-prob": theirs}

    def sweep(
        self,
        pool: Pool,
        name: str,
        one: Sequence[Case],
        other: Sequence[Case],
        policy: Said,
        reference: Said,
    ) -> dict[str, Any]:
        cases, options = [*one, *other], {"0": reference}
        for alpha in ALPHAS:
            spec = {"path": self.models[REFERENCE], "merge": self.models[name], "alpha": alpha}
            options[f"{alpha:g}"] = self.said(pool, spec, cases, whole=False)
        rated = {
            alpha: scored.progress_of(cases, policy, said, Aggregation())
            for alpha, said in options.items()
        }
        return choose(one, other, rated, "0")


def tell(name: str, done: int, total: int) -> None:
    print(f"{name}: {done} of {total} paths read", flush=True)


# --- what is printed ------------------------------------------------------------------------------


def cell(row: Mapping[str, Any] | None, key: str = "mean") -> str:
    if row is None or row.get(key) is None:
        return "-"
    return "{:.3f} [{:.3f}, {:.3f}]".format(row[key], *row["interval"])


def heading(row: Mapping[str, Any]) -> str:
    off = ", off-policy" if row["played_by"] == REFERENCE else ""
    return f"{row['policy']} on attempts of {row['played_by']}, temperature {row['temperature']:g}{off}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        pools = row["best_of_n"]
        yield f"\n### {heading(row)} ({pools['pools']} pools of {pools.get('sizes')})\n"
        yield "| scorer | best-of-n success | AUROC | Spearman | AURC |"
        yield "|---" * 5 + "|"
        for name, told in row["uncertainty"].items():
            best = (pools["by_scorer"][name] or {}).get("success")
            rest = ["-" if told.get(k) is None else f"{told[k]:.3f}" for k in ("spearman", "aurc")]
            yield f"| {name} | {cell(best)} | {cell(told, 'auroc')} | {' | '.join(rest)} |"
        for what, key in (("all attempts", "mean_at_n"), ("best attempt", "oracle_at_n")):
            yield f"| {what} | {cell(pools.get(key, {}).get('success'))} | | | |"
        yield from differences(row)
        yield from choices(row)


def differences(row: Mapping[str, Any]) -> Iterator[str]:
    against = list(next(iter(row["differences"].values())))
    yield "\n| best-of-n success less that of | " + " | ".join(against) + " |"
    yield "|---" * (1 + len(against)) + "|"
    for how, told in row["differences"].items():
        yield f"| {how} | " + " | ".join(cell(told[name]) for name in against) + " |"


def choices(row: Mapping[str, Any]) -> Iterator[str]:
    for what in ("grid", "references"):
        told = row.get(what)
        for figure in ("auroc", "best_of_n") if told else ():
            found = told[figure]
            yield (
                f"\n{what}, {figure}: held-out goals choose `{found['chosen']}`, worth "
                f"{number(found['here'])} on test; the default {number(found['default_here'])}"
                + luck(told, figure)
            )


def luck(told: Mapping[str, Any], figure: str) -> str:
    """The best of the options on test, and what it would be if labels meant nothing."""
    null = told.get("null", {}).get(figure)
    if not null:
        return ""
    best = max((v["tells"][figure] or 0 for v in told["table"].values()), default=0)
    return f"; best on test {best:.3f}, by luck {null['mean']:.3f} (95 %: {null['p95']:.3f})"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the study")
    parser.add_argument("--reference", default="turnbench/tiny", help="checkpoint that RL began from")
    parser.add_argument("--policy", action="append", required=True, help="NAME=FOLDER; repeat")
    parser.add_argument(
        "--scorer",
        action="append",
        default=[],
        help="NAME=SPEC of a further scorer, as in a suite: a value function's folder, or '{scorer: judge, ...}'; "
        "NAME@reference-t0.7=SPEC asks it about that pool alone",
    )
    parser.add_argument("--tasks", type=int, help="test goals; all if left out")
    parser.add_argument("--held-out", type=int, help="held-out goals; all if left out")
    parser.add_argument("--max-depth", type=int, default=99, help="only goals so deep")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--n", type=int, default=8, help="attempts in a pool")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--window", type=int, default=16, help="tokens in a group of DeepConf")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="no merged references")
    options = parser.parse_args()
    rows = []
    for row in Study(options).rows():
        rows.append(row)
        told: dict[str, Any] = {"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}
        (options.out / "study.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main()
