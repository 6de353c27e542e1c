"""Lay out a report as sections that all renderers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from mdir_hf.names import LONGEST_TEXT, shown_name, visible_text
from mdir_hf.render.layer_words import (
    layers_section,
    modules_section,
    neuron_lines,
    neuron_paragraphs,
    neuron_tables,
)
from mdir_hf.render.model_words import models_section
from mdir_hf.render.reproduce import read_section, reproduce_section, share_read
from mdir_hf.render.sections import (
    NAME_LENGTH,
    Fact,
    FigureName,
    Line,
    Section,
    SectionKind,
    Table,
    number,
)
from mdir_hf.report.parts import MatrixResult, StackPair
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Transformation, Verdict
from mdir_hf.report.words import (
    IN_ANY_ORDER_AND_BASIS,
    UNLESS_RENUMBERED,
    UNLESS_ROTATED,
    n_bytes_text,
    printed_text,
    range_text,
)

FOUND = {
    Transformation.NONE: "nothing",
    Transformation.IDENTITY: "channels in the same order (identity)",
    Transformation.PERMUTATION: "channels in another order (permutation)",
    Transformation.SIGNED_PERMUTATION: "channels in another order, some with the sign turned (signed permutation)",
    Transformation.ROTATION: "a rotation",
}

PRINTED = "MDIR, Algorithm 1 (all common tokens)"
PRINTED_MEANING = (
    "The paper's algorithm as it is printed. Its p assumes that one of the two embeddings has no preferred axes and "
    "that their product has full rank. The verdict does not rest on it."
)

_MATRICES = {"embedding": "Embeddings", "unembedding": "Unembeddings (lm_head)"}


def describe(report: HomologyReport) -> tuple[Section, ...]:
    """Return the sections of a report, verdict first, omitting empty ones."""
    sections = (
        _verdict(report),
        Section(SectionKind.NOT_MEANING, "What it does not mean", bullets=report.does_not_mean),
        Section(SectionKind.CAVEATS, "Caveats of this result", bullets=report.caveats),
        _direction(report),
        _excludes(report),
        models_section(report),
        _evidence(report),
        layers_section(report),
        modules_section(report),
        reproduce_section(report),
        read_section(report),
    )
    return tuple(_visible(section) for section in sections if not section.is_empty)


def _visible(part: Any) -> Any:  # noqa: ANN401 - returns the type that it gets
    """Escape invisible characters in every text of a section except its listings."""
    if isinstance(part, str) and not isinstance(part, Enum):
        return visible_text(part, length=None if "\n" in part else LONGEST_TEXT, keeps_lines=True)
    if isinstance(part, tuple):
        visible_parts = map(_visible, part)
        return type(part)(*visible_parts) if hasattr(part, "_fields") else tuple(visible_parts)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: _visible(getattr(part, field.name)) for field in fields(part)})
    return part


def pair_name(report: HomologyReport) -> str:
    """Return the names of the two models, joined by "and"."""
    return " and ".join(shown_name(model.repo, length=NAME_LENGTH) for model in (report.reference, report.candidate))


def _verdict(report: HomologyReport) -> Section:
    brief: list[Line] = [Line("warning", report.warning)] if report.warning else []
    facts: list[Fact] = []
    if report.verdict is Verdict.HOMOLOGOUS:
        is_measured = report.settled_by is not SettledBy.IDENTICAL_FILES
        meaning = report.what_p_says if not is_measured or report.p_is_bound else "Partners were searched for: no p."
        facts.append(Fact("strength", report.strength, meaning, is_decisive=True))
    if report.assumption is not None:
        rests_on = report.assumption.words
        what = "p rests on" if report.p_is_bound else "the verdict rests on"
        meaning = f"{rests_on[0].upper()}{rests_on[1:]}."
        facts.append(Fact(what, report.assumption.value, meaning, is_decisive=True))
        brief.append(Line("rests on", f"{report.assumption.value}: {rests_on}"))
    if report.settled_by is not None:
        settled_by = report.settled_by.words
        facts.append(Fact("settled by", settled_by, "This step answered the question.", is_decisive=True))
        brief.append(Line("settled by", settled_by))
    brief.append(Line("alpha", f"{report.alpha:g}, fixed in advance"))
    facts.append(Fact("alpha", f"{report.alpha:g}", "The significance level, fixed in advance."))
    planned = report.io.bytes_planned
    before = "" if planned is None else f" Planned: {range_text(*map(n_bytes_text, planned))}."
    share = f"{share_read(report)} of the weights."
    facts.append(Fact("read", n_bytes_text(report.io.bytes_read), f"{share[:1].upper()}{share[1:]}{before}"))
    return Section(
        SectionKind.VERDICT,
        report.sentence,
        brief=tuple(brief),
        paragraphs=(report.means, report.what_p_says),
        facts=tuple(facts),
    )


def _direction(report: HomologyReport) -> Section:
    sentences = [_sentence(fact.evidence) for fact in report.direction]
    return Section(
        SectionKind.DIRECTION,
        "What is equal",
        brief=tuple(Line("direction" if at == 0 else "", text) for at, text in enumerate(sentences)),
        bullets=tuple(sentences),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _excludes(report: HomologyReport) -> Section:
    excludes = report.excludes
    parts: tuple[tuple[str, float | None, str], ...] = ()
    if excludes is not None:
        matrix = "embeddings" if report.embedding is not None else "unembeddings"
        parts = (
            ("neurons in place", excludes.neurons, f"Neurons of the sampled layers, {UNLESS_RENUMBERED}."),
            ("keys and neurons", excludes.keys, f"Keys, gate and up of the sampled layers, {IN_ANY_ORDER_AND_BASIS}."),
            (matrix, excludes.embedding, f"Rows of the {matrix}, channels in any order, {UNLESS_ROTATED}."),
        )
    facts = tuple(
        Fact(f"correlation of {what}", f"{correlation:.2g} or more", meaning)
        for what, correlation, meaning in parts
        if correlation is not None
    )
    if not facts:
        return Section(SectionKind.EXCLUDES, "What this excludes")
    text = (
        "A copy whose weights still correlate with the original by this much would have been found. Copies with "
        "independent noise were planted in the rows that were read to measure this."
    )
    brief = ", ".join(f"{fact.name.removeprefix('correlation of ')} {fact.value}" for fact in facts)
    return Section(
        SectionKind.EXCLUDES,
        "What this excludes",
        brief=(Line("excludes", f"copies that correlate by: {brief}"),),
        paragraphs=(text,),
        facts=facts,
    )


def _evidence(report: HomologyReport) -> Section:
    """Describe the neurons first, then other stacks and experts, then the look at the embeddings."""
    neurons = report.neurons
    matrices = report.matrices
    return Section(
        SectionKind.EVIDENCE,
        "Evidence",
        brief=(
            *(() if neurons is None else neuron_lines(neurons)),
            *(line for name, matrix in matrices.items() for line in _matrix_lines(name, matrix)),
        ),
        paragraphs=() if neurons is None else neuron_paragraphs(neurons),
        tables=(
            *(() if neurons is None else neuron_tables(neurons)),
            *_part_tables(report.parts or ()),
            *(_matrix_table(name, matrix) for name, matrix in matrices.items()),
        ),
        figures=(
            FigureName.NEURONS,
            FigureName.EMBEDDING,
            FigureName.EMBEDDING_MATCHED,
            FigureName.UNEMBEDDING,
            FigureName.UNEMBEDDING_MATCHED,
        ),
    )


def _part_tables(parts: Sequence[StackPair]) -> tuple[Table, ...]:
    rows = tuple((pair.candidate, pair.reference, pair.verdict.words, number(pair.log10_p)) for pair in parts)
    columns = ("part of the candidate", "part of the reference", "result", "log10 p")
    return (Table("Experts and stacks beside the language models", columns, rows),) if rows else ()


def _matrix_lines(name: str, matrix: MatrixResult) -> Iterator[Line]:
    scale = "" if matrix.scale is None else f", scale {matrix.scale:.3g}"
    rows_text = f"{matrix.rows_used} of {matrix.common_tokens} common tokens used"
    yield Line(name, f"{rows_text}; found: {FOUND[matrix.transformation]}{scale}")
    yield Line("", f"trace {matrix.trace:.1f} (rank {matrix.rank}): log10 p {_trace_p(matrix)}")
    if matrix.printed is not None:
        yield Line("", f"{PRINTED}: {printed_text(matrix.printed)}")


def _trace_p(matrix: MatrixResult) -> str:
    no_bound = " (no bound: axes stand out in both models)" if matrix.axes_stand_out and matrix.log10_p < 0.0 else ""
    return f"{number(matrix.log10_p)}{no_bound}"


def _matrix_table(name: str, matrix: MatrixResult) -> Table:
    rows = tuple((fact.name, fact.value, fact.meaning) for fact in _matrix_facts(matrix))
    caption = f"{_MATRICES[name]}: this describes the models; the verdict does not rest on it"
    return Table(caption, ("", "value", "what it is"), rows)


def _matrix_facts(matrix: MatrixResult) -> Iterator[Fact]:
    yield Fact("found", FOUND[matrix.transformation], "The transformation from the reference to the candidate.")
    used = f"{matrix.rows_used:,} of {matrix.common_tokens:,}"
    yield Fact("tokens", used, "Tokens whose rows were compared, of those that both vocabularies hold.")
    trace = f"{matrix.trace:.1f} of at most {matrix.rank}"
    yield Fact("trace", trace, "Sum of the matched entries of the polar factor.")
    meaning = (
        "By the paper's formula. It bounds a probability if the axes of one of the two models are random directions."
    )
    yield Fact("log10 p of the trace", _trace_p(matrix), meaning)
    axes = " and ".join(map(number, matrix.axes_z))
    meaning = "How far the axes stand out (z-scores of reference and candidate). If both exceed 3, the p is no bound."
    yield Fact("axes", axes, meaning)
    meaning = "Entries of the polar factor that are significant one by one, at 1 % for all entries together."
    yield Fact("channels significant one by one", f"{matrix.matched_channels:,}", meaning)
    cosine = "–" if matrix.cosine is None else f"{matrix.cosine:.3f}"
    yield Fact("cosine", cosine, "Mean cosine of paired rows. Rows count as copies from 0.7 on.")
    scale = "–" if matrix.scale is None else f"{matrix.scale:.3g}"
    yield Fact("scale", scale, "How much larger the candidate's rows are.")
    if matrix.printed is not None:
        yield Fact(PRINTED, printed_text(matrix.printed), PRINTED_MEANING)
