"""Find the families among many models, reading each model once; a stopped survey can be resumed."""

from pathlib import Path

from mdir_hf.errors import InputError

RESULTS = "results.jsonl"
"""File of results in the folder of a survey."""


def expect_survey(folder: Path) -> None:
    """Raise ``InputError`` unless a folder has the results of a survey, without reading them."""
    if not (folder / RESULTS).exists():
        raise InputError(f"is not the folder of a survey: it has no {RESULTS}", subject=str(folder))
