"""One comparison, step by step: same files, plan, screen, full test, layers, verdict.

Each step takes what is known and returns what it found, as a frozen object.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mdir_hf.comparison.body import BodyEvidence, compare_bodies, representatives
from mdir_hf.comparison.decision import Decision, decide, where_tokens_are_unknown
from mdir_hf.comparison.exclusion import layers_noise, planned_layers_noise
from mdir_hf.comparison.findings import Findings, LayersFound, MatricesFound
from mdir_hf.comparison.layers import layers_with, n_neurons, why_not_compared
from mdir_hf.comparison.matrices import compare_matrices
from mdir_hf.comparison.plan import ReadPlan, check_memory, make_plan
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.reporting import make_report
from mdir_hf.comparison.residual_maps import attempts
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.embedding import TESTS_PER_MATRIX
from mdir_hf.method.gauge import outer_candidates
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.model.comparable import Comparable, have_one_vocabulary, matrix_spec, n_rows, vocabularies_of
from mdir_hf.model.roles import WeightPart
from mdir_hf.model.tokens import CommonVocabulary, common_vocabulary
from mdir_hf.processor import one_pool
from mdir_hf.report import HomologyReport, Level, SettledBy, Verdict

LOG10_P_EQUAL_DIGESTS = -256.0 * math.log10(2.0)
"""The log10 of the chance that two independent files have the same SHA-256."""

IDENTICAL_FILES = Decision(
    Verdict.HOMOLOGOUS,
    None,
    SettledBy.IDENTICAL_FILES,
    LOG10_P_EQUAL_DIGESTS * LN10,
    ("All weight files have the same SHA-256 in both; p is the chance that independent digests agree.",),
)

NOT_LOOKED_AT = LayersFound(caveats=("The layers were not compared: it was stopped before.",), were_stopped=True)
NO_UNEMBEDDINGS = "The unembeddings (lm_head) were not compared: it was stopped before."


def compare_models(reference: Comparable, candidate: Comparable, settings: Settings, watch: Watch) -> HomologyReport:
    """Compare two models. Every comparison of this package runs through this function.

    Args:
        reference: One model.
        candidate: The other.
        settings: What is asked.
        watch: Counts what is read, and is told how far it is.

    Returns:
        The report.

    Raises:
        MdirError: Where the question cannot be asked or the files cannot be had.
    """
    with one_pool():
        found = _findings(reference, candidate, settings, watch)
    # Reading the weights may have brought up more notes on them.
    late = tuple(note for note in _notes(reference, candidate) if note not in found.caveats)
    return make_report(reference, candidate, replace(found, caveats=(*found.caveats, *late)), settings, watch)


def _findings(reference: Comparable, candidate: Comparable, settings: Settings, watch: Watch) -> Findings:
    notes = _notes(reference, candidate)
    n_same, is_same = _same_files(reference, candidate)
    if is_same and settings.level.accepts_equal_files:
        nothing = MatricesFound({}, n_tests=1)
        return Findings(nothing, LayersFound(), IDENTICAL_FILES, notes)
    if n_same and not is_same:
        notes += (f"{n_same} weight files are the same bytes in both; this did not enter the p-value.",)
    with watch.step("vocabulary"):
        watch.enter("vocabulary")
        common, on_tokens = _common_tokens(reference, candidate)

    def found_with(matrices: MatricesFound, layers: LayersFound) -> Findings:
        decision = decide(
            {name: outcome.evidence for name, outcome in matrices.outcomes.items()},
            alpha=settings.alpha,
            level=settings.level,
            body=None if layers.body is None else layers.body.summary(settings.alpha),
            layers_are_unreadable=layers.are_unreadable,
            was_stopped=layers.were_stopped,
            layers_noise=layers.noise,
        )
        doubts: tuple[str, ...] = ()
        if decision.verdict is not Verdict.HOMOLOGOUS:
            doubts = () if common.is_by_number else _doubts_of_tokens(reference, candidate)
            if common.is_by_number or doubts:
                decision = where_tokens_are_unknown(decision)
            doubts += _caveats_of_numbers(reference, candidate)
        on_rows = tuple(caveat for outcome in matrices.outcomes.values() for caveat in outcome.caveats)
        on_layers = layers.caveats
        if decision.verdict is Verdict.NO_EVIDENCE:
            on_layers += _caveats_of_left_out_layers(reference, candidate, layers)
        return Findings(matrices, layers, decision, (*notes, *on_tokens, *doubts, *on_rows, *on_layers))

    def so_far(matrices: MatricesFound, layers: LayersFound) -> None:
        watch.found(lambda: make_report(reference, candidate, found_with(matrices, layers), settings, watch))

    def without_unembeddings(matrices: MatricesFound) -> None:
        layers = NOT_LOOKED_AT if settings.level.may_read_layers else LayersFound(were_stopped=True)
        so_far(matrices, replace(layers, caveats=(NO_UNEMBEDDINGS, *layers.caveats)))

    matrices = _compare_matrices(reference, candidate, common, settings, watch, on_found=without_unembeddings)
    layers = LayersFound()
    if settings.level.may_read_layers and not (matrices.settle and settings.level.stops_when_settled):
        so_far(matrices, NOT_LOOKED_AT)
        with watch.step("body"):
            watch.enter("layers")
            try:
                layers = _compare_layers(
                    reference, candidate, matrices, settings, watch, on_found=lambda found: so_far(matrices, found)
                )
            except (AnatomyError, UnsupportedFormatError) as exc:
                if settings.level.analyses_all_layers:
                    raise
                # The embeddings were read, and they may have the answer.
                layers = LayersFound(caveats=(f"The layers were not compared: {exc}.",), are_unreadable=True)
    return found_with(matrices, layers)


def plan_comparison(reference: Comparable, candidate: Comparable, level: Level, alpha: float) -> ReadPlan:
    """Say what a comparison would read and need; reads the tokenizers and headers, no weights.

    Args:
        reference: One model.
        candidate: The other.
        level: How far the comparison would go.
        alpha: Its level of significance.
    """
    mine, other = _matrix_pairs(reference, candidate, level)["embedding"]
    return _plan(reference, candidate, mine, other, _common_tokens(reference, candidate)[0], level, alpha)


def _plan(
    reference: Comparable,
    candidate: Comparable,
    mine: WeightPart,
    other: WeightPart,
    common: CommonVocabulary,
    level: Level,
    alpha: float,
) -> ReadPlan:
    plan = make_plan(
        matrix_spec(reference, mine),
        matrix_spec(candidate, other),
        common_tokens=len(common),
        bytes_of_weights=reference.tensors.n_bytes + candidate.tensors.n_bytes,
        level=level,
        n_neurons=max(n_neurons(reference), n_neurons(candidate)) if level.analyses_all_layers else 0,
        alpha=alpha,
    )
    if not level.may_read_layers:
        return plan
    try:
        noise = planned_layers_noise(
            reference, candidate, n_looks=plan.n_looks, alpha=alpha, every=level.analyses_all_layers
        )
    except (AnatomyError, UnsupportedFormatError):
        return plan  # their turn comes, and then it is said
    return replace(plan, excluded_layers_noise=noise)


def _notes(*models: Comparable) -> tuple[str, ...]:
    """What is known about the weights of models, each as a sentence that names its model."""
    sentences = []
    for model in models:
        for note in model.tensors.description.notes:
            sentence = note if note.startswith(model.label) else f"{model.label}: {note}"
            sentences.append(sentence if sentence.endswith(".") else f"{sentence}.")
    return tuple(sentences)


def _same_files(reference: Comparable, candidate: Comparable) -> tuple[int, bool]:
    """Return how many weight files have the same digest in both, and whether all of them have."""
    mine, other = reference.digests(), candidate.digests()
    if mine is None or other is None:
        return 0, False
    return len(set(mine.values()) & set(other.values())), set(mine.values()) == set(other.values())


def _common_tokens(reference: Comparable, candidate: Comparable) -> tuple[CommonVocabulary, tuple[str, ...]]:
    """Return the rows of the same tokens, and what a reader should know about them."""
    models = (reference, candidate)
    caveats = tuple(
        f"The vocabulary of {model.label} was read from {model.vocabulary_from}, as asked."
        for model in models
        if model.vocabulary_from is not None
    )
    mine, other = vocabularies_of(reference, candidate)
    rows_of_models = (n_rows(reference), n_rows(candidate))
    if mine is not None and other is not None:
        common = common_vocabulary(mine, other, n_reference_rows=rows_of_models[0], n_candidate_rows=rows_of_models[1])
        return common, caveats
    without = " and ".join(model.label for model, v in zip(models, (mine, other), strict=True) if v is None)
    by_number = (
        f"No tokenizer files in {without}: rows were paired by their number, whatever their tokens. Any pairing keeps "
        "the p-value valid, but relatives are missed where the ids differ. Name a repository or folder that has the "
        "tokenizer (--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
    )
    known = mine if mine is not None else other
    n_common = min(rows_of_models)
    if known is None:
        rows = np.arange(n_common, dtype=np.int64)
    else:
        rows = np.array(sorted(row for row in known.row_of.values() if row < n_common), dtype=np.int64)
    return CommonVocabulary(rows, rows, 0, 0, is_by_number=True), (*caveats, by_number)


def _caveats_of_numbers(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Which test was left out because an architecture gives the number of a channel a meaning."""
    mine, other = reference.anatomy, candidate.anatomy
    if mine.embedding_size != other.embedding_size:
        return ()  # there is no such test
    meanings = {each.architecture: each.channel_numbers for each in (mine, other) if each.channel_numbers is not None}
    return tuple(
        f"The channels were not tested in their own order, in which strangers may agree here: in {architecture} "
        f"{meaning}."
        for architecture, meaning in meanings.items()
    )


def _doubts_of_tokens(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Where the tokenizer files of a model contradict each other, as sentences that name the model."""
    if have_one_vocabulary(reference, candidate):
        return ()  # whichever file is right, rows of the same number are rows of the same token
    return tuple(
        f"The tokenizer files of {model.label} contradict each other: {doubt}. If they are not those of its weights, "
        "name the right ones (--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
        for model in (reference, candidate)
        for doubt in model.vocabulary_doubts()
    )


def _matrix_pairs(
    reference: Comparable, candidate: Comparable, level: Level
) -> dict[str, tuple[WeightPart, WeightPart]]:
    """The matrices that are compared, by name."""
    mine, other = reference.anatomy, candidate.anatomy
    pairs = {"embedding": (mine.embedding, other.embedding)}
    # A tied head is the embedding once more. Where both models have one, the heads are no independent test.
    is_independent = not (_has_tied_head(reference) and _has_tied_head(candidate))
    if not level.is_screen_only and mine.unembedding is not None and other.unembedding is not None and is_independent:
        pairs["unembedding"] = (mine.unembedding, other.unembedding)
    return pairs


def _has_tied_head(model: Comparable) -> bool:
    """Whether the head (``lm_head``) is the embedding, by the config or by its place in the file."""
    anatomy = model.anatomy
    if anatomy.declares_tied or anatomy.unembedding is None:
        return True
    # torch.save writes tied tensors once; safetensors cannot.
    embedding, head = (model.tensors.spec(part.tensor) for part in (anatomy.embedding, anatomy.unembedding))
    return (embedding.path, embedding.start, embedding.stop) == (head.path, head.start, head.stop)


def _compare_matrices(
    reference: Comparable,
    candidate: Comparable,
    common: CommonVocabulary,
    settings: Settings,
    watch: Watch,
    *,
    on_found: Callable[[MatricesFound], None],
) -> MatricesFound:
    """Run Algorithm 1 on the embeddings, and on the unembeddings unless the embeddings settle the question.

    ``on_found`` is told of the embeddings where the unembeddings are still to be read.
    """
    pairs = _matrix_pairs(reference, candidate, settings.level)
    found = MatricesFound({}, n_tests=TESTS_PER_MATRIX * len(pairs))
    for name, (mine, other) in pairs.items():
        rows = common.within(matrix_spec(reference, mine).shape[0], matrix_spec(candidate, other).shape[0])
        plan = _plan(reference, candidate, mine, other, rows, settings.level, settings.alpha)
        check_memory(plan, settings.max_memory_bytes)
        if found.outcomes:
            on_found(found)
            plan = plan.at_once()
        else:
            watch.planned(plan)
        outcome = compare_matrices(name, reference, candidate, rows, plan, settings, watch, n_tests=found.n_tests)
        n_looks = max(found.n_looks, plan.n_looks)
        found = replace(found, outcomes={**found.outcomes, name: outcome}, n_looks=n_looks)
        if found.settle and settings.level.stops_when_settled:
            break
    return found


def _compare_layers(
    reference: Comparable,
    candidate: Comparable,
    matrices: MatricesFound,
    settings: Settings,
    watch: Watch,
    *,
    on_found: Callable[[LayersFound], None],
) -> LayersFound:
    """Run Algorithms 2 and 3, as one more look after those at the matrices.

    ``on_found`` is told of a significant map, and of every matched pair that is analysed.

    Raises:
        AnatomyError: If the layers of a model cannot be told apart.
        UnsupportedFormatError: If they cannot be read.
    """
    # An embedding that is projected on its way in has channels of its own, which say nothing about the stream's.
    widths = (reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    of_stream = {name: outcome for name, outcome in matrices.outcomes.items() if outcome.evidence.widths == widths}
    matching = next((outcome.matching for outcome in of_stream.values() if outcome.matching is not None), None)
    on_embeddings = outer_candidates(
        *widths, polar=of_stream["embedding"].polar if "embedding" in of_stream else None, matching=matching
    )
    roles = representatives(reference, candidate)
    tried = attempts(
        reference,
        candidate,
        on_embeddings,
        roles,
        settings,
        are_matched=matching is not None,
    )
    # Looks at matrices spend 1 - 1/(s + 1) of alpha in all; the layers take the next share (docs/method/rows.md).
    spent = log_cost_of_look(matrices.n_looks + 1)
    why = why_not_compared(reference, candidate, roles)

    def corrected(evidence: BodyEvidence) -> LayersFound:
        at_last = replace(evidence, log_p=min(0.0, evidence.log_p + spent))
        return LayersFound(at_last, evidence.n_tests, why, are_unreadable=bool(why))

    def so_far(evidence: BodyEvidence, n_left: int) -> None:
        found = corrected(evidence)
        left = f"{n_left} matched pairs of layers were not analysed: it was stopped before."
        on_found(replace(found, caveats=(*found.caveats, left)))

    evidence = compare_bodies(
        reference,
        candidate,
        tried,
        settings,
        log_alpha=math.log(settings.alpha) - spent,
        on_part=watch.part,
        on_found=so_far,
    )
    if evidence is None:
        why = why or ("The layers were not compared: nothing relates the two residual streams.",)
        # What has no layers was compared whole.
        return LayersFound(caveats=why, are_unreadable=bool(reference.anatomy.layers and candidate.anatomy.layers))
    if evidence.is_empty:
        return LayersFound(caveats=(*why, _of_zeros(reference, candidate, evidence)), are_unreadable=True)
    noise = layers_noise(
        reference,
        candidate,
        evidence.role,
        evidence.positions,
        n_tests=evidence.n_tests,
        log_alpha=math.log(settings.alpha) - spent,
        every=settings.level.analyses_all_layers,
    )
    return replace(corrected(evidence), noise=noise)


def _of_zeros(reference: Comparable, candidate: Comparable, body: BodyEvidence) -> str:
    told = zip((reference, candidate), body.n_empty, body.positions, strict=True)
    model, n_empty, places = max(told, key=lambda each: each[1] / len(each[2]))
    return (
        f"The layers were not compared: {body.role.value}, which stands for a layer, is all zeros in {n_empty} of "
        f"{len(places)} layers of {model.label}."
    )


def _caveats_of_left_out_layers(reference: Comparable, candidate: Comparable, layers: LayersFound) -> tuple[str, ...]:
    if layers.body is None:
        return ()
    models = zip(("reference", "candidate"), (reference, candidate), layers.body.positions, strict=True)
    return tuple(
        f"Of the {n_all} layers of the {which} model {len(chosen)} were compared, with all of the other's. A model "
        "that shares only the others would not have been found: level body compares all."
        for which, model, chosen in models
        if len(chosen) < (n_all := len(layers_with(model, layers.body.role)))
    )
