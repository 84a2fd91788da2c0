"""BM25 as Lucene ranks it, over arrays that fit in memory or are mapped from files.

A document's score is the sum over the query's terms (repetitions counted) of
ln(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 * (1 - b + b * dl / avgdl)), with k1 = 0.9 and b = 0.4
(Anserini's defaults) and dl rounded to what Lucene keeps in one byte. Documents of equal score stand in
the order of their names, as in Anserini.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from turnbench.envs.store import Rows, RowsWriter, load_array

K1, B = 0.9, 0.4
SAFE = 1 - 1e-5  # bounds are loosened by more than float32 can round
SAMPLE = 10_000  # documents of a term that are looked at for a bound
BLOCK = 4_000_000  # tokens that a builder holds before it sorts them away

Array = np.ndarray[Any, Any]


class Index:
    """An inverted index: postings of term t are at `starts[t]:starts[t + 1]` of `docs` and `impacts`.

    `terms` is sorted; `impacts` (float32) are the scores that one occurrence in a query gives, `peaks`
    their largest for each term. `ranks` are the documents' places in the order of their names.
    """

    def __init__(
        self,
        terms: Sequence[str],
        starts: Array,
        docs: Array,
        impacts: Array,
        peaks: Array,
        ranks: Array,
    ) -> None:
        self.terms, self.starts, self.docs, self.impacts = terms, starts, docs, impacts
        self.peaks, self.ranks = peaks, ranks
        self._number = lru_cache(maxsize=2**16)(self._find)

    def search(self, query: Iterable[str], k: int) -> tuple[int, ...]:
        """The numbers of the `k` best documents, the best first; fewer where fewer match at all.

        Terms are taken in the order of what they can give (MaxScore): once those left can't lift an
        unseen document among the best, they are looked up only for the documents still able to.
        """
        found = self._known(query)
        scores = np.zeros(len(self.ranks), dtype=np.float32)
        rest, floor = sum(peak for peak, _, _ in found), 0.0
        best = np.zeros(0, dtype=np.int32)
        late = found.copy()
        while late and rest >= floor * SAFE:
            peak, term, count = late.pop(0)
            docs, gains = self._postings(term, count)
            scores[docs] += gains
            rest -= peak
            best = _leaders(scores, best, docs, k)
            floor = float(scores[best].min()) if len(best) == k else 0.0
        able = np.flatnonzero(scores > max(floor * SAFE - rest, 0.0)).astype(np.int32)
        able = self._narrowed(able, scores[able], late, rest, k)
        exact = self._exact(able, found)
        return tuple(able[np.lexsort((self.ranks[able], -exact))[:k]].tolist())

    def _known(self, query: Iterable[str]) -> list[tuple[float, int, int]]:
        """(the most it can give, number, count) of each known term, the most giving first."""
        numbers = [(self._number(term), count) for term, count in Counter(query).items()]
        return sorted(((float(n * self.peaks[t]), t, n) for t, n in numbers if t >= 0), reverse=True)

    def _find(self, term: str) -> int:
        place = bisect_left(self.terms, term)
        return place if place < len(self.terms) and self.terms[place] == term else -1

    def _narrowed(
        self, able: Array, scores: Array, late: list[tuple[float, int, int]], rest: float, k: int
    ) -> Array:
        """Those of the documents `able` that are still able to be among the best after the late terms."""
        for peak, term, count in late:
            if len(able) <= 4 * k:
                break
            scores = scores + self._gains(able, term, count)
            rest -= peak
            floor = np.partition(scores, len(scores) - k)[len(scores) - k]
            keep = scores > floor * SAFE - rest
            able, scores = able[keep], scores[keep]
        return able

    def _gains(self, able: Array, term: int, count: int) -> Array:
        """What a term gives to some documents (ascending)."""
        docs, gains = self._postings(term, count)
        place = np.minimum(np.searchsorted(docs, able), len(docs) - 1)
        return np.where(docs[place] == able, gains[place], np.float32(0))

    def _postings(self, term: int, count: int) -> tuple[Array, Array]:
        part = slice(int(self.starts[term]), int(self.starts[term + 1]))
        gains = self.impacts[part]
        return self.docs[part], gains if count == 1 else gains * np.float32(count)

    def _exact(self, able: Array, found: list[tuple[float, int, int]]) -> Array:
        """The scores of some documents (ascending), summed and rounded as Lucene does: this decides
        which of them count as equal."""
        total = np.zeros(len(able))
        for _, term, count in found:
            total += self._gains(able, term, count)
        return total.astype(np.float32)


def _leaders(scores: Array, best: Array, docs: Array, k: int) -> Array:
    """The `k` leading documents among the former ones and (a sample of) those just scored.

    Any k documents will do: the lowest score of theirs is a bound on what the k-th best has.
    """
    some = _top(scores, docs[:: len(docs) // SAMPLE + 1], k)
    return _top(scores, np.unique(np.concatenate([best, some])), k)


def _top(scores: Array, docs: Array, k: int) -> Array:
    return docs[np.argpartition(scores[docs], len(docs) - k)[-k:]] if len(docs) > k else docs


class IndexBuilder:
    """Takes documents one by one; holds their postings in memory, or in files under `spill`."""

    def __init__(self, spill: Path | None = None) -> None:
        self.spill = spill
        self._ids: dict[str, int] = {}
        self._tokens, self._lengths = array("i"), array("i")
        self._names: list[str] = []
        self._blocks: list[tuple[Array, Array, Array]] = []
        self._first = 0  # the first document of the block being filled

    def add(self, name: str, terms: Sequence[str]) -> None:
        """Add the next document, given by its name and its index terms with repetitions."""
        self._names.append(name)
        ids = self._ids
        self._tokens.extend([ids.setdefault(term, len(ids)) for term in terms])
        self._lengths.append(len(terms))
        if len(self._tokens) >= BLOCK:
            self._close_block()

    def _close_block(self) -> None:
        """Sort the block's tokens into (term, document, frequency) triples."""
        lengths = np.array(self._lengths[self._first :])
        local = np.repeat(np.arange(len(lengths)), lengths)
        keys = np.array(self._tokens, dtype=np.int64) * max(len(lengths), 1) + local
        keys, counts = np.unique(keys, return_counts=True)
        terms, docs = np.divmod(keys, max(len(lengths), 1))
        block = (terms.astype(np.int32), (docs + self._first).astype(np.int32), counts.astype(np.int32))
        self._blocks.append(block if self.spill is None else self._spilt(block))
        self._tokens, self._first = array("i"), len(self._lengths)

    def _spilt(self, block: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        assert self.spill is not None
        paths = [self.spill / f"block{len(self._blocks)}.{part}.npy" for part in range(3)]
        for path, values in zip(paths, block, strict=True):
            np.save(path, values)
        one, two, three = (np.load(path, mmap_mode="r") for path in paths)
        return one, two, three

    def finish(self, folder: Path | None = None) -> Index:
        """The index of all documents added; its large arrays are files in `folder`, if given."""
        self._close_block()
        terms = sorted(self._ids)
        rank = np.empty(len(terms), dtype=np.int32)
        rank[[self._ids[term] for term in terms]] = np.arange(len(terms), dtype=np.int32)
        df = np.zeros(len(terms), dtype=np.int64)
        for block in self._blocks:
            df += np.bincount(rank[block[0]], minlength=len(terms))
        starts = np.concatenate([[0], np.cumsum(df)])
        docs = _output(folder, "docs", np.int32, int(starts[-1]))
        impacts = _output(folder, "impacts", np.float32, int(starts[-1]))
        idf, inverse = self._factors(df)
        cursor = starts[:-1].copy()
        for ids, block_docs, counts in self._blocks:
            place = _places(rank[ids], cursor)
            weight = idf[rank[ids]]
            docs[place] = block_docs
            impacts[place] = weight - weight / (1 + counts.astype(np.float32) * inverse[block_docs])
        peaks = np.maximum.reduceat(impacts, starts[:-1]) if terms else np.zeros(0, np.float32)
        return Index(terms, starts, docs, impacts, np.asarray(peaks), self._ranks())

    def _ranks(self) -> Array:
        ranks = np.empty(len(self._names), dtype=np.int32)
        ranks[sorted(range(len(ranks)), key=self._names.__getitem__)] = np.arange(len(ranks))
        return ranks

    def _factors(self, df: Array) -> tuple[Array, Array]:
        """Each term's weight, and for each document 1 / (k1 * (1 - b + b * dl / avgdl)); float32."""
        lengths = np.array(self._lengths, dtype=np.int64)
        filled = max(int(np.count_nonzero(lengths)), 1)
        idf = np.log(1 + (filled - df + 0.5) / (df + 0.5))
        average = np.float32(lengths.sum() / filled) or np.float32(1)
        norm = np.float32(K1) * (np.float32(1 - B) + np.float32(B) * _stored(lengths) / average)
        return idf.astype(np.float32), (np.float32(1) / norm).astype(np.float32)


def save_index(index: Index, folder: Path) -> None:
    """Write what `IndexBuilder.finish(folder)` has not yet put into the folder."""
    with RowsWriter(folder, "terms") as terms:
        for term in index.terms:
            terms.add(term)
    for name in ("starts", "peaks", "ranks"):
        np.save(folder / f"index_{name}.npy", getattr(index, name))
    for spilt in folder.glob("block*.npy"):
        spilt.unlink()


def open_index(folder: Path) -> Index:
    """The index that `save_index` wrote, mapped into memory."""
    terms = Rows(folder, "terms", str, keep=0)
    parts = ("starts", "docs", "impacts", "peaks", "ranks")
    return Index(terms, *(load_array(folder / f"index_{name}.npy") for name in parts))


def _output(folder: Path | None, name: str, dtype: Any, size: int) -> Array:
    if folder is None or not size:
        return np.zeros(size, dtype=dtype)
    path = folder / f"index_{name}.npy"
    mapped: Array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))  # type: ignore[no-untyped-call]
    return mapped


def _places(terms: Array, cursor: Array) -> Array:
    """Where a block's postings go; moves each term's cursor past them.

    A block is sorted by the term's first number, so postings of a term stand together.
    """
    starts = np.flatnonzero(np.concatenate([[True], terms[1:] != terms[:-1]])) if len(terms) else terms
    counts = np.diff(np.append(starts, len(terms)))
    heads = terms[starts]
    place: Array = np.repeat(cursor[heads] - starts, counts) + np.arange(len(terms))
    cursor[heads] += counts
    return place


def _stored(lengths: Array) -> Array:
    """Document lengths as Lucene's one-byte code (SmallFloat.intToByte4) gives them back; float32."""
    free = 24  # lengths below are kept exactly
    above = np.maximum(lengths - free, 0)
    shift = np.maximum(np.frexp(above.astype(np.float64))[1] - 4, 0)
    return np.where(lengths < free, lengths, free + ((above >> shift) << shift)).astype(np.float32)
