"""Look at rows of the embeddings once, to describe them and to find copied embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from mdir_hf.background import result_of, run_beside
from mdir_hf.comparison import caveats
from mdir_hf.comparison.reading import FiniteRows
from mdir_hf.comparison.settings import Settings
from mdir_hf.comparison.tokens import ROWS, MatrixPair
from mdir_hf.method.axes import privileged_basis_z
from mdir_hf.method.embedding import EmbeddingLook, look_at_rows, matched_scale
from mdir_hf.method.gauge import ResidualBasisMap, residual_basis_maps
from mdir_hf.method.matching import Matching
from mdir_hf.method.polar import matched_order, reduce_peaks
from mdir_hf.method.power import MatrixSizes, strongest_noise
from mdir_hf.method.rows import long_rows
from mdir_hf.method.significance import LN10
from mdir_hf.method.stream_map import matched_cosine
from mdir_hf.model.comparable import Comparable, matrix_spec, numbers_are_free
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.model.tokens.common import RowSampler
from mdir_hf.processor import is_one_of_several_ranks
from mdir_hf.report import MatrixArrays, MatrixResult, Transformation


@dataclass(frozen=True, eq=False)
class MatrixEvidence:
    """The result for one pair of matrices.

    Attributes:
        name: ``embedding`` or ``unembedding``.
        arrays: Polar factor reduced for plots, and the matched channels.
        residual_maps: Maps of the residual stream that the matrices suggest; empty if their widths differ from the
            stream's.
        caveats: Sentences on rows that were left out.
    """

    name: str
    result: MatrixResult
    arrays: MatrixArrays = field(default_factory=MatrixArrays)
    residual_maps: tuple[ResidualBasisMap, ...] = ()
    caveats: tuple[str, ...] = ()


def look_at_matrices(
    name: str, models: tuple[Comparable, Comparable], pair: MatrixPair, common: CommonVocabulary, settings: Settings
) -> MatrixEvidence:
    """Read the rows of up to :data:`~.tokens.ROWS` common tokens of both models, and compare them (Algorithm 1)."""
    specs = [matrix_spec(model, part) for model, part in zip(models, pair, strict=True)]
    common = common.within(specs[0].shape[0], specs[1].shape[0])
    row_n_bytes = (specs[0].n_bytes // specs[0].shape[0], specs[1].n_bytes // specs[1].shape[0])
    sampler = RowSampler(common, row_n_bytes=row_n_bytes, n_first=ROWS, n_last=ROWS, seed=settings.seed)
    at = sampler.take(ROWS)
    readers = [FiniteRows(model) for model in models]
    rows_of_sides = (common.reference_rows[at], common.candidate_rows[at])
    reads = [
        partial(reader.read_rows, spec.name, rows, max_gap_bytes=sampler.max_gap_bytes if model.is_remote else 0)
        for model, reader, spec, rows in zip(models, readers, specs, rows_of_sides, strict=True)
    ]
    beside = run_beside(
        reads[1], name="mdir-hf-candidate", at_once=is_one_of_several_ranks()
    )  # servers work in parallel
    sides = (reads[0](), result_of(beside))
    look = look_at_rows(
        *sides, log_alpha=math.log(settings.alpha), own_order=numbers_are_free(*models), device=settings.device
    )
    widths = (specs[0].shape[1], specs[1].shape[1])
    sentences = _caveats(name, sides, [reader.n_not_finite for reader in readers])
    if look is None:
        return MatrixEvidence(name, _without_look(len(common), len(at), widths), caveats=sentences)
    generator = torch.Generator().manual_seed(settings.seed)
    matching = look.matching if look.is_significant else None
    result = MatrixResult(
        common_tokens=len(common),
        rows_used=len(look.rows.reference),
        rank=look.rank,
        trace=look.matching.trace,
        normalized_trace=look.matching.trace / min(widths),
        matched_channels=look.matching.n_significant,
        transformation=Transformation.NONE if matching is None else _transformation(matching),
        scale=None if matching is None else matched_scale(*sides, matching),
        cosine=None if matching is None else matched_cosine(look.rows, matching),
        log10_p=look.log_p / LN10,
        axes_z=(
            privileged_basis_z(look.rows.reference, generator=generator),
            privileged_basis_z(look.rows.candidate, generator=generator),
        ),
        is_significant=look.is_significant,
        widths=widths,
        rows_are_equal=bool(len(at))
        and sides[0].shape == sides[1].shape
        and torch.equal(sides[0], sides[1].to(sides[0])),
    )
    # The channels of an embedding that is projected on input differ from the channels of the stream.
    is_of_stream = widths == tuple(model.anatomy.hidden_size for model in models)
    maps = residual_basis_maps(*widths, polar=look.polar, matching=matching) if is_of_stream else ()
    return MatrixEvidence(name, result, _arrays(look), maps, sentences)


def excluded_noise(matrix: MatrixResult, alpha: float) -> float:
    """Return the strongest noise at which a copy with channels in any order would be significant; 0 if none would."""
    narrow, wide = sorted(matrix.widths)
    return strongest_noise(MatrixSizes(narrow, wide, matrix.rows_used), log_level=math.log(alpha / 6))


def _without_look(n_common: int, n_rows: int, widths: tuple[int, int]) -> MatrixResult:
    return MatrixResult(
        common_tokens=n_common,
        rows_used=n_rows,
        rank=0,
        trace=0.0,
        normalized_trace=0.0,
        matched_channels=0,
        transformation=Transformation.NONE,
        scale=None,
        cosine=None,
        log10_p=0.0,
        axes_z=(0.0, 0.0),
        is_significant=False,
        widths=widths,
    )


def _caveats(name: str, sides: Sequence[torch.Tensor], n_not_finite: Sequence[int]) -> tuple[str, ...]:
    named_sides = tuple(zip(("reference", "candidate"), sides, n_not_finite, strict=True))
    not_finite = (caveats.of_rows_not_finite(name, which, n_rows) for which, _, n_rows in named_sides if n_rows)
    too_long = (
        caveats.of_long_rows(name, which, n_long, len(rows))
        for which, rows, _ in named_sides
        if (n_long := int(long_rows(rows).sum()))
    )
    return (*not_finite, *too_long)


def _arrays(look: EmbeddingLook) -> MatrixArrays:
    channels = np.stack([look.matching.reference, look.matching.candidate])
    if not look.is_significant or look.matching.is_identity:
        return MatrixArrays(reduce_peaks(look.polar), None, channels)
    rows, columns = matched_order(channels, *look.polar.shape)
    return MatrixArrays(reduce_peaks(look.polar), reduce_peaks(look.polar, rows=rows, columns=columns), channels)


def _transformation(matching: Matching) -> Transformation:
    if matching.signed and bool((matching.signs[matching.is_significant] < 0).any()):
        return Transformation.SIGNED_PERMUTATION
    return Transformation.IDENTITY if matching.is_identity else Transformation.PERMUTATION
