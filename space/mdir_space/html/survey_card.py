"""The card of a survey: which of several models are known to share ancestry."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations

from markupsafe import Markup

from mdir_hf import SurveyReport, Verdict
from mdir_hf.lineage.survey.results import NOT_NOMINATED, PairResult
from mdir_hf.names import shown_name
from mdir_space.html.figures import interactive_figure
from mdir_space.html.links import query_again, query_of
from mdir_space.html.templates import render
from mdir_space.jobs.question import SurveyQuestion
from mdir_space.jobs.survey import SurveyResult

MAX_NAMES = 6
"""Maximum number of names listed in a sentence; further names are counted."""


CAPTIONS = {
    "matrix": "Pairs of models; the more a cell stands out from the page, the more agrees. Each cell links to the "
    "comparison of its two models, which also searches for reordered layers and neurons.",
    "dendrogram": "Models of one family, joined at the most similar pair. The tree has no root: similar weights do not "
    "show which model came first.",
}


def survey_card(
    surveyed: SurveyResult, question: SurveyQuestion, *, link: str = "", note: str = "", frame: str = ""
) -> Markup:
    """Return the card; see :func:`~mdir_space.html.answer_card.answer_card`."""
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
        notes=[text for text in (note, surveyed.left_out) if text],
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
        unread=[(name, model.error) for name, model in report.models.items() if model.error],
        choices=surveyed.choices,
        caveats=survey_caveats(surveyed),
        address=address,
        csv=pairs_csv(report),
        link=link,
        frame=frame,
    )


def survey_sentence(report: SurveyReport) -> tuple[str, str]:
    """Return a headline and a sentence to quote."""
    readable_names = report.readable()
    groups = [group for group in report.groups() if len(group) > 1]
    n_related = sum(map(len, groups))
    n_pairs = len(report.pairs)
    so_far = "" if report.is_complete else f"{report.progress_text}. So far: "
    if not groups and so_far:
        return "No relatives so far.", f"{report.progress_text}."
    if not groups:
        compared = f"In {n_pairs} pairs of {len(readable_names)} models: {_looked_at(report)}."
        return "No relatives were found.", compared + _not_compared(report)
    related = "All of them" if n_related == len(readable_names) else f"{n_related} of {len(readable_names)}"
    families = "one family" if len(groups) == 1 else f"{len(groups)} families"
    of = "form" if n_related > 1 else "forms"
    sentences = [f"{listed_names(group)} {_share(report, group)}." for group in groups[:3]]
    if so_far:
        return f"So far: {families}, {n_related} of {len(report.names)} models.", so_far + " ".join(sentences)
    if alone := len(readable_names) - n_related:
        which = "The other one" if alone == 1 else f"The other {alone}"
        sentences.append(f"{which}: {_looked_at(report)}.{_not_compared(report)}")
    return f"{related} {of} {families}.", " ".join(sentences)


def _looked_at(report: SurveyReport) -> str:
    """Say in which parts no relative was found."""
    if report.layers_to_compare():
        return "no relative found by neurons of four layers; not compared in full"
    return "no relative found by full comparisons"


def _not_compared(report: SurveyReport) -> str:
    n_pairs = report.n_not_compared
    return f" {n_pairs} {'pair was' if n_pairs == 1 else 'pairs were'} {NOT_NOMINATED}." if n_pairs else ""


def _n_without_layers(report: SurveyReport) -> int:
    """Count the models without a relative that were not compared in full."""
    compared_next = {name for pair in report.layers_to_compare() for name in pair}
    return len(compared_next & set(report.without_relatives()))


def _share(report: SurveyReport, group: Sequence[str]) -> str:
    """Say whether all pairs of a group are related; the parents of a merge may not be."""
    if all(report.is_related(*pair) for pair in combinations(group, 2)):
        return "share weight ancestry"
    return "are joined by pairs that share weight ancestry"


def pairs_csv(report: SurveyReport) -> str:
    """Return the pairs of a survey as CSV for spreadsheets."""
    buffer = io.StringIO()
    table = csv.writer(buffer)
    names = [field.name for field in fields(PairResult) if field.name != "channels"]
    table.writerow(names)
    for pair in report.pairs.values():
        # Quote cells that begin like a formula, which spreadsheets would run.
        values = (str("" if (value := getattr(pair, name)) is None else value) for name in names)
        table.writerow([f"'{text}" if text.startswith(("=", "@", "\t", "\r")) else text for text in values])
    return buffer.getvalue()


def _measured(pair: PairResult) -> str:
    if pair.error is not None:
        return f"not compared: {pair.error}"
    if pair.verdict == "homologous":
        return f"{pair.strength}, {pair.read_of_both}"
    return "inconclusive" if pair.verdict == "inconclusive" else pair.not_found


def survey_caveats(surveyed: SurveyResult) -> list[str]:
    """Return sentences on conclusions that do not follow from a survey."""
    report = surveyed.report
    n_full = sum(pair.layers_compared for pair in report.pairs.values())
    pairs = "1 pair" if n_full == 1 else f"{n_full} pairs"
    return [
        "Shared weights have no direction: they do not say which model came first.",
        "Pairs were compared by a few neurons of four layers"
        + (f"; {pairs} in full. " if n_full else ". ")
        + "Only the full comparison of a pair searches for reordered layers and neurons.",
    ]


def listed_names(models: Sequence[str]) -> str:
    """Join the names of models for a sentence, shortening long lists."""
    names = [shown_name(name) for name in models]
    if len(names) > MAX_NAMES:
        names = [*names[: MAX_NAMES - 1], f"{len(names) - MAX_NAMES + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}"
