"""Every scheme gives the values of its own library, whole and by rows, and reads only the bytes it needs."""

from functools import cache

import numpy as np
import pytest
import torch

from tests.model.files.quantization.stored import FILE, MODULE, WEIGHT, bytes_read, source_of, tree_of, weight_for
from tests.model.files.quantization.writers import SCHEMES

ROWS = np.array([40, 3, 70, 0, 3, 41], dtype=np.int64)
BY_ROWS = [name for name, scheme in SCHEMES.items() if not scheme.whole]
# bitsandbytes multiplies by a rounded 1/127 last, the reader divides first: they may differ by one rounding.
ONE_ROUNDING = {"int8-bitsandbytes": 2.0**-22}


@cache
def written(name):
    """A scheme, and a weight as its library writes it."""
    return SCHEMES[name], SCHEMES[name].write(weight_for(SCHEMES[name]), MODULE)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_weight_equals_the_value_that_its_library_reads(name):
    scheme, stored = written(name)
    source = source_of({**stored.tensors, "model.norm.weight": torch.ones(7)}, scheme.model_config)
    whole = source.read(WEIGHT)
    assert (whole.dtype, whole.shape) == (torch.float32, stored.expected.shape)
    rounded = whole.to(scheme.precision).float()
    if name in ONE_ROUNDING:
        torch.testing.assert_close(rounded, stored.expected, rtol=ONE_ROUNDING[name], atol=0)
    else:
        assert torch.equal(rounded, stored.expected)
    # With 2 and 1.6 bits, two thirds of the norm remain; a wrong zero, order or sign gives a negative share.
    original = weight_for(scheme)
    assert (stored.expected - original).norm() < 0.6 * original.norm()

    assert torch.equal(source.read_rows(WEIGHT, ROWS), whole[torch.from_numpy(ROWS)])
    assert source.read_rows(WEIGHT, np.empty(0, dtype=np.int64)).shape == (0, whole.shape[1])
    # Changing the returned tensor does not change the source.
    source.read(WEIGHT).zero_()
    source.read_rows(WEIGHT, ROWS).zero_()
    assert torch.equal(source.read(WEIGHT), whole)
    assert torch.equal(source.read_rows(WEIGHT, ROWS), whole[torch.from_numpy(ROWS)])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_weight_keeps_its_name_shape_and_description(name):
    scheme, stored = written(name)
    source = source_of({**stored.tensors, "model.norm.weight": torch.ones(7)}, scheme.model_config)
    assert source.names() == (WEIGHT, "model.norm.weight")  # the parts of the codes are hidden
    assert torch.equal(source.read("model.norm.weight"), torch.ones(7))
    spec = source.spec(WEIGHT)
    assert (spec.name, spec.shape) == (WEIGHT, tuple(stored.expected.shape))
    assert 0 < spec.n_bytes < 1.1 * stored.expected.numel()
    assert spec.n_bytes in {tensor.numel() * tensor.element_size() for tensor in stored.tensors.values()}
    assert (source.description.format, source.description.quantization) == ("safetensors", scheme.says)


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_read_only_their_own_codes(name):
    scheme, stored = written(name)
    tree = tree_of(stored.tensors, scheme.model_config)
    source = source_of({}, tree=tree)
    spec = source.spec(WEIGHT)
    tree.opened[FILE].reads.clear()
    source.read_rows(WEIGHT, np.array([2, 40, 70], dtype=np.int64))
    n_rows = spec.shape[0]
    # In ModelOpt's INT4 two rows share a byte, in BitNet four; a row of bitsandbytes may begin within a byte.
    sharing = {"int4-modelopt": 2, "bitnet": 4}.get(name, 1)
    assert bytes_read(tree, spec.start, spec.stop) <= 3 * (sharing * spec.n_bytes / n_rows + 1)
    assert bytes_read(tree, spec.start, spec.stop) >= 3 * spec.n_bytes // n_rows


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.whole])
def test_a_transposed_tensor_is_read_once_and_kept(name):
    scheme, stored = written(name)
    tree = tree_of(stored.tensors, scheme.model_config)
    source = source_of({}, tree=tree)
    spec = source.spec(WEIGHT)
    tree.opened[FILE].reads.clear()
    for row in (2, 40, 70):
        source.read_rows(WEIGHT, np.array([row], dtype=np.int64))
    assert bytes_read(tree, spec.start, spec.stop) == spec.n_bytes


@pytest.mark.parametrize("width", [1, 2, 63, 64, 128, 129, 160])
def test_rows_of_bitsandbytes_begin_anywhere_in_blocks(width):
    weight = torch.randn(71, width, generator=torch.Generator().manual_seed(width))
    scheme = SCHEMES["nf4-nested"]
    stored = scheme.write(weight, MODULE)
    source = source_of(stored.tensors, scheme.model_config)
    assert torch.equal(source.read(WEIGHT), stored.expected)
    for rows in ([70], [0, 1, 2], [69, 70], [5, 70, 3], list(range(71))):
        assert torch.equal(source.read_rows(WEIGHT, np.array(rows)), stored.expected[rows]), rows


@pytest.mark.parametrize("name", SCHEMES)
def test_small_pieces_give_the_same_numbers(name, monkeypatch):
    scheme, stored = written(name)
    expected = source_of(stored.tensors, scheme.model_config).read(WEIGHT)
    monkeypatch.setattr("mdir_hf.model.files.quantization.VALUES_AT_ONCE", 1000)
    monkeypatch.setattr("mdir_hf.model.files.quantization.ROW_VALUES_AT_ONCE", 500)
    source = source_of(stored.tensors, scheme.model_config, max_span_bytes=64)
    assert torch.equal(source.read(WEIGHT), expected)
    assert torch.equal(source.read_rows(WEIGHT, ROWS), expected[torch.from_numpy(ROWS)])
