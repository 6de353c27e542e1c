"""What the cards of surveyed models declare, to compare with what was measured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mdir_hf.errors import MdirError
from mdir_hf.lineage.cards.declared import declared_in
from mdir_hf.lineage.survey.results import ModelResult, SurveyReport
from mdir_hf.model.open import Reading

READERS = 8


def add_declared(report: SurveyReport, reading: Reading) -> SurveyReport:
    """Put beside each model the base models that its card declares; None where the card cannot be read.

    Args:
        report: The survey.
        reading: How repositories are opened.
    """

    def declared(name: str) -> ModelResult:
        found = report.models[name]
        try:
            return replace(found, declared_bases=declared_in(reading.open(name)).base_models)
        except MdirError:
            return replace(found, declared_bases=None)

    with ThreadPoolExecutor(READERS) as pool:
        models = {found.name: found for found in pool.map(declared, report.readable())}
    return replace(report, models={**report.models, **models})
