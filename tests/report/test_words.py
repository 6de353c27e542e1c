"""The words that go with a verdict, wherever it is shown."""

from __future__ import annotations

import dataclasses

import pytest

from mdir_hf import HomologyReport, Reason, Verdict
from mdir_hf.render.description import describe
from mdir_hf.render.sections import SectionKind
from mdir_hf.report import READ_AS
from mdir_hf.report.words import DOES_NOT_MEAN, HEADLINE, ICON, MEANS, REASON_TEXT, SENTENCE
from tests.render.figures.drawn_reports import a_report


def test_every_verdict_has_all_of_them_and_its_own():
    for words in (ICON, SENTENCE, MEANS, DOES_NOT_MEAN, HEADLINE):
        assert set(words) == set(Verdict)
        assert len(set(words.values())) == len(Verdict) and all(words.values())
    assert all(len(icon) == 1 for icon in ICON.values())
    assert set(REASON_TEXT) == set(Reason)


@pytest.mark.parametrize("reason", list(Reason))
def test_an_inconclusive_headline_gives_its_reason(reason):
    report = a_report(verdict=Verdict.INCONCLUSIVE, reason=reason)

    assert report.headline == f"The comparison is inconclusive: {REASON_TEXT[reason]}"
    assert report.icon == "◐" and report.means == MEANS[Verdict.INCONCLUSIVE]


def test_used_reading_options_are_kept_and_shown():
    plain = a_report()
    assert HomologyReport.from_json(plain.to_json()) == plain and not set(READ_AS) & plain.to_dict()["candidate"].keys()
    candidate = dataclasses.replace(
        plain.candidate, subfolder="deep/er", variant="Q4_K_M", tokenizer="./words", bases=(f"owner/base@{'a' * 40}",)
    )
    report = dataclasses.replace(plain, candidate=candidate)
    assert HomologyReport.from_json(report.to_json()) == report
    said = f"folder deep/er, variant Q4_K_M, vocabulary of ./words, on owner/base@{'a' * 40}"
    assert report.candidate.read_as == said and f", {said})" in " ".join(str(report).split())
    (models,) = [section for section in describe(report) if section.kind is SectionKind.MODELS]
    assert ("read as", "", said) in models.tables[0].rows
    (models,) = [section for section in describe(plain) if section.kind is SectionKind.MODELS]
    assert "read as" not in {row[0] for row in models.tables[0].rows}


def test_texts_contain_no_accusation_and_claim_no_independence():
    every = " ".join(
        [*SENTENCE.values(), *MEANS.values(), *(s for words in DOES_NOT_MEAN.values() for s in words)]
    ).lower()

    assert not [word for word in ("copied", "stole", "plagiar", "fraud", "derived from", "theft") if word in every]
    assert "are unrelated" not in every
    for words in DOES_NOT_MEAN.values():
        assert all(sentence.endswith(".") for sentence in words)
