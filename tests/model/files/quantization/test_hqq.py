"""HQQ's groups of codes give the values of the library, whole and by rows."""

import numpy as np
import pytest
import torch

from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from tests.model.files.quantization.stored import FILE, MODULE, WEIGHT, bytes_read, source_of, tree_of

GROUP = 64
ROWS = np.array([40, 3, 70, 0, 3, 41], dtype=np.int64)


def written(bits, width=192):
    """Return stored tensors and values as hqq does: `Quantizer.quantize` along axis 1, `BitPack` and `dequantize`."""
    weight = 0.05 * torch.randn(72, width, generator=torch.Generator().manual_seed(bits))
    groups = weight.reshape(-1, GROUP)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).half()
    zero = (-low / scale.float()).half()
    codes = (groups / scale.float() + zero.float()).round().clamp(0, 2**bits - 1)
    parts = codes.to(torch.uint8).chunk(8 // bits)
    packed = parts[0].clone()
    for part in parts[1:]:
        packed = packed << bits | part
    numbers = {"nbits": bits, "group_size": GROUP, "axis": 1, "view_as_float": 0, "shape": list(weight.shape)}
    tensors = {name: torch.tensor(value) for name, value in numbers.items()}
    tensors |= {"W_q": packed, "scale": scale, "zero": zero}
    expected = ((codes - zero.float()) * scale.float()).reshape(weight.shape)
    return {f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}, weight, expected


@pytest.mark.parametrize(("bits", "width"), [(8, 192), (4, 192), (4, 96), (4, 32), (2, 192), (1, 192)])
def test_a_weight_has_the_values_of_the_library(bits, width):
    """Groups of 64 may reach over the ends of rows."""
    tensors, weight, expected = written(bits, width)
    source = source_of(tensors | {"model.norm.weight": torch.ones(7)}, {"quant_method": "hqq"})
    assert source.names() == (WEIGHT, "model.norm.weight")
    assert source.description.quantization == f"HQQ, {bits} bit{'s' * (bits > 1)} in groups of 64"
    assert torch.equal(source.read(WEIGHT), expected)
    assert torch.equal(source.read_rows(WEIGHT, ROWS), expected[torch.from_numpy(ROWS)])
    # With one bit, a group has two values, its least and its largest, which are 4 deviations apart.
    assert (expected - weight).norm() < 2 ** (2.5 - bits) * weight.norm()
    assert [tensor.reason for tensor in source.contents()] == [None] * (len(tensors) + 1)


def test_rows_read_only_their_own_codes():
    tensors, _, _ = written(4)
    tree = tree_of(tensors)
    source = source_of({}, tree=tree)
    spec = source.spec(WEIGHT)
    tree.opened[FILE].reads.clear()
    source.read_rows(WEIGHT, np.array([2, 40, 70], dtype=np.int64))
    assert bytes_read(tree, spec.start, spec.stop) == 3 * 192  # two codes of different rows share a byte


@pytest.mark.parametrize("shape", [(73, 192), (72, 0), (36, 384, 1)])
def test_a_shape_that_does_not_fit_is_named(shape):
    tensors, _, _ = written(4)
    source = source_of(tensors | {f"{MODULE}.shape": torch.tensor(shape)})
    with pytest.raises(CorruptCheckpointError, match="does not fit its companions"):
        source.read(WEIGHT)


def test_groups_along_columns_and_other_layouts_are_refused():
    tensors, _, _ = written(4)
    scale = tensors[f"{MODULE}.scale"]
    others = {
        "groups along columns": {f"{MODULE}.scale": scale.T},
        "three codes to a word": {f"{MODULE}.W_q": torch.zeros(4, GROUP, dtype=torch.int32)},
        "scales as codes": {f"{MODULE}.scale": scale.to(torch.uint8)},
    }
    for changed in ({f"{MODULE}.shape": None}, *others.values()):
        source = source_of({name: value for name, value in (tensors | changed).items() if value is not None})
        with pytest.raises(UnsupportedFormatError, match="HQQ, only its codes of 1, 2, 4 and 8 bits"):
            source.read(WEIGHT)
