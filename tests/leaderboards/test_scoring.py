"""Scoring after the fact: cases of every kind, what scores are good for, and the commands on a real run."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnbench.agents.attribution import Label
from turnbench.agents.readers import Measured
from turnbench.agents.scorers import make_scorer
from turnbench.agents.turn_scores import Aggregation, grid
from turnbench.envs.errors import ConfigError, LogError
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn
from turnbench.leaderboards import choices, said, scored
from turnbench.leaderboards.cases import Case, read_cases
from turnbench.leaderboards.cli import app
from turnbench.leaderboards.said import Said
from turnbench.leaderboards.uncertainty import risk_coverage, spearman

WHO_AND_WHEN = Path(__file__).parents[3] / "shared" / "data" / "who_and_when"


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


# --- cases ----------------------------------------------------------------------------------------

TALK = [
    {"role": "system", "content": "Craft."},
    {"role": "user", "content": "Goal: craft stick."},
    {"role": "assistant", "content": "get 2 oak log", "name": "a"},
    {"role": "user", "content": "Got 2 oak log"},
    {"role": "assistant", "content": "inventory", "name": "b"},
]


def test_conversations_are_cases(tmp_path) -> None:
    row = {"messages": TALK, "task": "x", "success": False, "mistake_step": 4, "mistake_agent": "b"}
    (tmp_path / "a.jsonl").write_text(
        f"{json.dumps(row)}\n\n{json.dumps({'messages': TALK})}\n", encoding="utf-8"
    )
    first, second = read_cases(tmp_path / "a.jsonl").cases
    assert (first.success, first.label, first.speakers) == (False, Label(1, "b"), ("a", "b"))
    assert first.path.turns[0].observation == "Craft.\nGoal: craft stick."
    assert second.success is None and second.label is None and first.said.actions == (2, 4)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1 is no JSON"),
        ("[1]", "no JSON object"),
        ('{"messages": [{"role": "user"}]}', "a role and a content"),
        ('{"messages": [], "success": "yes"}', "success is 'yes'"),
        ('{"messages": [], "mistake_step": "one"}', "no whole number"),
        ('{"messages": []}', "no path that could be scored"),
    ],
)
def test_bad_conversations_are_named(tmp_path, line, why) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(LogError, match=why):
        read_cases(tmp_path / "a.jsonl")
    with pytest.raises(LogError, match="No such file"):
        read_cases(tmp_path / "none")


@pytest.mark.skipif(not WHO_AND_WHEN.is_dir(), reason="needs ../shared/data/who_and_when")
def test_who_and_when_is_read_with_its_labels() -> None:
    found = read_cases(WHO_AND_WHEN).cases
    assert len(found) == len({c.id for c in found}) == 11
    assert all(c.success is False and c.label for c in found)
    for one in found:
        assert 0 <= one.label.step < len(one.speakers) == len(one.path.turns)
    named = [one.speakers[one.label.step] == one.label.agent for one in found]
    assert sum(named) == 9  # the labels of two name another than who speaks at their step
    told = scored.attribution(
        found, {c.id: ([-float(k == 1) for k in range(len(c.speakers))], 0) for c in found}
    )
    assert told["sharpest_drop"]["cases"] == 11 and 0 < told["sharpest_drop"]["step"] < 1


# --- the commands on a real run -------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> str:
    """The shipped model with a little noise."""
    torch = pytest.importorskip("torch")
    from turnbench.agents.hf import load_checkpoint

    folder = tmp_path_factory.mktemp("reference")
    tokenizer, network = load_checkpoint("turnbench/tiny", "cpu")
    torch.manual_seed(0)
    for weight in network.parameters():
        weight += 0.02 * weight.std().nan_to_num() * torch.randn_like(weight)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    """A run of a suite whose best-of-n chooses by Progress Advantage, and whose react is monitored."""
    from turnbench.leaderboards.runner import run
    from turnbench.leaderboards.suite import parse_suite
    from turnbench.leaderboards.yamlfile import dump_yaml, parse_yaml

    by = {"scorer": "progress", "reference": reference}
    watch = {"agent": "monitor", "model": "tiny", "instructions": False, "watch": by, "threshold": -9.0}
    suite = {
        "suite": "scoring",
        "envs": [{"id": "turnbench/TextCraft-v0", "split": "train", "tasks": 3, "max_turns": 4}],
        "models": {"tiny": {"backend": "hf", "path": "turnbench/tiny", "max_tokens": 24}},
        "agents": {
            "best": {"agent": "best_of_n", "model": "tiny", "n": 3, "instructions": False, "scorer": by},
            "watched": watch,
        },
    }
    out = tmp_path_factory.mktemp("run")
    assert run(parse_suite(parse_yaml(dump_yaml(suite), "s.yaml")), out, workers=2).complete
    return out


def turnbench(*arguments: str, capsys) -> str:
    with pytest.raises(SystemExit) as left:
        app([str(a) for a in arguments])
    assert not left.value.code
    return capsys.readouterr().out


def test_a_suite_may_choose_and_watch_by_progress_advantage(folder) -> None:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"best's reference", "watched's reference"} < rows[0]["checkpoints"].keys()
    for row in rows[1:]:
        for path in row["population"]["trajectories"]:
            (numbers,) = path["info"]["turn_scores"].values()
            assert len(numbers) == len(path["turns"])


def test_score_tells_and_shows_and_resumes(folder, reference, tmp_path, capsys, monkeypatch) -> None:
    arguments = ["score", folder, "--policy", "turnbench/tiny", "--reference", reference, "--grid"]
    told = json.loads(turnbench(*arguments, "--out", tmp_path, "--json", capsys=capsys))
    assert told["paths"] == told["scored"] == 12 and not told["failed"]
    assert {"progress", "entropy", "DeepConf tail", "mean log-prob"} < told["uncertainty"].keys()
    assert told["best_of_n"]["pools"] == 3 and told["grid"]["table"]
    rows = [json.loads(r) for r in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    logged = [json.loads(r) for r in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    scores = {r["case"]: r["scores"]["progress"] for r in rows}
    for line in logged:
        agent, env, task, seed = line["key"]
        for k, score in enumerate(line["population"]["scores"]):
            assert scores[f"{agent}/{env}/{task}/{seed}/{k}"] == pytest.approx(score, abs=1e-4)
    page = turnbench("view", tmp_path, "--html", tmp_path / "page.html", capsys=capsys)
    assert "wrote" in page and "token confidence [nats]" in (tmp_path / "page.html").read_text(
        encoding="utf-8"
    )
    monkeypatch.setattr(said, "reading", None)  # nothing is read again
    again = json.loads(turnbench(*arguments, "--out", tmp_path, "--json", capsys=capsys))
    assert again == told
    now = [json.loads(r) for r in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    assert now == rows  # to the last digit
    shown = turnbench(*arguments, "--out", tmp_path, capsys=capsys)
    assert "AUROC" in shown and "aggregation" in shown


def test_references_and_thresholds_are_chosen(folder, reference, tmp_path, capsys) -> None:
    arguments = ["--policy", "turnbench/tiny", "--reference", f"noisy={reference}", "--alphas", "0.5,1"]
    told = json.loads(
        turnbench("references", folder, *arguments, "--out", tmp_path, "--json", capsys=capsys)
    )
    assert list(told["table"]) == ["noisy", "noisy+0.5", "noisy+1"]
    assert "reference" in turnbench("references", folder, *arguments, "--out", tmp_path, capsys=capsys)


def test_the_threshold_command_prints_what_keeps_its_promise(
    folder, reference, tmp_path, capsys
) -> None:
    """On a copy of the run in which every other path has succeeded."""
    rows = [json.loads(r) for r in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows[1:]:
        for k, path in enumerate(row["population"]["trajectories"]):
            path["success"] = bool(k % 2)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
    arguments = ["threshold", tmp_path, "--reference", reference, "--false-alarms", "0", "--after", "1"]
    told = json.loads(turnbench(*arguments, "--json", capsys=capsys))
    shown = turnbench(*arguments, capsys=capsys)
    assert float(shown.split()[1]) == told["threshold"] and told["false_alarms"] == 0
    assert "of failures" in shown and told["held_out"] is not None


def test_results_of_another_source_are_neither_used_nor_overwritten(
    folder, reference, tmp_path, capsys
) -> None:
    """Lines 1 of two files are two paths."""
    told = []
    for name, said_last in (("a", TALK), ("b", [*TALK[:-1], {**TALK[-1], "content": "stop"}])):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(json.dumps({"messages": said_last}) + "\n", encoding="utf-8")
        arguments = ["score", file, "--policy", "turnbench/tiny", "--reference", reference]
        alone = turnbench(*arguments, "--out", tmp_path / name, "--json", capsys=capsys)
        shared = turnbench(*arguments, "--out", tmp_path / "one", "--json", capsys=capsys)
        assert json.loads(alone) == json.loads(shared)
        told.append((tmp_path / "one" / "scores.jsonl").read_text(encoding="utf-8"))
        assert told[-1] == (tmp_path / name / "scores.jsonl").read_text(encoding="utf-8")
    assert told[0] != told[1]
    arguments = ["score", tmp_path / "a.jsonl", "--policy", "turnbench/tiny", "--out", folder]
    with pytest.raises(ConfigError, match="a run of its own"):
        app([str(a) for a in arguments], standalone_mode=False)
    assert not (folder / "scores.jsonl").exists()


def test_wrong_commands_say_why(folder, reference, tmp_path, capsys) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": TALK}) + "\n", encoding="utf-8")
    for arguments, why in (
        (["score", tmp_path / "a.jsonl", "--reference", reference], "name a policy"),
        (["score", folder, "--reference", reference, "--alpha", "0.5"], "--policy, which is left out"),
        (["score", folder, "--server", "http://127.0.0.1:1/v1"], "--server needs --policy"),
        (["score", folder, "--scorer", "{scorer: "], "no YAML"),
        (["references", folder, "--policy", "p", "--reference", "x"], "NAME=FOLDER"),
        (["references", folder, "--policy", "p", "--reference", "x=a", "--reference", "x=b"], "two 'x'"),
        (["score", folder, "--reference", reference, "--text", "chat"], "needs a --policy"),
        (["threshold", tmp_path / "a.jsonl", "--reference", reference], "train split"),
    ):
        with pytest.raises((ConfigError, LogError), match=why):
            app([str(a) for a in arguments], standalone_mode=False)


def test_conversations_are_scored_with_a_policy(reference, tmp_path, capsys) -> None:
    row = {"messages": TALK[1:], "success": False, "mistake_step": 3, "mistake_agent": "b"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    told = json.loads(
        turnbench(
            "score", tmp_path / "a.jsonl", "--policy", "turnbench/tiny", "--reference", reference,
            "--scorer", "length", "--json", capsys=capsys,
        )
    )  # fmt: skip
    assert told["scored"] == 1 and told["attribution"]["progress"]["argmin"]["cases"] == 1


def test_further_scorers_score_as_an_agent_would(folder, tmp_path, capsys) -> None:
    """DeepConf's score is of windows of tokens, not of what turns' numbers make."""
    spec = {"scorer": "deepconf_lowest", "policy": "turnbench/tiny", "window": 4}
    text = json.dumps(spec)
    arguments = ["score", folder, "--policy", "turnbench/tiny", "--window", "4", "--out", tmp_path]
    told = json.loads(
        turnbench(
            *arguments, "--scorer", text, "--scorer", text, "--scorer", "random", "--json", capsys=capsys
        )
    )
    assert {f"DeepConf lowest group{k}" for k in ("", " (2)", " (3)")} < told["uncertainty"].keys()
    rows = [json.loads(r) for r in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    paths = {case.id: case.path for case in read_cases(folder).cases}
    asked = make_scorer(spec).score([paths[row["case"]] for row in rows], np.random.default_rng(0))
    for row, score in zip(rows, asked, strict=True):
        for name in ("DeepConf lowest group", "DeepConf lowest group (2)"):
            assert row["scores"][name] == pytest.approx(score, abs=1e-4)
        assert row["turns"]["DeepConf lowest group (3)"]
