"""The short answer needs at most nine concepts, and each is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdir_hf import HomologyReport
from mdir_hf.comparison import caveats
from mdir_hf.render import sentence
from mdir_hf.render.sentence import names_of
from mdir_hf.report.concepts import CONCEPTS, concepts_in, words_of

ROOT = Path(__file__).parents[2]
REPORTS = [*ROOT.glob("docs/reports/*.json"), *ROOT.glob("space/examples/*[!x].json")]
EVERYDAY = """a all and alike another any are attention be between both but by could did does evidence few file files
finished for found have in independent is it loaded may model models neither no nor not of only or prove relation same
sample seed selected tested that the their them these this told too two weight weights were whether yet given against
agree x matches bytes tower reference candidate under noise reordered searched there little memory
with"""


def unnamed(report: HomologyReport) -> str:
    """Return the short answer on one line, without the names of the models."""
    text = " ".join(str(report).split())
    names = {*names_of(report), report.reference.repo, report.candidate.repo}
    for name in sorted(names, key=len, reverse=True):  # one name may contain another
        text = text.replace(name, "")
    return text


def answers() -> list[str]:
    stored = [unnamed(HomologyReport.from_json(path.read_text(encoding="utf-8"))) for path in REPORTS]
    templates = [
        text.format(pair="", neurons="no neurons match", tables=tables)
        for text in sentence._INCONCLUSIVE.values()
        for tables in ("embeddings", "unembeddings")
    ]
    return [
        *stored,
        *templates,
        sentence.NO_PROOF,
        sentence.NEITHER,
        *(text.partition(":")[0] for text in caveats.of_unsearched_copies({"noise": 1, "keys": 1})),
        caveats.of_large_embeddings(1).partition(":")[0],
        "NO EVIDENCE",
        "INCONCLUSIVE",
    ]


@pytest.mark.parametrize("answer", answers())
def test_every_word_of_an_answer_is_everyday_or_explained(answer):
    explained = set().union(*(concept.words for concept in CONCEPTS))
    assert set(words_of(answer)) <= explained | set(EVERYDAY.split())


def test_an_answer_needs_at_most_nine_concepts():
    assert len(CONCEPTS) <= 9
    found = [concept for concept in CONCEPTS if any(concept in concepts_in(answer) for answer in answers())]
    assert found == list(CONCEPTS)


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.name)
def test_every_concept_is_in_the_glossary_and_linked(concept):
    anchor = concept.name.lower().replace(" ", "-")
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert re.search(rf"^\*\*{re.escape(concept.name)}\b.*\*\* {{: #{anchor} }}$", glossary, re.M)
    assert f"(glossary.md#{anchor})" in (ROOT / "docs" / "read-a-result.md").read_text(encoding="utf-8")
