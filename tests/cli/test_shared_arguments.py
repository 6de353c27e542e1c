"""Every command that reads models asks for them in the same words."""

from __future__ import annotations

import argparse

import pytest

from mdir_hf.cli.arguments import settings_of
from mdir_hf.cli.main import build_parser
from mdir_hf.comparison.settings import Settings
from mdir_hf.report import Level

COMPUTING = {
    "compare": ["a", "b"],
    "verify": ["a"],
    "identify": ["a", "--index", "f"],
}


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("command", COMPUTING)
def test_options_become_settings(command):
    assert settings_of(parsed(command, *COMPUTING[command])) == Settings()
    words = ["--level", "layers", "--alpha", "1e-6", "--seed", "3", "--device", "auto"]
    words += ["--max-bytes", "2k", "--max-memory", "1M"]
    expected = Settings(Level.LAYERS, 1e-6, 3, "auto", 2000, 10**6)
    assert settings_of(parsed(command, *COMPUTING[command], *words)) == expected
