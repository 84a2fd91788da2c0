"""Opens ClosedSearch's question sets: made or read once in a process, and on disk where they are large."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Lock

from turnbench.envs import closedsearch_corpus, closedsearch_files
from turnbench.envs.analyzer import analyze
from turnbench.envs.bm25 import Index, IndexBuilder, open_index, save_index
from turnbench.envs.closedsearch_corpus import SPLITS, Question
from turnbench.envs.closedsearch_facts import COUNTY, VERSION, Document
from turnbench.envs.errors import ConfigError, UnknownName
from turnbench.envs.store import Rows, RowsWriter, build_once, file_digest, to_row

IN_MEMORY = 20_000  # generated documents; larger corpora are built into the cache folder and mapped
FORMAT = 1  # of what is kept in the cache folder; a change builds anew
LEAST, MOST = COUNTY * len(SPLITS), 100_000
GENERATED = "generated"
KEPT = 200  # characters of a query whose results are remembered


class Library:
    """Documents, their index, and questions about them by id. Never changes.

    `splits` are those with questions; `left_out` counts the questions of a file that can't be asked.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        rows: dict[str, int],
        index: Index,
        questions: Iterable[Question],
        digest: str,
    ) -> None:
        self.documents, self.rows, self.index, self.digest = documents, rows, index, digest
        self.questions = {question.id: question for question in questions}
        self.left_out: dict[str, int] = {}
        self.splits = tuple(
            split
            for split in ("train", "dev", "test")
            if any(q.split == split for q in self.questions.values())
        )
        self._hits = lru_cache(maxsize=4096)(self._find)
        self._tasks = lru_cache(maxsize=None)(self._of_split)

    def search(self, query: str, limit: int) -> list[Document]:
        """The documents that fit the query best (BM25), the best first."""
        hits = self._hits(query, limit) if len(query) <= KEPT else self._find(query, limit)
        return [self.documents[row] for row in hits]

    def _find(self, query: str, limit: int) -> tuple[int, ...]:
        return self.index.search(analyze(query), limit)

    def tasks(self, split: str) -> Sequence[str]:
        """The ids of a split's questions, in order; "all" has every one. Raises UnknownName."""
        if split not in (*self.splits, "all"):
            raise UnknownName("ClosedSearch split", split, [*self.splits, "all"])
        return self._tasks(split)

    def _of_split(self, split: str) -> Sequence[str]:
        return tuple(q.id for q in self.questions.values() if split in (q.split, "all"))


_open: dict[tuple[object, ...], Library] = {}
_lock = Lock()


def open_library(
    source: str, questions: str | None, corpus: str | None, documents: int, corpus_seed: int
) -> Library:
    """The library that ClosedSearch's arguments ask for. Raises UnknownName and ConfigError."""
    known = (GENERATED, *closedsearch_files.SOURCES)
    if source not in known:
        raise UnknownName("ClosedSearch source", source, known)
    made = source == GENERATED
    if made and (questions or corpus):
        raise ConfigError("questions and corpus go with a source other than generated")
    if made and not LEAST <= documents <= MOST:
        raise ConfigError(f"documents is {documents}; it must be from {LEAST} to {MOST}")
    if not made and not questions:
        raise ConfigError(f"source {source} needs `questions`, a file: docs/closedsearch.md says which")
    key: tuple[object, ...] = (source, documents, corpus_seed)
    if not made:
        key = (source, *_state(questions), *_state(corpus))
    with _lock:
        if key not in _open:
            _open[key] = (
                _generated(documents, corpus_seed)
                if made
                else _from_files(source, Path(str(questions)).expanduser(), corpus)
            )
        return _open[key]


def _state(name: str | None) -> tuple[object, ...]:
    """A file as it is now: one that is changed is read anew."""
    path = Path(name or "").expanduser()
    stat = path.stat() if name and path.is_file() else None
    return name, *((stat.st_size, stat.st_mtime_ns) if stat else ())


def _generated(documents: int, seed: int) -> Library:
    counties = list(closedsearch_corpus.counties(documents, seed))
    asked = chain.from_iterable(questions for _, questions in counties)
    shelf = chain.from_iterable(documents for documents, _ in counties)
    name = f"generated-{VERSION}-{documents}-{seed}"
    digest = sha256(name.encode()).hexdigest()
    if documents <= IN_MEMORY:
        return _in_memory(shelf, asked, digest)
    return _on_disk(shelf, asked, digest, name)


def _from_files(source: str, path: Path, corpus: str | None) -> Library:
    found = closedsearch_files.read_questions(source, path)
    own = found.documents if corpus is None or source == "gaia" else {}
    known = sha256(f"{source}|{file_digest(path)}".encode())
    for document in own.values():
        known.update(to_row(document).encode("utf-8", "surrogatepass"))
    if corpus is None:
        library = _in_memory(own.values(), found.questions, known.hexdigest())
    else:
        file = Path(corpus).expanduser()
        if not file.is_file():
            raise ConfigError(f"{file} is missing: `corpus` is a file of JSON lines")
        known.update(file_digest(file).encode())
        read = (d for d in closedsearch_files.read_corpus(file) if d.id not in own)
        name = f"{source}-{known.hexdigest()[:24]}"
        library = _on_disk(chain(own.values(), read), found.questions, known.hexdigest(), name)
    _check_gold(library, path, found.lines)
    library.left_out = dict(found.left_out)
    return library


def _check_gold(library: Library, path: Path, lines: dict[str, int]) -> None:
    """The documents that a question needs must be there, or recall would mean nothing."""
    for question in library.questions.values():
        for docid in question.gold:
            if docid not in library.rows:
                raise ConfigError(
                    f"{path}, line {lines[question.id]}: document {docid!r} is not in the corpus"
                )


def _indexed(document: Document) -> list[str]:
    return analyze(f"{document.title} {document.text}")


def _in_memory(shelf: Iterable[Document], questions: Iterable[Question], digest: str) -> Library:
    builder, documents = IndexBuilder(), list(shelf)
    for document in documents:
        builder.add(document.id, _indexed(document))
    rows = {document.id: row for row, document in enumerate(documents)}
    return Library(documents, rows, builder.finish(), questions, digest)


def _on_disk(
    shelf: Iterable[Document], questions: Iterable[Question], digest: str, name: str
) -> Library:
    folder = build_once(f"closedsearch-{FORMAT}-{name}", lambda folder: _build_into(folder, shelf))
    documents = Rows(folder, "documents", _document)
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    rows = {docid: row for row, docid in enumerate(ids)}
    return Library(documents, rows, open_index(folder), questions, digest)


def _build_into(folder: Path, shelf: Iterable[Document]) -> None:
    builder, ids = IndexBuilder(spill=folder), []
    with RowsWriter(folder, "documents") as documents:
        for document in shelf:
            documents.add(to_row(document))
            builder.add(document.id, _indexed(document))
            ids.append(document.id)
    save_index(builder.finish(folder), folder)
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


def _document(row: str) -> Document:
    return Document(*json.loads(row))
