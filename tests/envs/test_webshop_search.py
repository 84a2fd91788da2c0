"""WebShop's search: the analyzer and the index against Lucene's own answers and against the formula."""

import gzip
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnbench.envs import bm25
from turnbench.envs.analyzer import STOP_WORDS, analyze, stem, words
from turnbench.envs.bm25 import Index, IndexBuilder, open_index, save_index

DATA = Path(__file__).parents[2] / "../shared/data/webshop_1k"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the reference data of the 1k catalogue is absent"
)


def load(name: str):
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file] if name.endswith("jsonl.gz") else json.load(file)


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return {row["id"]: row["contents"] for row in load("documents_1k.jsonl.gz")}


# --- analyzer -------------------------------------------------------------------------------------------


@needs_data
def test_every_document_has_lucenes_tokens(documents) -> None:
    wanted = load("lucene_doc_tokens.json.gz")
    assert {name: analyze(text) for name, text in documents.items()} == wanted
    assert len(wanted) == 1000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Finish/Frame Description:Solid wood", ["finish", "frame", "description:solid", "wood"]),
        ("3.5mm, 1,000 v5.0 4;5", ["3.5mm", "1,000", "v5.0", "4;5"]),
        ("a.b 1.b a1.2b", ["a.b", "1", "b", "a1.2b"]),
        ("don't 'quoted' you’ll", ["don't", "quoted", "you’ll"]),
        ("__ snake_case _x_", ["snake_case", "_x_"]),
        ("★ ☆ ❄️ ❤", ["★", "❄️", "❤"]),
        ("1/2 1⁄2 ¼ ❶", ["1", "2", "1⁄2"]),
        ("小米 piñon", ["小", "米", "piñon"]),
        ("👨‍💼 🇩🇪", ["👨‍💼", "🇩🇪"]),
        ("a" * 300 + " b", ["a" * 255, "a" * 45, "b"]),
        ("", []),
    ],
)
def test_words(text, found) -> None:
    assert words(text) == found


def test_possessives_and_stop_words_go() -> None:
    assert analyze("The women's dresses’s and The WITH kids' it's") == ["women", "dress", "kid"]
    assert all(analyze(word) == [] for word in STOP_WORDS)


@pytest.mark.parametrize(
    ("word", "root"),
    [
        *(("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("cats", "cat"), ("feed", "feed")),
        *(("agreed", "agre"), ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing")),
        *(("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file")),
        *(("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("conditional", "condit")),
        *(("vietnamization", "vietnam"), ("triplicate", "triplic"), ("hopefulness", "hope")),
        *(("revival", "reviv"), ("adoption", "adopt"), ("probate", "probat"), ("cease", "ceas")),
        *(("controll", "control"), ("roll", "roll"), ("is", "is"), ("generalizations", "gener")),
        # the author's two later changes
        *(("possibly", "possibl"), ("archaeology", "archaeolog")),
    ],
)
def test_porter(word, root) -> None:
    assert stem(word) == root


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=200)
def test_any_text_has_terms(text) -> None:
    for term in analyze(text):
        assert term and term not in STOP_WORDS and not re.search(r"\s", term)


@given(st.text("abyseign.:'1,_ -", max_size=30))
@settings(deadline=None)
def test_ascii_is_read_as_other_text_is(text) -> None:
    """The short cut for ASCII finds what the full rules find."""
    assert words(text + " é") == [*words(text), "é"]


# --- index ----------------------------------------------------------------------------------------------


def built(documents: dict[str, list[str]], spill: Path | None = None) -> Index:
    builder = IndexBuilder(spill)
    for name, terms in documents.items():
        builder.add(name, terms)
    return builder.finish(spill)


def stored_length(length: int) -> int:
    """Lucene's SmallFloat.byte4ToInt(intToByte4(length)), bit by bit."""
    if length < 24:
        return length
    rest = length - 24
    shift = max(rest.bit_length() - 4, 0)
    return 24 + ((rest >> shift) << shift)


def by_formula(documents: dict[str, list[str]], query: list[str]) -> dict[str, float]:
    filled = [terms for terms in documents.values() if terms]
    average = sum(len(terms) for terms in filled) / len(filled)
    scores: dict[str, float] = {}
    for name, terms in documents.items():
        counts = Counter(terms)
        norm = 0.9 * (1 - 0.4 + 0.4 * stored_length(len(terms)) / average)
        for term in query:
            df = sum(term in other for other in filled)
            if counts[term]:
                idf = math.log(1 + (len(filled) - df + 0.5) / (df + 0.5))
                scores[name] = scores.get(name, 0.0) + idf * counts[term] / (counts[term] + norm)
    return scores


corpora = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=60), min_size=1, max_size=40).filter(
    any
)


@given(corpora, st.lists(st.sampled_from("abcdefghz"), max_size=8), st.integers(1, 12))
@settings(deadline=None, max_examples=150)
def test_search_ranks_by_the_formula(corpus, query, k) -> None:
    documents = {f"{(7 * row) % 41:02}": terms for row, terms in enumerate(corpus)}
    names, scores = list(documents), by_formula(documents, query)
    found = [names[row] for row in built(documents).search(query, k)]
    assert len(found) == min(k, len(scores)) == len(set(found))
    got = [scores[name] for name in found]
    best = sorted(scores.values(), reverse=True)
    np.testing.assert_allclose(got, best[: len(got)], rtol=1e-5)
    for left, right in zip(found, found[1:], strict=False):
        assert scores[left] > scores[right] * (1 - 1e-6)
        if documents[left] == documents[right]:
            assert left < right


def test_bounds_drop_nothing(monkeypatch) -> None:
    """With terms of very different weight, most are only looked up; the result is the full sum's."""
    rng = np.random.default_rng(5)
    terms = [f"t{k}" for k in range(30)]
    chance = 1 / np.arange(1, 31)
    documents = {
        f"{row:05}": list(rng.choice(terms, size=rng.integers(3, 30), p=chance / chance.sum()))
        for row in range(3000)
    }
    index = built(documents)
    looked_up = []
    gains = Index._gains
    monkeypatch.setattr(Index, "_gains", lambda *a: looked_up.append(len(a[1])) or gains(*a))
    for _ in range(40):
        query = list(rng.choice(terms, size=8))
        quick = index.search(query, 10)
        scores = sum(
            np.bincount(index.docs[part], index.impacts[part], minlength=3000)
            for part in (slice(index.starts[t], index.starts[t + 1]) for t in map(index._number, query))
        )
        exact = np.asarray(scores).astype(np.float32)
        full = np.lexsort((index.ranks, -exact))[:10]
        np.testing.assert_allclose(exact[list(quick)], exact[full], rtol=2e-7)
    assert max(looked_up) < 3000


def test_lengths_are_lucenes() -> None:
    lengths = np.arange(3000)
    assert bm25._stored(lengths).tolist() == [stored_length(int(n)) for n in lengths]


def test_index_on_disk_answers_alike(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bm25, "BLOCK", 50)  # many small blocks
    rng = np.random.default_rng(3)
    documents = {
        f"{row:03}": [f"w{k}" for k in rng.geometric(0.1, size=rng.integers(0, 30))]
        for row in range(200)
    }
    save_index(built(documents, spill=tmp_path), tmp_path)
    assert not list(tmp_path.glob("block*"))
    monkeypatch.undo()
    disk, memory = open_index(tmp_path), built(documents)
    assert list(disk.terms) == memory.terms
    for name in ("starts", "docs", "impacts", "peaks", "ranks"):
        np.testing.assert_array_equal(getattr(disk, name), getattr(memory, name))
    for _ in range(50):
        query = [f"w{k}" for k in rng.geometric(0.1, size=5)]
        assert disk.search(query, 7) == memory.search(query, 7)


def test_empty_cases() -> None:
    index = built({"a": ["x"], "b": []})
    assert index.search([], 5) == index.search(["unknown"], 5) == ()
    assert index.search(["x", "unknown"], 5) == (0,)
    assert built({}).search(["x"], 5) == ()


@needs_data
def test_results_are_lucenes(documents) -> None:
    """The issue's bound is 99 % of first pages; every list of 50 is equal here."""
    names = list(documents)
    index = built({name: analyze(text) for name, text in documents.items()})
    reference = load("lucene_reference_top50.json.gz")
    assert len(reference) == 300
    first = whole = 0
    for query, answer in reference.items():
        assert analyze(query) == answer["tokens"]
        found = [names[row] for row in index.search(analyze(query), 50)]
        wanted = [name for name, _ in answer["top50"]]
        first += found[:10] == wanted[:10]
        whole += found == wanted
    assert first == 300 and whole >= 299
