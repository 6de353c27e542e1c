"""Every command that reads models asks for them in the same words."""

from __future__ import annotations

import argparse

import pytest

from mdir_hf.cli.arguments import model_of, reading_of, settings_of
from mdir_hf.cli.main import build_parser
from mdir_hf.comparison.settings import Settings
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import Level

ONE_MODEL = {"inspect": ["a"], "verify": ["a"], "identify": ["a", "--index", "f"]}
READING = ONE_MODEL | {
    "compare": ["a", "b"],
    "index": ["f", "a"],
    "survey": ["a", "b", "--output", "d"],
    "tree": ["d"],
}
COMPUTING = {
    "compare": ["a", "b"],
    "verify": ["a"],
    "identify": ["a", "--index", "f"],
}


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("command", READING)
def test_how_to_read(command):
    assert reading_of(parsed(command, *READING[command])) == Reading()
    words = ["--token", "t", "--cache-dir", "c", "--local-files-only", "--force-download"]
    reading = reading_of(parsed(command, *READING[command], *words))
    assert (reading.token, str(reading.cache_dir)) == ("t", "c")
    assert reading.local_files_only and reading.force_download


@pytest.mark.parametrize("command", ONE_MODEL)
def test_a_model(command):
    assert model_of(parsed(command, *ONE_MODEL[command]), "a") == NamedModel("a")
    base = "o/b@" + 40 * "0"
    words = ["--subfolder", "s", "--variant", "v", "--tokenizer", "t", "--base", base]
    expected = NamedModel("a", subfolder="s", variant="v", tokenizer="t", bases=(base,))
    assert model_of(parsed(command, *ONE_MODEL[command], *words), "a") == expected


def test_the_second_model_of_a_comparison_has_its_own():
    words = ["--subfolder", "s", "--candidate-subfolder", "x", "--candidate-variant", "v", "--candidate-base", "b"]
    options = parsed("compare", "a", "b", *words)
    assert model_of(options, "a") == NamedModel("a", subfolder="s")
    expected = NamedModel("b", subfolder="x", variant="v", bases=("b",))
    assert model_of(options, "b", prefix="candidate_") == expected


@pytest.mark.parametrize("command", COMPUTING)
def test_what_is_computed(command):
    assert settings_of(parsed(command, *COMPUTING[command])) == Settings()
    words = ["--level", "layers", "--alpha", "1e-6", "--seed", "3", "--device", "auto"]
    words += ["--max-bytes", "2k", "--max-memory", "1M"]
    expected = Settings(Level.LAYERS, 1e-6, 3, "auto", 2000, 10**6)
    assert settings_of(parsed(command, *COMPUTING[command], *words)) == expected
