"""Mark tests of scripts, and of more trained models than CI trains: they run with the scripts and not in CI."""

import os

import pytest

IS_WITH_THE_SCRIPTS = bool(os.environ.get("MDIR_HF_EVIDENCE"))

WITH_THE_SCRIPTS = pytest.mark.skipif(
    not IS_WITH_THE_SCRIPTS,
    reason="MDIR_HF_EVIDENCE is not set (`make test-evidence` sets it)",
)
"""For tests that repeat the output of scripts; tests/trained checks the package on trained models."""
