"""Algorithm 1 on one pair of matrices, the embeddings or the unembeddings: read, look, calibrate, report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.comparison.decision import Evidence
from mdir_hf.comparison.plan import ReadPlan
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.reading import PairReader
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.calibration import Calibration, Placebo, calibrate, count_off_match_channels
from mdir_hf.method.embedding import EmbeddingTest, matched_scale
from mdir_hf.method.matching import Matching
from mdir_hf.method.reduction import matched_order, reduce_peaks
from mdir_hf.method.rows import long_rows
from mdir_hf.method.significance import LN10
from mdir_hf.model.comparable import PlacedTensors, numbers_are_free
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.model.tokens.sampling import RowSampler
from mdir_hf.report import (
    LookResult,
    MatrixArrays,
    MatrixReport,
    NumberingReport,
    PlaceboReport,
    PlaceboResult,
    SettledBy,
    Transformation,
    View,
)

FEWEST_ROWS_TO_CALIBRATE = 16
"""A placebo on fewer rows could not be significant."""


@dataclass(frozen=True)
class MatrixOutcome:
    """What was found on one pair of matrices.

    Attributes:
        evidence: For the verdict.
        report: For the report.
        polar: Polar factor of the last look over all channels, ``(n_reference, n_candidate)``, where the layers may
            want it: of the embedding, at levels that reach them. None else, since of a wide model it is large.
        matching: Its matching where it is significant, else None.
        arrays: The polar factor reduced for pictures, and the matched channels, significant or not.
        n_channels: Channels of the reference that the last look was at; a screen of a wide model draws some.
        caveats: What was left out of what was looked at.
        is_in_order_tested: Whether channels were tested in their own order, too.
    """

    evidence: Evidence
    report: MatrixReport
    polar: torch.Tensor | None
    matching: Matching | None
    arrays: MatrixArrays
    n_channels: int
    caveats: tuple[str, ...] = ()
    is_in_order_tested: bool = True


def compare_matrices(
    name: str,
    reference: PlacedTensors,
    candidate: PlacedTensors,
    common: CommonVocabulary,
    plan: ReadPlan,
    settings: Settings,
    watch: Watch,
    *,
    n_tests: int,
) -> MatrixOutcome:
    """Look at more and more common tokens, and at all of them if that is asked for.

    Args:
        name: ``embedding`` or ``unembedding``.
        reference: One model.
        candidate: The other.
        common: Rows of the same tokens.
        plan: Which matrices, and how many rows each look takes.
        settings: Level, alpha and the rest.
        watch: Is told of each step.
        n_tests: By how many tests of this comparison every p is multiplied.

    Returns:
        The outcome.

    Raises:
        MdirError: Where rows cannot be read.
    """
    level = settings.level
    # One model whose axes mean nothing is enough for the bound.
    both_numbered = not (numbers_are_free(reference) or numbers_are_free(candidate))
    are_free = numbers_are_free(reference, candidate)
    is_in_order_tested = plan.reference.shape[1] == plan.candidate.shape[1] and are_free
    test = EmbeddingTest(
        log_alpha=math.log(settings.alpha),
        n_tests=n_tests,
        seed=settings.seed,
        device=settings.device,
        own_order=is_in_order_tested,
    )
    row_n_bytes = (
        plan.reference.n_bytes // plan.reference.shape[0],
        plan.candidate.n_bytes // plan.candidate.shape[0],
    )
    sampler = RowSampler(common, row_n_bytes=row_n_bytes, n_last=plan.look_rows[-1], seed=settings.seed)
    reader = PairReader(reference, candidate, common, plan)

    def conclude(settled_by: SettledBy) -> MatrixOutcome:
        # Of a second matrix that shows nothing nobody asks for placebos.
        is_wanted = name == "embedding" or test.log_p < 0.0
        with watch.step("calibration"):
            calibration = _calibrate(test, settings.seed) if is_wanted else None
        outcome = _outcome(name, test, calibration, reader, plan, len(common), settled_by, is_full=level.runs_full_test)
        may_be_wanted = name == "embedding" and level.may_read_layers
        return replace(
            outcome,
            polar=outcome.polar if may_be_wanted else None,
            evidence=replace(
                outcome.evidence,
                both_numbered=both_numbered,
                log_p_numbering=outcome.evidence.log_p_numbering if are_free else 0.0,
            ),
            report=outcome.report if are_free else replace(outcome.report, numbering=None),
            is_in_order_tested=is_in_order_tested,
        )

    with watch.bar(name, plan.screen_bytes[1]) as bar:
        watch.enter("screen" if name == "embedding" else name, plan.screen_bytes[1])
        with watch.step("screen"):
            for n_rows in plan.look_rows:
                x, y = reader.sample(sampler.take(n_rows), max_gap_bytes=sampler.max_gap_bytes)
                test.screen(x, y, is_last=not level.runs_full_test and n_rows == plan.look_rows[-1])
                if test.is_settled and not level.runs_full_test:
                    outcome = conclude(SettledBy.SCREEN)
                    if outcome.evidence.is_trusted:
                        return outcome
        if not level.runs_full_test or not len(common):
            return conclude(SettledBy.SCREEN)
        bar.total = bar.n + plan.full_bytes
        bar.refresh()
        watch.enter(name, plan.full_bytes)
        with watch.step(name):
            test.full(reader.blocks())
    return conclude(SettledBy(name))


def _calibrate(test: EmbeddingTest, seed: int) -> Calibration | None:
    rows = test.rows
    if rows is None or len(rows.reference) < FEWEST_ROWS_TO_CALIBRATE:
        return None
    return calibrate(rows, generator=torch.Generator().manual_seed(seed), factors=test.row_factors)


def _outcome(
    name: str,
    test: EmbeddingTest,
    calibration: Calibration | None,
    reader: PairReader,
    plan: ReadPlan,
    n_common: int,
    stage: SettledBy,
    *,
    is_full: bool,
) -> MatrixOutcome:
    look = test.looks[-1] if is_full else test.best_look()
    correction = test.sequential_correction(look)
    trimmed = {share: min(0.0, p + correction) for share, p in look.log_p_trimmed.items()}
    widths = (plan.reference.shape[1], plan.candidate.shape[1])
    matching = look.matching
    # A screen of a wide model looks at some channels of the reference only; shares are of those.
    n_channels = 0 if matching is None else len(matching.reference)
    coverage = None if matching is None else matching.n_significant / n_channels
    n_off_match = None
    on_factor = look.matching_on_factor
    if on_factor is not None and test.polar is not None and look is test.looks[-1]:
        n_off_match = count_off_match_channels(test.polar, on_factor)
    numbering = look.numbering
    log_p_numbering = 0.0 if numbering is None else numbering.log_p + math.log(test.n_tests) + correction
    evidence = Evidence(
        log_p=test.log_p,
        log_p_robust=min(0.0, look.log_p_robust + correction),
        is_settled=test.is_settled,
        settled_by=stage if test.is_settled else None,
        strength=0.0 if matching is None else matching.trace / max(1, look.rank),
        coverage=coverage or 0.0,
        off_match_share=math.inf
        if matching is None or n_off_match is None
        else n_off_match / max(1, matching.n_significant),
        re_paired_is_significant=calibration is None or not calibration.re_paired.is_silent,
        basis_z=(0.0, 0.0) if calibration is None else calibration.basis_z,
        common_tokens=n_common,
        rows_used=look.n_rows,
        widths=widths,
        is_in_own_order=look.log_p_signs is not None,
        rows_are_equal=_are_equal(*reader.rows()),
        log_p_numbering=min(0.0, log_p_numbering),
        certain_share=0.0 if numbering is None or not n_channels else numbering.n_certain / n_channels,
    )
    found = matching if evidence.is_settled else None
    report = MatrixReport(
        common_tokens=n_common,
        rows_used=look.n_rows,
        rank=look.rank,
        trace=None if matching is None else matching.trace,
        threshold=None if matching is None else matching.threshold,
        normalized_trace=None if matching is None else matching.trace / n_channels,
        coverage=coverage,
        stray_channels=n_off_match,
        matched_channels=None if matching is None else matching.n_significant,
        transformation=Transformation.NONE if found is None else _transformation(found),
        scale=None if found is None else matched_scale(*reader.rows(), found),
        view=View(look.view),
        log10_p=test.log_p / LN10,
        log10_p_trimmed={share: p / LN10 for share, p in trimmed.items()},
        log10_p_signs=None if look.log_p_signs is None else min(0.0, look.log_p_signs + correction) / LN10,
        placebo=None if calibration is None else _placebo_report(calibration),
        numbering=None
        if numbering is None
        else NumberingReport(
            pairs=numbering.n_pairs,
            own_number=numbering.own_number,
            in_order=numbering.in_order,
            log10_p=min(0.0, log_p_numbering) / LN10,
        ),
        looks=tuple(LookResult(k.n_rows, min(0.0, k.log_p + test.sequential_correction(k)) / LN10) for k in test.looks),
    )
    polar = test.polar if n_common else None
    rotation = test.polar_of_all_channels if n_common else None
    moved = None if found is None or found.is_identity else on_factor
    channels = None if matching is None else np.stack([matching.reference, matching.candidate])
    drawn = test.looks[-1].channels
    n_channels = widths[0] if drawn is None else len(drawn)
    caveats = _caveats(name, *reader.rows())
    return MatrixOutcome(evidence, report, rotation, found, _arrays(polar, moved, channels), n_channels, caveats)


def _caveats(name: str, *models: torch.Tensor) -> tuple[str, ...]:
    return tuple(
        f"{name}: of the {len(rows):,} rows looked at {n_long:,} of the {which} model are over 1,000 times as long as "
        "most, and were left out."
        for which, rows in zip(("reference", "candidate"), models, strict=True)
        if (n_long := int(long_rows(rows).sum()))
    )


def _are_equal(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    return (
        bool(len(reference)) and reference.shape == candidate.shape and torch.equal(reference, candidate.to(reference))
    )


def _arrays(polar: torch.Tensor | None, moved: Matching | None, channels: npt.NDArray[np.int64] | None) -> MatrixArrays:
    if polar is None:
        return MatrixArrays(channels=channels)
    if moved is None:
        return MatrixArrays(reduce_peaks(polar), None, channels)
    rows, columns = matched_order(np.stack([moved.reference, moved.candidate]), *polar.shape)
    return MatrixArrays(reduce_peaks(polar), reduce_peaks(polar, rows=rows, columns=columns), channels)


def _transformation(matching: Matching) -> Transformation:
    if matching.signed and bool((matching.signs[matching.is_significant] < 0).any()):
        return Transformation.SIGNED_PERMUTATION
    return Transformation.IDENTITY if matching.is_identity else Transformation.PERMUTATION


def _placebo_report(calibration: Calibration) -> PlaceboReport:
    def result(placebo: Placebo) -> PlaceboResult:
        return PlaceboResult(placebo.trace, placebo.threshold, placebo.log_p / LN10, placebo.n_channels)

    return PlaceboReport(
        re_paired=result(calibration.re_paired),
        rotated=result(calibration.rotated),
        privileged_basis_z=calibration.basis_z,
    )
