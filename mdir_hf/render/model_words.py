"""Describe a report's two models, their related parts, and the parts that were not compared."""

from __future__ import annotations

from mdir_hf.names import shown_name, visible_text
from mdir_hf.render.ledger import ledger_of
from mdir_hf.render.sections import NAME_LENGTH, Line, Section, SectionKind, Table
from mdir_hf.render.sentence import names_of, part_relation
from mdir_hf.report.models import ModelSummary
from mdir_hf.report.result import HomologyReport
from mdir_hf.report.terms import SettledBy, Verdict
from mdir_hf.report.words import counted, ledger_text, probability_text


def models_section(report: HomologyReport) -> Section:
    """Describe the two models."""

    def column(model: ModelSummary) -> dict[str, str]:
        return {
            "model": shown_name(model.repo, length=NAME_LENGTH),
            "revision": shown_name(model.revision, length=NAME_LENGTH) if model.revision else "–",
            "commit": model.commit or "–",
            "architecture": shown_name(model.architecture),
            "width": size_text(model.hidden_size),
            "layers": size_text(model.layers),
            "embedding rows": size_text(model.vocabulary),
            "quantised": shown_name(model.quantization) if model.quantization else "no",
            "read as": shown_name(model.read_as, length=4 * NAME_LENGTH) if model.read_as else "",
        }

    reference, candidate = column(report.reference), column(report.candidate)
    reference["compared"], candidate["compared"] = ledger_texts(report)
    rows = tuple((label, value, candidate[label]) for label, value in reference.items() if value or candidate[label])
    return Section(
        SectionKind.MODELS,
        "The two models",
        brief=(
            Line("reference", _model_line(report.reference)),
            Line("candidate", _model_line(report.candidate)),
            *_stack_lines(report),
            *ledger_lines(report),
        ),
        tables=(Table("What was compared", ("", "reference", "candidate"), rows),),
        ledger=ledger_of(report),
    )


def _stack_lines(report: HomologyReport) -> tuple[Line, ...]:
    related = [pair for pair in report.parts or () if pair.verdict is Verdict.HOMOLOGOUS]
    return tuple(
        Line(
            "parts",
            f"{part_relation(pair, 'the reference', 'the candidate')}: neurons{of_layers} kept their numbers, "
            f"{probability_text(pair.log10_p)}",
        )
        for pair in related
        for of_layers in ("" if pair.experts else f" of {counted(len(pair.layers), 'layer')}",)
    )


def ledger_texts(report: HomologyReport) -> tuple[str, str]:
    """Say which parts of each model match, match nothing and were not compared; empty if the files are unknown."""
    if report.coverage is None:
        return "", ""
    sides = (report.coverage.reference, report.coverage.candidate)
    first, second = (visible_text(ledger_text(side), length=8 * NAME_LENGTH) for side in sides)
    return first, second


def ledger_lines(report: HomologyReport) -> tuple[Line, ...]:
    """Return a line with the shares of the bytes that match, or one for each model if they differ."""
    is_sampled = report.settled_by is not SettledBy.IDENTICAL_FILES
    texts = ledger_sentences(names_of(report), ledger_texts(report), is_sampled=is_sampled)
    return tuple(Line("compared", text) for text in texts)


def ledger_sentences(names: tuple[str, str], texts: tuple[str, str], *, is_sampled: bool = True) -> tuple[str, ...]:
    """Return one text for both models, or one for each if they differ."""
    how = "by samples" if is_sampled else "by digests"
    if texts[0] == texts[1]:
        return (f"{how}: {texts[0]}",) if texts[0] else ()
    return tuple(f"of {name}, {how}: {text}" for name, text in zip(names, texts, strict=True) if text)


def _model_line(model: ModelSummary) -> str:
    name = model.repo + (f"@{model.revision}" if model.revision else "")
    commit = f" [{model.commit[:8]}]" if model.commit else ""
    facts = [model.architecture]
    facts += [f"width {model.hidden_size}"] if model.hidden_size else []
    facts += [counted(model.layers, "layer")] if model.layers else []
    facts += [f"{model.vocabulary} embedding rows"] if model.vocabulary else []
    facts += [text for text in (model.quantization, model.read_as) if text]
    return f"{name}{commit}  ({', '.join(facts)})"


def size_text(value: int | None) -> str:
    """Format a size, or a dash if it is unknown."""
    return "–" if value is None else str(value)
