"""A matrix that is asked for in a K-quant is quantised at every width, as llama.cpp does it."""

import gguf
import pytest
import torch

from tests.gguf_quantise import quantised


@pytest.mark.parametrize(
    ("width", "kind", "stored", "most_bits"),
    [(576, "Q4_K", "Q5_0", 7), (96, "Q4_K", "Q5_0", 7), (512, "Q4_K", "Q4_K", 5), (576, "Q6_K", "Q8_0", 9)],
)
def test_rows_that_fill_no_block_of_256_take_blocks_of_32(width, kind, stored, most_bits):
    matrix = torch.randn(40, width, generator=torch.Generator().manual_seed(0))
    data, written = quantised(matrix, kind)
    assert written.name == stored
    assert data.nbytes * 8 / matrix.numel() < most_bits
    read = torch.from_numpy(gguf.quants.dequantize(data, written))
    # Rounded, hence near, and no row a copy.
    assert not (read == matrix).all(1).any()
    assert float((read - matrix).norm() / matrix.norm()) < 0.1


@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0"])
def test_rows_that_not_even_blocks_of_32_fill_stay_f16(kind):
    assert quantised(torch.ones(3, 80), kind).dtype == torch.float16


def test_vectors_stay_f32():
    assert quantised(torch.ones(576), "Q4_K").dtype == torch.float32
