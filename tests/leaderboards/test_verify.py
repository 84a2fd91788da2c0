"""A good entry is accepted; tampered copies are rejected, each for the right reason.

A tampered log is packed anew, with digests and numbers computed from it, as a forger would: so that
only what the forger can't make true is left to find.
"""

import copy
import gzip
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from turnbench.envs.errors import LogError
from turnbench.leaderboards.audits import search_fault
from turnbench.leaderboards.board import status, write_entries
from turnbench.leaderboards.cli import app
from turnbench.leaderboards.entry import make_entries
from turnbench.leaderboards.log import json_line, parse_header
from turnbench.leaderboards.runner import run
from turnbench.leaderboards.site import build_site
from turnbench.leaderboards.submit import submit
from turnbench.leaderboards.suite import load_suite
from turnbench.leaderboards.trajectories import Digests, parse_episode, write_trajectories
from turnbench.leaderboards.verify import CHECKS, CODES, UNVERIFIABLE, Case, Finding, record, verify
from turnbench.leaderboards.yamlfile import dump_yaml, read_yaml

ROWS = {
    "search": {"agent": "amc", "model": "echo", "n": 4, "value": "constant", "resample_at": [1, 2]},
    "plain": {"agent": "react", "model": "echo"},
}


class Forgery:
    """A copy of a good entry to tamper with: the entry as data, its file's lines as data."""

    def __init__(self, folder: Path, good: Path, row: str) -> None:
        self.boards, self.suite = folder / "boards", good / "trial.yaml"
        source = next(p for p in (good / "boards/trial").glob("*.yaml") if p.name.startswith(row))
        self.entry = read_yaml(source).data
        self.name = self.entry["entry"]
        self.file = self.boards / "trial" / f"{self.name}.jsonl.gz"
        self.file.parent.mkdir(parents=True)
        packed = (good / "out" / self.file.name).read_bytes()
        self.file.write_bytes(packed)
        self.header, *self.rows = map(json.loads, gzip.decompress(packed).splitlines())

    def pack(self, numbers: bool = True) -> None:
        """Write the file anew, with all digests right; and the numbers too, unless told."""
        lines = [json_line(self.header), *map(json_line, self.rows)]
        file = write_trajectories(self.file, lines)
        episodes = [(line, parse_episode(line, "")) for line in lines[1:]]
        digests = Digests(lines[0])
        for line, episode in episodes:
            digests.add(line, episode)
        if numbers:
            made = make_entries(parse_header(lines[0], self.file), episodes, "")[0]
            self.entry.update({k: v for k, v in made.items() if k != "entry"})
        self.entry["trajectories"] = {**digests.to_json(), "file": file}

    def path(self) -> Path:
        """The entry's file, written."""
        path = self.boards / "trial" / f"{self.name}.yaml"
        path.write_text(dump_yaml(self.entry), encoding="utf-8")
        return path

    def case(self, **changes: Any) -> Case:
        return Case(self.path(), suite_file=self.suite, workers=0, **changes)

    def turns(self, k: int = 0) -> list[Any]:
        """The turns of the submitted path of episode k."""
        population = self.rows[k]["population"]
        return population["trajectories"][population["chosen"]]["turns"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite file, the boards of a run of it, and the trajectory files."""
    folder = tmp_path_factory.mktemp("good")
    world = {"id": "standins:World-v0", "split": "test", "tasks": 6, "max_turns": 4}
    data = {
        "suite": "trial",
        "seeds": [0, 1],
        "envs": [world],
        "models": {"echo": {"backend": "standins:Echo"}},
        "agents": ROWS,
        "limits": {"model_calls": 40},
    }
    (folder / "trial.yaml").write_text(dump_yaml(data), encoding="utf-8")
    run(load_suite(str(folder / "trial.yaml")), folder / "run", workers=1)
    entries = submit(folder / "run", folder / "out", {"submitter": {"name": "Ada"}})
    write_entries(entries, folder / "boards")
    return folder


@pytest.fixture
def forge(good: Path, tmp_path: Path) -> Callable[[str], Forgery]:
    return lambda row: Forgery(tmp_path, good, row)


def judged(case: Case) -> list[Finding]:
    findings = list(verify(case))
    assert all(not finding.code for finding in findings[:-1])
    return findings


@pytest.mark.parametrize("row", ROWS)
def test_a_good_entry_passes_every_check(forge: Any, row: str) -> None:
    findings = judged(forge(row).case())
    assert [f.check for f in findings] == list(CHECKS) and not findings[-1].code
    told = {f.check: f.text for f in findings}
    assert ("discarded paths" in told["search"]) == (row == "search")


def test_packing_anew_without_a_change_is_no_forgery(forge: Any) -> None:
    forged = forge("search")
    forged.pack()
    assert not judged(forged.case())[-1].code


def test_replay_in_processes_finds_the_same(forge: Any) -> None:
    forged = forge("plain")
    case = forged.case()
    case.workers = 2
    assert not judged(case)[-1].code
    forged.turns(7)[-1]["rew"] += 1
    forged.pack()
    case = forged.case()
    case.workers = 2
    last = judged(case)[-1]
    assert last.check == "replay" and "reward" in last.text


# --- tampering: (row, what is done, which check must fail, what it must say) --------------------------

TAMPER: list[tuple[str, Any, str, str]] = []


def tamper(check: str, says: str, row: str = "plain") -> Any:
    def keep(function: Any) -> Any:
        TAMPER.append((row, function, check, says))
        return function

    return keep


@tamper("schema", "unknown key 'status'")
def types_its_own_status(f: Forgery) -> None:
    f.entry["status"] = "verified"


@tamper("schema", "score.mean")
def score_that_is_no_number(f: Forgery) -> None:
    f.entry["score"]["mean"] = "1.0"


@tamper("schema", "must be called")
def claims_another_model(f: Forgery) -> None:
    f.entry["system"]["model"]["name"] = "gpt-9"


@tamper("schema", "must be called")
def entry_under_another_name(f: Forgery) -> None:
    f.entry["entry"] = f.name = "plain_echo_00000000"


@tamper("schema", "track")
def an_oracle_on_the_standard_track(f: Forgery) -> None:
    f.entry["privileges"] = ["oracle"]


@tamper("schema", "trajectories.file.name")
def file_outside_the_folder(f: Forgery) -> None:
    f.entry["trajectories"]["file"]["name"] = "../../out/secret.gz"


@tamper("schema", "file.url")
def address_that_is_a_script(f: Forgery) -> None:
    f.entry["trajectories"]["file"]["url"] = "javascript:alert(1)"


@tamper("schema", "no trajectory file")
def without_trajectories(f: Forgery) -> None:
    del f.entry["trajectories"]["file"]


@tamper("suite", "suite.version is 2")
def claims_a_later_version(f: Forgery) -> None:
    f.entry["suite"]["version"] = 2


@tamper("schema", "must be called")
def claims_another_suite_digest(f: Forgery) -> None:
    f.entry["suite"]["digest"] = "0" * 16


@tamper("protocol", "entry's protocol.limits.model_calls")
def raises_the_limit_of_calls(f: Forgery) -> None:
    f.entry["protocol"]["limits"]["model_calls"] = 4000


@tamper("protocol", "log's protocol.envs.0.max_turns")
def played_more_turns(f: Forgery) -> None:
    f.header["suite"]["envs"][0]["max_turns"] = 50
    kept = copy.deepcopy((f.entry["protocol"], f.entry["suite"]))
    f.pack()
    f.entry["protocol"], f.entry["suite"] = kept


@tamper("protocol", "model calls of 40")
def used_more_calls(f: Forgery) -> None:
    f.rows[0]["population"]["usage"]["model_calls"] = 41
    f.pack()


@tamper("protocol", "other tasks")
def easier_tasks(f: Forgery) -> None:
    f.header["worlds"][0]["tasks"] = f.header["worlds"][0]["tasks"][:3]
    f.rows = [r for r in f.rows if r["key"][2] in f.header["worlds"][0]["tasks"]]
    f.pack()


@tamper("protocol", "data behind a world")
def other_data(f: Forgery) -> None:
    f.entry["provenance"]["worlds"] = ["feedbeef"]


@tamper("digests", "sha256 of the file")
def one_byte_of_the_file(f: Forgery) -> None:
    content = bytearray(f.file.read_bytes())
    content[-1] ^= 1
    f.file.write_bytes(bytes(content))


@tamper("digests", "merkle_root")
def another_merkle_root(f: Forgery) -> None:
    f.entry["trajectories"]["merkle_root"] = "0" * 64


@tamper("digests", "isn't there")
def file_that_is_not_there(f: Forgery) -> None:
    f.file.unlink()


@tamper("digests", "out of the entry's folder")
def file_that_is_a_link(f: Forgery) -> None:
    content = f.file.read_bytes()
    f.file.unlink()
    (f.boards / "elsewhere.gz").write_bytes(content)
    f.file.symlink_to(f.boards / "elsewhere.gz")


@tamper("digests", "rew: Input should be a valid number")
def reward_as_text(f: Forgery) -> None:
    f.pack()
    f.turns()[0]["rew"] = "1.0"
    lines = [json_line(f.header), *map(json_line, f.rows)]
    f.entry["trajectories"]["file"] = write_trajectories(f.file, lines)
    f.entry["trajectories"]["raw_bytes"] = sum(map(len, lines))


@tamper("protocol", "no whole gzip file")
def a_pickle_for_a_log(f: Forgery) -> None:
    f.file.write_bytes(pickle.dumps(os.system))


@tamper("digests", "unpacks to more than")
def a_decompression_bomb(f: Forgery) -> None:
    lines = [json_line(f.header), b" " * 50_000_000 + b"\n"]
    f.entry["trajectories"]["file"] = write_trajectories(f.file, lines)


@tamper("episodes", "1 episodes are left out")
def leaves_a_bad_episode_out(f: Forgery) -> None:
    del f.rows[3]
    f.pack()


@tamper("episodes", "stands twice")
def counts_a_good_episode_twice(f: Forgery) -> None:
    f.rows.append(f.rows[0])
    f.pack(numbers=False)


@tamper("episodes", "isn't one of the suite's")
def adds_a_seed(f: Forgery) -> None:
    extra = copy.deepcopy(f.rows[0])
    extra["key"][3] = extra["population"]["task"]["seed"] = 7
    f.rows.append(extra)
    f.pack(numbers=False)


@tamper("episodes", "failed: play them again")
def calls_a_bad_episode_missing(f: Forgery) -> None:
    f.rows[2]["outcome"] = f.rows[2]["population"]["trajectories"][0]["outcome"] = "infra_error"
    f.rows[2]["population"]["trajectories"][0]["failure"] = "503"
    f.pack()


@tamper("episodes", "was played in")
def played_the_train_split(f: Forgery) -> None:
    f.rows[2]["population"]["task"]["split"] = "train"
    f.pack()


@tamper("numbers", "score.mean")
def a_better_score(f: Forgery) -> None:
    f.entry["score"]["mean"] += 0.1


@tamper("numbers", "results.0.score.ci95.0")
def a_narrower_interval(f: Forgery) -> None:
    f.entry["results"][0]["score"]["ci95"][0] += 0.01


@tamper("numbers", "compute.cost")
def a_cheaper_run(f: Forgery) -> None:
    f.entry["compute"]["cost"] = 0.001


@tamper("numbers", "date")
def an_earlier_date(f: Forgery) -> None:
    f.entry["date"] = "2020-01-01"


@tamper("replay", "reward")
def a_reward(f: Forgery) -> None:
    f.turns(4)[1]["rew"] = 1.0 - f.turns(4)[1]["rew"]
    f.pack()


@tamper("replay", "observations differ")
def an_observation(f: Forgery) -> None:
    f.turns(5)[1]["obs"] += " (hint: act 2)"
    f.pack()


@tamper("replay", "turn")
def an_action(f: Forgery) -> None:
    f.turns(5)[1]["act"] = "act 5" if f.turns(5)[1]["act"] != "act 5" else "act 4"
    f.pack()


@tamper("replay", "the end: the observations differ")
def the_last_observation(f: Forgery) -> None:
    f.rows[1]["population"]["trajectories"][0]["final"] = "You win!"
    f.pack()


@tamper("replay", "recorded success")
def success_where_there_was_none(f: Forgery) -> None:
    path = next(p for r in f.rows for p in r["population"]["trajectories"] if not p["success"])
    path["success"] = True
    f.pack()


@tamper("replay", "the world is not over")
def an_episode_cut_short(f: Forgery) -> None:
    path = f.rows[0]["population"]["trajectories"][0]
    path["final"] = path["turns"].pop()["obs"]
    f.pack()


@tamper("replay", "after the end")
def an_episode_that_goes_on(f: Forgery) -> None:
    f.turns(0).append(
        {"obs": f.rows[0]["population"]["trajectories"][0]["final"], "act": "a", "rew": 1.0}
    )
    f.pack()


@tamper("replay", "path")
def a_path_of_another_seed(f: Forgery) -> None:
    a, b = (next(r for r in f.rows if r["key"][2:] == ["good1", s]) for s in (0, 1))
    a["population"]["trajectories"] = b["population"]["trajectories"]
    f.pack()


@tamper("search", "model calls are counted", "search")
def fewer_calls_than_paths(f: Forgery) -> None:
    f.rows[0]["population"]["usage"]["model_calls"] = 3
    f.pack()


@tamper("search", "environment steps are counted")
def fewer_steps_than_turns(f: Forgery) -> None:
    f.rows[0]["population"]["usage"]["env_steps"] = 1
    f.pack()


@tamper("search", "reward", "search")
def a_discarded_path_that_never_was(f: Forgery) -> None:
    lost = next(p for r in f.rows for p in r["population"].get("discarded", ()) if p["turns"])
    lost["turns"][0]["rew"] += 1
    f.pack()


@tamper("search", "differ before it", "search")
def a_genealogy_that_never_was(f: Forgery) -> None:
    for row in f.rows:
        for point in row["population"].get("resamplings", ()):
            point[1] = [0] * 4
    f.pack()


@tamper("leaks", "goal of a task stands")
def a_prompt_with_the_tests_goals(f: Forgery) -> None:
    options = {**f.entry["system"]["options"], "hint": f"remember {f.turns()[0]['obs']}!"}
    f.header["suite"]["agents"]["plain"]["hint"] = options["hint"]
    f.pack()
    f.name = f.entry["entry"] = renamed(f)


@tamper("leaks", "transcripts are those of")
def anothers_transcripts_under_ones_own_name(f: Forgery) -> None:
    f.path()
    f.header["suite"]["agents"]["mine"] = f.header["suite"]["agents"].pop("plain")
    for row in f.rows:
        row["key"][0] = "mine"
    f.pack()
    f.name = f.entry["entry"] = renamed(f)


@tamper("ranks", "wasn't made from the entries: rank")
def a_better_rank(f: Forgery) -> None:
    write_entries([f.entry], f.boards)
    page = f.boards / "trial.yaml"
    page.write_text(page.read_text(encoding="utf-8").replace("rank: 1", "rank: 0"), encoding="utf-8")


def renamed(f: Forgery) -> str:
    """What the forged entry must be called; its file moves along."""
    from turnbench.leaderboards.entry import entry_id

    entry = f.entry
    return entry_id(entry["system"], entry["suite"]["digest"], entry["provenance"]["code"])


def test_there_are_thirty_ways_and_every_check_finds_one() -> None:
    assert len(TAMPER) >= 30
    assert {check for _, _, check, _ in TAMPER} == set(CHECKS)


@pytest.mark.parametrize("case", TAMPER, ids=lambda case: case[1].__name__)
def test_tampering_is_rejected_for_the_right_reason(forge: Any, case: Any) -> None:
    row, function, check, says = case
    forged = forge(row)
    function(forged)
    last = judged(forged.case())[-1]
    assert (last.check, last.code) == (check, CODES[check]), last.text
    assert says in last.text


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("notes: x", "notes: !!python/object/apply:os.system [id]", "tag"),
        ("notes: x", "notes: &a x\norg: *a", "alias"),
        ("notes: x", "notes: x\nnotes: y", "twice"),
    ],
)
def test_yaml_tricks_are_refused(forge: Any, old: str, new: str, told: str) -> None:
    forged = forge("plain")
    forged.entry["notes"] = "x"
    path = forged.path()
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    last = judged(Case(path, suite_file=forged.suite, workers=0))[-1]
    assert last.code == CODES["schema"] and told in last.text


def test_an_entry_that_is_a_link_is_refused(forge: Any) -> None:
    forged = forge("plain")
    path = forged.path()
    link = path.with_name("link.yaml")
    link.symlink_to(path)
    assert judged(Case(link, suite_file=forged.suite))[-1].code == CODES["schema"]


def test_a_replay_that_takes_too_long_ends(forge: Any) -> None:
    last = judged(forge("plain").case(seconds=0.0))[-1]
    assert last.check == "replay" and "more than 0 s" in last.text


def test_an_unknown_suite(forge: Any) -> None:
    last = judged(Case(forge("plain").path(), workers=0))[-1]
    assert last.check == "suite" and "unknown suite 'trial'" in last.text


def test_a_recorded_verification_makes_the_status(forge: Any) -> None:
    from turnbench.leaderboards.board import read_entry, status

    case = forge("plain").case()
    path = record(case, judged(case))
    assert path.parent.name == "verified"
    (table,) = read_yaml(case.path.parent.parent / "trial.yaml").data["tables"]
    assert {row["status"] for row in table["rows"]} == {"verified"}
    assert status(read_entry(case.path), case.path) == "verified"


def test_what_an_entry_says_cannot_steer_a_terminal(forge: Any) -> None:
    forged = forge("plain")
    forged.rows[0]["population"]["\x1b[2J\n::error::x"] = 1
    lines = [json_line(forged.header), *map(json_line, forged.rows)]
    forged.entry["trajectories"]["file"] = write_trajectories(forged.file, lines)
    forged.entry["trajectories"]["raw_bytes"] = sum(map(len, lines))
    last = judged(forged.case())[-1]
    assert last.check == "digests" and last.text.isprintable() and "::error::x" in last.text


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_line_is_an_episode_or_a_log_error(good: Path, data: Any) -> None:
    """Bytes replaced, dropped or put in, anywhere in a real line: nothing else is ever raised."""
    lines = gzip.decompress(next((good / "out").glob("search*")).read_bytes()).splitlines()
    line = bytearray(data.draw(st.sampled_from(lines[1:])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(line)))
        until = min(len(line), at + data.draw(st.integers(0, 6)))
        put = st.sampled_from(
            [b"null", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'"', b"[" * 999, b"9" * 5000]
        )
        line[at:until] = data.draw(put | st.binary(max_size=4))
    with suppress(LogError):
        parse_episode(bytes(line), "here")


@pytest.mark.parametrize("value", [None, -1, 1.5, "x", [], {}, True, 10**30, [[]]])
def test_any_field_of_any_type_is_an_episode_or_a_log_error(good: Path, value: Any) -> None:
    """Each value in a real line, one after the other, becomes another."""
    line = gzip.decompress(next((good / "out").glob("search*")).read_bytes()).splitlines()[1]

    def spots(node: Any) -> Any:
        for key in node if isinstance(node, dict) else range(len(node)):
            yield node, key
            if isinstance(node[key], dict | list):
                yield from spots(node[key])

    row = json.loads(line)
    for node, key in list(spots(row)):
        kept, node[key] = node[key], value
        with suppress(LogError):
            search_fault(parse_episode(json_line(row), "here"), "amc", True)
        node[key] = kept


# --- worlds that declare non-determinism -------------------------------------------------------------


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `good`, with a second world whose answers differ each time and that says so."""
    folder = tmp_path_factory.mktemp("moody")
    worlds = [{"id": f"standins:{name}-v0", "tasks": 3} for name in ("World", "Moody")]
    data = {
        "suite": "trial",
        "envs": worlds,
        "models": {"echo": {"backend": "standins:Echo"}},
        "agents": {"plain": ROWS["plain"]},
    }
    (folder / "trial.yaml").write_text(dump_yaml(data), encoding="utf-8")
    run(load_suite(str(folder / "trial.yaml")), folder / "run", workers=1)
    write_entries(
        submit(folder / "run", folder / "out", {"submitter": {"name": "Ada"}}), folder / "boards"
    )
    return folder


def test_what_declares_non_determinism_is_neither_verified_nor_rejected(
    moody: Path, tmp_path: Path
) -> None:
    forgery = Forgery(tmp_path, moody, "plain")
    findings = {f.check: f for f in verify(forgery.case())}
    assert list(findings) == list(CHECKS)  # the other checks are made
    assert {f.check for f in findings.values() if f.code} == {"replay"}
    assert findings["replay"].code == UNVERIFIABLE
    assert (
        "Moody-v0 declares" in findings["replay"].text and "elsewhere 3 paths" in findings["replay"].text
    )
    told = CliRunner().invoke(
        app,
        [*("verify", str(forgery.path()), "--suite", str(forgery.suite), "--workers", "0"), "--record"],
    )
    assert told.exit_code == UNVERIFIABLE and "neither verified nor rejected" in told.output
    assert "accepted" not in told.output and not list(forgery.boards.glob("*/verified/*"))


def test_a_recorded_verification_cannot_make_it_verified(moody: Path, tmp_path: Path) -> None:
    forgery = Forgery(tmp_path, moody, "plain")
    case = forgery.case()
    record(case, list(verify(case)))
    assert status(forgery.entry, forgery.path()) == "self-reported"


def test_a_fault_in_the_world_that_can_be_replayed_still_rejects(moody: Path, tmp_path: Path) -> None:
    forgery = Forgery(tmp_path, moody, "plain")
    row = next(k for k, r in enumerate(forgery.rows) if r["key"][1] == 0)
    forgery.turns(row)[0]["obs"] += "!"
    forgery.pack()
    last = list(verify(forgery.case()))[-1]
    assert (last.check, last.code) == ("replay", CODES["replay"])


def test_a_log_cannot_declare_a_world_non_deterministic(good: Path, tmp_path: Path) -> None:
    forgery = Forgery(tmp_path, good, "plain")
    forgery.header["worlds"][0]["nondeterministic"] = True
    forgery.turns()[0]["rew"] = 1.0
    forgery.pack()
    last = list(verify(forgery.case()))[-1]
    assert (last.check, last.code) == ("protocol", CODES["protocol"])


def test_boards_and_pages_carry_the_mark(moody: Path, tmp_path: Path) -> None:
    build_site(moody / "boards", tmp_path)
    assert "not replayable" in (tmp_path / "trial.html").read_text(encoding="utf-8")
    (entry,) = (tmp_path / "trial").glob("plain*.html")
    assert "standins:Moody-v0 declares itself" in entry.read_text(encoding="utf-8")
