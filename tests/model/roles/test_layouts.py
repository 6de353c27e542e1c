import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdir_hf.errors import AnatomyError
from mdir_hf.model.files import MemorySource
from mdir_hf.model.roles import FusedRows, HeadCounts, RowsOfEach, WeightPart, read_part
from tests.model.roles.counting_source import CountingSource

HEADS = HeadCounts(n_heads=4, n_kv_heads=2)
QKV = (0, 1, 2)


@pytest.mark.parametrize("n_rows", [22, 8])
def test_more_rows_of_a_group_than_it_has_are_refused(n_rows):
    with pytest.raises(AnatomyError, match=rf"{n_rows} rows cannot be divided into 4 group\(s\) of at least 3 rows"):
        RowsOfEach("heads", 3).rows(n_rows, HEADS)


def test_shares_may_be_numbers_of_the_config_and_products_of_them():
    heads = HeadCounts(4, 2, {"n": 3, "d": 4, "state": 2})
    assert FusedRows(1, ("n*d", "state"), 1).rows(14, heads).tolist() == [12, 13]
    assert FusedRows("n", ("n*d", "n*state"), 1).rows(18, heads).tolist() == [4, 5, 10, 11, 16, 17]  # relative: 2 to 1
    with pytest.raises(AnatomyError, match="'absent' is needed to split it, but the config does not state it"):
        FusedRows(1, ("absent", 1), 0).rows(14, heads)
    assert not FusedRows(1, ("absent", 1), 0).is_known(heads)


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


def test_rows_that_do_not_divide_name_the_tensor():
    part = WeightPart("h.0.qkv", FusedRows("heads", (1, 1, 1), 0), heads=HEADS)
    with pytest.raises(AnatomyError, match=r"'h.0.qkv' of shape \(14, 8\): 14 rows cannot be split into 4 group"):
        part.rows((14, 8))


def test_unknown_heads_are_refused_if_they_are_needed():
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


@pytest.mark.parametrize("layout", [None, FusedRows(1, (1, 2), 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_some_rows_equal_rows_of_the_whole(layout, transposed):
    stored = torch.arange(54.0).reshape(9, 6).T if transposed else torch.arange(54.0).reshape(9, 6)
    source = CountingSource({"w": stored})
    part = WeightPart("w", layout, transposed=transposed)
    whole = read_part(source, part)
    rows = np.array([4, 0, 3])
    source.asked.clear()
    got = read_part(source, part, rows)
    assert torch.equal(got, whole[rows])
    first = 0 if layout is None else 3
    assert source.asked == ([] if transposed else [("w", [first + 4, first, first + 3])])


def test_a_fused_weight_that_is_not_a_matrix_is_refused(source):
    with pytest.raises(AnatomyError, match=r"'cube' has shape \(2, 2, 2\); a fused weight must be a matrix"):
        read_part(source, WeightPart("cube", FusedRows(1, (1, 1), 0)))


def test_a_single_number_has_no_role():
    with pytest.raises(AnatomyError, match=r"'w' has shape \(\), a single number"):
        WeightPart("w").shape(())


def test_heads_on_an_axis_of_their_own_are_joined():
    stored = torch.arange(24.0).reshape(2, 3, 4)  # d_model, n_heads, d_head
    source = MemorySource({"o": stored})
    output = WeightPart("o", joined=True)
    assert torch.equal(read_part(source, output), stored.reshape(2, 12))
    assert torch.equal(read_part(source, WeightPart("o", joined=True, transposed=True)), stored.reshape(2, 12).T)
    assert output.shape((2, 3, 4)) == (2, 12)
    with pytest.raises(AnatomyError, match=r"'o' has shape \(2, 12\); expected a separate axis for the heads"):
        output.shape((2, 12))


GATE, UP = (WeightPart("w", FusedRows(1, (1, 1), at), expert=1, stream=(1, 4)) for at in (0, 1))
DOWN = WeightPart("w", expert=1, stream=(0, 4))


@pytest.mark.parametrize("part", [GATE, UP, DOWN])
def test_a_stack_stored_either_way_is_read_by_the_width(part):
    d_out, d_in = (6, 4) if part is not DOWN else (4, 3)
    straight = torch.randn(2, d_out, d_in)
    turned = straight.transpose(1, 2).contiguous()
    got = [read_part(MemorySource({"w": stack}), part) for stack in (straight, turned)]
    assert torch.equal(*got)
    assert torch.equal(got[0], {GATE: straight[1, :3], UP: straight[1, 3:], DOWN: straight[1]}[part])
    assert part.shape(tuple(turned.shape)) == part.shape(tuple(straight.shape)) == tuple(got[0].shape)


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 6, 8)])
def test_a_stack_that_could_lie_either_way_is_refused(shape):
    with pytest.raises(
        AnatomyError,
        match=r"files store it in either orientation, and exactly one axis should have the width of the model, 4",
    ):
        GATE.shape(shape)
