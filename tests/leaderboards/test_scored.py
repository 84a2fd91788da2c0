"""What scores are good for, and choices made by them on held-out tasks."""

import math
from dataclasses import replace

import numpy as np
import pytest

from turnbench.agents.attribution import Label
from turnbench.agents.readers import Measured
from turnbench.agents.turn_scores import Aggregation, grid
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn
from turnbench.leaderboards import choices, said, scored
from turnbench.leaderboards.cases import Case
from turnbench.leaderboards.said import Said
from turnbench.leaderboards.uncertainty import risk_coverage, spearman


def case(task: str, k: int, rng, *, success: bool, turns: int = 3, skill: float = 2.0) -> Case:
    """A path whose tokens the model that played likes more if it succeeds."""
    logs = [rng.normal(skill * success - 3, 1, 2).clip(max=-0.01) for _ in range(turns)]
    rows = [Turn("o", "a", 0.0, None, Tokens(0, (1,), (2, 3), tuple(row.tolist()))) for row in logs]
    path = Trajectory(Task("e", task), (*rows[:-1], rows[-1]), "", Outcome.OK, success=success)
    return Case(f"{task}/{k}", task, task, "train", path, None, success)


def pool(tasks: int = 30, n: int = 4, skill: float = 2.0) -> list[Case]:
    rng = np.random.default_rng(7)
    return [
        case(f"t{t}", k, rng, success=bool(rng.random() < 0.4), skill=skill)
        for t in range(tasks)
        for k in range(n)
    ]


def nothing(cases: list[Case]) -> Said:
    """A reference that likes everything alike."""
    rows = {c.id: Measured([{"logprob": [-3.0, -3.0]} for _ in c.path.turns], 0) for c in cases}
    return Said(rows, {})


def told_of(cases: list[Case]):
    mine, theirs = said.played(cases), nothing(cases)
    return scored.report(cases, scored.rate(cases, mine, theirs, Aggregation()), [mine, theirs])


def test_a_score_that_knows_is_told_from_one_that_doesnt() -> None:
    told = told_of(pool())
    knows, blind = told["uncertainty"]["progress"], told["uncertainty"]["random"]
    assert knows["auroc"] > 0.9 and knows["interval"][0] > blind["interval"][1]
    assert blind["auroc"] == pytest.approx(0.5, abs=0.15)
    best = {name: row["success"]["mean"] for name, row in told["best_of_n"]["by_scorer"].items()}
    assert told["best_of_n"]["oracle_at_n"]["success"]["mean"] >= best["progress"] > best["random"]
    assert told["best_of_n"]["sizes"] == [4] and told["scored"] == told["paths"] == 120


def test_the_difference_of_two_scorers_is_paired_by_pool() -> None:
    cases = pool()
    rated = scored.rate(cases, said.played(cases), nothing(cases), Aggregation())
    knows, blind = rated["progress"], rated["random"]
    best = {
        name: scored.best_of_n(cases, rated[name])["success"]["mean"] for name in ("progress", "random")
    }
    told = scored.difference(cases, knows, blind)
    assert told["mean"] == pytest.approx(best["progress"] - best["random"]) and told["interval"][0] > 0
    assert scored.difference(cases, knows, knows) == {"mean": 0.0, "interval": [0.0, 0.0]}
    assert scored.difference(cases, knows, {cases[0].id: blind[cases[0].id]}) is None


def test_one_class_is_said_to_be_undefined() -> None:
    rng = np.random.default_rng(0)
    cases = [case(f"t{k}", 0, rng, success=False) for k in range(4)]
    told = told_of(cases)
    assert told["uncertainty"]["progress"]["auroc"] is None
    assert told["uncertainty"]["progress"]["why"] == "undefined: all of the 4 paths failed"
    assert told["best_of_n"]["pools"] == 0 and told["best_of_n"]["by_scorer"]["progress"] is None


def test_attribution_counts_labelled_failures() -> None:
    cases = []
    for k in range(4):
        logs = [(-1.0,), (-9.0,), (-1.0,)]
        rows = tuple(Turn("o", "a", 0.0, None, Tokens(0, (1,), (2,), row)) for row in logs)
        path = Trajectory(Task("e", str(k)), rows, "", Outcome.OK, success=False)
        label = Label(1 if k else 0, "b" if k else "a")
        cases.append(Case(str(k), "p", str(k), "", path, None, False, label, ("a", "b", "a")))
    mine = said.played(cases)
    theirs = Said({c.id: Measured([{"logprob": [-2.0]}] * 3, 0) for c in cases}, {})
    rated = scored.rate(cases, mine, theirs, Aggregation())
    told = scored.attribution(cases, rated["progress"])
    assert told["sharpest_drop"] == {"cases": 4, "step": 0.75, "agent": 0.75, "mae": 0.25}
    assert told["guessing"]["step"] == pytest.approx(1 / 3)
    assert scored.attribution(cases[:0], {}) == {}


def test_the_grid_is_chosen_on_other_tasks_than_it_is_told_on() -> None:
    cases = pool()
    one, other = choices.halves(cases)
    assert one and other and not {c.task for c in one} & {c.task for c in other}
    told = choices.aggregation_grid(*choices.halves(cases), said.played(cases), nothing(cases))
    assert len(told["table"]) == len(grid()) == 7 * 7 + 3 * 7
    best = told["auroc"]["chosen"]
    assert told["table"][best]["chooses"]["auroc"] == max(
        row["chooses"]["auroc"] for row in told["table"].values()
    )
    assert told["auroc"]["here"] == told["table"][best]["tells"]["auroc"]


def test_what_is_best_where_it_is_told_is_not_chosen() -> None:
    """One option knows only the tasks that choose, the other only those that tell."""
    cases = pool()
    one, other = choices.halves(cases)

    def knows(some: list[Case]) -> dict[str, tuple[list[float], float]]:
        mine = {c.id for c in some}
        return {c.id: ([], float(bool(c.success)) if c.id in mine else 0.0) for c in cases}

    told = choices.choose(one, other, {"other": knows(other), "one": knows(one)}, "other")
    for figure in ("auroc", "best_of_n"):
        assert told[figure]["chosen"] == "one" and told[figure]["there"] > told[figure]["here"]
        assert told[figure]["default_here"] == told["table"]["other"]["tells"][figure]
    assert told["auroc"] == {"chosen": "one", "there": 1, "here": 0.5, "default_here": 1}


def test_one_option_is_at_chance_under_the_null() -> None:
    cases = pool()
    rated = scored.progress_of(cases, said.played(cases), nothing(cases), Aggregation())
    null = choices.null_spread(cases, {"alone": rated})
    assert null["auroc"]["mean"] == pytest.approx(0.5, abs=0.01) and null["auroc"]["p95"] > 0.52
    wins = [np.mean([bool(c.success) for c in cases if c.pool == p]) for p in {c.pool for c in cases}]
    assert null["best_of_n"]["mean"] == pytest.approx(np.mean(wins), abs=0.02)


def test_the_report_holds_rank_correlation_and_risk() -> None:
    cases = pool()
    row = told_of(cases)["uncertainty"]["progress"]
    rated = scored.progress_of(cases, said.played(cases), nothing(cases), Aggregation())
    scores, won = [rated[c.id][1] for c in cases], [bool(c.success) for c in cases]
    curve = risk_coverage(scores, won)
    assert row["aurc"] == curve.aurc < np.mean([not w for w in won])
    assert len(row["risk_coverage"]) == 20
    assert row["risk_coverage"][-1] == (1.0, pytest.approx(1 - np.mean(won)))
    assert set(row["risk_coverage"]) <= set(zip(curve.coverage, curve.risk, strict=True))
    with_returns = [c._replace(path=replace(c.path, final=str(k))) for k, c in enumerate(cases)]
    assert scored.uncertainty(with_returns, rated)["spearman"] is None  # no return differs
    paid = [
        c._replace(
            path=replace(c.path, turns=(replace(c.path.turns[0], reward=float(bool(c.success))),))
        )
        for c in cases
    ]
    assert scored.uncertainty(paid, rated)["spearman"] == pytest.approx(spearman(scores, won))


def test_a_grid_of_nothing_is_no_grid() -> None:
    """One task is in one half only; and nobody may have said who succeeded."""
    for cases in (pool(tasks=1), [c._replace(success=None) for c in pool()]):
        told = choices.aggregation_grid(*choices.halves(cases), said.played(cases), nothing(cases))
        assert told["null"] == {"auroc": None, "best_of_n": None} or told["null"]["best_of_n"]
        assert told["auroc"]["chosen"] is None and told["auroc"]["here"] is None
    cases = pool()
    told = choices.aggregation_grid(cases, [], said.played(cases), nothing(cases))
    assert told["null"] == {"auroc": None, "best_of_n": None}
    assert told["auroc"]["chosen"] is not None and told["auroc"]["here"] is None


def test_what_needs_no_model_is_scored_without_one() -> None:
    cases = pool()
    mine = Said({}, {c.id: "name a policy" for c in cases})
    told = scored.report(cases, scored.rate(cases, mine, None, Aggregation()), [mine])
    assert told["uncertainty"]["length"]["auroc"] == 0.5 and told["failed"] == {"name a policy": 120}
    assert told["best_of_n"]["by_scorer"]["random"]["success"]["mean"] > 0
    assert scored.uncertainty(cases, {})["why"] == "undefined: no path could be scored"
    blind = [c._replace(success=None) for c in cases]
    told = scored.uncertainty(blind, scored.rate(blind, mine, None, Aggregation())["random"])
    assert told["why"] == "undefined: no path says whether it succeeded"


def test_rules_need_every_turn_and_a_judge_names_the_step() -> None:
    cases = read_cases_with_labels()
    rated = {c.id: ([math.nan] * 2 + [0.4], 0.4) for c in cases}
    assert scored.attribution(cases, rated) == {}
    told = scored.attribution(cases, rated, {c.id: 1 for c in cases[:3]})
    assert told.keys() == {"named", "guessing"} and told["named"]["cases"] == 3
    assert told["named"]["step"] == pytest.approx(2 / 3)


def read_cases_with_labels() -> list[Case]:
    turns = tuple(Turn("o", "a", 0.0) for _ in range(3))
    path = Trajectory(Task("e", "t"), turns, "", Outcome.OK, success=False)
    return [Case(str(k), "p", str(k), "", path, None, False, Label(1 if k else 0)) for k in range(4)]


def test_the_best_of_a_grid_is_above_chance_for_nothing() -> None:
    """With scores that know nothing the null spread holds what picking the best brings."""
    cases = pool(skill=0.0)
    told = choices.aggregation_grid(*choices.halves(cases), said.played(cases), nothing(cases))
    assert 0.53 < told["null"]["auroc"]["mean"] < told["null"]["auroc"]["p95"] < 0.8
    best = max(row["tells"]["auroc"] for row in told["table"].values())
    assert abs(best - told["null"]["auroc"]["mean"]) < 0.15
    _, other = choices.halves(cases)
    base = sum(bool(c.success) for c in other) / len(other)
    assert told["null"]["best_of_n"]["mean"] > base


def test_a_threshold_keeps_its_false_alarms() -> None:
    cases = pool(tasks=60)
    rated = scored.progress_of(cases, said.played(cases), nothing(cases), Aggregation())
    for allowed in (0.0, 0.1, 0.3):
        told = choices.threshold(cases, rated, how="mean", after=2, false_alarms=allowed)
        assert told["false_alarms"] <= allowed + 1e-9 and told["detected"] > 0.3
    assert told["held_out"]["detected"] > told["held_out"]["false_alarms"]
    wins = [c for c in cases if c.success]
    exact = choices.threshold(cases, rated, how="mean", after=2, false_alarms=7 / len(wins))
    assert exact["false_alarms"] == 7 / len(wins)  # though 7 / n * n may be a little less
    with pytest.raises(ConfigError, match="judge earlier"):
        choices.threshold(cases, rated, how="mean", after=9, false_alarms=0.0)
    with pytest.raises(ConfigError, match="succeeded and paths that failed"):
        choices.threshold([c for c in cases if c.success], rated, how="mean", after=1, false_alarms=0.1)
    assert choices.lowest([1.0], "mean", 2) == math.inf
