"""Unsupported schemes are named with the reason; the rest of the checkpoint is read."""

import pytest
import torch

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.quantization.parts import REFUSED
from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of

I32 = torch.zeros(4, 4, dtype=torch.int32)
F = torch.ones(4, 4)
U8 = torch.zeros(4, 4, dtype=torch.uint8)

# The libraries' own names (see the readers of TGI, Aphrodite, transformers and compressed-tensors 0.9).
STORED = {
    "EXL3": {"trellis": I32, "suh": F, "svh": F},
    "EXL2": {"q_weight": I32, "q_scale": I32, "q_scale_max": F, "q_groups": I32, "q_invperm": I32},
    "AQLM": {"codes": I32, "codebooks": F, "scales": F},
    "VPTQ": {"indices": I32, "centroids": F, "res_centroids": F, "perm": I32},
    "QuIP#": {"Qidxs": I32, "SU": F, "SV": F},
    "SpQR": {"dense_weights": I32, "row_offsets": I32, "col_vals": I32, "in_perm": I32},
    "HIGGS": {"weight": I32, "scales": F, "tables": F, "tables2": F},
    "FP-Quant": {"qweight": U8, "scales": U8, "forward_hadamard_matrix": F, "backward_hadamard_matrix": F},
    "SINQ": {"W_q": U8, "meta": U8},
    "HQQ": {"W_q": U8, "scale": F, "zero": F, "nbits": I32, "group_size": I32, "axis": I32},
    "quanto": {"weight._data": U8, "weight._scale": F, "weight._shift": F, "input_scale": F},
    "torchao": {"_weight_qdata": U8, "_weight_scale": F},
    "Marlin": {"B": I32, "s": F, "workspace": I32},
    "2:4 sparse Marlin": {"weight_packed": I32, "scale_packed": F, "meta": I32},
    "compressed-tensors, sparse": {"compressed": F, "bitmask": U8, "shape": I32, "row_offsets": I32},
    "SVDQuant": {"weight": U8, "weight_scale": F, "svdquant_lora_a": F, "svdquant_lora_b": F},
    "Gemma, packed": {"embedding_quantized": U8, "embedding_scale": F},
}


def test_every_refused_scheme_is_tried_here():
    assert STORED.keys() == {scheme.name for scheme in REFUSED}


@pytest.mark.parametrize("scheme", STORED)
def test_a_scheme_that_is_not_read_is_named_with_its_reason(scheme):
    tensors = {f"{MODULE}.{part}": tensor for part, tensor in STORED[scheme].items()}
    source = source_of(tensors | {"model.embed_tokens.weight": F, f"{MODULE}.bias": F})
    assert source.names() == ("model.embed_tokens.weight", f"{MODULE}.bias", WEIGHT)
    reason = next(entry.reason for entry in REFUSED if entry.name == scheme)
    for ask in (source.spec, source.read):
        with pytest.raises(UnsupportedFormatError) as caught:
            ask(WEIGHT)
        assert f"{scheme}, {reason}" in str(caught.value)
        assert "compare the unquantised checkpoint" in str(caught.value)
    assert torch.equal(source.read("model.embed_tokens.weight"), F)
    assert source.description.quantization == f"{scheme}, not read"


REFUSED_BY_DTYPE = {
    "EETQ": ({"weight": torch.zeros(4, 4, dtype=torch.int8), "weight_scales": torch.ones(4)}, "EETQ"),
    "Gemma's packed integers": ({"weight": U8, "weight_scale": torch.ones(4, 1)}, "bit width"),
    "GPTQ in 16-bit words": (
        {"qweight": torch.zeros(2, 4, dtype=torch.int16), "scales": F},
        "I16 words, scales of shape",
    ),
    "a packed tensor of floats": ({"weight_packed": F, "weight_scale": F}, "F32"),
    "bytes with integer scales": ({"weight_packed": U8, "weight_scale": I32}, "bytes with scales of I32"),
    "bitsandbytes' tiles": (
        {
            "weight": torch.zeros(4, 4, dtype=torch.int8),
            "SCB": torch.ones(4),
            "weight_format": torch.tensor(1, dtype=torch.uint8),
        },
        "weight_format is not 0",
    ),
    "MLX without a config": (
        {"weight": torch.zeros(4, 4).to(torch.uint32), "scales": F, "biases": F},
        "does not say which bits",
    ),
}


@pytest.mark.parametrize("case", REFUSED_BY_DTYPE)
def test_a_combination_that_no_scheme_reads_is_refused(case):
    tensors, message = REFUSED_BY_DTYPE[case]
    with pytest.raises(UnsupportedFormatError, match=message):
        source_of({f"{MODULE}.{part}": tensor for part, tensor in tensors.items()}).read(WEIGHT)


def test_floats_beside_scales_are_weights():
    # A planned quantisation (compressed-tensors, "dense") stores its scales beside the unchanged weights.
    source = source_of({WEIGHT: F.bfloat16(), f"{WEIGHT}_scale": 2 * F})
    assert torch.equal(source.read(WEIGHT), F)
    assert source.spec(WEIGHT).dtype == "BF16"
    assert source.description.quantization is None


PLAIN = {
    "quanto, INT8": ({"weight._data": torch.int8, "weight._scale": None}, "quanto, INT8, one scale per row"),
    "quanto, FP8": ({"weight._data": torch.float8_e4m3fn, "weight._scale": None}, "quanto, FP8, one scale per row"),
    "torchao, INT8": ({"_weight_qdata": torch.int8, "_weight_scale": None}, "torchao, INT8, one scale per row"),
    "torchao, FP8": ({"_weight_qdata": torch.float8_e4m3fn, "_weight_scale": None}, "torchao, FP8, one scale per row"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_codes_that_lie_plain_are_read(name):
    dtypes, meaning = PLAIN[name]
    values, scale = torch.randint(-8, 9, (4, 6)), torch.rand(4, 1) + 0.1
    parts = [values.to(dtype) if dtype is not None else scale for dtype in dtypes.values()]
    source = source_of({f"{MODULE}.{part}": tensor for part, tensor in zip(dtypes, parts, strict=True)})
    assert torch.equal(source.read(WEIGHT), values * scale)
    assert source.description.quantization == meaning
    assert all(tensor.reason is None for tensor in source.contents())


def test_plain_codes_with_zero_points_are_refused():
    codes, scale = torch.zeros(4, 4, dtype=torch.int8), torch.ones(4, 1)
    parts = {"_weight_qdata": codes, "_weight_scale": scale, "_weight_zero_point": scale}
    source = source_of({f"{MODULE}.{part}": tensor for part, tensor in parts.items()})
    with pytest.raises(UnsupportedFormatError, match="packed or have zero points"):
        source.read(WEIGHT)


def test_scales_of_comfyui_are_applied():
    codes = torch.randn(4, 6).to(torch.float8_e4m3fn)
    companions = {"scale_weight": torch.tensor(0.25), "scale_input": torch.tensor(3.0)}
    tensors = {WEIGHT: codes, **{f"{MODULE}.{name}": tensor for name, tensor in companions.items()}}
    source = source_of(tensors | {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)})
    assert source.names() == (WEIGHT,)
    assert torch.equal(source.read(WEIGHT), codes.float() / 4)
    assert not source.description.notes


def test_codes_beside_an_unknown_scale_are_not_said_to_have_none():
    source = source_of({WEIGHT: torch.zeros(4, 4).to(torch.float8_e4m3fn), f"{MODULE}.weird_scale_of": torch.ones(1)})
    source.spec(WEIGHT)
    with pytest.raises(UnsupportedFormatError, match="weird_scale_of may scale them"):
        source.read(WEIGHT)
    assert not any("without any scale" in note for note in source.description.notes)
