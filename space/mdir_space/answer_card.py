"""The card of an answer of any kind, and its words: for the page, for what is there before it, and for other pages."""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf import HomologyReport
from mdir_hf.names import shown_name
from mdir_space.family import Family
from mdir_space.family_card import family_card, family_caveats, family_sentence
from mdir_space.many import Surveyed
from mdir_space.results import Result
from mdir_space.survey_card import listed_names, survey_card, survey_caveats, survey_sentence
from mdir_space.verdict_card import verdict_card
from mdir_space.ways import AnyQuestion, FamilyQuestion, SurveyQuestion


@dataclass(frozen=True)
class AnswerWords:
    """An answer in words, as plain text.

    Attributes:
        about: Which models it is about.
        headline: It, in a few words, with a full stop.
        sentence: It, to be quoted.
        caveat: What it does not mean.
    """

    about: str
    headline: str
    sentence: str
    caveat: str


def answer_words(result: Result, question: AnyQuestion) -> AnswerWords:
    """Return the words of an answer to a question."""
    if isinstance(result, HomologyReport):
        pair = listed_names([model.repo for model in (result.reference, result.candidate)])
        return AnswerWords(pair, f"{result.headline}.", result.sentence, result.does_not_mean[0])
    if isinstance(result, Family) and isinstance(question, FamilyQuestion):
        about = f"{shown_name(question.model)} and its family"
        return AnswerWords(about, *family_sentence(result, question), family_caveats(result)[0])
    assert isinstance(result, Surveyed), "a question has its own answer"
    return AnswerWords(listed_names(result.report.names), *survey_sentence(result.report), survey_caveats(result)[0])


def answer_card(result: Result, question: AnyQuestion, *, link: str = "", note: str = "", embedding: str = "") -> str:
    """Return the card of an answer; HTML.

    Args:
        result: The answer, or as much of it as is known.
        question: What was asked.
        link: Address that asks it again; empty for none.
        note: A sentence above it: where it comes from, that it is not the end yet, or why it was cut short.
        embedding: How to show it elsewhere, as HTML; a comparison has a tab for that.
    """
    if isinstance(result, HomologyReport):
        return verdict_card(result, link=link, note=note)
    if isinstance(result, Family) and isinstance(question, FamilyQuestion):
        return family_card(result, question, link=link, note=note, embedding=embedding)
    assert isinstance(result, Surveyed) and isinstance(question, SurveyQuestion), "a question has its own answer"
    return survey_card(result, question, link=link, note=note, embedding=embedding)
