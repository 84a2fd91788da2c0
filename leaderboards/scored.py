"""Scores of logged paths, and what they are good for: choosing among attempts, knowing which succeeded,
finding the decisive mistake.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from turnbench.agents.attribution import RULES, Label, chance, decisive_step, judge
from turnbench.agents.confidence import (
    Confidence,
    DeepConf,
    DeepConfBottom,
    DeepConfLowest,
    DeepConfTail,
    Entropy,
    MeanLogprob,
    Perplexity,
    SelfCertainty,
)
from turnbench.agents.progress import ProgressAdvantage, turn_advantages
from turnbench.agents.turn_scores import Aggregation, Rated, aggregate
from turnbench.leaderboards.cases import Case, speakers_of
from turnbench.leaderboards.said import Asked, Said
from turnbench.leaderboards.statistics import cluster_bootstrap, mean
from turnbench.leaderboards.uncertainty import Undefined, auroc_interval, risk_coverage, spearman

# --- scores ---------------------------------------------------------------------------------------

STRIPS = {
    "progress": ProgressAdvantage.strip,
    **{
        cls.name: cls.strip
        for cls in (MeanLogprob, Perplexity, Entropy, SelfCertainty)
        + (DeepConfTail, DeepConfBottom, DeepConfLowest)
    },
}
"""What a page calls the numbers by turn of the scorers in `rate`; the others of them aren't drawn."""


def confidences(window: int, repo_compat: bool) -> list[Confidence]:
    """The baselines that are read off one model's measures."""
    cls: type[DeepConf]
    made: list[Confidence] = [Entropy(policy=""), SelfCertainty(policy="", repo_compat=repo_compat)]
    for cls in (DeepConfTail, DeepConfBottom, DeepConfLowest):
        made.append(cls(policy="", window=window, repo_compat=repo_compat))
    return made


def rate(
    cases: Sequence[Case],
    policy: Said,
    reference: Said | None,
    how: Aggregation,
    *,
    window: int = 2048,
    repo_compat: bool = False,
    seed: int = 0,
) -> dict[str, dict[str, Rated]]:
    """Every scorer's numbers by turn and score, for each case that all models could read; what needs no model
    rates all cases where none could be."""
    both = read_by(cases, policy, *([] if reference is None else [reference]))
    rated: dict[str, dict[str, Rated]] = {}
    if reference is not None:
        rated["progress"] = progress_of(both, policy, reference, how)
    scorers: list[Confidence] = [MeanLogprob(), Perplexity(), *confidences(window, repo_compat)]
    for scorer in scorers:
        if both and scorer.column in policy.found[both[0].id].turns[0]:
            rated[scorer.name] = {
                c.id: scorer.rate_tokens(policy.found[c.id].column(scorer.column)) for c in both
            }
    rng, plain = np.random.default_rng(seed), both or cases
    rated["length"] = {c.id: ([-1.0] * len(c.path.turns), -float(len(c.path.turns))) for c in plain}
    rated["random"] = {c.id: _at_random(len(c.path.turns), rng) for c in plain}
    rated["return (oracle)"] = {c.id: ([t.reward for t in c.path.turns], c.path.ret) for c in plain}
    return rated


def _at_random(turns: int, rng: np.random.Generator) -> Rated:
    numbers = rng.random(turns).tolist()
    return numbers, float(rng.random())


def read_by(cases: Sequence[Case], *said: Said) -> list[Case]:
    """The cases that all of these models could read."""
    return [case for case in cases if all(case.id in one.found for one in said)]


def progress_of(
    cases: Sequence[Case], policy: Said, reference: Said, how: Aggregation
) -> dict[str, Rated]:
    """Progress Advantage, under one way to aggregate, of the cases that both models could read."""
    rated = {}
    for case in read_by(cases, policy, reference):
        mine, theirs = policy.found[case.id], reference.found[case.id]
        numbers = turn_advantages(mine.column("logprob"), theirs.column("logprob"), how)
        rated[case.id] = (numbers, aggregate(how.turn, numbers))
    return rated


# --- what scores are good for ---------------------------------------------------------------------


def best_of_n(cases: Sequence[Case], rated: Mapping[str, Rated]) -> dict[str, Any] | None:
    """How well the best-scored case of each pool does: share of successes and mean return, with intervals
    over tasks. None where no pool has two cases."""
    pools = _pools(cases, rated)
    if not pools:
        return None
    chosen = _chosen(pools, rated)
    return {"return": _cell((c.task, c.path.ret) for c in chosen), **_success(chosen)}


def success_of_best(cases: Sequence[Case], rated: Mapping[str, Rated]) -> float | None:
    """The share of successes alone, without an interval."""
    judged = [case for case in cases if case.success is not None]
    chosen = _chosen(_pools(judged, rated), rated)
    return float(np.mean([bool(case.success) for case in chosen])) if chosen else None


def difference(
    cases: Sequence[Case], one: Mapping[str, Rated], other: Mapping[str, Rated]
) -> dict[str, Any] | None:
    """How much more often what `one` chooses succeeds than what `other` chooses from the same pools, with an
    interval over tasks. None where no pool has two cases that both rate and that are judged."""
    judged = [case for case in cases if case.success is not None and case.id in other]
    pools = _pools(judged, one)
    if not pools:
        return None
    pairs = zip(_chosen(pools, one), _chosen(pools, other), strict=True)
    return _cell((a.task, float(bool(a.success)) - float(bool(b.success))) for a, b in pairs)


def _pools(cases: Sequence[Case], rated: Mapping[str, Rated]) -> list[list[Case]]:
    pools: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.id in rated:
            pools[case.pool].append(case)
    return [pool for pool in pools.values() if len(pool) > 1]


def _chosen(pools: Sequence[Sequence[Case]], rated: Mapping[str, Rated]) -> list[Case]:
    """The best-scored case of each pool."""
    return [max(pool, key=lambda c: rated[c.id][1]) for pool in pools]


def _success(chosen: Sequence[Case]) -> dict[str, Any]:
    judged = [case for case in chosen if case.success is not None]
    return {"success": _cell((c.task, float(bool(c.success))) for c in judged)} if judged else {}


def _cell(values: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """The mean of values, each of a task, with an interval over tasks."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, value in values:
        by_task[task].append(value)
    return {"mean": mean(by_task), "interval": list(cluster_bootstrap(by_task))}


def pools_alone(cases: Sequence[Case], rated: Mapping[str, Rated]) -> dict[str, Any]:
    """The pools as they are: their number and sizes, the mean of all attempts, and the best one's."""
    pools = _pools(cases, rated)
    if not pools:
        return {"pools": 0}
    best = [max(pool, key=lambda c: (bool(c.success), c.path.ret)) for pool in pools]
    everyone = [case for pool in pools for case in pool]
    return {
        "pools": len(pools),
        "sizes": sorted({len(pool) for pool in pools}),
        "mean_at_n": _success(everyone),
        "oracle_at_n": _success(best),
    }


def uncertainty(cases: Sequence[Case], rated: Mapping[str, Rated]) -> dict[str, Any]:
    """AUROC of success with its interval, rank correlation with the return, risk by coverage and the area
    under it."""
    known = [c for c in cases if c.id in rated and c.success is not None]
    if not known:
        why = "says whether it succeeded" if rated else "could be scored"
        return {"auroc": None, "why": f"undefined: no path {why}"}
    scores = [rated[c.id][1] for c in known]
    won = [bool(c.success) for c in known]
    curve = risk_coverage(scores, won)
    told: dict[str, Any] = {"aurc": curve.aurc, "paths": len(known), "risk_coverage": curve.some()}
    try:
        value, interval = auroc_interval(scores, won, [c.task for c in known])
        told |= {"auroc": value, "interval": list(interval)}
    except Undefined as why:
        told |= {"auroc": None, "why": str(why)}
    try:
        told["spearman"] = spearman(scores, [c.path.ret for c in known])
    except Undefined:
        told["spearman"] = None
    return told


def attribution(
    cases: Sequence[Case], rated: Mapping[str, Rated], steps: Mapping[str, int | None] | None = None
) -> dict[str, Any]:
    """Each rule's accuracy on failed cases with a label; `named` is that of `steps`, for who names them.
    Rules need a number for every turn."""
    failed = [c for c in cases if c.label is not None and c.success is not True]
    whole = [c for c in failed if c.id in rated and rated[c.id][0] and _finite(rated[c.id][0])]
    named = [c for c in failed if c.id in (steps or {})]
    told = {}
    for rule in RULES if whole else ():
        told[rule] = _verdict(whole, [decisive_step(rule, rated[c.id][0]) for c in whole])
    if steps and named:
        told["named"] = _verdict(named, [steps[c.id] for c in named])
    if told:
        told["guessing"] = chance(*_labels(whole or named))._asdict()
    return told


def _verdict(cases: Sequence[Case], steps: Sequence[int | None]) -> dict[str, Any]:
    return judge(steps, *_labels(cases))._asdict()


def _labels(cases: Sequence[Case]) -> tuple[list[Label], list[tuple[str, ...]]]:
    return [c.label for c in cases if c.label is not None], [speakers_of(c) for c in cases]


def _finite(numbers: Sequence[float]) -> bool:
    return all(map(math.isfinite, numbers))


def report(
    cases: Sequence[Case],
    rated: Mapping[str, Mapping[str, Rated]],
    said: Sequence[Said],
    asked: Sequence[Asked] = (),
) -> dict[str, Any]:
    """All of it, by scorer; and what couldn't be scored, by cause. `asked`: who of `rated` was asked
    beside models."""
    first, steps = max(rated.values(), key=len), {one.name: one.steps for one in asked}
    models = {case: why for one in said for case, why in one.failed.items()}
    failures = Counter([*models.values(), *(why for one in asked for why in one.failed.values())])
    cut = {c for one in said for c, m in one.found.items() if m.cut}
    return {
        "paths": len(cases),
        "scored": len(first),
        "failed": dict(failures.most_common(20)),
        "without_verdict": {one.name: count for one in asked if (count := one.silent)},
        "paths_cut_from_the_left": len(cut),
        "turns_cut_from_the_left": max(
            (sum(m.cut for m in one.found.values()) for one in said), default=0
        ),
        "best_of_n": pools_alone(cases, first)
        | {"by_scorer": {name: best_of_n(cases, values) for name, values in rated.items()}},
        "uncertainty": {name: uncertainty(cases, values) for name, values in rated.items()},
        "attribution": {
            name: attribution(cases, values, steps.get(name)) for name, values in rated.items()
        },
    }


def turn_rows(
    cases: Sequence[Case], rated: Mapping[str, Mapping[str, Rated]]
) -> Iterator[dict[str, Any]]:
    """One row a case: its numbers by turn and its scores."""
    for case in cases:
        mine = {name: values[case.id] for name, values in rated.items() if case.id in values}
        if mine:
            yield {
                "case": case.id,
                "success": case.success,
                "return": case.path.ret,
                "scores": {name: _plain(score) for name, (_, score) in mine.items()},
                "turns": {name: [_plain(x) for x in numbers] for name, (numbers, _) in mine.items()},
            }


def _plain(number: float) -> float | None:
    return float(f"{number:.6g}") if math.isfinite(number) else None
