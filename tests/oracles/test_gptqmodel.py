"""GPTQ, packed and read back by GPTQModel; skipped unless that package is installed.

It is not a test dependency, because with its own dependencies it takes a gigabyte, mostly for CUDA. Run ``pip install
gptqmodel`` to enable these cases (version 7.7 runs without a GPU).
"""

import warnings

import numpy as np
import pytest
import torch

from tests.model.files.quantization.stored import MODULE, WEIGHT, source_of
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

LIBRARY = "gptqmodel"


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("is_ordered", [True, False], ids=["in order", "by activation"])
def test_rows_match_the_library(tally, bits, is_ordered):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch")
    rng = np.random.default_rng(bits)
    for _ in range(cases(2, 25)):
        n_out, n_in, group = 32 * int(rng.integers(1, 5)), 64 * int(rng.integers(1, 5)), int(rng.choice([32, 64]))
        n_groups = n_in // group
        order = rng.permutation(n_in) if not is_ordered else np.arange(n_in)
        groups = torch.from_numpy((order // group).astype(np.int32))
        scales = torch.from_numpy(rng.uniform(0.01, 0.1, (n_out, n_groups)).astype(np.float16)).float()
        zeros = torch.from_numpy(rng.integers(1, 2**bits, (n_out, n_groups)).astype(np.float32))
        linear = torch.nn.Linear(n_in, n_out, bias=False)
        linear.weight.data.normal_(std=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            packed = module.TorchLinear(
                bits=bits, group_size=group, sym=False, desc_act=not is_ordered, in_features=n_in, out_features=n_out,
                bias=False, register_buffers=True,
            )  # fmt: skip
            packed.pack(linear, scales, zeros, groups)
            packed.post_init()
            expected = packed.dequantize_weight().T.float().contiguous()
        stored = {name: getattr(packed, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
        config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": bits, "group_size": group,
                  "sym": False, "desc_act": not is_ordered}  # fmt: skip
        source = source_of(
            {f"{MODULE}.{name}": values for name, values in stored.items()}, {"quantization_config": config}
        )
        read = source.read(WEIGHT).to(torch.float16).float()  # it computes in the dtype of the scales
        case_of = f"{bits} bits, {n_out} x {n_in}, groups of {group}, in order {is_ordered}"
        tally.equal(LIBRARY, case_of, read, expected.to(torch.float16).float())
