"""GGUF copies of trained models: the source is found for every type and level, and strangers are not."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mdir_hf import HomologyChecker, Verdict
from tests.benchmarks.evidence import WITH_THE_SCRIPTS
from tests.gguf_converter import to_gguf, vocabulary_keys
from tests.trained.models import trained_model, unigram_loss
from tests.trained.wide import wide_model

pytestmark = pytest.mark.slow

OF_256 = ("Q4_K", "Q6_K")
"""Types with blocks of 256 numbers."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A GGUF copy of a trained model, made once, in a separate folder."""
    made: dict[tuple[str, str, str], Path] = {}

    def convert(architecture: str, name: str, kind: str) -> Path:
        key = (architecture, name, kind)
        if key not in made:
            source = original(architecture, name)
            config = json.loads((source / "config.json").read_text())
            vocabulary = vocabulary_keys(json.loads((source / "tokenizer.json").read_text()), config["vocab_size"])
            folder = made[key] = tmp_path_factory.mktemp("-".join(key))
            state = load_file(source / "model.safetensors")
            (folder / f"model-{kind}.gguf").write_bytes(
                to_gguf(config["model_type"], config, state, kind=kind, **vocabulary)
            )
        return made[key]

    return convert


def original(architecture: str, name: str) -> Path:
    return (wide_model(name) if architecture == "wide" else trained_model(architecture, name)).folder


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


@WITH_THE_SCRIPTS
def test_the_wide_model_has_learnt_more_than_frequencies():
    # A margin of half a nat, as in test_models.py.
    assert wide_model("base").held_out_loss < unigram_loss("code") - 0.5


CASES = [
    *(("llama", kind) for kind in ("Q8_0", "Q4_0")),
    ("gpt-neox", "F16"),
    *(pytest.param("wide", kind, marks=WITH_THE_SCRIPTS) for kind in OF_256),
]


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_the_source_of_a_gguf_copy_is_found(converted, architecture, kind):
    source = original(architecture, "base")
    report = compare(source, converted(architecture, "base", kind), level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.transformation == "identity"
    n_layers = 2 if architecture == "wide" else 4
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(n_layers)]
    roles = {result.role for result in report.projections.results if result.log10_p < -10}
    assert {"v", "o", "up", "down"} <= roles
    if kind in ("F16", "Q8_0"):
        assert {"q", "k"} <= roles  # rotary pairs are unchanged


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "Q4_0"), ("gpt-neox", "F16"), pytest.param("wide", "Q4_K", marks=WITH_THE_SCRIPTS)],
)
def test_a_gguf_copy_of_a_stranger_does_not_match(converted, architecture, kind):
    stranger = converted(architecture, "other-seed", kind)
    report = compare(original(architecture, "base"), stranger, level="layers")
    assert report.verdict is Verdict.NO_EVIDENCE, json.dumps(report.to_dict(), indent=1)


def test_a_gguf_fine_tune_is_found_from_its_gguf_base(converted):
    report = compare(converted("llama", "base", "Q8_0"), converted("llama", "fine-tune", "Q4_0"))
    assert report.verdict is Verdict.HOMOLOGOUS


def test_only_a_part_of_a_gguf_on_the_hub_is_read(converted, loopback_hub):
    folder = converted("llama", "base", "Q8_0")
    (path,) = folder.glob("*.gguf")
    loopback_hub.add_repository("owner/base-GGUF", folder)
    report = compare(original("llama", "base"), f"hf://owner/base-GGUF/{path.name}")
    assert report.verdict is Verdict.HOMOLOGOUS
    sent = [request for request in loopback_hub.sent("cdn") if request.method == "GET"]
    spans = sorted(tuple(map(int, request.range.removeprefix("bytes=").split("-"))) for request in sent)
    assert spans[0][0] == 0
    # Rows of gate and up, then of down, are read across gaps, and a gap may contain bytes read before. The 88 neurons
    # of two layers are a large part of a 1.3 MB file.
    twice = sum(max(0, before[1] - after[0] + 1) for before, after in pairwise(spans))
    assert twice < path.stat().st_size / 4
    assert sum(stop - start + 1 for start, stop in spans) < 0.75 * path.stat().st_size
