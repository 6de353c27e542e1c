"""The arrangement of scales over a weight is derived from the shapes."""

import numpy as np
import pytest
import torch

from mdir_hf.model.files import MemorySource
from mdir_hf.model.files.quantization.coded import column_grid, fit_grid
from mdir_hf.model.sources import TensorSpec


def grid_of(values, shape, **options):
    source = MemorySource({"scale": values})
    return source, fit_grid(source.spec("scale"), shape, **options)


FITS = {
    "scalar": ((), (96, 160), None, (96, 160), "one scale per tensor"),
    "one": ((1,), (96, 160), None, (96, 160), "one scale per tensor"),
    "one, kept axes": ((1, 1), (96, 160), None, (96, 160), "one scale per tensor"),
    "rows": ((96,), (96, 160), None, (1, 160), "one scale per row"),
    "rows, kept axis": ((96, 1), (96, 160), None, (1, 160), "one scale per row"),
    "columns": ((1, 160), (96, 160), None, (96, 1), "one scale per column"),
    "groups": ((96, 5), (96, 160), None, (1, 32), "in groups of 32"),
    "blocks": ((3, 5), (96, 160), None, (32, 32), "blocks of 32 x 32"),
    "blocks of the config, cut": ((2, 3), (96, 160), (64, 64), (64, 64), "blocks of 64 x 64"),
    "blocks of 128, cut": ((5, 56), (576, 7168), None, (128, 128), "blocks of 128 x 128"),
    "blocks of 128 before others that divide": ((2, 1), (192, 64), None, (128, 128), "blocks of 128 x 128"),
    "blocks of the config, one row of them left over": (
        (4, 2),
        (300, 256),
        (128, 128),
        (128, 128),
        "blocks of 128 x 128",
    ),
    "blocks of the config, more of them left over": ((5, 4), (300, 160), (128, 128), (128, 128), "blocks of 128 x 128"),
    "equal blocks of another size": ((4, 2), (256, 256), (128, 128), (64, 128), "blocks of 64 x 128"),
    "blocks with their inner axes": ((3, 1, 5, 1), (96, 160), None, (32, 32), "blocks of 32 x 32"),
}


@pytest.mark.parametrize("case", FITS)
def test_every_row_gets_its_own_numbers(case):
    shape, weight, block, expected, words = FITS[case]
    values = torch.rand(shape)
    source, grid = grid_of(values, weight, block=block)
    assert grid.words == words
    m, d = weight
    bm, bn = (min(size, edge) for size, edge in zip(expected, weight, strict=True))
    flat = values if values.ndim == 2 else values.reshape(-(-m // bm), -(-d // bn))
    spread = flat.repeat_interleave(bm, 0)[:m].repeat_interleave(bn, 1)[:, :d]
    rows = np.array([m - 1, 0, m // 2, 0], dtype=np.int64)
    got = grid.at(source, rows)
    assert torch.equal(got.expand(-1, d), spread[torch.from_numpy(rows)])


MISFITS = [
    ((95,), (96, 160)),
    ((160,), (96, 160)),
    ((95, 1), (96, 160)),
    ((96, 7), (96, 160)),
    ((2, 3), (96, 160)),
    ((0,), (96, 160)),
    ((0, 5), (96, 160)),
    ((96, 1), (0, 160)),
    ((1, 1), (96, 0)),
    ((3, 96), (4, 96, 160)),
    ((4, 95), (4, 96, 160)),
    ((2, 96, 1), (4, 96, 160)),
    ((1, 1, 1, 1, 2), (96, 160)),
]


@pytest.mark.parametrize(("shape", "weight"), MISFITS)
def test_incompatible_shapes_are_reported(shape, weight):
    assert fit_grid(TensorSpec("scale", shape, "F32", "", 0, 0), weight) is None


def test_one_number_per_column_is_never_taken_for_rows():
    source = MemorySource({"scale": torch.arange(8.0)})
    grid = column_grid(source.spec("scale"), (8, 8))
    assert torch.equal(grid.at(source, np.array([3])), torch.arange(8.0)[None])
    assert column_grid(source.spec("scale"), (8, 9)) is None
