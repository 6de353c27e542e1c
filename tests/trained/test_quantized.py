"""Trained models, quantised as every supported library writes them: relatives are found and strangers are not."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.lineage.cards.quantised import RelationOutcome, check_quantised
from mdir_hf.model.open import NamedModel, Reading
from tests.model.files.quantization.writers import SCHEMES
from tests.trained.models import trained_model

pytestmark = pytest.mark.slow

CHOSEN = ["fp8-block", "int8-channel", "int4", "nf4-nested", "gptq-4", "awq", "nvfp4", "mlx-4", "bitnet"]
"""One per reader; tests/model/files/quantization compares every scheme with its own library."""

FUSED = ["int4", "gptq-4"]
"""GPT-NeoX stores q, k and v of a head in neighbouring rows, so they are read by rows and not whole."""


def quantize(model, scheme, folder, *, embeddings_of=None):
    """Write a copy of a trained model with its layers quantised, as far as their sizes allow it.

    Args:
        model: The trained model.
        scheme: Name of the scheme.
        folder: Folder to write.
        embeddings_of: A model that provides embedding and head, so that only the layers are related.

    Returns:
        Number of quantised layer matrices, and of all layer matrices.
    """
    shutil.copytree(model.folder, folder)
    tensors = load_file(folder / "model.safetensors")
    others = {} if embeddings_of is None else load_file(embeddings_of.folder / "model.safetensors")
    stored, n_quantized, n_all = {}, 0, 0
    for name, tensor in tensors.items():
        if ".layers." not in name and tensor.ndim == 2:
            stored[name] = others.get(name, tensor)
        elif tensor.ndim == 2:
            n_all += 1
            fits = all(size % divisor == 0 for size, divisor in zip(tensor.shape, scheme.divides, strict=True))
            n_quantized += fits
            written = scheme.write(tensor.float(), name.removesuffix(".weight")).tensors if fits else {name: tensor}
            stored |= written
        else:
            stored[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | scheme.model_config))
    return n_quantized, n_all


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


def read_of_weights(report, *folders):
    """Bytes read apart from configs and tokenizers, as a share of the weights."""
    small = sum(file.stat().st_size for folder in folders for file in folder.glob("*.json"))
    return (report.io.bytes_read - small) / report.io.bytes_of_weights


@pytest.mark.parametrize("name", CHOSEN)
def test_a_quantised_copy_is_found_by_a_fraction_of_its_bytes(name, tmp_path):
    base = trained_model("llama", "base")
    quantize(base, SCHEMES[name], tmp_path / "copy")
    report = compare(base.folder, tmp_path / "copy")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "near"
    assert report.candidate.quantization == SCHEMES[name].says
    # 512 of 2048 rows of an embedding that is a quarter of this small model, and 88 neurons of two layers. The
    # direction also reads a few rows of some layers. Ternary neurons write 3.5 times as much as the originals, so the
    # strengths of up to 512 more are read, here the whole layer.
    assert read_of_weights(report, base.folder, tmp_path / "copy") < (0.95 if name == "bitnet" else 0.6)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_copy_of_the_base_is_confirmed_and_one_of_its_tune_is_not(name, tmp_path):
    outcomes = {}
    base = NamedModel(trained_model("llama", "base").folder).open(Reading())
    for source in ("base", "fine-tune"):
        quantize(trained_model("llama", source), SCHEMES[name], tmp_path / source)
        copy = NamedModel(tmp_path / source).open(Reading())
        outcomes[source] = check_quantised(copy, "base", base, {}).outcome
    assert outcomes == {"base": RelationOutcome.CONFIRMED, "fine-tune": RelationOutcome.CONTRADICTED}


@pytest.mark.parametrize("name", CHOSEN[::2])
def test_quantised_layers_alone_are_found(name, tmp_path):
    base, other = trained_model("llama", "base"), trained_model("llama", "other-seed")
    n_quantized, n_all = quantize(base, SCHEMES[name], tmp_path / "copy", embeddings_of=other)
    assert n_quantized >= n_all * 4 // 7  # at least attention
    report = compare(base.folder, tmp_path / "copy", level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]


@pytest.mark.parametrize("name", CHOSEN[::3])
def test_a_quantised_stranger_does_not_match(name, tmp_path):
    base, other = trained_model("llama", "base"), trained_model("llama", "other-seed")
    quantize(other, SCHEMES[name], tmp_path / "stranger")
    report = compare(base.folder, tmp_path / "stranger")
    assert report.verdict is Verdict.NO_EVIDENCE, report.to_json()
    assert report.log10_p == 0.0


@pytest.mark.parametrize("name", FUSED)
def test_fused_layers_in_codes_are_read_by_rows(name, tmp_path):
    base, other = trained_model("gpt-neox", "base"), trained_model("gpt-neox", "other-seed")
    assert len(set(quantize(base, SCHEMES[name], tmp_path / "copy", embeddings_of=other))) == 1
    report = compare(base.folder, tmp_path / "copy", level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]
    quantize(other, SCHEMES[name], tmp_path / "stranger")
    assert compare(base.folder, tmp_path / "stranger", level="layers").verdict is Verdict.NO_EVIDENCE
