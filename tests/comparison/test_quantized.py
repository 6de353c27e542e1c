"""Quantised models in a comparison: the values read, the reported scheme, and layers that cannot be read."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from mdir_hf import HomologyChecker, HomologyReport, Reason, SettledBy, Verdict
from mdir_hf.comparison.inspection import inspect_model
from tests.model.files.quantization.writers import SCHEMES, awq
from tests.specimens import gaussian, tokenizer_json, tokens

V, N, LAYERS = 1500, 96, 2
PROJECTIONS = {
    **{f"self_attn.{name}_proj": (N, N) for name in "qkvo"},
    **{"mlp.gate_proj": (160, N), "mlp.up_proj": (160, N), "mlp.down_proj": (N, 160)},
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": N,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "vocab_size": V,
    "tie_word_embeddings": True,
}


def tensors_of(seed):
    """A Llama with random weights."""
    tensors = {"model.embed_tokens.weight": gaussian(V, N, seed), "model.norm.weight": torch.ones(N)}
    for layer in range(LAYERS):
        for number, (name, shape) in enumerate(PROJECTIONS.items()):
            tensors[f"model.layers.{layer}.{name}.weight"] = gaussian(*shape, 100 * seed + 10 * layer + number)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(N)
    return tensors


def quantized(tensors, write, which="_proj.weight"):
    """The same tensors, some of them in the format of a quantisation library."""
    stored = {}
    for name, tensor in tensors.items():
        chosen = which in name
        stored |= write(tensor, name.removesuffix(".weight")).tensors if chosen else {name: tensor}
    return stored


@pytest.fixture
def save(tmp_path):
    def save_model(name, tensors, **config):
        folder = tmp_path / name
        folder.mkdir()
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
        return folder

    return save_model


def compare(reference, candidate, **options) -> HomologyReport:
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


def test_a_quantised_copy_is_homologous_and_says_how_it_is_quantised(save):
    original = tensors_of(0)
    copy = save("awq", quantized(original, awq), **SCHEMES["awq"].model_config)
    report = compare(save("original", original), copy)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.reference.quantization is None
    assert report.candidate.quantization == "AWQ, 4 bits in groups of 32"
    assert "AWQ, 4 bits in groups of 32" in " ".join(report.details.split())
    assert any("AWQ: per-channel rescaled" in caveat for caveat in report.caveats)
    again = HomologyReport.from_json(report.to_json())
    assert again.candidate.quantization == "AWQ, 4 bits in groups of 32"
    assert json.loads(report.to_json())["reference"]["quantization"] is None


@pytest.mark.parametrize("scheme", ["int4", "nf4-nested", "mlx-4"])
def test_layers_in_codes_are_mapped_by_their_values(save, scheme):
    original = tensors_of(0)
    # Groups of 64 divide neither 96 nor 160; MLX would leave such matrices alone, so its groups have 32 weights here.
    how = SCHEMES[scheme]
    write, config = how.write, how.model_config
    if scheme == "mlx-4":
        from tests.model.files.quantization.writers import mlx

        write, config = mlx(4, group=32), {"quantization": {"bits": 4, "group_size": 32}}
    # The embedding is a stranger's, so only the layers can match.
    copy = save("copy", quantized(original, write) | {"model.embed_tokens.weight": gaussian(V, N, 7)}, **config)
    report = compare(save("original", original), copy, level="layers")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by is SettledBy.NEAR and not report.embedding.is_significant
    assert [[*match[:2]] for match in report.layers.matches] == [[0, 0], [1, 1]]


def unread(tensors, which="_proj.weight"):
    """Weights as HQQ stores them, without their shapes."""
    stored = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if which in name:
            stored |= {f"{module}.W_q": torch.zeros(4, 4, dtype=torch.uint8), f"{module}.scale": torch.ones(4)}
        else:
            stored[name] = tensor
    return stored


def test_unreadable_layers_do_not_hide_the_embedding(save):
    original = tensors_of(0)
    report = compare(save("original", original), save("hqq", unread(original)))
    assert report.sentence.endswith("share their embeddings; no neurons were compared.")
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert any("The embeddings are copies" in caveat for caveat in report.caveats)
    assert report.candidate.quantization == "HQQ, not read"


def test_unread_layers_make_a_silent_embedding_inconclusive(save):
    report = compare(save("original", tensors_of(0)), save("hqq", unread(tensors_of(1))))
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
    said = [caveat for caveat in report.caveats if caveat.startswith("Not all layers were compared: ")]
    assert len(said) == 2  # neurons and keys
    assert all("HQQ, only its codes of" in sentence for sentence in said)


def test_an_unembedding_that_cannot_be_read_leaves_the_embedding(save):
    # EXL2 quantises the head of every model but not the embedding.
    original = tensors_of(0)
    head = {"lm_head.q_weight": torch.zeros(4, 4, dtype=torch.int32), "lm_head.q_scale": torch.ones(4)}
    report = compare(save("original", original), save("exl2", original | head, tie_word_embeddings=False))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.unembedding is None


def test_plain_fp8_of_the_layers_is_noted_once_they_are_read(save):
    original = tensors_of(0)
    plain = {
        name: tensor.to(torch.float8_e4m3fn) if "_proj" in name else tensor for name, tensor in tensors_of(0).items()
    } | {"model.embed_tokens.weight": gaussian(V, N, 7)}
    report = compare(save("original", original), save("fp8", plain))
    assert report.settled_by is SettledBy.NEAR
    assert sum("stored as FP8 without any scale" in caveat for caveat in report.caveats) == 1


def test_inspect_says_the_scheme_and_which_layers_are_not_read(save):
    int4 = SCHEMES["int4"]
    found = inspect_model(save("int4", quantized(tensors_of(0), int4.write), **int4.model_config))
    assert found.quantization == "INT4, in groups of 32"
    # 4-bit codes without scales: the cost of the layers is the stored size of the weights themselves.
    assert found.reads.body - sum(2 * N * 4 for _ in range(LAYERS)) <= LAYERS * (4 * N * N + 3 * 160 * N) // 2
    unreadable = inspect_model(save("hqq", unread(tensors_of(0))))
    assert unreadable.quantization == "HQQ, not read"
    assert sum("HQQ" in note for note in unreadable.notes) == 1
    assert any(note.startswith(f"{LAYERS - 1} more ") for note in unreadable.notes)
