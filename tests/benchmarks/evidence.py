"""Marks tests of scripts, and of more trained models than CI trains: they run with the scripts, and not in CI."""

import os

import pytest

WITH_THE_SCRIPTS = pytest.mark.skipif(
    not os.environ.get("MDIR_HF_EVIDENCE"),
    reason="MDIR_HF_EVIDENCE is not set (`make evidence` and `make real` set it)",
)
"""For tests that repeat what the scripts print; tests/trained checks the package on trained models."""
