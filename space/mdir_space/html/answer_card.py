"""Cards and plain text for all kinds of answers, for the page, its first paint, and other sites."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from mdir_hf import HomologyReport
from mdir_hf.lineage.family import Family
from mdir_hf.names import shown_name
from mdir_space.html.family_card import family_card, family_caveats, family_sentence
from mdir_space.html.survey_card import listed_names, survey_card, survey_caveats, survey_sentence
from mdir_space.html.verdict_card import verdict_card
from mdir_space.jobs.question import FamilyQuestion, Question, SurveyQuestion
from mdir_space.jobs.results import Result
from mdir_space.jobs.survey import SurveyResult


@dataclass(frozen=True)
class AnswerWords:
    """An answer as plain text.

    Attributes:
        about: Names of the models.
        headline: A few words, with a full stop.
        sentence: A sentence to quote.
        caveat: A sentence about a conclusion that does not follow.
    """

    about: str
    headline: str
    sentence: str
    caveat: str


def answer_words(result: Result, question: Question) -> AnswerWords:
    """Return an answer as plain text."""
    if isinstance(result, HomologyReport):
        pair = listed_names([model.repo for model in (result.reference, result.candidate)])
        return AnswerWords(pair, result.sentence, result.warning or result.means, result.does_not_mean[0])
    if isinstance(result, Family) and isinstance(question, FamilyQuestion):
        about = f"{shown_name(question.model)} and its family"
        return AnswerWords(about, *family_sentence(result, question), family_caveats(result)[0])
    assert isinstance(result, SurveyResult), "a question has its own answer"
    return AnswerWords(listed_names(result.report.names), *survey_sentence(result.report), survey_caveats(result)[0])


def answer_card(result: Result, question: Question, *, link: str = "", note: str = "", frame: str = "") -> Markup:
    """Return the card of a complete or interim answer as HTML.

    ``note`` is a sentence above the answer, such as the limit that cut it short. ``frame`` is HTML that embeds the card
    in another page; comparisons ignore it, because they have a tab for it.
    """
    if isinstance(result, HomologyReport):
        return verdict_card(result, link=link, note=note)
    if isinstance(result, Family) and isinstance(question, FamilyQuestion):
        return family_card(result, question, link=link, note=note, frame=frame)
    assert isinstance(result, SurveyResult) and isinstance(question, SurveyQuestion), "a question has its own answer"
    return survey_card(result, question, link=link, note=note, frame=frame)
