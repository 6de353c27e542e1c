"""Find the families among many models, reading each model once; a stopped survey can be resumed."""

from pathlib import Path

from mdir_hf.errors import InputError

RESULTS = "results.jsonl"
"""File of results in the folder of a survey."""


def expect_survey(folder: Path) -> None:
    """Raise ``InputError`` unless a folder has the results of a survey, without reading them."""
    if not (folder / RESULTS).exists():
        raise InputError(f"is not the folder of a survey: it has no {RESULTS}", subject=str(folder))


LEAST_TOKENS = 16


def expect_tokens(n_tokens: int) -> None:
    """Raise ``InputError`` if a sample of so many rows of each model can show nothing."""
    if n_tokens < LEAST_TOKENS:
        raise InputError(f"a sample of {n_tokens} tokens is too small to show anything; use a few hundred")
