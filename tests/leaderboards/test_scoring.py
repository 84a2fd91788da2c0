"""Scoring after the fact: cases of every kind, and the commands on a real run."""

import json
from pathlib import Path

import numpy as np
import pytest

from turnbench.agents.attribution import Label
from turnbench.agents.scorers import make_scorer
from turnbench.envs.errors import ConfigError, LogError
from turnbench.leaderboards import said, scored
from turnbench.leaderboards.cases import read_cases
from turnbench.leaderboards.cli import app

WHO_AND_WHEN = Path(__file__).parents[3] / "shared" / "data" / "who_and_when"

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
        ('{"messages": [], "mistake_step": 1.9}', "mistake_step is 1.9, no whole number"),
        ('{"messages": [], "mistake_step": 1e999}', "no whole number"),
        ('{"messages": [], "mistake_step": true}', "mistake_step is True"),
        ('{"messages": [], "mistake_step": 1}', "mistake_step is 1, but there are 0 messages"),
        ('{"messages": []}', "no path that could be scored"),
    ],
)
def test_bad_conversations_are_named(tmp_path, line, why) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(LogError, match=why):
        read_cases(tmp_path / "a.jsonl")
    with pytest.raises(LogError, match="No such file"):
        read_cases(tmp_path / "none")


@pytest.mark.parametrize(("at", "step"), [(2, 0), (3, 1), (4, 1)])
def test_a_mistake_that_is_no_action_is_the_action_behind_it(tmp_path, at, step) -> None:
    row = {"messages": TALK, "success": False, "mistake_step": at}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_cases(tmp_path / "a.jsonl").cases[0].label == Label(step)


@pytest.mark.parametrize("label", [{"step": 4}, {"step": -1}, {"step": 1.5}, {"step": True}, 3, {}])
def test_a_label_outside_its_path_is_named(folder, tmp_path, label) -> None:
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[1])
    row["population"]["trajectories"][0].setdefault("info", {})["label"] = label
    lines[1] = json.dumps(row)
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(LogError, match="its label is .*; a step from 0 to . is wanted"):
        read_cases(tmp_path)


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
