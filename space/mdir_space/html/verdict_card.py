"""The card of a comparison: the verdict, its meaning and limits, and the numbers behind it."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from mdir_hf import HomologyReport, SettledBy, Verdict
from mdir_hf.lineage.cards.declared import DeclaredLineage
from mdir_hf.render.description import describe
from mdir_hf.render.ledger import ledger_html, ledger_of
from mdir_hf.render.sections import SectionKind
from mdir_hf.report.concepts import concepts_in
from mdir_space.html.templates import HUB, render

KEPT = "Stored result of an earlier comparison: same commits, level and alpha."
MAX_CAVEATS = 3
"""Number of caveats that are shown without unfolding."""


def verdict_card(
    report: HomologyReport,
    *,
    declared: str = "",
    figure: str = "",
    link: str = "",
    note: str = "",
    is_example: bool = False,
) -> Markup:
    """Return the card of a comparison as HTML.

    ``declared`` is from :func:`declared_lineage_html`, ``figure`` shows the deciding evidence, and ``note`` states the
    source of the result. If ``is_example``, the models are not in repositories, and their names are not links.
    """
    verdict, *sections = describe(report)
    of_kind = {section.kind: section for section in sections}
    excludes = of_kind.get(SectionKind.EXCLUDES)
    return render(
        "verdict_card",
        report=report,
        declared=declared,
        decisive=replace(verdict, paragraphs=(), facts=tuple(fact for fact in verdict.facts if fact.is_decisive)),
        figure=figure,
        link=link,
        note=note,
        hub="" if is_example else HUB,
        ledger=ledger_html(ledger_of(report)),
        concepts=concepts_in(f"{report.sentence} {report.warning} compared match"),
        max_caveats=MAX_CAVEATS,
        direction=of_kind.get(SectionKind.DIRECTION),
        numbers=replace(verdict, paragraphs=(), facts=tuple(fact for fact in verdict.facts if not fact.is_decisive)),
        excludes=excludes,
    )


def declared_lineage_html(
    report: HomologyReport, declared: tuple[DeclaredLineage | None, DeclaredLineage | None]
) -> Markup:
    """Compare the lineage declared by the two model cards with the measurement, in neutral words.

    ``declared`` contains the declarations of the reference and the candidate; None if a card could not be read.
    """
    names = (report.reference.repo, report.candidate.repo)
    # A model that is compared with itself has one card.
    lineages = list(
        {repo: lineage for repo, lineage in zip(names, declared, strict=True) if lineage is not None}.items()
    )
    if not lineages:
        return Markup()
    is_declared = any(_names(lineage, names[repo == names[0]]) for repo, lineage in lineages)
    return render("declared", declared=lineages, measured=_measured(report, is_declared))


def _names(lineage: DeclaredLineage, repo: str) -> bool:
    return repo.casefold() in (base.casefold() for base in lineage.base_models)


def _measured(report: HomologyReport, is_declared: bool) -> str:
    verdict = report.verdict
    if report.settled_by is SettledBy.IDENTICAL_FILES and not is_declared:
        return "Neither card names the other model, and their weight files are the same."
    if verdict is Verdict.HOMOLOGOUS:
        if is_declared:
            return "The measurement agrees with the declared lineage."
        return (
            "Neither card names the other model. A card need not name every ancestor, and the common origin that was "
            "measured may be a third model."
        )
    if verdict is Verdict.NO_EVIDENCE and is_declared:
        return (
            "One card names the other model, but this comparison found no trace of it in the weights. Heavy training "
            "can remove every trace, and a card may mean another kind of relation, such as distillation."
        )
    return (
        "The measurement neither confirms nor contradicts the declared lineage."
        if is_declared
        else "Neither card names the other model."
    )
