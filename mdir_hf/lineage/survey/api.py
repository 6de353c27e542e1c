"""``survey``: every pair of a list of models, from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mdir_hf.comparison.settings import Listeners
from mdir_hf.lineage.survey.arriving import survey_arriving
from mdir_hf.lineage.survey.results import SurveyReport
from mdir_hf.lineage.survey.run import N_TOKENS, SurveyPlan, run_survey
from mdir_hf.model.open import Reading


def survey(
    models: Iterable[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    alpha: float = 1e-10,
    seed: int = 0,
    n_tokens: int = N_TOKENS,
    device: str = "cpu",
    progress: bool = True,
    layers: bool = False,
    reading: Reading = Reading(),
) -> SurveyReport:
    """Compare the embeddings and some neurons of every pair of some models. Each model is read once.

    Args:
        models: Their names, as for :func:`mdir_hf.compare`, each once.
        folder: Where results are kept, so that a survey that was stopped can go on; None: keep nothing.
        alpha: Level of the whole survey: the chance that any pair of independent models is called homologous is at most
            this.
        seed: Seed of every random choice.
        n_tokens: Rows read of every model.
        device: torch device of the matrix products; ``auto``: a CUDA device where there is one.
        progress: Whether to show progress on standard error where that is a terminal.
        layers: Whether models without a relative are compared again in full, with one model of each family:
            as many bytes as :func:`mdir_hf.compare` reads of such a pair.
        reading: How repositories are opened.

    Returns:
        The report. Models that cannot be read, and pairs that cannot be computed, are in it with the reason.

    Raises:
        InputError: If the list or the folder cannot be used, or no model can be opened.

    Cost: bytes O(models); time O(pairs) of some tenths of a second to some seconds each, with the width.
    """
    plan = SurveyPlan(
        tuple(models),
        alpha=alpha,
        seed=seed,
        n_tokens=n_tokens,
        device=device,
        progress=progress,
        layers=layers,
        reading=reading,
    )
    if folder is None:
        return survey_arriving(plan, listeners=Listeners(progress=progress))[0]
    return run_survey(plan, Path(folder))
