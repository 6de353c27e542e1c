"""The card of a family: a sentence to quote, and a row for each compared base model, with a link."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from markupsafe import Markup

from mdir_hf import Identification, Verdict
from mdir_hf.errors import MissingExtraError
from mdir_hf.lineage.bom.documents import make_bom
from mdir_hf.lineage.cards.verify_lineage import BaseCheck
from mdir_hf.lineage.family import Family
from mdir_hf.lineage.index.identify import Ancestor
from mdir_hf.names import shown_name
from mdir_hf.render.layer_words import layers_text
from mdir_hf.render.sentence import NO_PROOF, NOTHING_FOUND
from mdir_hf.report.words import probability_text
from mdir_space.html.links import query_of
from mdir_space.html.templates import render
from mdir_space.jobs.base_index import ShippedBase, shipped_bases
from mdir_space.jobs.question import FamilyQuestion

STRONGEST_NOISE = 100.0
"""Excluded noise above this value is shown as this value."""

_MEASURED = {
    Verdict.HOMOLOGOUS: "shared weights were found",
    Verdict.NO_EVIDENCE: "no shared weights were found",
    Verdict.INCONCLUSIVE: "the comparison was inconclusive",
}


@dataclass(frozen=True)
class Relative:
    """One compared model.

    Attributes:
        opens: Name under which a comparison can open the model, or empty.
        place: Source of the name: the index or the card.
        is_found: Whether shared weights were found.
        measured: The outcome, in words.
        log10_p: log10 of p; None if nothing was measured.
        agreement: How much agrees; empty if not measured.
        is_corrected: Whether p is corrected for all bases of the index.
        made_from: Sentences on the source of the index entry; empty if the name already says it.
        layers: Which layers match; empty if unknown.
    """

    name: str
    opens: str
    place: str
    is_found: bool
    measured: str
    log10_p: float | None
    p_is_bound: bool = False
    agreement: str = ""
    is_corrected: bool = False
    made_from: str = ""
    layers: str = ""

    @property
    def strength(self) -> str:
        """The strength of the evidence: a bound on p, otherwise how much agrees. Empty without a finding."""
        if not self.is_found or self.log10_p is None:
            return ""
        return probability_text(self.log10_p) if self.p_is_bound else self.agreement


def family_card(family: Family, question: FamilyQuestion, *, link: str = "", note: str = "", frame: str = "") -> Markup:
    """Return the card; see :func:`~mdir_space.html.answer_card.answer_card`."""
    headline, sentence = family_sentence(family, question)
    relatives = [
        replace(relative, layers=layers_text(family.layers[key]))
        if (key := next((name for name in (relative.name, relative.opens) if name in family.layers), None))
        else relative
        for relative in relatives_of(family)
    ]
    is_found = any(relative.is_found for relative in relatives)
    return render(
        "family_card",
        verdict=(Verdict.HOMOLOGOUS if is_found else Verdict.NO_EVIDENCE).value,
        model=question.model,
        headline=headline,
        sentence=sentence,
        relatives=relatives,
        declared=_declared(family),
        caveats=family_caveats(family),
        note=note,
        link=link,
        frame=frame,
        bom=bom_of_family(family) if link else "",
        address=lambda base, model: f"?{query_of(base, model, 'auto', question.alpha)}",
    )


def bom_of_family(family: Family) -> str:
    """Return a model's bill of materials; empty if its facts are unknown or the library is not installed."""
    if family.facts is None:
        return ""
    try:
        return make_bom(family, family.facts)
    except MissingExtraError:
        return ""


def family_sentence(family: Family, question: FamilyQuestion) -> tuple[str, str]:
    """Return a headline and a sentence to quote that claim no more than was measured."""
    name = shown_name(question.model)
    confirmed = [relative for relative in relatives_of(family) if relative.is_found]
    if confirmed:
        best = confirmed[0]
        others = [shown_name(relative.name) for relative in confirmed[1:]]
        also = f" So do {name} and {_listed(others)}." if others else ""
        base = shown_name(best.name)
        return (
            f"It shares weight ancestry with {base}.",
            f"{name} and {base} share weights{f' ({best.strength})' if best.strength else ''}.{also}",
        )
    if family.found is None:
        card_only = "Only its card was checked."
        why = family.not_searched or ("The index has not been searched yet." if question.searches else card_only)
        return "No base of it is known here.", f"No base model of {name} was found. {why}{_card_says_no(family)}"
    return "No base of it was found.", f"{NOTHING_FOUND}. {NO_PROOF}{_card_says_no(family)}"


def relatives_of(family: Family) -> Iterator[Relative]:
    """Yield every compared model once, beginning with those that share weights."""
    relatives: dict[str, Relative] = {}
    identification = family.found
    for ancestor in () if identification is None else identification.ancestors:
        if identification is not None and not _is_itself(identification, ancestor):
            shipped = shipped_bases().get(ancestor.base.repo) if ancestor.base.commit is None else None
            relative = _of_index(ancestor, identification, shipped)
            relatives[(relative.opens or relative.name).casefold()] = relative
    for check in () if family.declared is None else family.declared.bases:
        key = check.base.casefold()
        declared = _of_card(check, family.declared.declared.relation if family.declared else None)
        before = relatives.get(key)
        if before is None:
            relatives[key] = declared
        else:
            # The card named this base before the search, so the comparison with it needs no correction.
            stronger = before if declared.log10_p is None or before.is_found > declared.is_found else declared
            place = f"{before.place}; {declared.place}"
            relatives[key] = replace(stronger, name=declared.name, place=place, made_from=before.made_from)
    yield from sorted(relatives.values(), key=lambda relative: (not relative.is_found, relative.log10_p or 0.0))


def _is_itself(identification: Identification, ancestor: Ancestor) -> bool:
    base, model = ancestor.base, identification.model
    return base.commit is not None and (base.repo, base.commit) == (model.repo, model.commit)


def _of_index(ancestor: Ancestor, identification: Identification, shipped: ShippedBase | None) -> Relative:
    base, report = ancestor.base, ancestor.report
    is_found = ancestor in identification.found
    log10_p: float | None = ancestor.log10_p
    if report is not None:
        log10_p = None if report.log10_p is None else min(0.0, report.log10_p + math.log10(identification.n_bases))
        measured_text = _MEASURED[report.verdict]
    elif ancestor.is_nominated:
        measured_text = f"proposed {ancestor.evidence} of the index; {ancestor.error or 'not compared'}"
    else:
        measured_text = f"no match was found in the {ancestor.common_tokens} rows stored in the index"
    opens, made_from = base.repo if base.commit is not None else "", ""
    if shipped is not None:
        opens = shipped.repository
        made_from = f"{base.repo}: {shipped.read}. The repository {opens} has this name; the two were not compared."
    is_corrected = identification.n_bases > 1
    return Relative(
        base.repo,
        opens,
        "index",
        is_found,
        measured_text,
        log10_p,
        p_is_bound=ancestor.p_is_bound,
        agreement="" if report is None else report.agreement or "",
        is_corrected=is_corrected,
        made_from=made_from,
    )


def _of_card(check: BaseCheck, relation: str | None) -> Relative:
    report = check.report
    place = f"its card ({relation})" if relation else "its card"
    if report is None:
        return Relative(check.base, check.base, place, False, f"not compared: {check.why_not}", None)
    is_found = report.verdict is Verdict.HOMOLOGOUS
    return Relative(
        check.base,
        check.base,
        place,
        is_found,
        _MEASURED[report.verdict],
        report.log10_p,
        p_is_bound=report.p_is_bound,
        agreement=report.agreement or "",
    )


def _excluded(identification: Identification) -> str:
    """Say which copies a search without findings excludes."""
    which = "the one base model" if identification.n_bases == 1 else f"{identification.n_bases} base models"
    outcome = f"It was compared with {which} of the index."
    if identification.excluded_noise is None:
        return f"{outcome} None of them has its width and shares enough tokens, so embeddings cannot exclude a copy."
    noise = f"{min(identification.excluded_noise, STRONGEST_NOISE):.2g}"
    as_wide, it = (
        ("One of them is", "it")
        if identification.n_of_width == 1
        else (f"{identification.n_of_width} of them are", "one of those")
    )
    return (
        f"{outcome} {as_wide} as wide as this model; a copy of {it} with noise of up to {noise} times the weights "
        "would have been found, unless its channels were rotated."
    )


def _without_bases(family: Family) -> str:
    has_card = family.declared is not None and family.declared.declared.has_card
    return "Its card declares no base model." if has_card else "It has no model card."


def _card_says_no(family: Family) -> str:
    lineage = family.declared
    if lineage is None:
        return ""
    if not lineage.declared.base_models:
        return f" {_without_bases(family)}"
    return f" Its card declares {_listed([shown_name(base) for base in lineage.declared.base_models[:3]])}."


def _declared(family: Family) -> list[str]:
    if family.not_declared:
        sentences = [f"Its card was not checked: {family.not_declared}"]
    elif family.declared is None:
        return []
    elif not family.declared.declared.base_models:
        sentences = [_without_bases(family)]
    else:
        relation = family.declared.declared.relation
        how = f" ({relation})" if relation else ""
        checks = {check.base: check for check in family.declared.bases}
        sentences = [
            f"Its card declares {shown_name(base)} as its base{how}. Measured: {_measured(checks.get(base))}."
            for base in family.declared.declared.base_models[:8]
        ]
    if family.not_searched:
        sentences.append(f"The index was not searched: {family.not_searched}")
    return sentences


def _measured(check: BaseCheck | None) -> str:
    if check is None:
        return "not yet"
    return f"not compared, {check.why_not}" if check.report is None else _MEASURED[check.report.verdict]


def family_caveats(family: Family) -> list[str]:
    """Return sentences on conclusions that do not follow from an answer."""
    sentences = [
        "Shared weights have no direction: they do not say which model came first, and both may come from a third one."
    ]
    if family.found is not None:
        if not any(relative.is_found for relative in relatives_of(family)):
            sentences.append(_excluded(family.found))
        sentences.append(
            f"The index knows {family.found.n_bases} base models and looks at embeddings, then at a few neurons. It "
            "does not find a base that is not among them, nor one whose neurons were reordered under new embeddings. "
            "A comparison of two models searches for those, too."
        )
    return sentences


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
