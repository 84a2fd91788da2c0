"""ClosedSearch: answer questions that take several documents, with a search and an open tool.

A look-alike of BrowseComp-Plus, GAIA and HLE that needs no download: a fixed corpus, BM25, and a reward
for the final answer alone. The corpus is generated (closedsearch_corpus.py), or questions and documents
come from files that the user has (closedsearch_files.py, docs/closedsearch.md).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from turnbench.envs.closedsearch_answer import Answered, is_correct, read_answer
from turnbench.envs.closedsearch_corpus import Question
from turnbench.envs.closedsearch_facts import Document
from turnbench.envs.closedsearch_open import GENERATED, Library, open_library
from turnbench.envs.core import Step
from turnbench.envs.errors import UnknownName
from turnbench.envs.record import Json
from turnbench.envs.toolcall import Call, call_text
from turnbench.envs.toolenv import Score, ToolEnv
from turnbench.envs.toolset import ToolSet

LIMIT, MOST = 10, 20  # documents that a search lists unless told otherwise, and at most
LONGEST = 1000  # characters of a query
SNIPPET, PAGE = 160, 4000  # characters of a document in a list of hits, and of one page of it

WITH_TOOLS = """\
Answer a question from a closed library. search lists documents that fit keywords, open_document shows \
one. Most questions take several documents: find what is named, and read on from there. """
INSTRUCTIONS = """\
Write the answer as plain text in this form, which ends the task:
Answer: the answer, as short as possible"""
CITE = " [ids of the documents it rests on]"


def _tool(name: str, description: str, required: str, **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": [required]}
    described = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": described}


def _argument(kind: str, description: str) -> Json:
    return {"type": kind, "description": description}


TOOLS = ToolSet(
    (
        _tool(
            "search",
            "List the documents that fit keywords best.",
            "query",
            query=_argument("string", "keywords"),
            limit=_argument("integer", f"at most {MOST}; {LIMIT} without it"),
        ),
        _tool(
            "open_document",
            "Show one document.",
            "id",
            id=_argument("string", "as search lists it"),
            page=_argument("integer", "of a long document, from 1"),
        ),
    )
)
NO_TOOLS = ToolSet(())


class ClosedSearch(ToolEnv):
    """Reward 1 for the right final answer, else 0; plain text is the final answer and ends the episode.

    `source`: "generated", or "browsecomp_plus", "gaia", "hle" with `questions` (a file of JSON lines)
    and `corpus` (another; where it is None, the documents that come with the questions). `documents`
    and `corpus_seed` are the least size and the seed of a generated corpus.

    The last step's `info["checks"]` holds the answer as read, the one expected, and recall: of the
    needed documents among those listed by searches (`listed_recall`), opened (`opened_recall`) and
    cited (`citation_recall`, with `citation_precision`).
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    benchmark = "ClosedSearch-v0"

    def __init__(
        self,
        *,
        source: str = GENERATED,
        questions: str | None = None,
        corpus: str | None = None,
        documents: int = 6000,
        corpus_seed: int = 0,
        tools_in_observation: bool = False,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            tools_in_observation=tools_in_observation, max_turns=max_turns, render_mode=render_mode
        )
        self.library: Library = open_library(source, questions, corpus, documents, corpus_seed)
        self.splits = self.library.splits  # type: ignore[misc]  # a question set may have one alone
        shelf = len(self.library.documents) > 0
        self._shelf = TOOLS if shelf else NO_TOOLS
        self.instructions = WITH_TOOLS * shelf + INSTRUCTIONS + CITE * shelf
        self.question = Question("", "", "")
        self.listed: frozenset[str] = frozenset()
        self.opened: frozenset[str] = frozenset()
        self.answered = Answered("", ())

    def tasks(self, split: str) -> Sequence[str]:
        """Question ids of a split; "all" has every question."""
        return self.library.tasks(split)

    def data_digest(self) -> str:
        """Digest of the questions and documents."""
        return self.library.digest

    def solution(self) -> list[str]:
        """Searches and documents along the question's path, where it is known, and the answer."""
        plan = zip(self.question.gold, self.question.plan, strict=False)
        looked = [
            call_text(name, **arguments)
            for docid, query in plan
            for name, arguments in (("search", {"query": query}), ("open_document", {"id": docid}))
        ]
        cited = f" [{', '.join(self.question.gold)}]" if self.question.gold else ""
        return [*looked, f"Answer: {self.question.answer}{cited}"]

    def fork(self) -> Self:
        """A copy, in constant time: the library is shared, the rest never changes in place."""
        return self._shallow_copy()

    def _reset(self, task: str) -> str:
        question = self.library.questions.get(task)
        if question is None:
            raise UnknownName("ClosedSearch task", task, self.library.questions)
        self.question = question
        self.listed = self.opened = frozenset()
        self.answered = Answered("", ())
        return f"Question: {question.text}"

    def _visible(self) -> ToolSet:
        return self._shelf

    def _call(self, call: Call) -> str:
        return self._search(**call.arguments) if call.name == "search" else self._open(**call.arguments)

    def _search(self, query: str, limit: int = LIMIT) -> str:
        if not 1 <= limit <= MOST:
            return f"Error: limit must be from 1 to {MOST}"
        if len(query) > LONGEST:
            return f"Error: the query has {len(query)} characters; at most {LONGEST} are searched for"
        hits = self.library.search(query, limit)
        self.listed |= {document.id for document in hits}
        return "\n".join(map(_hit, hits)) or "No document fits."

    def _open(self, id: str, page: int = 1) -> str:
        row = self.library.rows.get(id)
        if row is None:
            return f"Error: there is no document {id[:60]!r}; search lists the ids"
        document = self.library.documents[row]
        pages = max(1, -(-len(document.text) // PAGE))
        if not 1 <= page <= pages:
            return f"Error: document {id} has {pages} page{'s' * (pages > 1)}"
        self.opened |= {id}
        text = document.text[(page - 1) * PAGE : page * PAGE]
        return f"[{id}] {document.title}{f' (page {page} of {pages})' if pages > 1 else ''}\n{text}"

    def _say(self, text: str) -> Step:
        if not text.strip():
            return Step("Error: nothing was written; call a tool or write the answer.")
        self.answered = read_answer(text, self.library.rows.__contains__)
        return Step("The answer has been taken.", terminated=True)

    def _score(self, ended: bool) -> Score:
        question, answered = self.question, self.answered
        right = ended and is_correct(answered.answer, question.answer, question.rule)
        checks: dict[str, Any] = {"answer": answered.answer, "expected": question.answer}
        if question.gold:
            gold, cited = frozenset(question.gold), frozenset(answered.cited)
            checks["listed_recall"] = len(gold & self.listed) / len(gold)
            checks["opened_recall"] = len(gold & self.opened) / len(gold)
            checks["citation_recall"] = len(gold & cited) / len(gold)
            checks["citation_precision"] = len(gold & cited) / len(cited) if cited else 0.0
        return Score(float(right), right, checks)


def _hit(document: Document) -> str:
    begins = " ".join(document.text[: 2 * SNIPPET].split())
    return f"[{document.id}] {document.title}: {begins[:SNIPPET]}"
