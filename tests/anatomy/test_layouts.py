import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.anatomy import FusedRows, HeadCounts, WeightPart, WholeTensor, read_part
from mdir_hf.checkpoint import MemorySource
from mdir_hf.errors import AnatomyError

HEADS = HeadCounts(n_heads=4, n_kv_heads=2)
QKV = (0, 1, 2)


def test_contiguous_parts_follow_one_another():
    q, k, v = (FusedRows(1, ("heads", "kv_heads", "kv_heads"), at).rows(16, HEADS).tolist() for at in QKV)
    assert (q, k, v) == (list(range(8)), list(range(8, 12)), list(range(12, 16)))


def test_parts_interleaved_per_head_are_those_of_a_view():
    stored = np.arange(4 * 3 * 5).reshape(4, 3, 5)  # n_heads, 3, d_head
    for at in QKV:
        assert FusedRows("heads", (1, 1, 1), at).rows(60, HEADS).tolist() == stored[:, at].reshape(-1).tolist()


def test_parts_interleaved_per_group_are_those_of_a_view():
    stored = np.arange(2 * 4 * 3).reshape(2, 4, 3)  # n_kv_heads, q q k v, d_head
    for at, taken in enumerate((slice(0, 2), slice(2, 3), slice(3, 4))):
        rows = FusedRows("kv_heads", ("heads_per_kv_head", 1, 1), at).rows(24, HEADS)
        assert rows.tolist() == stored[:, taken].reshape(-1).tolist()


def test_every_other_row():
    assert FusedRows("rows", (1, 1), 1).rows(8, None).tolist() == [1, 3, 5, 7]


@given(
    st.sampled_from([1, 3, "heads", "kv_heads"]),
    st.lists(st.sampled_from([1, 2, "heads", "heads_per_kv_head"]), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_the_parts_of_a_tensor_are_all_of_it_once(groups, shares, unit):
    numbers = {"heads": 4, "kv_heads": 2, "heads_per_kv_head": 2}
    n_rows = numbers.get(groups, groups) * sum(numbers.get(share, share) for share in shares) * unit
    rows = [FusedRows(groups, tuple(shares), at).rows(n_rows, HEADS) for at in range(len(shares))]
    assert sorted(np.concatenate(rows).tolist()) == list(range(n_rows))


def test_rows_that_do_not_divide_are_refused_with_the_name_of_the_tensor():
    part = WeightPart("h.0.qkv", FusedRows("heads", (1, 1, 1), 0), heads=HEADS)
    with pytest.raises(AnatomyError, match=r"'h.0.qkv' of shape \(14, 8\): 14 rows cannot be split into 4 group"):
        part.rows((14, 8))


def test_unknown_heads_are_refused_where_they_are_needed():
    part = WeightPart("qkv", FusedRows("heads", (1, 1, 1), 0))
    with pytest.raises(AnatomyError, match="number of attention heads is needed"):
        part.rows((12, 8))


def test_heads_that_do_not_share_evenly_are_refused():
    with pytest.raises(AnatomyError, match="5 heads cannot be shared by 2"):
        FusedRows("kv_heads", ("heads_per_kv_head", 1, 1), 0).rows(28, HeadCounts(5, 2))


def test_no_rows_cannot_be_split():
    with pytest.raises(AnatomyError, match="0 rows cannot be split"):
        FusedRows("rows", (1, 1), 0).rows(0, None)


@pytest.fixture
def source():
    return MemorySource({"w": torch.arange(24.0).reshape(6, 4), "norm": torch.arange(3.0), "cube": torch.ones(2, 2, 2)})


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (WeightPart("w"), torch.arange(24.0).reshape(6, 4)),
        (WeightPart("w", transposed=True), torch.arange(24.0).reshape(6, 4).T),
        (WeightPart("w", FusedRows(1, (1, 2), 1)), torch.arange(24.0).reshape(6, 4)[2:]),
        (WeightPart("w", FusedRows(1, (1, 1), 1), transposed=True), torch.arange(24.0).reshape(6, 4)[:, 2:].T),
        (WeightPart("norm"), torch.arange(3.0)),
    ],
)
def test_a_part_is_read_as_output_by_input(source, part, expected):
    got = read_part(source, part)
    assert torch.equal(got, expected)
    assert got.is_contiguous()
    assert part.shape(tuple(source.spec(part.tensor).shape)) == tuple(expected.shape)


def test_a_fused_weight_that_is_no_matrix_is_refused(source):
    with pytest.raises(AnatomyError, match=r"'cube' has shape \(2, 2, 2\); a fused weight must be a matrix"):
        read_part(source, WeightPart("cube", FusedRows(1, (1, 1), 0)))


def test_layouts_compare_by_value():
    assert WeightPart("w", WholeTensor()).is_whole
    assert not WeightPart("w", FusedRows(1, (1, 1), 0)).is_whole
