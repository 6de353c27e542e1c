"""One comparison, step by step: same files, plan, screen, full test, verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from tqdm import tqdm

from mdir_hf._version import __version__
from mdir_hf.anatomy import WeightPart
from mdir_hf.body import BodyEvidence, compare_bodies, is_supported, layers_report, modules_report
from mdir_hf.checkpoint import iter_row_blocks
from mdir_hf.decision import BodySummary, Evidence, decide
from mdir_hf.errors import MdirError
from mdir_hf.homology.calibration import Calibration, Placebo, calibrate
from mdir_hf.homology.embedding import TESTS_PER_MATRIX, EmbeddingTest, matched_scale
from mdir_hf.homology.gauge import outer_candidates
from mdir_hf.homology.matching import Matching
from mdir_hf.homology.reduction import reduce_peaks
from mdir_hf.homology.significance import LN10
from mdir_hf.hub import IoLedger
from mdir_hf.model import Model, share_vocabulary
from mdir_hf.plan import BLOCK_ROWS, ReadPlan, check_memory, make_plan
from mdir_hf.report import (
    HomologyReport,
    InputOutput,
    MatrixReport,
    PlaceboReport,
    PlaceboResult,
    Verdict,
)
from mdir_hf.vocabulary import CommonVocabulary, common_vocabulary
from mdir_hf.vocabulary.sampling import RowSampler

FULL_LEVELS = ("embedding", "body")
"""Levels that always look at every common token."""

FEWEST_ROWS_TO_CALIBRATE = 16
"""A placebo on fewer rows could not speak up."""

LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""The chance that two independent files have the same SHA-256."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a comparison is asked to do; see ``HomologyChecker``."""

    level: str
    alpha: float
    seed: int
    device: str
    max_memory_bytes: int | None
    progress: bool
    on_plan: Callable[[ReadPlan], None] | None


class IoCount:
    """What a ledger counts from some moment on."""

    def __init__(self, ledger: IoLedger, *, from_start: bool = False) -> None:
        self.ledger = ledger
        self._read = 0 if from_start else ledger.bytes_read
        self._cached = 0 if from_start else ledger.bytes_from_cache
        self._requests = 0 if from_start else ledger.requests
        self._files = {} if from_start else dict(ledger.files)

    def result(self, bytes_of_weights: int) -> InputOutput:
        """The counts since then."""
        now = self.ledger
        touched = sorted(name for name, n_bytes in now.files.items() if n_bytes != self._files.get(name))
        return InputOutput(
            bytes_read=now.bytes_read - self._read,
            bytes_from_cache=now.bytes_from_cache - self._cached,
            bytes_of_weights=bytes_of_weights,
            requests=now.requests - self._requests,
            files=tuple(touched),
        )


@dataclass
class _Course:
    """What a comparison has found so far."""

    settings: Settings
    seconds: dict[str, float] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    matrices: dict[str, MatrixReport] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    body: BodyEvidence | None = None
    polar: torch.Tensor | None = None
    matching: Matching | None = None
    n_looks: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def compare_models(reference: Model, candidate: Model, io: IoCount, settings: Settings) -> HomologyReport:
    """Compare two opened models.

    Args:
        reference: One model.
        candidate: The other.
        io: Counts what is read.
        settings: Level, alpha, seed and the rest.

    Returns:
        The report.

    Raises:
        MdirError: Where the question cannot be asked or the files cannot be had.
    """
    course = _Course(settings)
    bytes_of_weights = reference.tensors.n_bytes + candidate.tensors.n_bytes
    same_files = _same_files(reference, candidate, course)
    if same_files and settings.level == "auto":
        course.caveats.append("p is the chance that two independent 256-bit digests agree; no weight was read.")
        return _report(reference, candidate, course, io, n_tests=1, same_files=True)
    with course.step("vocabulary"):
        common = _common_vocabulary(reference, candidate, course)
    pairs = _pairs(reference, candidate, course)
    n_tests = TESTS_PER_MATRIX * len(pairs)
    for number, (name, parts) in enumerate(pairs.items()):
        specs = [model.matrix_spec(part) for model, part in zip((reference, candidate), parts, strict=True)]
        plan = make_plan(*specs, common_tokens=len(common), bytes_of_weights=bytes_of_weights, level=settings.level)
        check_memory(plan, settings.max_memory_bytes)
        if number == 0 and settings.on_plan is not None:
            settings.on_plan(plan)
        evidence = _test_matrix(name, reference, candidate, common, plan, course, io.ledger, n_tests=n_tests)
        if evidence.is_settled and settings.level != "body":
            break
    is_settled = any(evidence.is_settled for evidence in course.evidence.values())
    if settings.level == "body" or (settings.level == "auto" and not is_settled):
        with course.step("body"):
            n_tests += _test_body(reference, candidate, course)
    return _report(reference, candidate, course, io, n_tests=n_tests, same_files=False)


def _test_body(reference: Model, candidate: Model, course: _Course) -> int:
    """Run Algorithms 2 and 3, as one more look after those at the embeddings; return how many tests it took."""
    settings = course.settings
    settled = next((e for e in course.evidence.values() if e.is_settled), None)
    outers = outer_candidates(
        reference.width,
        candidate.width,
        polar=course.polar if settled is None else None,
        matching=course.matching if settled is not None else None,
    ).transformations
    # Looks at matrices spend 1 - 1/(s + 1) of alpha in all; the body takes the next share (statistics.md section 5).
    spent = math.log((course.n_looks + 1) * (course.n_looks + 2))
    evidence = compare_bodies(
        reference,
        candidate,
        outers,
        log_alpha=math.log(settings.alpha) - spent,
        all_layers=settings.level == "body",
        seed=settings.seed,
        device=settings.device,
    )
    if evidence is None:
        course.caveats.append(
            "The layers were not compared: nothing relates the two residual streams, or no role of a layer was found "
            "in both models."
        )
        return 0
    course.body = replace(evidence, log_p=min(0.0, evidence.log_p + spent))
    return evidence.n_tests


def _same_files(reference: Model, candidate: Model, course: _Course) -> bool:
    with course.step("digests"):
        mine, other = reference.digests(), candidate.digests()
        if mine is None or other is None:
            return False
        shared = set(mine.values()) & set(other.values())
        if shared and set(mine.values()) != set(other.values()):
            course.caveats.append(
                f"{len(shared)} weight files are the same bytes in both ({len(mine)} and {len(other)} files in all); "
                "this did not enter the p-value."
            )
        return set(mine.values()) == set(other.values())


def _common_vocabulary(reference: Model, candidate: Model, course: _Course) -> CommonVocabulary:
    share_vocabulary(reference, candidate)
    mine, other = reference.vocabulary, candidate.vocabulary
    if mine is not None and other is not None:
        return common_vocabulary(mine, other, n_reference_rows=reference.n_rows, n_candidate_rows=candidate.n_rows)
    without = " and ".join(model.label for model, v in ((reference, mine), (candidate, other)) if v is None)
    course.caveats.append(
        f"No tokenizer files in {without}: rows were paired by their number. Any pairing keeps the p-value valid, "
        "but relatives are missed where the ids differ."
    )
    known = mine if mine is not None else other
    n_rows = min(reference.n_rows, candidate.n_rows)
    if known is None:
        rows = np.arange(n_rows, dtype=np.int64)
    else:
        rows = np.array(sorted(row for row in known.row_of.values() if row < n_rows), dtype=np.int64)
    return CommonVocabulary(rows, rows, len(rows), False, 0, 0)


def _pairs(reference: Model, candidate: Model, course: _Course) -> dict[str, tuple[WeightPart, WeightPart]]:
    pairs = {"embedding": (reference.anatomy.embedding, candidate.anatomy.embedding)}
    mine, other = reference.anatomy.unembedding, candidate.anatomy.unembedding
    if course.settings.level != "screen" and mine is not None and other is not None:
        pairs["unembedding"] = (mine, other)
    return pairs


def _test_matrix(
    name: str,
    reference: Model,
    candidate: Model,
    common: CommonVocabulary,
    plan: ReadPlan,
    course: _Course,
    ledger: IoLedger,
    *,
    n_tests: int,
) -> Evidence:
    settings = course.settings
    test = EmbeddingTest(
        log_alpha=math.log(settings.alpha), n_tests=n_tests, seed=settings.seed, device=settings.device
    )
    sampler = RowSampler(
        common,
        row_n_bytes=(
            plan.reference.n_bytes // plan.reference.shape[0],
            plan.candidate.n_bytes // plan.candidate.shape[0],
        ),
        seed=settings.seed,
    )
    reader = _PairReader(reference, candidate, common, plan)
    with _progress(name, plan, ledger, settings.progress) as bar:
        with course.step("screen"):
            for n_rows in plan.look_rows:
                x, y = reader.sample(sampler.take(n_rows), max_gap_bytes=sampler.max_gap_bytes)
                test.screen(x, y, is_last=settings.level == "screen" and n_rows == plan.look_rows[-1])
                if test.is_settled and settings.level not in FULL_LEVELS:
                    break
        settled_by = "screen" if test.is_settled else None
        wants_full = settings.level in FULL_LEVELS or (settings.level == "auto" and not test.is_settled)
        if wants_full and len(common):
            bar.total = bar.n + plan.full_bytes
            bar.refresh()
            with course.step(name):
                test.full(reader.blocks())
            settled_by = name if test.is_settled else None
        with course.step("calibration"):
            assert test.rows is not None  # a screen always runs
            calibration = None
            if len(test.rows.reference) >= FEWEST_ROWS_TO_CALIBRATE:
                calibration = calibrate(test.rows, generator=torch.Generator().manual_seed(settings.seed))
    look = test.looks[-1] if settings.level in FULL_LEVELS else test.best_look()
    correction = test.sequential_correction(look)
    trimmed = {k: min(0.0, p + correction) for k, p in look.log_p_trimmed.items()}
    evidence = Evidence(
        log_p=test.log_p,
        log_p_robust=trimmed["n/2"],
        is_settled=test.is_settled,
        settled_by=settled_by,
        re_paired_is_silent=calibration is not None and calibration.re_paired.is_silent,
        basis_z=(0.0, 0.0) if calibration is None else calibration.basis_z,
        common_tokens=len(common),
        rows_used=look.n_rows,
        widths=(plan.reference.shape[1], plan.candidate.shape[1]),
    )
    matching = look.matching
    n_narrow = min(evidence.widths)
    if matching is None or not evidence.is_settled:
        transformation = "none"
    elif matching.is_identity and not matching.n_negative:
        transformation = "identity"
    else:
        transformation = "signed_permutation" if matching.signed and matching.n_negative else "permutation"
    x, y = reader.rows()
    course.evidence[name] = evidence
    course.n_looks = max(course.n_looks, len(plan.look_rows) + 1)
    if name == "embedding":
        course.polar = test.polar if len(common) else None
    if evidence.is_settled and course.matching is None:
        course.matching = matching
    course.matrices[name] = MatrixReport(
        common_tokens=len(common),
        rows_used=look.n_rows,
        rank=look.rank,
        trace=None if matching is None else matching.trace,
        threshold=None if matching is None else matching.threshold,
        normalized_trace=None if matching is None else matching.trace / n_narrow,
        coverage=None if matching is None else matching.n_significant / n_narrow,
        matched_channels=None if matching is None else matching.n_significant,
        transformation=transformation,
        scale=matched_scale(x, y, matching) if matching is not None and evidence.is_settled else None,
        view=look.view,
        log10_p=test.log_p / LN10,
        log10_p_trimmed={k: p / LN10 for k, p in trimmed.items()},
        placebo=None if calibration is None else _placebo_report(calibration),
        looks=tuple((k.n_rows, min(0.0, k.log_p + test.sequential_correction(k)) / LN10) for k in test.looks),
    )
    if test.polar is not None:
        course.arrays[name] = reduce_peaks(test.polar)
    if matching is not None:
        course.arrays[f"{name}_channels"] = np.stack([matching.reference, matching.candidate])
    return evidence


class _PairReader:
    """Rows of both models' matrices on the same tokens; what a screen has read is not read again."""

    def __init__(self, reference: Model, candidate: Model, common: CommonVocabulary, plan: ReadPlan) -> None:
        self._sides = (
            (reference, plan.reference.name, common.reference_rows),
            (candidate, plan.candidate.name, common.candidate_rows),
        )
        self._n_common = len(common)
        self._taken = np.zeros(0, dtype=np.int64)
        self._rows: tuple[torch.Tensor, ...] = tuple(
            torch.zeros((0, spec.shape[1])) for spec in (plan.reference, plan.candidate)
        )

    def sample(
        self, positions: np.ndarray[Any, np.dtype[np.int64]], *, max_gap_bytes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of a sample that holds every earlier one, and read only those that are new."""
        new = np.setdiff1d(positions, self._taken, assume_unique=True)
        self._rows = tuple(
            torch.cat([old, _read(model, name, rows[new], max_gap_bytes)])
            for old, (model, name, rows) in zip(self._rows, self._sides, strict=True)
        )
        self._taken = np.concatenate([self._taken, new])
        return self.rows()

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every row read so far."""
        reference, candidate = self._rows
        return reference, candidate

    def blocks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all common rows: those in memory first, then the rest in blocks read ahead."""
        yield self.rows()
        rest = np.setdiff1d(np.arange(self._n_common, dtype=np.int64), self._taken, assume_unique=True)
        (mine, name, rows), (other, other_name, other_rows) = self._sides
        with (
            closing(iter_row_blocks(mine.tensors, name, rows[rest], BLOCK_ROWS)) as left,
            closing(iter_row_blocks(other.tensors, other_name, other_rows[rest], BLOCK_ROWS)) as right,
        ):
            yield from zip(left, right, strict=True)


def _read(model: Model, name: str, rows: np.ndarray[Any, np.dtype[np.int64]], max_gap_bytes: int) -> torch.Tensor:
    try:
        return model.tensors.read_rows(name, rows, max_gap_bytes=max_gap_bytes)
    except MdirError as exc:
        raise exc.about(model.label) from exc.__cause__


@contextmanager
def _progress(name: str, plan: ReadPlan, ledger: IoLedger, is_wanted: bool) -> Iterator[tqdm[NoReturn]]:
    """Show a bar of bytes on standard error, where that is a terminal."""
    bar: tqdm[NoReturn] = tqdm(
        total=plan.screen_bytes[1],
        unit="B",
        unit_scale=True,
        desc=f"reading {name} rows",
        disable=None if is_wanted and not are_progress_bars_disabled() else True,  # None: unless a terminal
        leave=False,
    )

    def advance(n_bytes: int) -> None:
        bar.update(n_bytes)

    before, ledger.on_bytes = ledger.on_bytes, advance
    try:
        yield bar
    finally:
        ledger.on_bytes = before
        bar.close()


def _placebo_report(calibration: Calibration) -> PlaceboReport:
    def result(placebo: Placebo) -> PlaceboResult:
        return PlaceboResult(placebo.trace, placebo.threshold, placebo.log_p / LN10, placebo.n_channels)

    return PlaceboReport(
        re_paired=result(calibration.re_paired),
        rotated=result(calibration.rotated),
        privileged_basis_z=calibration.basis_z,
    )


def _report(
    reference: Model, candidate: Model, course: _Course, io: IoCount, *, n_tests: int, same_files: bool
) -> HomologyReport:
    settings = course.settings
    body = course.body
    decision = decide(
        course.evidence,
        alpha=settings.alpha,
        level=settings.level,
        body=None
        if body is None
        else BodySummary(body.log_p, body.outer.kind, body.stray_share, is_supported(body, math.log(settings.alpha))),
    )
    log10_p = min(*(e.log_p for e in course.evidence.values()), 0.0 if body is None else body.log_p, 0.0) / LN10
    if decision.settled_by == "body" and body is not None and body.outer.kind == "rotation":
        course.matrices["embedding"] = replace(course.matrices["embedding"], transformation="rotation")
    return HomologyReport(
        verdict=Verdict.HOMOLOGOUS if same_files else decision.verdict,
        reason=None if same_files else decision.reason,
        log10_p=LOG10_P_EQUAL_DIGESTS if same_files else log10_p,
        alpha=settings.alpha,
        tests=n_tests,
        level=settings.level,
        settled_by="identical_files" if same_files else decision.settled_by,
        reference=reference.summary(),
        candidate=candidate.summary(),
        embedding=course.matrices.get("embedding"),
        unembedding=course.matrices.get("unembedding"),
        layers=None if body is None else layers_report(body, reference, candidate),
        modules=None if body is None or not body.modules else modules_report(body),
        caveats=(*course.caveats, *(() if same_files else decision.caveats)),
        io=io.result(reference.tensors.n_bytes + candidate.tensors.n_bytes),
        seconds=_rounded(course.seconds),
        seed=settings.seed,
        version=__version__,
        arrays=course.arrays,
    )


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in seconds.items()}
