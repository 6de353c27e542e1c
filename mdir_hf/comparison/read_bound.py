"""Compute an upper bound on the bytes that one comparison reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from mdir_hf.comparison.layer_weights import layers_with, stored_n_bytes
from mdir_hf.comparison.neuron_reading import FEW_LAYERS, bytes_of_down, neuron_layers, planned_n_bytes
from mdir_hf.comparison.neuron_sample import DOWN_CHANNELS, FITTED_ROWS
from mdir_hf.comparison.neuron_search import MOST_PAIRS
from mdir_hf.comparison.neuron_strengths import STRENGTHS_READ
from mdir_hf.comparison.witness import NEAR_COPY_LAYERS
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.files.ranged import coalesce
from mdir_hf.model.roles import Role
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.model.tokens.common import RowSampler

IntArray = npt.NDArray[np.int64]

SAMPLED_WITH_GAPS = 4
"""Reads of sampled neuron rows, including gaps, are at most this many times as large as the rows."""

LARGEST_GAP_BYTES = 1 << 18
"""Largest gap between rows that any byte source reads rather than skips by default."""

SEARCHES = 3
"""Number of searches for reordered neurons: under two maps of the embeddings, and with the layer map."""


def bytes_of_looks(
    common: CommonVocabulary, sampler: RowSampler, row_n_bytes: Sequence[int], look_rows: Sequence[int]
) -> int:
    """Return the bytes read by successive looks at two matrices, including gaps between rows."""
    n_bytes, read_positions = 0, np.zeros(0, dtype=np.int64)
    for n_rows in look_rows:
        positions = sampler.take(n_rows)
        new = np.setdiff1d(positions, read_positions, assume_unique=True)
        read_positions = positions
        for rows, row_bytes in zip((common.reference_rows, common.candidate_rows), row_n_bytes, strict=True):
            spans = coalesce(rows[new], row_bytes, 0, max_gap_bytes=sampler.max_gap_bytes) if row_bytes else ()
            n_bytes += sum(span.stop - span.start for span in spans)
    return n_bytes


def bytes_of_blocks(sides: Sequence[IntArray], row_n_bytes: Sequence[int], block_rows: int) -> int:
    """Return the bytes read if rows are read in blocks, including all rows in between."""
    n_bytes = 0
    for rows, row_bytes in zip(sides, row_n_bytes, strict=True):
        for start in range(0, len(rows), block_rows):
            block = rows[start : start + block_rows]
            n_bytes += int(block.max() - block.min() + 1) * row_bytes
    return n_bytes


def bytes_of_layer_map(models: Sequence[Comparable], roles: Sequence[Role]) -> int:
    """Estimate the bytes of all matrices that may represent layers, taking each role's first matrix as typical."""
    n_bytes = 0
    for model in models:
        for role in roles:
            places = layers_with(model, role)
            with suppress(AnatomyError, UnsupportedFormatError):
                n_bytes += sum(stored_n_bytes(model, place, role) for place in places[:1]) * len(places)
    return n_bytes


def bytes_of_neurons(model: PlacedTensors, *, every: bool) -> int:
    """Return an upper bound on the bytes read from a model's neurons: in four layers, or in all if ``every`` is set."""
    try:
        n_layers, sampled, matrix = len(neuron_layers(model)), planned_n_bytes(model), bytes_of_down(model)
    except (AnatomyError, UnsupportedFormatError):
        return 0
    n_sampled = min(n_layers, FEW_LAYERS)
    if not sampled or not n_sampled:
        return 0
    # A look reads a sample of gate and up, a few channels of down, then all of down; more neurons if in doubt.
    sampled, matrix = sampled // n_sampled, max(matrix, sampled // 2) // n_sampled
    few = min(matrix, sampled + DOWN_CHANNELS * LARGEST_GAP_BYTES)
    more = sampled * STRENGTHS_READ // FITTED_ROWS
    look = sum(min(2 * matrix, SAMPLED_WITH_GAPS * rows) for rows in (sampled, more)) + 2 * few + matrix
    n_sampled += NEAR_COPY_LAYERS
    if not every:
        return n_sampled * look
    n_whole = min(2 * NEAR_COPY_LAYERS + SEARCHES * MOST_PAIRS, 3 * n_layers)
    return (n_sampled + n_layers) * look + n_whole * 3 * matrix
