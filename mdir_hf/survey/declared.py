"""What the cards of surveyed models declare, to compare with what was measured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mdir_hf.cards.declared import declared_lineage
from mdir_hf.errors import MdirError
from mdir_hf.survey.results import ModelResult, SurveyReport

READERS = 8


def add_declared(report: SurveyReport, **options: Any) -> SurveyReport:  # noqa: ANN401 - those of declared_lineage
    """Put beside each model the base models that its card declares; None where the card cannot be read.

    Args:
        report: The survey.
        options: How repositories are opened: token, cache_dir, local_files_only.
    """

    def declared(name: str) -> ModelResult:
        found = report.models[name]
        try:
            return replace(found, declared_bases=declared_lineage(name, **options).base_models)
        except MdirError:
            return replace(found, declared_bases=None)

    with ThreadPoolExecutor(READERS) as pool:
        models = {found.name: found for found in pool.map(declared, report.readable())}
    return replace(report, models={**report.models, **models})
