"""Run Algorithm 1 on one pair of matrices, from reading to the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison import caveats
from mdir_hf.comparison.decide import has_open_numbering, is_trusted
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.reading import PairReader
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.calibration import calibrate, count_off_match_channels
from mdir_hf.method.embedding import EmbeddingTest, Look, matched_scale
from mdir_hf.method.matching import Matching, PrintedAlgorithm
from mdir_hf.method.polar import matched_order, reduce_peaks
from mdir_hf.method.rows import long_rows
from mdir_hf.method.significance import LN10
from mdir_hf.method.stream_map import matched_cosine
from mdir_hf.model.comparable import numbers_are_free
from mdir_hf.report import (
    MatrixArrays,
    MatrixResult,
    Placebos,
    SettledBy,
    Transformation,
    View,
)

FEWEST_ROWS_TO_CALIBRATE = 16
"""Minimum number of rows for a placebo; with fewer rows, it could never be significant."""


@dataclass(frozen=True)
class MatrixEvidence:
    """Result for one pair of matrices.

    Attributes:
        arrays: Polar factor reduced for plots, and the matched channels.
        polar: ``(n_reference, n_candidate)`` polar factor from the last look, kept if the layer tests may need it.
        matching: The matching of the reported look, if significant.
    """

    result: MatrixResult
    arrays: MatrixArrays
    polar: torch.Tensor | None
    matching: Matching | None
    caveats: tuple[str, ...] = ()


def compare_embeddings(
    name: str,
    reader: PairReader,
    settings: Settings,
    watch: Watch,
    *,
    n_tests: int,
    after_first_look: Callable[[], bool] | None = None,
) -> MatrixEvidence:
    """Compare growing samples of common tokens until the result is significant or the level allows no more.

    Every p is multiplied by ``n_tests``. If the first look does not settle the result, ``after_first_look`` is called;
    the comparison ends if it returns True.
    """
    level, plan, common = settings.level, reader.plan, reader.common
    are_free = numbers_are_free(*reader.models)
    is_in_order_tested = plan.reference.shape[1] == plan.candidate.shape[1] and are_free
    test = EmbeddingTest(
        log_alpha=math.log(settings.alpha),
        n_tests=n_tests,
        seed=settings.seed,
        device=settings.device,
        own_order=is_in_order_tested,
    )

    def conclude(stage: SettledBy) -> MatrixEvidence:
        # Skip the placebo for a second matrix without any agreement.
        is_wanted = name == "embedding" or test.log_p < 0.0
        with watch.step("calibration"):
            placebo = _calibrate(test, settings.seed) if is_wanted else None
        look = test.looks[-1] if plan.runs_full_test else test.best_look()
        result = replace(
            _result(test, look, placebo, reader, stage),
            in_order_tested=is_in_order_tested,
            # The bound needs only one model with arbitrary channel numbers.
            channel_numbers_mean_something=not any(map(numbers_are_free, reader.models)),
        )
        if not are_free:
            result = replace(result, numbering=None)
        may_read_layers = name == "embedding" and level.may_read_layers
        return MatrixEvidence(
            result,
            _arrays(test, look) if len(common) else MatrixArrays(),
            test.polar_of_all_channels if len(common) and may_read_layers else None,
            look.matching if test.is_significant else None,
            _caveats(name, reader),
        )

    first = "screen" if name == "embedding" else name
    watch.enter(first, plan.screen_bytes[1])
    trusted_evidence = None
    with watch.step("screen"):
        for n_rows in plan.look_rows:
            x, y = reader.sample(n_rows)
            test.screen(x, y, is_last=not plan.runs_full_test and n_rows == plan.look_rows[-1])
            if test.is_significant and not plan.runs_full_test:
                conclusion = conclude(SettledBy(first))
                if is_trusted(conclusion.result):
                    trusted_evidence = conclusion
                    if not has_open_numbering(conclusion.result, math.log10(settings.alpha)):
                        return conclusion
            if n_rows == plan.look_rows[0] and trusted_evidence is None and after_first_look is not None:
                if after_first_look():
                    return conclude(SettledBy(first))
                watch.enter(first, plan.screen_bytes[1])
    if not plan.runs_full_test or not len(common):
        return conclude(SettledBy(first)) if trusted_evidence is None else trusted_evidence
    watch.enter(name, plan.full_bytes)
    with watch.step(name):
        printed = None
        if name == "embedding":
            printed = PrintedAlgorithm((plan.reference.shape[1], plan.candidate.shape[1]), device=settings.device)
        test.full(reader.blocks() if printed is None else printed.watching(reader.blocks()))
    matrix = conclude(SettledBy(name))
    if printed is None:
        return matrix
    axes_stand_out = None if matrix.result.placebo is None else matrix.result.both_privileged
    return replace(matrix, result=replace(matrix.result, printed=printed.result(axes_stand_out=axes_stand_out)))


def _calibrate(test: EmbeddingTest, seed: int) -> Placebos | None:
    rows = test.rows
    if rows is None or len(rows.reference) < FEWEST_ROWS_TO_CALIBRATE:
        return None
    return calibrate(rows, generator=torch.Generator().manual_seed(seed), factors=test.row_factors)


def _result(
    test: EmbeddingTest,
    look: Look,
    placebo: Placebos | None,
    reader: PairReader,
    stage: SettledBy,
) -> MatrixResult:
    def log10(log_p: float) -> float:
        return min(0.0, log_p + look.log_cost) / LN10

    matching = look.matching
    widths = (reader.plan.reference.shape[1], reader.plan.candidate.shape[1])
    # A screen of a wide model uses only some reference channels; shares refer to these.
    n_channels = 0 if matching is None else len(matching.reference)
    on_factor = look.on_factor
    n_off_match = None
    if on_factor is not None and test.polar is not None and look is test.looks[-1]:
        n_off_match = count_off_match_channels(test.polar, on_factor)
    significant_matching = matching if test.is_significant else None
    screened_channels = test.looks[-1].channels
    return MatrixResult(
        common_tokens=len(reader.common),
        rows_used=look.n_rows,
        rank=look.rank,
        trace=None if matching is None else matching.trace,
        threshold=None if matching is None else matching.threshold,
        normalized_trace=None if matching is None else matching.trace / n_channels,
        coverage=None if matching is None else matching.n_significant / n_channels,
        off_match_channels=n_off_match,
        matched_channels=None if matching is None else matching.n_significant,
        transformation=Transformation.NONE if significant_matching is None else _transformation(significant_matching),
        scale=None if significant_matching is None else matched_scale(*reader.rows(), significant_matching),
        view=View(look.view),
        log10_p=test.log_p / LN10,
        log10_p_trimmed={share: log10(p) for share, p in look.log_p_trimmed.items()},
        log10_p_signs=None if look.log_p_signs is None else log10(look.log_p_signs),
        placebo=placebo,
        looks=tuple(look.result for look in test.looks),
        numbering=look.numbering,
        settled_by=stage if test.is_significant else None,
        widths=widths,
        channels=widths[0] if screened_channels is None else len(screened_channels),
        rows_are_equal=_are_equal(*reader.rows()),
        cosine=None
        if significant_matching is None or test.rows is None
        else matched_cosine(test.rows, significant_matching),
    )


def _caveats(name: str, reader: PairReader) -> tuple[str, ...]:
    sides = tuple(zip(("reference", "candidate"), reader.rows(), reader.n_not_finite, strict=True))
    not_finite = (
        f"{name}: rows of the {which} model with NaN or infinity were left out, {n_rows:,} of those that were read."
        for which, _, n_rows in sides
        if n_rows
    )
    too_long = (
        caveats.of_long_rows(name, which, n_long, len(rows))
        for which, rows, _ in sides
        if (n_long := int(long_rows(rows).sum()))
    )
    return (*not_finite, *too_long)


def _are_equal(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    return (
        bool(len(reference)) and reference.shape == candidate.shape and torch.equal(reference, candidate.to(reference))
    )


def _arrays(test: EmbeddingTest, look: Look) -> MatrixArrays:
    channels = None if look.matching is None else np.stack([look.matching.reference, look.matching.candidate])
    if test.polar is None:
        return MatrixArrays(channels=channels)
    factor_matching = look.on_factor
    if not test.is_significant or factor_matching is None or look.matching is None or look.matching.is_identity:
        return MatrixArrays(reduce_peaks(test.polar), None, channels)
    rows, columns = matched_order(np.stack([factor_matching.reference, factor_matching.candidate]), *test.polar.shape)
    return MatrixArrays(reduce_peaks(test.polar), reduce_peaks(test.polar, rows=rows, columns=columns), channels)


def _transformation(matching: Matching) -> Transformation:
    if matching.signed and bool((matching.signs[matching.is_significant] < 0).any()):
        return Transformation.SIGNED_PERMUTATION
    return Transformation.IDENTITY if matching.is_identity else Transformation.PERMUTATION
