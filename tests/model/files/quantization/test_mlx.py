"""MLX's words: modules with their own bits, and the modes whose scales are bytes."""

import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of
from tests.model.files.quantization.writers import E2M1, mlx, nearest_fp4

W = 0.05 * torch.randn(24, 192, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", [{"bits": 3, "group_size": 64}, {"bits": "4", "group_size": 64}, {"bits": 4}, {}])
def test_a_config_that_does_not_fit_is_refused(settings):
    with pytest.raises(UnsupportedFormatError, match="does not say which bits"):
        source_of(mlx(4)(W, MODULE).tensors, {"quantization": settings}).read(WEIGHT)


def fp4_words(group):
    codes, exponent = nearest_fp4(W, group)
    words = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.uint32)
    values = E2M1[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    return words, exponent, values


@pytest.mark.parametrize("says", [{"mode": "mxfp4"}, {}])
def test_mxfp4_has_powers_of_two(says):
    words, exponent, values = fp4_words(32)
    tensors = {WEIGHT: words, f"{MODULE}.scales": (exponent + 127).to(torch.uint8)}
    source = source_of(tensors, {"quantization": says})
    assert torch.equal(source.read(WEIGHT), values * 2.0 ** exponent.repeat_interleave(32, 1))
    assert source.description.quantization == "MLX, MXFP4 in groups of 32"


@pytest.mark.parametrize("says", [{"mode": "nvfp4"}, {}])
def test_nvfp4_has_floats_of_eight_bits(says):
    words, exponent, values = fp4_words(16)
    scales = (2.0**exponent).to(torch.float8_e4m3fn)
    tensors = {WEIGHT: words, f"{MODULE}.scales": scales.view(torch.uint8)}
    source = source_of(tensors, {"quantization": says})
    assert torch.equal(source.read(WEIGHT), values * scales.float().repeat_interleave(16, 1))
    assert source.description.quantization == "MLX, NVFP4 in groups of 16"


def test_mxfp8_has_floats_of_eight_bits_under_powers_of_two():
    exponent = torch.floor(torch.log2(W.unflatten(1, (-1, 32)).abs().amax(-1))).to(torch.int32) - 8
    codes = (W / 2.0 ** exponent.repeat_interleave(32, 1)).to(torch.float8_e4m3fn)
    tensors = {WEIGHT: codes.view(torch.uint32), f"{MODULE}.scales": (exponent + 127).to(torch.uint8)}
    source = source_of(tensors, {"quantization": {"mode": "mxfp8"}})
    assert torch.equal(source.read(WEIGHT), codes.float() * 2.0 ** exponent.repeat_interleave(32, 1))
    assert source.description.quantization == "MLX, MXFP8 in groups of 32"


def test_byte_scales_that_fit_no_mode_are_reported():
    words, _, _ = fp4_words(32)
    tensors = {WEIGHT: words, f"{MODULE}.scales": torch.zeros(24, 5, dtype=torch.uint8)}
    with pytest.raises(CorruptCheckpointError, match="does not fit its companions"):
        source_of(tensors, {"quantization": {"mode": "mxfp4"}}).read(WEIGHT)


@pytest.mark.parametrize("front", ["", "model.", "language_model.model.", "model.language_model."])
@pytest.mark.parametrize("front_of_config", ["", "model.", "language_model.model."])
def test_a_module_is_recognised_without_its_prefix(front, front_of_config):
    module = f"{front}layers.0.mlp.up_proj"
    settings = {"bits": 4, "group_size": 64, f"{front_of_config}layers.0.mlp.up_proj": {"bits": 8, "group_size": 32}}
    written = mlx(8, 32)(W, module)
    source = source_of(written.tensors, {"quantization": settings})
    assert torch.equal(source.read(f"{module}.weight"), written.expected)
    assert source.description.quantization == "MLX, 8 bits in groups of 32"


def test_two_modules_of_one_short_name_and_two_settings_are_not_guessed():
    settings = {f"{front}layers.0.up": {"bits": bits, "group_size": 64} for front, bits in (("model.", 8), ("llm.", 6))}
    with pytest.raises(UnsupportedFormatError, match="does not say which bits"):
        source_of(mlx(8, 64)(W, "layers.0.up").tensors, {"quantization": settings}).read("layers.0.up.weight")
