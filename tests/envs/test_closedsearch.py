"""ClosedSearch: every question can be answered by searching, splits don't leak, files are read or refused."""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnbench.envs import make
from turnbench.envs.closedsearch_answer import RULES, is_correct, normalise, read_answer
from turnbench.envs.closedsearch_corpus import counties
from turnbench.envs.closedsearch_facts import COUNTY, VERSION, Names, Thing, make_facts
from turnbench.envs.core import TextEnv
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.store import file_digest
from turnbench.envs.toolcall import call_text

ID = "turnbench/ClosedSearch-v0"


def play(env: TextEnv, task: str, actions: list[str]) -> tuple:
    env.reset(seed=0, options={"task": task})
    step: tuple = ()
    for action in actions:
        step = env.step(action)
    return step


@pytest.fixture(scope="module")
def library():
    return make(ID).library


# --- the generated corpus -------------------------------------------------------------------------------


def test_every_question_is_answered_by_following_its_path() -> None:
    env = make(ID)
    assert len(env.library.documents) >= 5000 and len(env.tasks("all")) == 1500
    for task in (*env.tasks("test"), *env.tasks("dev"), *env.tasks("train")[::3]):
        env.reset(seed=0, options={"task": task})
        _, paid, over, _, info = [env.step(action) for action in env.solution()][-1]
        assert (paid, over, info["success"]) == (1.0, True, True), task
        recall = [info["checks"][f"{name}_recall"] for name in ("listed", "opened", "citation")]
        assert recall == [1.0, 1.0, 1.0] and info["checks"]["citation_precision"] == 1.0


def test_doing_nothing_pays_nothing() -> None:
    env = make(ID, max_turns=3)
    for task in env.tasks("test")[:50]:
        assert play(env, task, ["I do not know."])[1:3] == (0.0, True)
        _, paid, over, truncated, info = play(env, task, ["", " ", "\n"])
        assert (paid, over, truncated, info["success"]) == (0.0, False, True, False)


def test_a_question_needs_as_many_documents_as_it_names(library) -> None:
    """Each fact stands in its subject's document alone: what leads on is named, the answer is not."""
    text = {document.id: document.text for document in library.documents}
    for question in library.questions.values():
        assert 2 <= len(question.gold) == len(set(question.gold)) <= 4
        assert question.answer in text[question.gold[-1]]
        assert question.answer not in question.text
        for docid, query in zip(question.gold, question.plan, strict=True):
            known = re.sub(r" (?:[a-z]+ ?)*$", "", query)
            assert known in text[docid], question


def test_one_search_for_the_whole_question_is_not_enough(library) -> None:
    tests = [library.questions[task] for task in library.tasks("test")]
    found = [{d.id for d in library.search(question.text, 10)} for question in tests]
    together = sum(set(q.gold) <= hits for q, hits in zip(tests, found, strict=True))
    assert together / len(tests) < 0.05


def test_splits_share_no_answer_no_document_and_no_name(library) -> None:
    rows = {document.id: row for row, document in enumerate(library.documents)}
    asked = {s: [library.questions[t] for t in library.tasks(s)] for s in ("train", "dev", "test")}
    answers = {s: {normalise(q.answer) for q in found} for s, found in asked.items()}
    homes = {s: {rows[d] // COUNTY for q in found for d in q.gold} for s, found in asked.items()}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not answers[one] & answers[other] and not homes[one] & homes[other]
    assert [len(found) for found in asked.values()] == [1050, 150, 300]
    assert len({document.title for document in library.documents}) == len(library.documents)


def test_no_value_stands_in_two_documents_of_a_kind() -> None:
    """A thing described by a date or number is one thing."""
    names, rng = Names(0), Random(0)
    towns = [Thing(row, "town", str(row)) for row in range(2000)]
    facts = make_facts(rng, names, [*towns, Thing(2000, "person", "Ada Ek"), Thing(2001, "school", "S")])
    values = Counter((f.relation, f.object) for f in facts if isinstance(f.object, str))
    assert len(values) > 4000 and set(values.values()) == {1}


def test_the_corpus_is_what_its_version_says(tmp_path) -> None:
    """Where this fails the generator has changed: raise VERSION, then change this."""
    rows = tmp_path / "rows"
    rows.write_text(json.dumps(list(counties(1000, 0))), encoding="utf-8")
    assert (VERSION, file_digest(rows)[:16]) == (1, "0bf7a505fae56f99")


def test_a_larger_corpus_begins_alike_and_another_seed_does_not() -> None:
    small, large, other = (list(counties(n, s)) for n, s in ((400, 0), (800, 0), (400, 1)))
    assert small == large[:10] and small[0] != other[0]


def test_a_corpus_on_disk_answers_like_one_in_memory(monkeypatch, tmp_path) -> None:
    from turnbench.envs import closedsearch_open

    monkeypatch.setenv("TURNBENCH_CACHE", str(tmp_path))
    memory = make(ID, documents=400).library
    monkeypatch.setattr(closedsearch_open, "IN_MEMORY", 0)
    monkeypatch.setattr(closedsearch_open, "_open", {})
    disk = make(ID, documents=400).library
    assert list(disk.documents) == list(memory.documents) and disk.digest == memory.digest
    for question in memory.questions.values():
        assert disk.search(question.plan[0], 10) == memory.search(question.plan[0], 10)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [
        f"closedsearch-1-generated-{VERSION}-400-0"
    ]


# --- tools ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (call_text("search", query="zzzz"), "No document fits."),
        (call_text("search", query="x" * 1001), "Error: the query has 1001 characters"),
        (call_text("search", query="town", limit=21), "Error: limit must be from 1 to 20"),
        (call_text("search", query="town", limit=2.0), "Error: search: argument 'limit' must be"),
        (call_text("search"), "Error: search: argument 'query' is missing"),
        (call_text("open_document", id="d1"), "Error: there is no document 'd1'"),
        (call_text("open_document", id="d007919", page=2), "Error: document d007919 has 1 page"),
        (call_text("find", query="town"), "Error: unknown tool 'find'"),
        ("", "Error: nothing was written"),
    ],
)
def test_a_bad_call_is_told_why_and_the_episode_goes_on(action, said) -> None:
    observation, paid, over, _, _ = play(make(ID), "0-0", [action])
    assert observation.startswith(said) and (paid, over) == (0.0, False)


def test_nothing_of_the_answer_shows_before_the_end() -> None:
    env = make(ID)
    task = env.tasks("test")[0]
    _, start = env.reset(seed=0, options={"task": task})
    assert start.keys() == {"task", "seed", "tools"}
    *looks, answer = env.solution()
    for action in looks:
        assert env.step(action)[4].keys() == {"turn_index", "turn_end", "n_calls", "tool_errors"}
    assert env.step(answer)[4]["checks"]["expected"] == env.question.answer


def test_a_long_document_has_pages(tmp_path) -> None:
    env = make(ID, source="browsecomp_plus", questions=browsecomp(tmp_path, text="word " * 1000))
    first, second = (play(env, "7", [call_text("open_document", id="12", page=n)])[0] for n in (1, 2))
    assert first.startswith("[12] word") and "(page 1 of 2)" in first and "(page 2 of 2)" in second
    assert len(second.partition("\n")[2]) == 1000


# --- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "answer", "expected", "right"),
    [
        ("exact", "the  Grey HERON.", "Grey Heron", True),
        ("exact", "12,345", "12345", True),
        ("exact", "3.5", "35", False),
        ("exact", "-5", "5", False),
        ("exact", "Herón", "Heron", False),
        ("exact", "…", "!", False),
        ("gaia", "$1,000.0", "1000", True),
        ("gaia", "about 1000", "1000", False),
        ("gaia", "St. Paul", "st paul", True),
        ("gaia", "b; 2.0", "B, 2", True),
        ("gaia", "a, b", "b, a", False),
        ("gaia", "a", "a, b", False),
        ("strict", " $X + 1$. ", "x + 1", True),
        ("strict", "x - 1", "x + 1", False),
        ("choice", "(b) because", "B", True),
        ("choice", "Because", "B", False),
    ],
)
def test_answers_are_compared_by_their_rule(rule, answer, expected, right) -> None:
    assert is_correct(answer, expected, rule) is right


def test_an_answer_is_read_from_its_last_marked_line_without_citations() -> None:
    known = {"d1", "d2"}.__contains__
    text = "Answer: wrong\nsince [d2]\n**Exact Answer:** Marta Ek [d1, d2] [sic]\nConfidence: 90%"
    assert read_answer(text, known) == ("Marta Ek [sic]", ("d2", "d1"))
    assert read_answer("Marta Ek [d1]", known) == ("Marta Ek", ("d1",))


@given(st.text(), st.text(), st.sampled_from(sorted(RULES)))
def test_any_answer_can_be_compared(answer, expected, rule) -> None:
    assert is_correct(answer, expected, rule) in (True, False)
    read_answer(answer, {"d1"}.__contains__)


@given(st.text(min_size=1))
def test_normalising_twice_changes_nothing(text) -> None:
    assert normalise(normalise(text)) == normalise(text)


# --- any action -----------------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "limit", "id", "page", "x"]), VALUES, max_size=3)
CODE = ("search(__import__('os').getcwd())", "search(query=open('x', 'w'))", "eval('1')", "exec('1')")
CALLS = st.builds(
    lambda name, arguments: json.dumps({"name": name, "arguments": arguments}),
    st.sampled_from(["search", "open_document", "answer"]),
    ARGUMENTS,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CALLS | st.text(max_size=200) | st.sampled_from(CODE), max_size=6))
def test_any_action_is_answered_and_nothing_else_happens(watched, actions) -> None:
    env = make(ID)
    env.reset(seed=0, options={"task": "3-1"})
    twin = env.fork()
    for action in actions:
        if env.over:
            break
        with watched():
            step = env.step(action)
        assert step == twin.step(action) and 0 <= step[1] <= 1
    assert env.opened <= env.library.rows.keys()


def test_the_watch_sees_what_it_must(watched, tmp_path) -> None:
    deeds = (lambda: (tmp_path / "x").write_text("x"), lambda: exec("1"), lambda: eval("1"))
    for deed in deeds:
        with pytest.raises(AssertionError), watched():
            deed()


# --- files ----------------------------------------------------------------------------------------------


def write(path: Path, *rows) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def browsecomp(folder: Path, text: str = "Ada Ek wrote it.", **fields) -> str:
    gold = [{"docid": "12", "text": text, "url": "https://example.org"}]
    row = {"query_id": 7, "query": "Who wrote it?", "answer": "Ada Ek", "gold_docs": gold, **fields}
    return write(folder / "questions.jsonl", row)


def test_browsecomp_plus_with_the_documents_of_its_questions(tmp_path) -> None:
    env = make(ID, source="browsecomp_plus", questions=browsecomp(tmp_path, negative_docs=["12"]))
    assert env.splits == ("test",) and env.tasks("test") == ("7",)
    assert play(env, "7", [call_text("search", query="wrote")])[0].startswith("[12] Ada Ek wrote it.")
    assert play(env, "7", ["Answer: ada ek [12]"])[4]["checks"]["citation_recall"] == 1.0
    with pytest.raises(UnknownName, match="test"):
        env.tasks("train")


def test_browsecomp_plus_with_a_corpus(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TURNBENCH_CACHE", str(tmp_path / "cache"))
    rows = [{"docid": str(n), "text": f"---\ntitle: Number {n}\n---\nAll about {n}."} for n in range(30)]
    corpus = write(tmp_path / "corpus.jsonl", *rows)
    questions = browsecomp(tmp_path)
    env = make(ID, source="browsecomp_plus", questions=questions, corpus=corpus)
    assert play(env, "7", [call_text("open_document", id="12")])[0].startswith("[12] Number 12\n---")
    assert len(env.library.documents) == 30
    write(tmp_path / "corpus.jsonl", *rows[:12])
    env.close()
    with pytest.raises(ConfigError, match=r"questions\.jsonl, line 1: document '12' is not in"):
        make(ID, source="browsecomp_plus", questions=questions, corpus=corpus)


def test_gaia_with_attachments(tmp_path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\0")
    row = {"Question": "What is b?", "Level": 1, "Final answer": "2", "file_name": ""}
    path = write(
        tmp_path / "metadata.jsonl",
        {"task_id": "a", **row, "file_name": "table.csv"},
        {"task_id": "b", **row},
        {"task_id": "c", **row, "file_name": "photo.png"},
        {"task_id": "d", **row, "Final answer": "?"},
    )
    env = make(ID, source="gaia", questions=path)
    assert env.tasks("all") == ("a", "b")
    assert env.library.left_out == {"the attachment is no text": 1, "the answer is kept back": 1}
    assert "a,b\n1,2" in play(env, "a", [call_text("open_document", id="table.csv")])[0]
    assert play(env, "b", ["$2.0"])[1] == 1.0


def test_hle_without_images_and_without_a_library(tmp_path) -> None:
    row = {"question": "Which?", "image": "", "answer": "B", "answer_type": "multipleChoice"}
    exact = {"id": "y", "question": "2+3?", "answer": "5", "answer_type": "exactMatch"}
    path = write(tmp_path / "hle.jsonl", {"id": "x", **row}, exact, {"id": "z", **row, "image": "data:"})
    env = make(ID, source="hle", questions=path)
    _, info = env.reset(seed=0, options={"task": "x"})
    assert info["tools"] == [] and env.tasks("test") == ("x", "y") and "search" not in env.instructions
    assert play(env, "x", ["Answer: (B)"])[1] == 1.0 and play(env, "y", ["6"])[1] == 0.0


@pytest.mark.parametrize(
    ("source", "rows", "why"),
    [
        ("hle", ["{"], r"f\.jsonl, line 1: not valid JSON"),
        ("hle", ["[1]"], "line 1: a JSON object is wanted, not list"),
        ("hle", ["", {"id": "x", "question": "?"}], r"line 2: field 'answer' is missing; there are id"),
        ("hle", [{"id": ["x"], "question": "?", "answer": "a"}], "line 1: field 'id' must be text"),
        ("hle", [{"id": " ", "question": "?", "answer": "a"}], "line 1: field 'id' is empty"),
        (
            "hle",
            [{"id": "x", "question": "?", "answer": "a"}] * 2,
            "line 2: id 'x' stands in an earlier",
        ),
        ("hle", [{"id": "x", "question": "?", "answer": "a", "answer_type": "essay"}], "answer_type is"),
        ("hle", [], "holds no question that can be asked"),
        ("hle", [{"id": "x", "image": "data:"}], r"\(1 left out: it shows an image\)"),
        (
            "gaia",
            [{"task_id": "a", "Question": "?", "Final answer": "1", "file_name": "../x"}],
            "a name",
        ),
        ("gaia", [{"task_id": "a", "Question": "?", "Final answer": "1", "file_name": "x"}], "missing"),
        (
            "browsecomp_plus",
            [{"query_id": "1", "query": "?", "answer": "a"}],
            "'gold_docs' must be a list",
        ),
        (
            "browsecomp_plus",
            [{"query_id": "1", "query": "?", "answer": "a", "gold_docs": ["9"]}],
            "line 1: document '9' is not in the corpus",
        ),
    ],
)
def test_a_faulty_file_is_refused_with_its_line(tmp_path, source, rows, why) -> None:
    path = write(tmp_path / "f.jsonl", *rows)
    with pytest.raises(ConfigError, match=why):
        make(ID, source=source, questions=path)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"source": "gaja"}, "gaia"),
        ({"source": "hle"}, "needs `questions`"),
        ({"questions": "x.jsonl"}, "a source other than generated"),
        ({"documents": 10}, "from 400 to 100000"),
        ({"source": "hle", "questions": "nowhere.jsonl"}, "nowhere.jsonl can't be read"),
        ({"source": "hle", "questions": "hle.parquet"}, "JSON lines are wanted"),
    ],
)
def test_wrong_options_are_refused(options, why) -> None:
    with pytest.raises((ConfigError, UnknownName), match=why):
        make(ID, **options)
