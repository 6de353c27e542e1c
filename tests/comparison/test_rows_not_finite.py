"""Embedding rows with NaN or infinity: a few are left out and reported, many are an error."""

import math

import numpy as np
import pytest
import torch

from mdir_hf import compare
from mdir_hf.comparison.reading import MOST_NOT_FINITE, FiniteRows
from mdir_hf.errors import CorruptCheckpointError, NotFiniteError
from tests.specimens import gaussian, write_model

V, N = 600, 48


class Rows:
    """A matrix whose rows contain their own numbers, some of them not finite."""

    label = "owner/name"

    def __init__(self, *bad):
        self.tensors, self.bad, self.n_reads = self, bad, 0

    def read_rows(self, name, rows, *, max_gap_bytes=None):
        self.n_reads += 1
        values = torch.from_numpy(rows).float()[:, None].repeat(1, 3)
        found = tuple(row for row in rows.tolist() if row in self.bad)
        if found:
            raise NotFiniteError("holds NaN", rows=found)
        return values


def test_rows_that_are_not_finite_come_as_zeros_and_are_counted():
    matrix = Rows(4, 7)
    reader = FiniteRows(matrix)
    assert reader.read_rows("w", np.array([7, 2, 4, 9]))[:, 0].tolist() == [0, 2, 0, 9]
    assert (reader.n_not_finite, matrix.n_reads) == (2, 2)
    assert reader.read_rows("w", np.array([4, 1]))[:, 0].tolist() == [0, 1]
    assert (reader.n_not_finite, matrix.n_reads) == (2, 3)


def test_one_row_more_than_allowed_is_an_error():
    rows = np.arange(100)
    assert FiniteRows(Rows(*range(MOST_NOT_FINITE))).read_rows("w", rows).shape == (100, 3)
    with pytest.raises(NotFiniteError, match="holds NaN"):
        FiniteRows(Rows(*range(MOST_NOT_FINITE + 1))).read_rows("w", rows)


@pytest.mark.parametrize(("seed", "verdict"), [(0, "homologous"), (1, "no_evidence")])
def test_a_model_with_some_rows_of_nan_is_compared_by_its_other_rows(seed, verdict, tmp_path):
    base, weights = gaussian(V, N, 0), gaussian(V, N, seed)
    # The first 400 rows are neurons too, and neurons that are not finite are an error.
    weights[405], weights[477, 3], weights[480:490] = math.nan, math.inf, -math.inf
    write_model(tmp_path / "base", base)
    write_model(tmp_path / "broken", weights)
    report = compare(tmp_path / "base", tmp_path / "broken", describes=True, progress=False)
    assert report.verdict.value == verdict
    (caveat,) = [caveat for caveat in report.caveats if "NaN or infinity" in caveat]
    assert caveat.startswith("embedding: rows of the candidate model with NaN or infinity were left out, ")
    assert caveat.endswith(", 12 of those that were read.")


def test_weights_that_diverged_are_refused(tmp_path):
    write_model(tmp_path / "base", gaussian(V, N, 0))
    write_model(tmp_path / "broken", torch.full((V, N), math.nan))
    with pytest.raises(CorruptCheckpointError, match="holds NaN or infinity, first seen in row"):
        compare(tmp_path / "base", tmp_path / "broken", progress=False)
