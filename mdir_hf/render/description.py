"""Lay out a report as sections that all renderers share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from mdir_hf.names import LONGEST_TEXT, shown_name, visible_text
from mdir_hf.render.layer_words import layers_section, modules_section
from mdir_hf.render.model_words import models_section, size_text
from mdir_hf.render.reproduce import read_section, reproduce_section, share_read
from mdir_hf.render.scale import scale_section
from mdir_hf.render.sections import (
    NAME_LENGTH,
    Fact,
    FigureName,
    Line,
    Section,
    SectionKind,
    Table,
    counted,
    number,
)
from mdir_hf.report.parts import MatrixResult, PlaceboResult
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import PRIVILEGED_Z, SettledBy, Transformation, Verdict
from mdir_hf.report.words import (
    UNLESS_IN_ANOTHER_BASIS,
    UNLESS_RENUMBERED,
    UNLESS_ROTATED,
    correlation_text,
    n_bytes_text,
    numbering_text,
    printed_text,
    range_text,
)

FOUND = {
    Transformation.NONE: "nothing",
    Transformation.IDENTITY: "channels in the same order (identity)",
    Transformation.PERMUTATION: "channels in another order (permutation)",
    Transformation.SIGNED_PERMUTATION: "channels in another order, some with the sign turned (signed permutation)",
    Transformation.ROTATION: "no match on its own; the layers agree after a rotation that was fitted on it",
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
        scale_section(report),
        models_section(report),
        _evidence(report),
        _calibration(report),
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


def pair_name(report: HomologyReport, *, length: int = NAME_LENGTH) -> str:
    """Return the names of the two models, joined by "and"."""
    return f"{shown_name(report.reference.repo, length=length)} and {shown_name(report.candidate.repo, length=length)}"


def _verdict(report: HomologyReport) -> Section:
    if report.settled_by is SettledBy.IDENTICAL_FILES:
        line = Line("agreement", report.strength)
        fact = Fact("agreement", report.strength, report.what_p_says, is_decisive=True)
    elif report.verdict is not Verdict.HOMOLOGOUS:
        line = Line("alpha", f"{report.alpha:g}, fixed in advance")
        fact = None
    elif report.p_is_bound and report.log10_p is not None:
        line = Line("log10 p", f"{number(report.log10_p)}  (alpha {report.alpha:g}, corrected for every test and look)")
        fact = Fact("log10 p", number(report.log10_p), "Corrected for every test and look.", is_decisive=True)
    else:
        line = Line("agreement", f"{report.agreement}; no bound on p holds for this pair")
        no_bound = "No bound on p holds for this pair, so none is printed."
        fact = Fact("agreement", report.agreement or "", no_bound, is_decisive=True)
    brief = [Line("in words", report.sentence), line]
    facts = [] if fact is None else [fact]
    if report.log10_p_not_accepted is not None:
        refused = number(report.log10_p_not_accepted)
        facts.append(Fact("log10 p not accepted", refused, "Found, but a condition failed: see the caveats."))
        brief.append(Line("not accepted", f"log10 p {refused} was found, but a condition failed"))
    if report.assumption is not None:
        on_layers = report.settled_by is SettledBy.LAYERS
        rests_on = "the heads or neurons of one model have no preferred axes" if on_layers else report.assumption.words
        what = "p rests on" if report.p_is_bound else "the verdict rests on"
        meaning = f"{rests_on[0].upper()}{rests_on[1:]}."
        facts.append(Fact(what, report.assumption.value, meaning, is_decisive=True))
        if report.p_is_bound:
            brief.append(Line("rests on", f"{report.assumption.value}: {rests_on}"))
    if report.settled_by is not None:
        settled_by = report.settled_by.words
        facts.append(Fact("settled by", settled_by, "The step that settled the question.", is_decisive=True))
        brief.append(Line("settled by", settled_by))
    facts.append(Fact("alpha", f"{report.alpha:g}", "The significance level, fixed in advance."))
    matrix = report.embedding
    if report.verdict is Verdict.HOMOLOGOUS and matrix is not None and matrix.transformation is not Transformation.NONE:
        facts.append(
            Fact(
                "found",
                matrix.transformation.words,
                f"{_transformation_text(matrix).capitalize()}.{_scale_text(matrix)}",
            )
        )
    planned = report.io.bytes_planned
    before = "" if planned is None else f" Planned: {range_text(*map(n_bytes_text, planned))}."
    share = f"{share_read(report)} of the weights."
    facts.append(Fact("read", n_bytes_text(report.io.bytes_read), f"{share[:1].upper()}{share[1:]}{before}"))
    return Section(
        SectionKind.VERDICT,
        report.headline,
        brief=tuple(brief),
        paragraphs=(report.sentence, report.means, report.what_p_says),
        facts=tuple(facts),
    )


def _scale_text(matrix: MatrixResult) -> str:
    times = "1" if matrix.scale is None else f"{matrix.scale:.3g}"
    return "" if times == "1" else f" The candidate's rows are {times} times as large."


def _direction(report: HomologyReport) -> Section:
    sentences = [_sentence(fact.evidence) for fact in report.direction]
    return Section(
        SectionKind.DIRECTION,
        "Which came first",
        brief=tuple(Line("direction" if at == 0 else "", text) for at, text in enumerate(sentences)),
        bullets=tuple(sentences),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _excludes(report: HomologyReport) -> Section:
    excludes = report.excludes
    if excludes is None:
        return Section(SectionKind.EXCLUDES, "What this excludes")
    rows = "embeddings" if report.embedding is not None else "unembeddings"
    parts = [
        (f"on the {rows}, the channels in any order", excludes.embedding_noise, UNLESS_ROTATED),
        (f"on the {rows}, the channels in their own order", excludes.embedding_noise_in_order, UNLESS_ROTATED),
        ("on the layers, the heads in any order", excludes.layers_noise, UNLESS_IN_ANOTHER_BASIS),
        ("on the neurons, in their order, in whatever basis", excludes.neurons_noise, UNLESS_RENUMBERED),
    ]
    facts = tuple(
        Fact(
            f"correlation {where}",
            f"{correlation_text(strength)} or more",
            f"Matched weights with this correlation would have been found, {condition} (a copy with noise of up to "
            f"{min(strength, 100.0):.2g} times the weights).",
        )
        for where, strength, condition in parts
        if strength is not None
    )
    if not facts:
        return Section(SectionKind.EXCLUDES, "What this excludes")
    brief = ", ".join(
        f"{correlation_text(strength)} or more {where.partition(',')[0]}"
        for where, strength, _ in (parts[0], parts[2])
        if strength is not None
    )
    condition = UNLESS_IN_ANOTHER_BASIS if excludes.layers_noise else UNLESS_ROTATED
    text = (
        "A copy of one model whose weights still correlate with the original by this much or more would have been "
        f"found in the parts that were read, 99 times of 100, {condition}. The noise of such a copy is in units of the "
        "root mean square of the weights. Real relatives have a noise of 0.03 to 0.9."
    )
    return Section(
        SectionKind.EXCLUDES,
        "What this excludes",
        brief=(Line("excludes", f"matched weights that correlate by {brief}, {condition}"),),
        paragraphs=(text,),
        facts=facts,
    )


def _evidence(report: HomologyReport) -> Section:
    if not report.matrices:
        return Section(SectionKind.EVIDENCE, "Evidence")
    facts = {name: list(_matrix_facts(matrix)) for name, matrix in report.matrices.items()}
    rows = tuple(
        (cells[0].name, *(fact.value for fact in cells), cells[0].meaning)
        for cells in zip(*facts.values(), strict=True)
    )
    columns = ("", *(_MATRICES[name].lower() for name in facts), "what it is")
    return Section(
        SectionKind.EVIDENCE,
        "Evidence",
        brief=tuple(line for name, matrix in report.matrices.items() for line in _matrix_lines(name, matrix)),
        tables=(Table("Agreement of the channels on the tokens that both vocabularies hold", columns, rows),),
        figures=(
            FigureName.EMBEDDING,
            FigureName.EMBEDDING_MATCHED,
            FigureName.UNEMBEDDING,
            FigureName.UNEMBEDDING_MATCHED,
            # With a single look, the figure would be one dot that repeats the table.
            *((FigureName.LOOKS,) if any(len(matrix.looks) > 1 for matrix in report.matrices.values()) else ()),
        ),
    )


def _transformation_text(matrix: MatrixResult) -> str:
    return "channels in the same order, others left out" if matrix.keeps_order else FOUND[matrix.transformation]


def _matrix_lines(name: str, matrix: MatrixResult) -> Iterator[Line]:
    scale = "" if matrix.scale is None else f", scale {matrix.scale:.3g}"
    rows_text = f"{matrix.rows_used} of {matrix.common_tokens} common tokens used"
    yield Line(name, f"{rows_text}; found: {_transformation_text(matrix)}{scale}")
    if matrix.trace is not None and matrix.normalized_trace is not None:
        one_by_one = counted(matrix.matched_channels or 0, "channel")
        trace = f"trace {matrix.trace:.1f} (normalized {matrix.normalized_trace:.3f}, rank {matrix.rank})"
        yield Line("", f"{trace}; {one_by_one} significant one by one")
    if matrix.numbering is not None and matrix.numbering.log10_p < 0.0:
        yield Line("", numbering_text(matrix.numbering))
    shares, trimmed = ", ".join(matrix.log10_p_trimmed), ", ".join(map(number, matrix.log10_p_trimmed.values()))
    signs = "" if matrix.log10_p_signs is None else f"; by the sign test {number(matrix.log10_p_signs)}"
    left_out = f"without the best {shares} of the channels: {trimmed}{signs}"
    yield Line("", f"trace: log10 p {_trace_p(matrix)}; {left_out}")
    if matrix.printed is not None:
        yield Line("", f"{PRINTED}: {printed_text(matrix.printed)}")
    if matrix.placebo is not None:
        placebo = matrix.placebo.re_paired
        traces = f"trace {placebo.trace:.1f}, significant from {placebo.threshold:.1f}"
        yield Line("", f"placebo (re-paired tokens) {_state(placebo)}: {traces}")


def _trace_p(matrix: MatrixResult) -> str:
    axes = matrix.placebo is not None and min(map(abs, matrix.placebo.privileged_basis_z)) > PRIVILEGED_Z
    no_bound = " (no bound: axes stand out in both models)" if axes and matrix.log10_p < 0.0 else ""
    return f"{number(matrix.log10_p)}{no_bound}"


def _matrix_facts(matrix: MatrixResult) -> Iterator[Fact]:
    transformation = _transformation_text(matrix)
    yield Fact("found", transformation, "The transformation from the reference's channels to the candidate's.")
    channels_text = "–"
    if matrix.matched_channels is not None and matrix.coverage is not None:
        channels_text = f"{matrix.matched_channels} ({matrix.coverage:.0%})"
    yield Fact(
        "channels significant one by one",
        channels_text,
        "Entries that are significant one by one, at 1 % for all entries together.",
    )
    numbers = "–" if matrix.numbering is None else numbering_text(matrix.numbering)
    yield Fact("numbers of partners", numbers, "Partners are found without using their numbers.")
    meaning = (
        "Corrected for the number of tests and looks. It bounds a probability if the axes of one of the two models are "
        "random directions."
    )
    yield Fact("log10 p of the trace", _trace_p(matrix), meaning)
    yield Fact("common tokens", f"{matrix.common_tokens:,}", "Tokens that both vocabularies hold.")
    yield Fact("tokens used", f"{matrix.rows_used:,}", "Tokens whose rows were used for this result.")
    trace = "–" if matrix.trace is None else f"{matrix.trace:.1f} of at most {matrix.rank}"
    meaning = "Sum of the matched entries of the polar factor. It is at most the rank, which the tokens used limit."
    yield Fact("trace", trace, meaning)
    chance = "The trace that unrelated models exceed once in a thousand."
    yield Fact("trace that chance reaches", number(matrix.threshold), chance)
    for share, p in matrix.log10_p_trimmed.items():
        meaning = f"The p without the best {share} of the n channels, so that it does not rest on a few outliers."
        yield Fact(f"log10 p without the best {share}", number(p), meaning)
    signs = "–" if matrix.log10_p_signs is None else number(matrix.log10_p_signs)
    yield Fact(
        "log10 p of the sign test",
        signs,
        "Each channel has one vote, its sign, so a few outliers are only a few votes.",
    )
    yield Fact(
        "scale", "–" if matrix.scale is None else f"{matrix.scale:.3g}", "How much larger the candidate's rows are."
    )
    off_match = size_text(matrix.off_match_channels)
    yield Fact(
        "off-match hits", off_match, "Channels that also resemble a channel other than their match; rare in relatives."
    )
    yield Fact(PRINTED, "–" if matrix.printed is None else printed_text(matrix.printed), PRINTED_MEANING)
    yield Fact("view", matrix.view.value, "How the rows were prepared: centred, or centred and whitened.")


def _calibration(report: HomologyReport) -> Section:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for name, matrix in report.matrices.items():
        if matrix.placebo is None:
            continue
        placebo = matrix.placebo
        rows.append(_placebo_row(f"{name}, tokens re-paired", placebo.re_paired))
        rows.append(_placebo_row(f"{name}, one model rotated", placebo.rotated))
        reference_z, candidate_z = placebo.privileged_basis_z
        notes.append(
            f"How far the axes of the {name}s stand out among all directions: z = {number(reference_z)} in the "
            f"reference and {number(candidate_z)} in the candidate. If both exceed 3, neither model is rotation "
            "invariant, and a match must meet further conditions."
        )
    if report.layers is not None:
        notes.append(
            f"Layers with the residual channels of one model shuffled: smallest log10 p "
            f"{number(report.layers.placebo_log10_p)}. Off-match hits: {report.layers.off_match_share:.1%} of the "
            "pairs of layers off the map are significant."
        )
    columns = ("placebo", "channels", "trace", "trace that chance reaches", "log10 p", "state")
    tables = (Table("The same test on data without a relation", columns, tuple(rows)),) if rows else ()
    figures = (FigureName.NULL,) if rows else ()
    return Section(SectionKind.CALIBRATION, "Calibration", paragraphs=tuple(notes), tables=tables, figures=figures)


def _placebo_row(name: str, placebo: PlaceboResult) -> tuple[str, ...]:
    traces = (number(placebo.trace), number(placebo.threshold))
    return (name, str(placebo.channels), *traces, number(placebo.log10_p), _state(placebo))


def _state(placebo: PlaceboResult) -> str:
    return "SIGNIFICANT" if placebo.is_significant else "not significant"
