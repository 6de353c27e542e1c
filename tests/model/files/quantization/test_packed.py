"""compressed-tensors' packed integers: both packings of odd widths, zero points, reordered columns."""

import numpy as np
import pytest
import torch

from mdir_hf.errors import UnsupportedFormatError
from tests.model.files.quantization.stored import WEIGHT, source_of

OUT, IN, GROUP = 70, 96, 32


def padded(values, bits):
    """Pack numbers ``(n, k)`` into words, as releases before 0.18 do: the highest bits stay unused."""
    per_word = 32 // bits
    filled = torch.nn.functional.pad(values.long(), (0, -values.shape[1] % per_word)).unflatten(1, (-1, per_word))
    words = (filled << (bits * torch.arange(per_word))).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def dense(values, bits):
    """Pack numbers ``(n, k)`` contiguously, as releases since 0.18 do."""
    n_words = -(-values.shape[1] * bits // 32)
    rows = [sum(value << (bits * i) for i, value in enumerate(row)) for row in values.long().tolist()]
    words = torch.tensor([[row >> (32 * i) & 0xFFFFFFFF for i in range(n_words)] for row in rows])
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def drawn(bits, *, out=OUT, width=IN, n_groups=IN // GROUP):
    rng = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (out, width), generator=rng)
    zeros = torch.randint(0, 2**bits, (out, n_groups), generator=rng)
    return codes, zeros, torch.rand(out, n_groups, generator=rng)


def config(bits, version, group=GROUP):
    weights = {"num_bits": bits, "group_size": group, "type": "int"}
    return {"quantization_config": {"version": version, "config_groups": {"g": {"weights": weights}}}}


@pytest.mark.parametrize(("pack", "version"), [(padded, "0.12.2"), (dense, "0.20.0")])
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_is_read_in_either_packing(bits, pack, version):
    codes, zeros, scale = drawn(bits)
    tensors = {
        f"{WEIGHT}_packed": pack(codes, bits),
        f"{WEIGHT}_zero_point": pack(zeros.T, bits).T.contiguous(),
        f"{WEIGHT}_scale": scale,
        f"{WEIGHT}_shape": torch.tensor([OUT, IN]),
    }
    expected = (codes - zeros.repeat_interleave(GROUP, 1)) * scale.repeat_interleave(GROUP, 1)
    source = source_of(tensors, config(bits, version))
    assert torch.equal(source.read(WEIGHT), expected)
    rows = np.array([69, 0, 33, 31], dtype=np.int64)
    assert torch.equal(source.read_rows(WEIGHT, rows), expected[torch.from_numpy(rows)])


def few_columns(version):
    """Rows of 20 3-bit codes take two words in either packing."""
    codes, _, scale = drawn(3, width=20, n_groups=1)
    pack = dense if version == "0.20.0" else padded
    assert padded(codes, 3).shape == dense(codes, 3).shape
    tensors = {f"{WEIGHT}_packed": pack(codes, 3), f"{WEIGHT}_scale": scale, f"{WEIGHT}_shape": torch.tensor([OUT, 20])}
    return tensors, (codes - 4) * scale


@pytest.mark.parametrize("version", ["0.12.2", "0.17.1", "0.20.0"])
def test_the_version_decides_if_the_number_of_words_does_not(version):
    tensors, expected = few_columns(version)
    assert torch.equal(source_of(tensors, config(3, version, group=None)).read(WEIGHT), expected)


def test_without_a_version_it_is_refused_and_not_guessed():
    tensors, _ = few_columns("0.20.0")
    with pytest.raises(UnsupportedFormatError, match="can be packed in several ways"):
        source_of(tensors, config(3, None, group=None)).read(WEIGHT)


@pytest.mark.parametrize("is_filled", [True, False])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_columns_may_belong_to_groups_out_of_order(is_filled, has_zeros):
    codes, zeros, scale = drawn(4)
    order = torch.randperm(IN, generator=torch.Generator().manual_seed(0))
    groups = (torch.arange(IN) // GROUP)[order]
    g_idx = groups if is_filled else torch.full((IN,), -1)  # -1 was never filled in: columns are in order
    used = groups if is_filled else torch.arange(IN) // GROUP
    tensors = {
        f"{WEIGHT}_packed": dense(codes, 4),
        f"{WEIGHT}_scale": scale,
        f"{WEIGHT}_g_idx": g_idx.int(),
        f"{WEIGHT}_shape": torch.tensor([OUT, IN]),
    }
    if has_zeros:
        tensors[f"{WEIGHT}_zero_point"] = dense(zeros.T, 4).T.contiguous()
    middle = zeros[:, used] if has_zeros else 8
    expected = (codes - middle) * scale[:, used]
    assert torch.equal(source_of(tensors, config(4, "0.12.2")).read(WEIGHT), expected)


def test_zero_points_one_by_one_are_read_as_well():
    codes, zeros, scale = drawn(4, n_groups=1)
    tensors = {
        f"{WEIGHT}_packed": dense(codes, 4),
        f"{WEIGHT}_scale": scale,
        f"{WEIGHT}_zero_point": (zeros - 8).to(torch.int8),
        f"{WEIGHT}_shape": torch.tensor([OUT, IN]),
    }
    assert torch.equal(source_of(tensors, config(4, "0.9.4")).read(WEIGHT), (codes - zeros) * scale)
