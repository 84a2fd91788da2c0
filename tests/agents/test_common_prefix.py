from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.model import common_prefix

ids = st.lists(st.integers(0, 1), max_size=8).map(tuple)


@given(ids, ids)
def test_the_common_prefix_is_the_longest(left, right):
    agree = list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    assert common_prefix(left, right) == len(agree)
