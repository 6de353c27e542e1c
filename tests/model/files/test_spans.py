import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.model.files.ranged import coalesce

rows_strategy = st.lists(st.integers(0, 200), max_size=60).map(lambda rows: np.array(rows, dtype=np.int64))
plans = st.tuples(
    rows_strategy,
    st.integers(1, 17),  # row_n_bytes
    st.integers(0, 1000),  # start
    st.integers(0, 400),  # max_gap_bytes
    st.integers(1, 300),  # max_span_bytes
)


def plan(case):
    rows, row_n_bytes, start, gap, longest = case
    return coalesce(rows, row_n_bytes, start, max_gap_bytes=gap, max_span_bytes=longest)


@given(plans)
def test_every_slot_is_filled_once_from_the_bytes_of_its_row(case):
    rows, row_n_bytes, start, _, _ = case
    found = {}
    for part in plan(case):
        for slot, offset in zip(part.slots.tolist(), part.offsets.tolist(), strict=True):
            assert slot not in found
            at = part.start + offset * row_n_bytes
            assert part.start <= at and at + row_n_bytes <= part.stop
            found[slot] = (at - start) / row_n_bytes
    assert found == dict(enumerate(rows.tolist()))


@given(plans)
def test_spans_are_disjoint_and_in_file_order(case):
    spans = [part.span for part in plan(case)]
    assert all(stop <= following for (_, stop), (following, _) in itertools.pairwise(spans))


@given(plans)
def test_no_span_is_longer_than_allowed_unless_it_is_one_row(case):
    _, row_n_bytes, _, _, longest = case
    assert all(part.stop - part.start <= max(longest, row_n_bytes) for part in plan(case))


@given(plans)
def test_no_gap_is_wider_than_allowed(case):
    _, row_n_bytes, _, gap, _ = case
    for part in plan(case):
        assert all((np.diff(part.offsets) - 1) * row_n_bytes <= gap)


@given(rows_strategy, st.integers(1, 17))
def test_without_gaps_exactly_the_wanted_bytes_are_read(rows, row_n_bytes):
    parts = coalesce(rows, row_n_bytes, 5, max_gap_bytes=0)
    assert sum(part.stop - part.start for part in parts) == len(set(rows.tolist())) * row_n_bytes


@given(rows_strategy, st.integers(1, 17), st.integers(0, 400))
def test_spans_are_never_closer_than_the_gap_unless_full(rows, row_n_bytes, gap):
    longest = 50 * row_n_bytes
    parts = coalesce(rows, row_n_bytes, 0, max_gap_bytes=gap, max_span_bytes=longest)
    for part, following in itertools.pairwise(parts):
        joined = following.start + row_n_bytes - part.start
        assert following.start - part.stop > gap or joined > longest
