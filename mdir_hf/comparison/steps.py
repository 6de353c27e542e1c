"""One comparison, step by step: same files, plan, screen, full test, layers, verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mdir_hf._version import __version__
from mdir_hf.anatomy import WeightPart
from mdir_hf.comparison.body import (
    BodyEvidence,
    compare_bodies,
    is_supported,
    layers_report,
    modules_report,
    representatives,
)
from mdir_hf.comparison.decision import BodySummary, Decision, decide
from mdir_hf.comparison.layers import n_neurons
from mdir_hf.comparison.matrices import MatrixOutcome, Stopwatch, compare_matrices
from mdir_hf.comparison.model import Model, share_vocabulary
from mdir_hf.comparison.outers import attempts
from mdir_hf.comparison.plan import ReadPlan, check_memory, make_plan
from mdir_hf.comparison.reading import IoCount
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.homology.embedding import TESTS_PER_MATRIX
from mdir_hf.homology.gauge import outer_candidates
from mdir_hf.homology.matching import REMARKABLE
from mdir_hf.homology.significance import LN10
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.vocabulary import CommonVocabulary, common_vocabulary

LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""The chance that two independent files have the same SHA-256."""


@dataclass
class _Course:
    """What a comparison has found so far."""

    matrices: dict[str, MatrixOutcome] = field(default_factory=dict)
    body: BodyEvidence | None = None
    caveats: list[str] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    n_tests: int = 0
    n_looks: int = 0
    layers_are_unreadable: bool = False

    @property
    def settled(self) -> MatrixOutcome | None:
        """The first pair of matrices that settles the question."""
        return next((outcome for outcome in self.matrices.values() if outcome.evidence.is_trusted), None)


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
    course = _Course()
    for model in (reference, candidate):
        course.caveats += [_about(model, note) for note in model.tensors.description.notes]
    n_same, is_same = _same_files(reference, candidate)
    if is_same and settings.level == "auto":
        course.n_tests = 1
        decision = Decision(
            Verdict.HOMOLOGOUS,
            None,
            "identical_files",
            ("All weight files have the same SHA-256 in both; p is the chance that independent digests agree.",),
        )
        return _report(reference, candidate, course, io, settings, decision, LOG10_P_EQUAL_DIGESTS)
    if n_same and not is_same:
        course.caveats.append(f"{n_same} weight files are the same bytes in both; this did not enter the p-value.")
    with course.stopwatch.step("vocabulary"):
        settings.watch.enter("vocabulary")
        common = _common_vocabulary(reference, candidate, course)
    _test_matrices(reference, candidate, common, course, io, settings)
    if settings.level == "body" or (settings.level == "auto" and course.settled is None):
        with course.stopwatch.step("body"):
            settings.watch.enter("layers")
            try:
                _test_body(reference, candidate, course, settings)
            except UnsupportedFormatError as exc:
                if settings.level == "body":
                    raise
                course.layers_are_unreadable = True  # the embeddings were read, and they may have the answer
                course.caveats.append(f"The layers were not compared: {exc}.")
    decision = decide(
        {name: outcome.evidence for name, outcome in course.matrices.items()},
        alpha=settings.alpha,
        level=settings.level,
        body=None if course.body is None else _summary(course.body, settings),
        layers_are_unreadable=course.layers_are_unreadable,
    )
    log_p = [outcome.evidence.log_p for outcome in course.matrices.values()]
    log_p += [] if course.body is None else [course.body.log_p]
    return _report(reference, candidate, course, io, settings, decision, min(0.0, *log_p) / LN10)


def plan_comparison(reference: Model, candidate: Model, *, level: str) -> ReadPlan:
    """Say what a comparison would read and need; reads the tokenizers and headers, no weights.

    Args:
        reference: One model.
        candidate: The other.
        level: auto, screen, embedding or body.
    """
    common = _common_vocabulary(reference, candidate, _Course())
    mine, other = _pairs(reference, candidate, level)["embedding"]
    return _plan(reference, candidate, mine, other, common, level)


def _plan(
    reference: Model, candidate: Model, mine: WeightPart, other: WeightPart, common: CommonVocabulary, level: str
) -> ReadPlan:
    return make_plan(
        reference.matrix_spec(mine),
        candidate.matrix_spec(other),
        common_tokens=len(common),
        bytes_of_weights=reference.tensors.n_bytes + candidate.tensors.n_bytes,
        level=level,
        n_neurons=max(n_neurons(reference), n_neurons(candidate)) if level == "body" else 0,
    )


def _late_notes(reference: Model, candidate: Model, course: _Course) -> list[str]:
    """Notes on the weights that only reading them brought up."""
    notes = [_about(model, note) for model in (reference, candidate) for note in model.tensors.description.notes]
    return [note for note in notes if note not in course.caveats]


def _about(model: Model, note: str) -> str:
    """A note on the weights of a model as a sentence that names it."""
    sentence = note if note.startswith(model.label) else f"{model.label}: {note}"
    return sentence if sentence.endswith(".") else f"{sentence}."


def _same_files(reference: Model, candidate: Model) -> tuple[int, bool]:
    """Return how many weight files have the same digest in both, and whether all of them have."""
    mine, other = reference.digests(), candidate.digests()
    if mine is None or other is None:
        return 0, False
    return len(set(mine.values()) & set(other.values())), set(mine.values()) == set(other.values())


def _common_vocabulary(reference: Model, candidate: Model, course: _Course) -> CommonVocabulary:
    share_vocabulary(reference, candidate)
    for model in (reference, candidate):
        if model.tokenizer is not None:
            course.caveats.append(f"The vocabulary of {model.label} was read from {model.tokenizer.label}, as asked.")
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
    return CommonVocabulary(rows, rows, 0, 0)


def _pairs(reference: Model, candidate: Model, level: str) -> dict[str, tuple[WeightPart, WeightPart]]:
    pairs = {"embedding": (reference.anatomy.embedding, candidate.anatomy.embedding)}
    mine, other = reference.anatomy, candidate.anatomy
    # A head that is the embedding once more, by the config or by its place in the file, is no second witness.
    is_second_witness = not (_has_tied_head(reference) and _has_tied_head(candidate))
    if level != "screen" and mine.unembedding is not None and other.unembedding is not None and is_second_witness:
        pairs["unembedding"] = (mine.unembedding, other.unembedding)
    return pairs


def _has_tied_head(model: Model) -> bool:
    anatomy = model.anatomy
    if anatomy.declares_tied or anatomy.unembedding is None:
        return True
    # torch.save writes tied tensors once; safetensors cannot.
    embedding, head = (model.tensors.spec(part.tensor) for part in (anatomy.embedding, anatomy.unembedding))
    return (embedding.path, embedding.start, embedding.stop) == (head.path, head.start, head.stop)


def _test_matrices(
    reference: Model, candidate: Model, common: CommonVocabulary, course: _Course, io: IoCount, settings: Settings
) -> None:
    """Run Algorithm 1 on the embeddings, and on the unembeddings where those are silent or everything is asked for."""
    pairs = _pairs(reference, candidate, settings.level)
    course.n_tests = TESTS_PER_MATRIX * len(pairs)
    for name, (mine, other) in pairs.items():
        rows = common.within(reference.matrix_spec(mine).shape[0], candidate.matrix_spec(other).shape[0])
        plan = _plan(reference, candidate, mine, other, rows, settings.level)
        check_memory(plan, settings.max_memory_bytes)
        if settings.on_plan is not None and not course.matrices:
            settings.on_plan(plan)
        course.matrices[name] = compare_matrices(
            name,
            reference,
            candidate,
            rows,
            plan,
            settings=settings,
            n_tests=course.n_tests,
            ledger=io.ledger,
            stopwatch=course.stopwatch,
        )
        course.n_looks = max(course.n_looks, len(plan.look_rows) + 1)
        if course.settled is not None and settings.level != "body":
            return


def _test_body(reference: Model, candidate: Model, course: _Course, settings: Settings) -> None:
    """Run Algorithms 2 and 3, as one more look after those at the matrices."""
    # An embedding that is projected on its way in has channels of its own, which say nothing about the stream's.
    widths = (reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    of_stream = [outcome for outcome in course.matrices.values() if outcome.evidence.widths == widths]
    matching = next((outcome.matching for outcome in of_stream if outcome.matching is not None), None)
    outers = outer_candidates(
        *widths,
        polar=next((outcome.polar for outcome in of_stream if outcome is course.matrices["embedding"]), None),
        matching=matching,
    )
    tried = attempts(
        reference,
        candidate,
        outers.transformations,
        representatives(reference, candidate),
        are_silent=matching is None,
        seed=settings.seed,
        device=settings.device,
    )
    # Looks at matrices spend 1 - 1/(s + 1) of alpha in all; the body takes the next share (docs/method.md, "Looks").
    spent = math.log((course.n_looks + 1) * (course.n_looks + 2))
    try:
        evidence = compare_bodies(
            reference,
            candidate,
            tried,
            log_alpha=math.log(settings.alpha) - spent,
            all_layers=settings.level == "body",
            seed=settings.seed,
            device=settings.device,
        )
    except AnatomyError as exc:
        if settings.level == "body":
            raise
        course.caveats.append(f"The layers were not compared: {exc}.")  # nobody asked for them
        return
    if evidence is None:
        course.caveats.append(
            "The layers were not compared: nothing relates the two residual streams, or no role of a layer was found "
            "in both models."
        )
        return
    course.body = replace(evidence, log_p=min(0.0, evidence.log_p + spent))
    course.n_tests += evidence.n_tests


def _summary(body: BodyEvidence, settings: Settings) -> BodySummary:
    supported = is_supported(body, math.log(settings.alpha))
    silent = body.placebo_log_p > math.log(REMARKABLE)
    return BodySummary(body.log_p, body.outer.kind, body.outer.fitted_on, body.stray_share, silent, supported)


def _report(
    reference: Model,
    candidate: Model,
    course: _Course,
    io: IoCount,
    settings: Settings,
    decision: Decision,
    log10_p: float,
) -> HomologyReport:
    body = course.body
    reports = {name: outcome.report for name, outcome in course.matrices.items()}
    turned = body is not None and body.outer.kind == "rotation" and body.outer.fitted_on == "embeddings"
    if decision.settled_by == "body" and turned:
        reports["embedding"] = replace(reports["embedding"], transformation="rotation")
    arrays: dict[str, Any] = {}
    for name, outcome in course.matrices.items():
        arrays |= {f"{name}{kind}": picture for kind, picture in outcome.pictures.items()}
        if outcome.channels is not None:
            arrays[f"{name}_channels"] = outcome.channels
    return HomologyReport(
        verdict=decision.verdict,
        reason=decision.reason,
        log10_p=log10_p,
        alpha=settings.alpha,
        tests=course.n_tests,
        level=settings.level,
        settled_by=decision.settled_by,
        reference=reference.summary(),
        candidate=candidate.summary(),
        embedding=reports.get("embedding"),
        unembedding=reports.get("unembedding"),
        layers=None if body is None else layers_report(body, reference, candidate),
        modules=None if body is None or not body.modules else modules_report(body),
        caveats=(*course.caveats, *_late_notes(reference, candidate, course), *decision.caveats),
        io=io.result(reference.tensors.n_bytes + candidate.tensors.n_bytes),
        seconds=course.stopwatch.seconds,
        seed=settings.seed,
        version=__version__,
        arrays=arrays,
    )
