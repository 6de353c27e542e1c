"""GPTQ conventions that shapes do not show: zeros of two formats, wrong labels, group maps, Conv1D."""

import numpy as np
import pytest
import torch

from mdir_hf.errors import UnsupportedFormatError
from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of
from tests.model.files.quantization.writers import awq, bitsandbytes_4bit, bitsandbytes_int8, gptq

W = 0.05 * torch.randn(64, 96, generator=torch.Generator().manual_seed(0))


def config(**settings):
    return {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, **settings}}


@pytest.mark.parametrize("label", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("stored_zero", [-1, 0])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_symmetric_zeros_give_their_format_for_any_label(label, stored_zero, bits):
    written = gptq(bits, stored_zero=stored_zero)(W, MODULE)
    got = source_of(written.tensors, config(bits=bits, checkpoint_format=label)).read(WEIGHT)
    assert torch.equal(got, written.expected)


@pytest.mark.parametrize(("label", "stored_zero"), [("gptq", -1), ("gptq_v2", 0), (None, -1)])
def test_asymmetric_zeros_go_by_the_label(label, stored_zero):
    written = gptq(4, stored_zero=stored_zero, sym=False)(W, MODULE)
    got = source_of(written.tensors, config(sym=False, checkpoint_format=label)).read(WEIGHT)
    assert torch.equal(got, written.expected)


def test_asymmetric_zeros_that_happen_to_be_equal_go_by_the_label():
    written = gptq(4, stored_zero=-1)(W, MODULE)
    tensors = written.tensors | {f"{MODULE}.qzeros": torch.full_like(written.tensors[f"{MODULE}.qzeros"], -0x77777778)}
    got = source_of(tensors, config(sym=False)).read(WEIGHT)  # eights, which mean nines in the first format
    scale = written.tensors[f"{MODULE}.scales"].T.repeat_interleave(32, 1)
    assert torch.allclose(got, written.expected - scale, atol=1e-6)


def test_a_zero_of_none_wraps_as_the_writers_let_it():
    written = gptq(4, stored_zero=0)(W, MODULE)
    zeros = torch.full_like(written.tensors[f"{MODULE}.qzeros"], -1)  # fifteens: 0 - 1 in four bits
    got = source_of(written.tensors | {f"{MODULE}.qzeros": zeros}, config(sym=False)).read(WEIGHT)
    scale = written.tensors[f"{MODULE}.scales"].T.repeat_interleave(32, 1)
    assert torch.allclose(got, written.expected + 8 * scale, atol=1e-6)


def test_without_a_map_of_groups_they_are_in_order():
    # AutoRound writes GPTQ's tensors without g_idx, which other readers take as a sign of AWQ.
    written = gptq(4, stored_zero=-1)(W, MODULE)
    del written.tensors[f"{MODULE}.g_idx"]
    source = source_of(written.tensors, config())
    assert torch.equal(source.read(WEIGHT), written.expected)
    assert source.description.quantization == "GPTQ, 4 bits in groups of 32"


@pytest.mark.parametrize("with_map", [True, False])
def test_the_last_group_may_be_short(with_map):
    written = gptq(4, stored_zero=-1, group=64)(W, MODULE)  # 96 inputs: 64 and 32
    if not with_map:
        del written.tensors[f"{MODULE}.g_idx"]
    source = source_of(written.tensors, config(group_size=64))
    assert torch.equal(source.read(WEIGHT), written.expected)


def test_tensors_give_the_bits_if_no_config_does():
    written = gptq(3, stored_zero=-1)(W, MODULE)
    assert torch.equal(source_of(written.tensors).read(WEIGHT), written.expected)


def test_a_symmetric_checkpoint_may_leave_its_zeros_out():
    written = gptq(4, stored_zero=-1)(W, MODULE)
    del written.tensors[f"{MODULE}.qzeros"]
    assert torch.equal(source_of(written.tensors, config()).read(WEIGHT), written.expected)


@pytest.mark.parametrize("layout", ["marlin", "bitblas", "gptq_p"])
def test_layouts_for_kernels_are_refused_by_name(layout):
    written = gptq(4, stored_zero=-1)(W, MODULE)
    source = source_of(written.tensors, config(checkpoint_format=layout))
    with pytest.raises(UnsupportedFormatError, match=f"laid out for {layout.replace('_', '-')} kernels"):
        source.read(WEIGHT)


def test_awq_for_its_gemv_kernels_is_refused_by_name():
    written = awq(W, MODULE)
    tensors = {
        f"{MODULE}.qweight": torch.zeros(64, 12, dtype=torch.int32),
        f"{MODULE}.qzeros": torch.zeros(64, 1, dtype=torch.int32),
        f"{MODULE}.scales": torch.ones(64, 8),
    }
    assert tensors.keys() == written.tensors.keys()
    with pytest.raises(UnsupportedFormatError, match="GEMV"):
        source_of(tensors).read(WEIGHT)


def test_awq_is_named_with_its_effect_on_channels():
    notes = source_of(awq(W, MODULE).tensors).description.notes
    assert len(notes) == 1
    assert notes[0].startswith("AWQ: per-channel rescaled: ")


CONV1D = "transformer.h.0.mlp.c_fc"


@pytest.mark.parametrize(
    "write",
    [gptq(4, stored_zero=-1), bitsandbytes_4bit("nf4", nested=True), bitsandbytes_int8],
    ids=["gptq", "nf4", "int8"],
)
def test_the_conv1d_of_gpt_2_keeps_its_orientation(write):
    # GPT-2's file has (in, out); quantisers transpose it to (out, in) first.
    written = write(W, CONV1D)
    name = f"{CONV1D}.weight"
    source = source_of(written.tensors, {"model_type": "gpt2", **config()})
    assert source.spec(name).shape == (96, 64)
    torch.testing.assert_close(source.read(name), written.expected.T, rtol=2.0**-22, atol=0)
    rows = np.array([95, 0, 7], dtype=np.int64)
    assert torch.equal(source.read_rows(name, rows), source.read(name)[torch.from_numpy(rows)])
    assert source_of(written.tensors, {"model_type": "gpt_neo", **config()}).spec(name).shape == (64, 96)
