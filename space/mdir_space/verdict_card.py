"""The verdict: the first thing on the page that a visitor reads, and often the only one."""

from __future__ import annotations

from dataclasses import replace

from mdir_hf import DeclaredLineage, HomologyReport, SectionKind, Verdict, describe, section_html, shown_name
from mdir_space.markup import model_name, text


def verdict_card(report: HomologyReport, *, declared: str = "", link: str = "", note: str = "") -> str:
    """Return the card.

    Args:
        report: The report.
        declared: Declared lineage, as :func:`declared_text` makes it; HTML.
        link: Address that asks this question again; empty for none.
        note: A sentence above the verdict: where this result comes from.
    """
    parts = [
        f'<p class="note">{text(note)}</p>' if note else "",
        f'<p class="pair"><span class="side">{model_name(report.reference)}</span> <span class="and">and</span> '
        f'<span class="side">{model_name(report.candidate)}</span></p>',
        f'<h2 id="verdict-words"><span class="icon" aria-hidden="true">{report.icon}</span>'
        f"<span>{text(report.headline)}.</span></h2>",
        _numbers(report),
        _excluded(report),
        _meaning(report),
        declared,
        _link(link) if link else "",
    ]
    return f'<section class="verdict {report.verdict.value}" aria-labelledby="verdict-words">{"".join(parts)}</section>'


def _numbers(report: HomologyReport) -> str:
    verdict = describe(report)[0]
    return section_html(replace(verdict, paragraphs=()), {})


def _excluded(report: HomologyReport) -> str:
    section = next((section for section in describe(report) if section.kind is SectionKind.EXCLUDES), None)
    return "" if section is None else f"<h3>{text(section.title)}</h3>{section_html(section, {})}"


def _meaning(report: HomologyReport) -> str:
    not_meant = "".join(f"<li>{text(sentence)}</li>" for sentence in report.does_not_mean)
    caveats = "".join(f"<li>{text(caveat)}</li>" for caveat in report.caveats)
    about = f'<div class="caveats"><h3>About this pair</h3><ul>{caveats}</ul></div>' if caveats else ""
    return (
        f'<div class="meaning"><div><h3>What it means</h3><p>{text(report.means)}</p>{about}</div>'
        f"<div><h3>What it does not mean</h3><ul>{not_meant}</ul></div></div>"
    )


def _link(link: str) -> str:
    return (
        '<div class="share"><label for="share-link">Link to this comparison</label><div class="share-row">'
        f'<input id="share-link" type="text" readonly value="{text(link)}">'
        '<button type="button" class="copy" data-from="share-link" aria-label="Copy the link">Copy</button></div></div>'
    )


def declared_text(report: HomologyReport, declared: tuple[DeclaredLineage | None, DeclaredLineage | None]) -> str:
    """Set what the two model cards say beside what was measured, in neutral words.

    Args:
        report: The measurement.
        declared: What reference and candidate declare; None where it could not be read.
    """
    if all(lineage is None for lineage in declared):
        return ""
    names = (report.reference.repo, report.candidate.repo)
    sentences = [
        _declares(names[side], names[1 - side], declared[side]) for side in (0, 1) if declared[side] is not None
    ]
    is_declared = any(lineage is not None and _names(lineage, names[1 - side]) for side, lineage in enumerate(declared))
    return (
        f'<div class="declared"><h3>Declared and measured</h3><ul>{"".join(sentences)}'
        f"<li>{text(_beside(report.verdict, is_declared))}</li></ul></div>"
    )


def _names(lineage: DeclaredLineage, repo: str) -> bool:
    return repo.casefold() in (base.casefold() for base in lineage.base_models)


def _declares(repo: str, other: str, lineage: DeclaredLineage | None) -> str:
    assert lineage is not None
    if not lineage.base_models:
        return f"<li><b>{text(shown_name(repo))}</b> declares no base model.</li>"
    bases = ", ".join(f"<b>{text(shown_name(base))}</b>" for base in lineage.base_models[:8])
    how = f" ({text(lineage.relation)})" if lineage.relation else ""
    return f"<li><b>{text(shown_name(repo))}</b> declares {bases} as its base{how}.</li>"


def _beside(verdict: Verdict, is_declared: bool) -> str:
    if verdict is Verdict.HOMOLOGOUS:
        if is_declared:
            return "The measurement agrees with what is declared."
        return (
            "Neither card names the other model. The common origin that was measured may be a third model, and a card "
            "need not name every ancestor."
        )
    if verdict is Verdict.NO_EVIDENCE and is_declared:
        return (
            "One card names the other model, and this comparison found no trace of it in the weights. Heavy training "
            "can remove every trace, and a card can mean another kind of relation, such as distillation."
        )
    return "The measurement adds nothing to what is declared." if is_declared else "Neither card names the other model."
