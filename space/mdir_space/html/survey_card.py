"""The card of a survey: which of several models share ancestry, as far as is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations

from markupsafe import Markup

from mdir_hf import SurveyReport, Verdict
from mdir_hf.lineage.survey.results import PairResult
from mdir_hf.names import shown_name
from mdir_space.html.figures import interactive_figure
from mdir_space.html.links import query_again, query_of
from mdir_space.html.templates import render, strength_text
from mdir_space.jobs.question import SurveyQuestion
from mdir_space.jobs.survey import SurveyResult

MAX_NAMES = 6
"""Names that the headline's sentence gives of one group; beyond, it gives their number."""


CAPTIONS = {
    "matrix": "Every pair of models, darker where more of them agrees. A cell leads to the comparison "
    "of its two models, which goes on to the layers where these show nothing.",
    "dendrogram": "Models of one family, joined where their weights are nearest to each other. It has no root: "
    "nearness does not say which came first.",
}


def survey_card(
    surveyed: SurveyResult, question: SurveyQuestion, *, link: str = "", note: str = "", frame: str = ""
) -> Markup:
    """Return the card.

    Args:
        surveyed: What is known.
        question: The question.
        link: The address of this survey; empty for none.
        note: A sentence above it: that more will come, or which limit cut it short.
        frame: The HTML that shows it on another page; empty for none.
    """
    report = surveyed.report
    headline, sentence = survey_sentence(report)
    families = [", ".join(map(shown_name, group)) for group in report.groups() if len(group) > 1]

    def address(reference: str, candidate: str) -> str:
        return f"?{query_of(reference, candidate, 'auto', question.alpha)}"

    pairs = sorted(report.pairs.values(), key=lambda pair: (pair.verdict != "homologous", pair.log10_p or 0.0))
    rows = [(pair, _measured(pair)) for pair in pairs]
    n_related = sum(pair.verdict == "homologous" for pair in pairs)
    return render(
        "survey_card",
        verdict=(Verdict.HOMOLOGOUS if families else Verdict.NO_EVIDENCE).value,
        notes=[said for said in (note, surveyed.left_out) if said],
        report=report,
        headline=headline,
        sentence=sentence,
        families=families,
        figures=[
            (interactive_figure(name, picture.light, picture.dark, picture.cells, address=address), CAPTIONS[name])
            for name, picture in surveyed.pictures.items()
        ],
        trees=surveyed.trees,
        related=rows[:n_related],
        others=rows[n_related:],
        n_without_layers=_n_without_layers(report) if surveyed.is_done else 0,
        layers_address=f"?{query_again(replace(question, layers=True), report.names)}",
        unread=[(name, found.error) for name, found in report.models.items() if found.error],
        choices=surveyed.choices,
        caveats=survey_caveats(surveyed),
        address=address,
        csv=pairs_csv(report),
        link=link,
        frame=frame,
    )


def survey_sentence(report: SurveyReport) -> tuple[str, str]:
    """Return a headline, and the answer in words that may be quoted."""
    read = report.readable()
    groups = [group for group in report.groups() if len(group) > 1]
    n_related = sum(map(len, groups))
    n_pairs = len(report.pairs)
    so_far = "" if report.is_complete else f"{report.progress_text}. So far: "
    if not groups and so_far:
        return "No relatives so far.", f"{report.progress_text}."
    if not groups:
        return "No relatives were found.", f"In {n_pairs} pairs of {len(read)} models: {_looked_at(report)}."
    related = "All of them" if n_related == len(read) else f"{n_related} of {len(read)}"
    families = "one family" if len(groups) == 1 else f"{len(groups)} families"
    of = "form" if n_related > 1 else "forms"
    said = [f"{listed_names(group)} {_share(report, group)}." for group in groups[:3]]
    if so_far:
        return f"So far: {families}, {n_related} of {len(report.names)} models.", so_far + " ".join(said)
    if alone := len(read) - n_related:
        which = "The other one" if alone == 1 else f"The other {alone}"
        said.append(f"{which}: {_looked_at(report)}.")
    return f"{related} {of} {families}.", " ".join(said)


def _looked_at(report: SurveyReport) -> str:
    """What was looked at where no relative was found, and no more."""
    if report.layers_to_compare():
        return "no relative found by embeddings or a few neurons; layers not compared"
    return "no relative found by embeddings, neurons or layers"


def _n_without_layers(report: SurveyReport) -> int:
    """Return how many models without a relative have layers that were not compared."""
    compared_next = {name for pair in report.layers_to_compare() for name in pair}
    return len(compared_next & set(report.without_relatives()))


def _share(report: SurveyReport, group: Sequence[str]) -> str:
    """What a group shares: the two parents of a merge are in one group, and may share nothing with each other."""
    if all(report.is_related(*pair) for pair in combinations(group, 2)):
        return "share weight ancestry"
    return "are joined by pairs that share weight ancestry"


def pairs_csv(report: SurveyReport) -> str:
    """The pairs of a survey as a table for spreadsheets."""
    written = io.StringIO()
    table = csv.writer(written)
    names = [field.name for field in fields(PairResult) if field.name != "channels"]
    table.writerow(names)
    for pair in report.pairs.values():
        # A cell that begins like a formula would be one.
        values = (str("" if (value := getattr(pair, name)) is None else value) for name in names)
        table.writerow([f"'{text}" if text.startswith(("=", "@", "\t", "\r")) else text for text in values])
    return written.getvalue()


def _measured(pair: PairResult) -> str:
    if pair.error is not None:
        return f"not compared: {pair.error}"
    if pair.verdict == "homologous":
        return f"{strength_text(pair)}, {pair.read_of_both}"
    return "it could not be told" if pair.verdict == "inconclusive" else pair.not_found


def survey_caveats(surveyed: SurveyResult) -> list[str]:
    """Return what a survey does not mean, in sentences."""
    report = surveyed.report
    n_tokens = report.settings.get("sampled_tokens", 0)
    n_full = sum(found.layers_compared for found in report.pairs.values())
    pairs = "1 pair" if n_full == 1 else f"{n_full} pairs"
    return [
        "Shared weights have no direction: they do not say which model came first.",
        f"Each pair was compared on at most {n_tokens:,} tokens of the embeddings and a few neurons of four layers"
        + (f", and {pairs} with their layers. " if n_full else ". ")
        + "A relation that only whole layers show is found by the full comparison of that pair.",
    ]


def listed_names(models: Sequence[str]) -> str:
    """Return names of models as part of a sentence; of many, the first."""
    names = [shown_name(name) for name in models]
    if len(names) > MAX_NAMES:
        names = [*names[: MAX_NAMES - 1], f"{len(names) - MAX_NAMES + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}"
