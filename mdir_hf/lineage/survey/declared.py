"""Read the base models declared by the cards of surveyed models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mdir_hf.comparison.progress import Progress
from mdir_hf.comparison.progress_bar import ProgressBar
from mdir_hf.errors import MdirError
from mdir_hf.lineage.cards.declared import declared_in
from mdir_hf.lineage.survey.results import ModelResult, SurveyReport
from mdir_hf.model.open import Reading

READERS = 8


def add_declared(report: SurveyReport, reading: Reading, *, progress: bool = False) -> SurveyReport:
    """Add the base models that each model's card declares, or None if the card cannot be read.

    Args:
        report: The survey.
        reading: How repositories are opened.
        progress: Whether to show a progress bar after two seconds if standard error is a terminal.
    """
    names = report.readable()
    models = dict(report.models)

    def declared(name: str) -> ModelResult:
        result = report.models[name]
        try:
            return replace(result, declared_bases=declared_in(reading.open(name)).base_models)
        except MdirError:
            return replace(result, declared_bases=None)

    with ProgressBar(is_wanted=progress) as bar, ThreadPoolExecutor(READERS) as pool:
        for n_done, result in enumerate(pool.map(declared, names), start=1):
            models[result.name] = result
            bar.tell(Progress("cards", 0, None, n_done, len(names)))
    return replace(report, models=models)
