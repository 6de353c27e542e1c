"""The verdict: the first thing on the page that a visitor reads, and often the only one."""

from __future__ import annotations

from dataclasses import replace

from mdir_hf import HomologyReport, SettledBy, Verdict
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.names import shown_name
from mdir_hf.render.description import describe
from mdir_hf.render.html import section_html
from mdir_hf.render.sections import Section, SectionKind
from mdir_space.markup import HUB, link_row, model_name, text

KEPT = "Kept from an earlier visit: the same commits, level and alpha."
MOST_CAVEATS = 3
"""More are folded away."""


def verdict_card(
    report: HomologyReport, *, declared: str = "", link: str = "", note: str = "", is_example: bool = False
) -> str:
    """Return the card.

    Args:
        report: The report.
        declared: Declared lineage, as :func:`declared_text` makes it; HTML.
        link: Address that asks this question again; empty for none.
        note: A sentence above the verdict: where this result comes from.
        is_example: Whether the models are on no Hub, so that their names lead nowhere.
    """
    hub = "" if is_example else HUB
    parts = [
        f'<p class="note">{text(note)}</p>' if note else "",
        f'<p class="pair"><span class="side">{model_name(report.reference, hub)}</span> <span class="and">and</span> '
        f'<span class="side">{model_name(report.candidate, hub)}</span></p>',
        f'<h2 id="verdict-words"><span class="icon" aria-hidden="true">{report.icon}</span>'
        f"<span>{text(report.headline)}.</span></h2>",
        f'<p class="sentence">{text(report.sentence)}</p>',
        _scale(report),
        _meaning(report),
        declared,
        _numbers(report),
        link_row(link, "Link to this comparison") if link else "",
    ]
    return f'<section class="verdict {report.verdict.value}" aria-labelledby="verdict-words">{"".join(parts)}</section>'


def _section(report: HomologyReport, kind: SectionKind) -> Section | None:
    return next((section for section in describe(report) if section.kind is kind), None)


def _scale(report: HomologyReport) -> str:
    section = _section(report, SectionKind.SCALE)
    if section is None or section.scale is None:
        return ""
    return f'<div class="scale-box">{section_html(replace(section, paragraphs=()), {})}</div>'


def _numbers(report: HomologyReport) -> str:
    """What the sentence rests on, folded away: the numbers, what a no excludes, and what the scale shows."""
    verdict = describe(report)[0]
    parts = [section_html(replace(verdict, paragraphs=()), {})]
    for kind in (SectionKind.EXCLUDES, SectionKind.SCALE):
        section = _section(report, kind)
        if section is not None:
            parts.append(f"<h3>{text(section.title)}</h3>{section_html(replace(section, scale=None), {})}")
    return f'<details class="numbers-behind"><summary>The numbers behind it</summary>{"".join(parts)}</details>'


def _meaning(report: HomologyReport) -> str:
    not_meant = "".join(f"<li>{text(sentence)}</li>" for sentence in report.does_not_mean)
    return (
        f'<div class="meaning"><div><h3>What it means</h3><p>{text(report.means)}</p>{_caveats(report.caveats)}</div>'
        f"<div><h3>What it does not mean</h3><ul>{not_meant}</ul></div></div>"
    )


def _caveats(caveats: tuple[str, ...]) -> str:
    if not caveats:
        return ""
    shown, more = (
        "".join(f"<li>{text(caveat)}</li>" for caveat in part)
        for part in (caveats[:MOST_CAVEATS], caveats[MOST_CAVEATS:])
    )
    rest = f"<details><summary>{len(caveats) - MOST_CAVEATS} more</summary><ul>{more}</ul></details>" if more else ""
    return f'<div class="caveats"><h3>About this pair</h3><ul>{shown}</ul>{rest}</div>'


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
        f"<li>{text(_beside(report, is_declared))}</li></ul></div>"
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


def _beside(report: HomologyReport, is_declared: bool) -> str:
    verdict = report.verdict
    if report.settled_by is SettledBy.IDENTICAL_FILES and not is_declared:
        return "Neither card names the other model, and their weight files are the same."
    if verdict is Verdict.HOMOLOGOUS:
        if is_declared:
            return "The measurement agrees with what is declared."
        return (
            "Neither card names the other model. A card need not name every ancestor, and the common origin that was "
            "measured may be a third model."
        )
    if verdict is Verdict.NO_EVIDENCE and is_declared:
        return (
            "One card names the other model, and this comparison found no trace of it in the weights. Heavy training "
            "can remove every trace, and a card can mean another kind of relation, such as distillation."
        )
    return (
        "The measurement neither confirms nor contradicts what is declared."
        if is_declared
        else "Neither card names the other model."
    )
