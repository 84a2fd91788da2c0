"""A generated library: documents on people, towns, ships and books of made-up counties, and questions.

Each fact stands in one document only, that of its subject, so a question that follows several facts
can't be answered from one. A county's documents name nothing of another county, and each county
belongs to one split: what is learned on train answers no question of test.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple

from turnbench.envs.closedsearch_facts import (
    COUNTY,
    RELATIONS,
    SIZES,
    VERSION,
    Document,
    Fact,
    Names,
    Thing,
    document_id,
    draw_name,
    draw_word,
    make_document,
    make_facts,
    shown,
    unique,
)

QUESTIONS = 10  # questions of a county, or a few less where its facts don't give as many
SPLITS = ("train",) * 7 + ("dev",) + ("test",) * 2  # of county k: SPLITS[k % 10]
HOPS = (2, 2, 3, 3, 4)  # documents that a question needs
TRIES = 400
DESCRIBED = 0.25  # of the questions begin with a date or number instead of a name


class Question(NamedTuple):
    """A question, its answer, the documents that are needed, and for each a search that finds it.

    `rule` names how an answer is compared (closedsearch_answer.py). `plan` is empty for questions that
    people wrote.
    """

    id: str
    text: str
    answer: str
    gold: tuple[str, ...] = ()
    split: str = "test"
    rule: str = "exact"
    plan: tuple[str, ...] = ()


County = tuple[list[Document], list[Question]]


def counties(documents: int, seed: int) -> Iterator[County]:
    """Documents and questions, county by county, until there are at least `documents` of them.

    A larger corpus begins like a smaller one of the same seed.
    """
    names = Names(seed)
    for number in range(-(-documents // COUNTY)):
        yield _county(names, number)


def _county(names: Names, number: int) -> County:
    rng = Random(f"closedsearch-{VERSION}-{names.seed}-{number}")
    name = unique(names, lambda: draw_word(rng) + rng.choice(("mark", "shire", "land", "dale")))
    kinds = [kind for kind, count in SIZES.items() for _ in range(count)]
    rows = list(range(number * COUNTY, (number + 1) * COUNTY))
    rng.shuffle(rows)
    things = [
        Thing(row, kind, unique(names, partial(draw_name, rng, kind)))
        for row, kind in zip(rows, kinds, strict=True)
    ]
    facts = make_facts(rng, names, things)
    documents = [make_document(rng, thing, facts, name) for thing in sorted(things)]
    return documents, _questions(rng, names, facts, things, number)


# --- questions ---


class Link(NamedTuple):
    """A step of a question's path: the fact used, its other end in words, and a search for the fact."""

    fact: Fact
    text: str
    search: str


class Graph:
    """A county's facts, by the thing they are about and by the thing they lead to."""

    def __init__(self, facts: list[Fact]) -> None:
        self.about: dict[Thing, list[Fact]] = {}
        self.leading: dict[tuple[int, Thing | str], list[Fact]] = {}
        for fact in facts:
            self.about.setdefault(fact.subject, []).append(fact)
            self.leading.setdefault((fact.relation, fact.object), []).append(fact)

    def links(self, known: Thing, text: str) -> list[tuple[Link, Thing]]:
        """The steps from a thing, described by `text`, to exactly one other."""
        found = []
        for fact in self.about[known]:
            if isinstance(fact.object, Thing):
                said = RELATIONS[fact.relation].forward.format(x=text)
                found.append((Link(fact, said, known.name), fact.object))
        for (number, target), facts in self.leading.items():
            if target == known and len(facts) == 1:
                relation = RELATIONS[number]
                link = Link(facts[0], relation.inverse.format(x=text), f"{known.name} {relation.words}")
                found.append((link, facts[0].subject))
        return found

    def values(self, known: Thing) -> list[Fact]:
        """The facts that give a date or number of a thing."""
        return [fact for fact in self.about[known] if isinstance(fact.object, str)]


class Walk(NamedTuple):
    """A path so far: the thing it has come to, that thing in words, and the facts used."""

    here: Thing
    text: str
    path: tuple[Link, ...] = ()
    seen: frozenset[Thing] = frozenset()

    @property
    def needed(self) -> set[Thing]:
        """The things whose documents have to be read."""
        return {link.fact.subject for link in self.path}


def _questions(
    rng: Random, names: Names, facts: list[Fact], things: list[Thing], number: int
) -> list[Question]:
    split = SPLITS[number % len(SPLITS)]
    graph = Graph(facts)
    found: list[Question] = []
    for _ in range(TRIES):
        made = _question(rng, graph, things, f"{number}-{len(found)}", split)
        if made is None or any(made.answer == other.answer for other in found):
            continue
        if names.answers.setdefault(made.answer, split) == split:
            found.append(made)
        if len(found) == QUESTIONS:
            break
    return found


def _question(rng: Random, graph: Graph, things: list[Thing], name: str, split: str) -> Question | None:
    """A random path through as many documents as drawn, or None where it led nowhere."""
    hops, for_name = rng.choice(HOPS), rng.random() < 0.5
    walk: Walk | None = _start(rng, graph, rng.choice(things))
    while walk is not None:
        last = None if for_name else _value(rng, graph, walk)
        path = walk.path if last is None else (*walk.path, last)
        if len({link.fact.subject for link in path}) == hops and (last or walk.here not in walk.needed):
            asked = f"What is the name of {walk.text}?" if last is None else last.text
            return _finished(path, asked, walk.here.name if last is None else last.fact, name, split)
        walk = _further(rng, graph, walk, hops)
    return None


def _start(rng: Random, graph: Graph, here: Thing) -> Walk:
    """A thing by its name, or by a date or number that belongs to it alone."""
    values = graph.values(here)
    if not values or rng.random() >= DESCRIBED:
        return Walk(here, shown(here), seen=frozenset({here}))
    fact = rng.choice(values)
    relation = RELATIONS[fact.relation]
    text = relation.inverse.format(x=fact.object)
    link = Link(fact, text, f"{fact.object} {relation.words}")
    return Walk(here, text, (link,), frozenset({here}))


def _further(rng: Random, graph: Graph, walk: Walk, hops: int) -> Walk | None:
    """One step to a thing not met yet that needs no more than `hops` documents in all."""
    steps = [
        (link, there)
        for link, there in graph.links(walk.here, walk.text)
        if there not in walk.seen and len(walk.needed | {link.fact.subject}) <= hops
    ]
    if not steps:
        return None
    link, there = rng.choice(steps)
    return Walk(there, link.text, (*walk.path, link), walk.seen | {there})


def _value(rng: Random, graph: Graph, walk: Walk) -> Link | None:
    """The question for a date or number of the thing, other than the one it was described by."""
    used = [link.fact for link in walk.path]
    values = [fact for fact in graph.values(walk.here) if fact not in used]
    if not values or not walk.path:
        return None
    fact = rng.choice(values)
    relation = RELATIONS[fact.relation]
    form = " Write it like 5 May 1850." if relation.target == "date" else ""
    return Link(fact, relation.forward.format(x=walk.text) + form, walk.here.name)


def _finished(
    path: tuple[Link, ...], text: str, end: Fact | str, name: str, split: str
) -> Question | None:
    """The question, unless its answer stands in it."""
    answer = end if isinstance(end, str) else str(end.object)
    searches: dict[str, str] = {}
    for link in path:
        searches.setdefault(document_id(link.fact.subject.row), link.search)
    made = Question(name, text, answer, tuple(searches), split, "exact", tuple(searches.values()))
    return None if answer in text else made
