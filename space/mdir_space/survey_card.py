"""The answer about several models: who is related to whom, as far as it is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from mdir_hf import SurveyReport, Verdict
from mdir_hf.lineage.survey.results import PairResult
from mdir_hf.names import shown_name
from mdir_space.addresses import query_of
from mdir_space.answering import answering_figure
from mdir_space.many import Surveyed
from mdir_space.markup import choices, download, link_row, not_meant, strength_text, text
from mdir_space.ways import SurveyQuestion

MOST_NAMES = 6
"""Names that the headline's sentence gives of one group; beyond, it gives their number."""


def survey_card(
    surveyed: Surveyed, question: SurveyQuestion, *, link: str = "", note: str = "", embedding: str = ""
) -> str:
    """Return the card.

    Args:
        surveyed: What is known.
        question: What was asked.
        link: Address that asks it again; empty for none.
        note: A sentence above it: that it is not the end yet, or why it was cut short.
        embedding: How to show it elsewhere; HTML.
    """
    report = surveyed.report
    headline, sentence = survey_sentence(report)
    is_found = any(len(group) > 1 for group in report.groups())
    notes = "".join(f'<p class="note">{text(said)}</p>' for said in (note, surveyed.left_out) if said)
    parts = [
        notes,
        f'<p class="pair"><span class="model">{len(report.readable())} of {len(report.names)} models read</span></p>',
        f'<h2 id="verdict-words"><span class="icon" aria-hidden="true">{"●" if is_found else "○"}</span>'
        f"<span>{text(headline)}</span></h2>",
        f'<p class="sentence">{text(sentence)}</p>',
        _groups(report),
        _without_relatives(report, question),
        _pictures(surveyed, question),
        _pairs(report, question),
        _not_read(surveyed),
        not_meant(survey_caveats(surveyed)),
        _downloads(surveyed) if link and surveyed.pictures else "",
        link_row(link, "Link to this survey") if link else "",
        embedding,
    ]
    kind = Verdict.HOMOLOGOUS if is_found else Verdict.NO_EVIDENCE
    return f'<section class="verdict survey {kind.value}" aria-labelledby="verdict-words">{"".join(parts)}</section>'


def survey_sentence(report: SurveyReport) -> tuple[str, str]:
    """Return a headline, and the answer in words that may be quoted."""
    read = report.readable()
    groups = [group for group in report.groups() if len(group) > 1]
    n_related = sum(map(len, groups))
    n_pairs = len(report.pairs)
    if not groups:
        headline = "No relatives were found by embeddings."
        return headline, f"In {n_pairs} pairs of {len(read)} models: {SurveyReport.NOT_FOUND}."
    related = "All of them" if n_related == len(read) else f"{n_related} of {len(read)}"
    families = "one family" if len(groups) == 1 else f"{len(groups)} families"
    of = "form" if n_related > 1 else "forms"
    said = [f"{listed_names(group)} {_share(report, group)}." for group in groups[:3]]
    if alone := len(read) - n_related:
        which = "The other one" if alone == 1 else f"The other {alone}"
        said.append(f"{which}: no relative found by embeddings; layers not compared.")
    return f"{related} {of} {families}.", " ".join(said)


def _share(report: SurveyReport, group: Sequence[str]) -> str:
    """What holds of a group: two parents of a merge are in one, and may share nothing with each other."""
    if all(report.is_related(*pair) for pair in combinations(group, 2)):
        return "share weight ancestry"
    return "are joined by pairs that share weight ancestry"


def _groups(report: SurveyReport) -> str:
    groups = [group for group in report.groups() if len(group) > 1]
    if not groups:
        return ""
    items = "".join(f"<li>{text(', '.join(map(shown_name, group)))}</li>" for group in groups)
    return f"<h3>Families</h3><ul>{items}</ul>"


def _without_relatives(report: SurveyReport, question: SurveyQuestion) -> str:
    """List models without a relative, each with a link that looks at its layers, too."""
    items = "".join(
        f'<li>{text(shown_name(name))}: <a href="{_address(other, name, question)}">'
        f"Compare its layers with {text(shown_name(other))}</a></li>"
        for name, other in report.without_relatives()
    )
    return f"<h3>No relative found by embeddings</h3><ul>{items}</ul>" if items else ""


def _address(reference: str, candidate: str, question: SurveyQuestion) -> str:
    return text(f"?{query_of(reference, candidate, 'auto', question.alpha)}")


def _pictures(surveyed: Surveyed, question: SurveyQuestion) -> str:
    captions = {
        "matrix": "Every pair of models, darker where more of their embeddings agrees. A cell leads to the comparison "
        "of its two models, which goes on to the layers where embeddings show nothing.",
        "dendrogram": "Models of one family, joined where their weights are nearest to each other. It has no root: "
        "nearness does not say which came first.",
    }

    def address(reference: str, candidate: str) -> str:
        return f"?{query_of(reference, candidate, 'auto', question.alpha)}"

    figures = "".join(
        f"<figure>{answering_figure(name, picture.images, picture.cells, address=address)}"
        f"<figcaption>{text(captions[name])}</figcaption></figure>"
        for name, picture in surveyed.pictures.items()
    )
    trees = "".join(
        f'<pre tabindex="0" role="region" aria-label="Family tree {at}"><code>{text(tree)}</code></pre>'
        for at, tree in enumerate(surveyed.trees, start=1)
    )
    tree = f"<details data-kept='trees'><summary>The trees in words</summary>{trees}</details>" if trees else ""
    return f'<div class="panel figures-of-survey">{figures}{tree}</div>' if figures or tree else ""


def _pairs(report: SurveyReport, question: SurveyQuestion) -> str:
    def place(pair: PairResult) -> tuple[bool, float]:
        return pair.verdict != "homologous", pair.log10_p or 0.0

    pairs = sorted(report.pairs.values(), key=place)
    related = [pair for pair in pairs if pair.verdict == "homologous"]
    others = pairs[len(related) :]
    first = _table(related, "Pairs that share weight ancestry", question) if related else ""
    if not others:
        return first
    label = f"{len(others)} pairs without a finding" if len(others) != 1 else "One pair without a finding"
    return f"{first}<details data-kept='others'><summary>{label}</summary>{_table(others, label, question)}</details>"


def _table(pairs: Sequence[PairResult], caption: str, question: SurveyQuestion) -> str:
    rows = "".join(
        f'<tr><th scope="row" class="long">{text(shown_name(pair.reference))}</th>'
        f'<td class="long">{text(shown_name(pair.candidate))}</td><td>{text(_found(pair))}</td>'
        f'<td><a href="{_address(pair.reference, pair.candidate, question)}" aria-label="'
        f'{text(f"Full comparison: {shown_name(pair.reference)} and {shown_name(pair.candidate)}")}">'
        "Full comparison</a></td></tr>"
        for pair in pairs
    )
    return (
        f'<div class="panel kin"><table><caption>{text(caption)}</caption><thead><tr><th scope="col">One</th>'
        '<th scope="col">The other</th><th scope="col">Measured</th><th scope="col">Further</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _found(pair: PairResult) -> str:
    if pair.error is not None:
        return f"not compared: {pair.error}"
    if pair.verdict == "homologous":
        return f"{strength_text(pair)}, on {pair.common_tokens:,} tokens"
    return "it could not be told" if pair.verdict == "inconclusive" else SurveyReport.NOT_FOUND


def _not_read(surveyed: Surveyed) -> str:
    missing = [(name, found.error) for name, found in surveyed.report.models.items() if found.error]
    if not missing:
        return ""
    items = "".join(
        f"<li><b>{text(shown_name(name))}</b>: {text(error)}{choices(name, surveyed.choices.get(name, ()))}</li>"
        for name, error in missing
    )
    return f"<h3>Not read</h3><ul>{items}</ul>"


def survey_caveats(surveyed: Surveyed) -> list[str]:
    """Return what a survey does not mean, in sentences."""
    n_tokens = surveyed.report.settings.get("sampled_tokens", 0)
    return [
        "Shared weights have no direction: they do not say which model came first.",
        f"Each pair was compared on at most {n_tokens:,} tokens of the embeddings. Layers were not compared: a "
        "relation that only they show is found by the full comparison of that pair.",
    ]


def _downloads(surveyed: Surveyed) -> str:
    link = download(surveyed.report.to_json(), "survey.json", "Download the survey (JSON)", "application/json")
    return f'<p class="downloads">{link}</p>'


def listed_names(models: Sequence[str]) -> str:
    """Return names of models as part of a sentence; of many, the first."""
    names = [shown_name(name) for name in models]
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}"
