from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from turnbench.agents.decode import draw  # noqa: E402
from turnbench.agents.kv import BLOCK, KVStore  # noqa: E402
from turnbench.agents.lanes import Row  # noqa: E402
from turnbench.agents.model import Sampling  # noqa: E402

GRID = 1000


def row(uniform, **sampling):
    return Row((1,), Sampling(**sampling), 1, np.array([uniform]))


def shares(logits, **sampling):
    """The share of each token over an even grid of uniform numbers: its probability, to 1/GRID."""
    rows = [row((k + 0.5) / GRID, **sampling) for k in range(GRID)]
    tokens, _ = draw(torch.tensor([logits]).expand(GRID, -1), rows)
    counts = Counter(tokens)
    return np.array([counts[k] / GRID for k in range(len(logits))])


def softmax(logits):
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


logit_lists = st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=9)


@given(logit_lists, st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=20, deadline=None)
def test_tokens_are_drawn_with_the_tempered_probabilities(logits, temperature):
    found = shares(logits, temperature=temperature)
    wanted = softmax([x / temperature for x in logits])
    np.testing.assert_allclose(found, wanted, atol=2 / GRID)


@given(logit_lists, st.floats(0.05, 0.99))
@settings(max_examples=20, deadline=None)
def test_the_nucleus_is_the_smallest_set_that_holds_the_mass(logits, top_p):
    weights = softmax(logits)
    ranked = np.sort(weights)[::-1]
    size = int(np.argmax(np.cumsum(ranked) >= top_p - 1e-9)) + 1
    kept = np.where(weights >= ranked[size - 1] - 1e-9, weights, 0)
    found = shares(logits, top_p=top_p)
    if abs(np.cumsum(ranked) - top_p).min() > 1e-6 and (np.diff(-ranked) > 1e-6).all():
        np.testing.assert_allclose(found, kept / kept.sum(), atol=2 / GRID)


@given(logit_lists, st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.3, 1.0, 2.0]))
@settings(max_examples=20, deadline=None)
def test_logprobs_are_those_at_temperature_one(logits, uniform, temperature):
    tokens, logprobs = draw(torch.tensor([logits]), [row(uniform, temperature=temperature, top_p=0.7)])
    assert logprobs[0] == pytest.approx(np.log(softmax(logits)[tokens[0]]), abs=1e-5)
    if temperature == 0:
        assert logits[tokens[0]] == max(logits)


@pytest.mark.parametrize("beside", [(), (row(0.5),)])
def test_the_largest_logit_is_taken_though_its_log_prob_rounds_to_anothers(beside):
    logits = torch.tensor([[0.0, 2.0**-126]]).repeat(1 + len(beside), 1)
    tokens, _ = draw(logits, [row(0.0, temperature=0), *beside])
    assert tokens[0] == 1


def test_each_row_has_its_own_sampling():
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]]).repeat(4, 1)
    rows = [row(0.0), row(0.0, temperature=0), row(0.0, top_p=0.7), row(0.999999, temperature=2)]
    assert draw(logits, rows)[0] == [0, 2, 2, 3]
    assert draw(logits.bfloat16(), rows)[0] == [0, 2, 2, 3]


def test_tokens_without_probability_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    for uniform in (0.0, 0.25, 0.5, 1 - 2**-53):
        assert draw(logits, [row(uniform)])[0][0] in (1, 3)


# --- the store ------------------------------------------------------------------------------------


def states(ids):
    """States from which their ids can be read: (2 layers, 1 head, tokens, 1)."""
    return torch.tensor(ids, dtype=torch.float32).reshape(1, 1, -1, 1).repeat(2, 1, 1, 1)


def shared(left, right):
    return next(
        (k for k, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


sequences = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.lists(st.integers(0, 1), max_size=40)),
    max_size=30,
)


@given(sequences, st.integers(400, 3000))
@settings(max_examples=80, deadline=None)
def test_the_store_finds_what_it_holds_and_stays_in_its_bounds(asked, limit):
    store = KVStore(limit)
    for base, length, tail in asked:
        ids = (*[base] * length, *tail)
        found, kv = store.find(ids)
        if kv is not None:
            assert tuple(kv[0, 0, :found, 0].int().tolist()) == ids[:found]
        held = [shared(ids, other) for other in store._entries]
        best = max(held, default=0)
        assert found // BLOCK == best // BLOCK and found <= best
        store.put(ids, states(ids))
        assert store.bytes == sum(len(other) * 8 for other in store._entries) <= limit
        if ids and len(ids) * 8 <= limit and len(ids) >= BLOCK:
            assert store.find(ids)[0] == len(ids)
    assert all(entries for entries in store._index.values())


def test_an_extended_sequence_replaces_what_it_extends():
    store = KVStore(10_000)
    store.put((1,) * 20, states((1,) * 20))
    store.put((1,) * 30, states((1,) * 30))
    assert list(store._entries) == [(1,) * 30]
    assert store.find((1,) * 20 + (2,))[0] == 20


def test_a_sequence_among_many_alike_is_kept_once():
    """Copies of a search and its siblings share all whole blocks; each must be dropped once."""
    store = KVStore(10**6)
    alike = [(1,) * 20 + (k,) for k in range(2, 14)]
    for ids in [*alike, alike[0]]:
        store.put(ids, states(ids))
    assert sum(map(len, store._index.values())) == len(store._entries) == len(alike)
    store.limit = 0
    while store._entries:
        store._drop(next(iter(store._entries.values())))
    assert not store._index and store.bytes == 0


def test_the_least_recently_used_goes_first():
    store = KVStore(3 * 20 * 8)
    for token in (1, 2, 3):
        store.put((token,) * 20, states((token,) * 20))
    store.find((1,) * 20)
    store.put((4,) * 20, states((4,) * 20))
    assert [store.find((token,) * 20)[0] for token in (1, 2, 3, 4)] == [20, 0, 20, 20]
