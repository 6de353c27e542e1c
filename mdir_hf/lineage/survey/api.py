"""``survey``: compare every pair of a list of models from Python."""

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
    """Compare the embeddings and some neurons of every pair of models. Each model is read once.

    Args:
        models: Names of the models, as for :func:`mdir_hf.compare`, without repeats.
        folder: Folder for results, so that a stopped survey can be resumed. None: store nothing.
        alpha: Significance level of the whole survey: an upper bound on the probability that any pair of independent
            models is called homologous.
        seed: Random seed.
        n_tokens: Number of rows to read from each model.
        device: torch device for matrix products; ``auto`` uses a CUDA device if available.
        progress: Whether to show progress if standard error is a terminal.
        layers: Whether to compare models without a relative in full with one model of each family. This reads as many
            bytes per pair as :func:`mdir_hf.compare`.
        reading: How repositories are opened.

    Returns:
        The report. Models that cannot be read, and pairs that cannot be compared, are listed with the reason.

    Raises:
        InputError: If the list or the folder is invalid, or no model can be opened.

    Cost: bytes O(models); time O(pairs), tenths of a second to some seconds per pair, depending on the width.
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
