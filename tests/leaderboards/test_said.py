"""What models and scorers say of logged paths: kept, gone on with, and never taken for another path's."""

import json
import shutil
from pathlib import Path

import pytest

from turnbench.agents import shipped_path
from turnbench.agents.attribution import Label
from turnbench.agents.model import ScriptedModel
from turnbench.agents.readers import Measured
from turnbench.agents.reward_models import Judge
from turnbench.envs.errors import LogError, ModelError, Unanswered, Unscored
from turnbench.envs.record import Failure, Outcome
from turnbench.leaderboards import said, scored
from turnbench.leaderboards.cases import read_cases


def test_a_damaged_file_of_measures_is_named_and_a_torn_line_dropped(tmp_path) -> None:
    kept, cases = said.Measures(tmp_path), read_cases(conversations(tmp_path, 3)).cases
    one, two, three = (case.id for case in cases)
    first, second = {one: Measured([{"logprob": [-1.0]}], 0)._asdict()}, {two: {"failure": "too long"}}
    kept.write("k", first, cases)
    kept.write("k", second, cases)
    with kept.path.open("ab") as file:
        file.write(b'{"key": "k", "ca')
    found = dict(kept.of("k", cases))
    assert found.keys() == {one, two} and found[two]["failure"] == "too long"
    assert Measured(found[one]["turns"], found[one]["cut"]) == ([{"logprob": [-1.0]}], 0)
    kept.write("other", {three: {"failure": "x"}}, cases)
    assert dict(kept.of("other", cases)).keys() == {three} and not dict(kept.of("none", cases))
    for bad in (
        "nonsense",
        "5",
        '{"key": "k", "path": "p", "turns": 5, "cut": 0}',
        '{"key": "k", "path": "p", "turns": [{"logprob": [null]}], "cut": 0}',
        '{"key": "k", "path": "p", "turns": []}',
        '{"key": "k", "path": "p", "numbers": ["x"], "score": 0}',
        '{"key": "k", "path": "p", "failure": 3}',
    ):
        kept.path.write_text(bad + "\n", encoding="utf-8")
        with pytest.raises(LogError, match="line 1 is damaged"):
            dict(kept.of("k", cases))


def test_a_path_is_what_it_holds_and_not_what_it_is_called(tmp_path) -> None:
    one, two, three = read_cases(conversations(tmp_path, 3)).cases
    kept = said.Measures(tmp_path)
    kept.write("k", {one.id: {"failure": "a"}, two.id: {"failure": "b"}}, [one, two])
    renamed, swapped = one._replace(id="new"), two._replace(id=one.id)
    found = dict(kept.of("k", [renamed, swapped, three]))
    assert {case: row["failure"] for case, row in found.items()} == {"new": "a", one.id: "b"}


class Spy:
    """A stand-in for `make_scorer` that hands out one scorer and counts what it is asked."""

    def __init__(self, scorer) -> None:
        self.scorer, self.asked = scorer, 0
        turns = scorer.turns

        def counted(paths):
            found = turns(paths)
            self.asked += len(paths)
            return found

        scorer.turns = counted

    def __call__(self, spec):
        return self.scorer


def judge(*answers: str) -> Judge:
    said = iter(answers)
    return Judge(ScriptedModel(lambda prompt: next(said)))


def test_a_scorers_words_are_kept_and_not_asked_for_again(tmp_path, monkeypatch) -> None:
    cases = read_cases(conversations(tmp_path, 3)).cases
    spy, kept, spec = Spy(judge("0.25", "no idea", "1")), said.Measures(tmp_path), {"scorer": "judge"}
    monkeypatch.setattr(said, "make_scorer", spy)
    told: list[tuple[str, int, int]] = []
    first = said.ask(spec, cases[:2], kept, tell=lambda *row: told.append(row))
    assert [score for _, score in first.rated.values()] == [0.25, 0.5] and first.silent == 1
    assert spy.asked == 2 and told == [("judge", 2, 2)]
    whole = said.ask(spec, cases, kept)
    assert spy.asked == 3 and [score for _, score in whole.rated.values()] == [0.25, 0.5, 1]
    again = said.ask(spec, cases, said.Measures(tmp_path))
    assert spy.asked == 3 and str(again) == str(whole)
    assert not said.ask({**spec, "model": {}}, cases[:0], kept).rated


def test_an_outage_stops_and_what_was_said_stays(tmp_path, monkeypatch) -> None:
    cases = read_cases(conversations(tmp_path, 3)).cases
    busy = Failure(Outcome.INFRA_ERROR, "busy")
    answers, asked = iter(["0.25", busy, "1", busy, "0.5"]), list[str]()

    def answer(prompt):
        asked.append(prompt.messages[0].content)
        return next(answers)

    monkeypatch.setattr(said, "make_scorer", lambda spec: Judge(ScriptedModel(answer)))
    kept = said.Measures(tmp_path)
    with pytest.raises(Unanswered, match="busy"):
        said.ask("judge", cases, kept)
    assert asked == [*asked[:3], asked[1]]  # whom it had answered wasn't asked again
    found = said.ask("judge", cases, kept)
    assert [found.rated[c.id][1] for c in cases] == [0.25, 0.5, 1] and not found.failed
    assert asked[4:] == asked[1:2]


def test_a_case_that_a_scorer_cant_score_is_named(tmp_path, monkeypatch) -> None:
    cases = read_cases(conversations(tmp_path, 3)).cases
    scorer = judge()

    def turns(paths):
        if any("1" in path.turns[0].text for path in paths):
            raise Unscored("no number")
        return [[0.5] * len(path.turns) for path in paths]

    scorer.turns = turns
    monkeypatch.setattr(said, "make_scorer", lambda spec: scorer)
    for _ in range(2):  # asked, and from the file
        found = said.ask("judge", cases, said.Measures(tmp_path))
        assert found.failed == {cases[1].id: "no number"} and len(found.rated) == 2
    rated = {"judge": found.rated}
    told = scored.report(cases, rated, [], [found])
    assert told["failed"] == {"no number": 1} and told["scored"] == 2


def conversations(folder: Path, count: int) -> Path:
    rows = [
        {
            "messages": [
                {"role": "user", "content": "Goal: craft stick."},
                {"role": "assistant", "content": f"get {k} oak log"},
            ]
        }
        for k in range(count)
    ]
    file = folder / "talks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_a_judge_names_the_step_of_labelled_failures_alone(tmp_path, monkeypatch) -> None:
    cases = read_cases(conversations(tmp_path, 3)).cases
    cases[1] = cases[1]._replace(success=False, label=Label(0))
    spy = Spy(judge("0.1", "0.2", "0.3", "1"))
    monkeypatch.setattr(said, "make_scorer", spy)
    for _ in range(2):  # asked, and from the file
        found = said.ask("judge", cases, said.Measures(tmp_path))
        assert found.steps == {cases[1].id: 0}
    assert scored.report(cases, {"judge": found.rated}, [], [found])["attribution"]["judge"][
        "named"
    ] == {
        **{"cases": 1, "step": 1.0, "mae": 0.0},
        "agent": None,
    }


def shipped(folder: Path, file: str = "", change=None) -> str:
    """A copy of the shipped model, of which one JSON file is changed."""
    pytest.importorskip("torch")
    shutil.copytree(shipped_path("turnbench/tiny"), folder)
    if file:
        row = json.loads((folder / file).read_text(encoding="utf-8"))
        change(row)
        (folder / file).write_text(json.dumps(row), encoding="utf-8")
    return str(folder)


def swap_two_words(row) -> None:
    words = row["model"]["vocab"]
    one, other = sorted(words, key=words.get)[-2:]
    words[one], words[other] = words[other], words[one]


def test_models_that_differ_in_vocabulary_are_refused(tmp_path) -> None:
    two = shipped(tmp_path / "two", "tokenizer.json", swap_two_words)
    cases = read_cases(conversations(tmp_path, 2)).cases
    with pytest.raises(ModelError, match="different vocabularies"):
        said.say(two, cases, said.Measures(None), writer="turnbench/tiny")


def test_numbers_that_are_none_are_counted_by_cause(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from turnbench.agents.hf import load_checkpoint

    tokenizer, network = load_checkpoint("turnbench/tiny", "cpu")
    network.get_output_embeddings().weight[5] = torch.nan
    network.save_pretrained(tmp_path / "nan")
    tokenizer.save_pretrained(tmp_path / "nan")
    cases = read_cases(conversations(tmp_path, 2)).cases
    found = said.say(str(tmp_path / "nan"), cases, said.Measures(None), names=said.WHOLE)
    assert not found.found and len(found.failed) == 2
    assert all("log-prob that is no finite number" in why for why in found.failed.values())
    (one, _) = cases
    lost = said.Said({}, {})
    said._take_measured(
        one.id, Measured([{"logprob": [-1.0], "top": [float("-inf")]}], 0), ["logprob", "top"], "m", lost
    )
    assert lost.failed == {one.id: "turn 1: m gave a top that is no finite number"}


def test_turns_that_a_context_cuts_are_reported(tmp_path) -> None:
    short = shipped(
        tmp_path / "short", "config.json", lambda row: row.update(max_position_embeddings=48)
    )
    long = "turnbench/tiny"
    rows = [{"role": r, "content": "get 2 oak log"} for _ in range(6) for r in ("user", "assistant")]
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"messages": rows, "success": True}) + "\n", encoding="utf-8")
    cases = read_cases(file).cases
    found = said.say(short, cases, said.Measures(None))
    assert 0 < found.found["1"].cut < 6
    whole = said.say(long, cases, said.Measures(None))
    same = said.say(long, cases, said.Measures(None), context=48)
    assert whole.found["1"].cut == 0 and same.found["1"].cut == found.found["1"].cut
    told = scored.report(cases, {"r": {"1": ([], 0.0)}}, [whole, found])
    assert told["paths_cut_from_the_left"] == 1
    assert told["turns_cut_from_the_left"] == found.found["1"].cut


def test_a_conversation_that_begins_with_an_action_is_scored_and_half_a_character_is_named(
    tmp_path,
) -> None:
    pytest.importorskip("torch")
    talk = [{"role": "assistant", "content": "get 2 oak log"}, {"role": "user", "content": "Inventory:"}]
    bad = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "get 2 oak log"}]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"messages": m}) + "\n" for m in (talk, bad)), encoding="utf-8")
    found = said.say("turnbench/tiny", read_cases(file).cases, said.Measures(None))
    assert len(found.found["1"].turns) == 1 and found.failed.keys() == {"2"}
    assert "half a surrogate pair" in found.failed["2"]
