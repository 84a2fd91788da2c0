"""Readers of question sets and corpora that the user has as JSON lines (docs/closedsearch.md).

    browsecomp_plus   {"query_id", "query", "answer", "gold_docs": [{"docid", "text"?}, ...]}, and where
                      they are given "evidence_docs" and "negative_docs"; a corpus {"docid", "text"}
    gaia              {"task_id", "Question", "Final answer", "file_name"?}, attachments beside the file
    hle               {"id", "question", "answer", "answer_type", "image"?}

Every error is a ConfigError that names the file and the line.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from turnbench.envs.closedsearch_corpus import Question
from turnbench.envs.closedsearch_facts import Document
from turnbench.envs.core import clean
from turnbench.envs.errors import ConfigError
from turnbench.envs.record import Json

MAX_ATTACHMENT = 2**20  # bytes of an attachment that becomes a document
TITLE = 100
DOCUMENT_FIELDS = ("gold_docs", "evidence_docs", "negative_docs")


@dataclass(slots=True)
class QuestionSet:
    """Questions from a file, the documents that came with them, what was left out and why, and lines."""

    questions: list[Question] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    lines: dict[str, int] = field(default_factory=dict)

    def leave_out(self, why: str) -> Question | None:
        """Count a question that can't be asked; gives None, in its place."""
        self.left_out[why] += 1
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One line's JSON object, which knows where it stands."""

    path: Path
    line: int
    values: Json

    def fail(self, why: str) -> NoReturn:
        """Raise ConfigError with the place."""
        raise ConfigError(f"{self.path}, line {self.line}: {why}")

    def text(self, name: str) -> str:
        """A field that must hold text; a number will do, as ids and answers often are."""
        if name not in self.values:
            self.fail(f"field {name!r} is missing; there are {', '.join(sorted(self.values)) or 'none'}")
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.fail(f"field {name!r} must be text, not {type(value).__name__}")
        text = clean(str(value))
        return text if text.strip() else self.fail(f"field {name!r} is empty")

    def optional(self, name: str) -> str:
        """A field that may be missing, null or empty."""
        return self.text(name) if self.values.get(name) not in (None, "") else ""


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines; blank lines are passed over."""
    if path.suffix == ".parquet":
        raise ConfigError(f"{path}: JSON lines are wanted; datasets.Dataset.to_json(PATH) writes them")
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield Row(path, number, _object(path, number, line))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error


def _object(path: Path, number: int, line: str) -> Json:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, line {number}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}, line {number}: a JSON object is wanted, not {type(value).__name__}; "
            "a file of JSON lines has one object on each"
        )
    return value


def read_questions(source: str, path: Path) -> QuestionSet:
    """The questions of a file of one of SOURCES. Raises ConfigError, also where none is left."""
    found = QuestionSet()
    for row in read_rows(path):
        question = SOURCES[source](row, found)
        if question is None:
            continue
        if question.id in found.lines:
            row.fail(f"id {question.id!r} stands in an earlier line too")
        found.lines[question.id] = row.line
        found.questions.append(question)
    if not found.questions:
        left = "; ".join(f"{count} left out: {why}" for why, count in found.left_out.items())
        raise ConfigError(f"{path} holds no question that can be asked{f' ({left})' if left else ''}")
    return found


def read_corpus(path: Path) -> Iterator[Document]:
    """The documents of a corpus: {"docid", "text"} and, where there is one, "title"."""
    seen: set[str] = set()
    for row in read_rows(path):
        document = make_document(row.text("docid"), row.text("text"), row.optional("title"))
        if document.id in seen:
            row.fail(f"docid {document.id!r} stands in an earlier line too")
        seen.add(document.id)
        yield document


def make_document(docid: str, text: str, title: str = "") -> Document:
    """A document; without a title, the first line of its text that holds a word is taken."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if any(map(str.isalnum, line))), docid)
    return Document(docid, (title or first.removeprefix("title:").strip())[:TITLE], text)


# --- one reader for each source -------------------------------------------------------------------------


def _browsecomp_plus(row: Row, found: QuestionSet) -> Question:
    gold: dict[str, None] = {}
    for name in DOCUMENT_FIELDS:
        listed = row.values.get(name, [] if name != "gold_docs" else None)
        if not isinstance(listed, list):
            row.fail(f"field {name!r} must be a list of documents")
        for item in listed:
            docid = _document(row, name, item, found)
            if name == "gold_docs":
                gold[docid] = None
    return Question(row.text("query_id"), row.text("query"), row.text("answer"), tuple(gold))


def _document(row: Row, name: str, item: Any, found: QuestionSet) -> str:
    """The id of a document that a question lists; keeps its text, if it has one."""
    inner = Row(row.path, row.line, item if isinstance(item, dict) else {"docid": item})
    docid = inner.text("docid")
    if "text" in inner.values and docid not in found.documents:
        found.documents[docid] = make_document(docid, inner.text("text"), inner.optional("title"))
    return docid


def _gaia(row: Row, found: QuestionSet) -> Question | None:
    if row.text("Final answer").strip() == "?":
        return found.leave_out("the answer is kept back")
    text, name = row.text("Question"), row.optional("file_name")
    if not name:
        return Question(row.text("task_id"), text, row.text("Final answer"), rule="gaia")
    attached = _attachment(row, name)
    if attached is None:
        return found.leave_out("the attachment is no text")
    found.documents[name] = attached
    asked = f"{text}\n\nThe attached file is the document {name}."
    return Question(row.text("task_id"), asked, row.text("Final answer"), (name,), rule="gaia")


def _attachment(row: Row, name: str) -> Document | None:
    """The attached file as a document; None where it is no UTF-8 text or too long."""
    if Path(name).name != name or name in (".", ".."):
        row.fail(f"file_name is {name!r}; a name without a folder is wanted")
    path = row.path.parent / name
    if not path.is_file():
        row.fail(f"the attachment {path} is missing")
    content = path.read_bytes() if path.stat().st_size <= MAX_ATTACHMENT else b"\0"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return make_document(name, text, name) if "\0" not in text and text.strip() else None


def _hle(row: Row, found: QuestionSet) -> Question | None:
    if row.values.get("image"):
        return found.leave_out("it shows an image")
    kind = row.optional("answer_type") or "exactMatch"
    if kind not in HLE_RULES:
        row.fail(f"answer_type is {kind!r}; it must be one of {', '.join(HLE_RULES)}")
    text, answer = row.text("question"), row.text("answer")
    return Question(row.text("id"), text, answer, rule=HLE_RULES[kind])


HLE_RULES = {"exactMatch": "strict", "multipleChoice": "choice"}


SOURCES: dict[str, Callable[[Row, QuestionSet], Question | None]] = {
    "browsecomp_plus": _browsecomp_plus,
    "gaia": _gaia,
    "hle": _hle,
}
