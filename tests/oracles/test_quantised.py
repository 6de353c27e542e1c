"""Quantised weights: the library of each scheme writes random matrices, and we read the same rows as it.

bitsandbytes, compressed-tensors and transformers' quantisers are the real libraries. The writers of GPTQ,
AWQ, MLX and ModelOpt follow the code of packages that the tests do not install: AutoAWQ is archived (compressed-tensors
reads its layout), AutoGPTQ does not build here, GPTQModel (test_gptqmodel.py; optimum's GPTQ is GPTQModel) and ModelOpt
are mostly for CUDA, and MLX (tests/model/files/quantization/test_against_mlx.py) needs ``pip install mlx mlx-cpu``.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("bitsandbytes")
pytest.importorskip("compressed_tensors")

from tests.model.files.quantization.stored import WEIGHT, source_of, weight_for
from tests.model.files.quantization.writers import SCHEMES
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow


def library_of(name: str) -> str:
    if "bitsandbytes" in name or name.startswith("nf4"):
        return "bitsandbytes"
    method = SCHEMES[name].config.get("quant_method", "")
    return "compressed-tensors" if method == "compressed-tensors" else "other quantisers, as their code writes"


@pytest.mark.parametrize("name", SCHEMES)
def test_rows_match_the_library(tally, name):
    scheme, rng = SCHEMES[name], np.random.default_rng(0)
    for case in range(cases(3, 60)):
        like = weight_for(scheme)
        sizes = [divisor * int(rng.integers(1, 4 + 160 // divisor)) for divisor in scheme.divides]
        # Every scheme supports the sizes of the other tests; a library may refuse random sizes.
        sizes = list(like.shape) if case == 0 else sizes
        weight = torch.randn(*sizes, generator=torch.Generator().manual_seed(case)) * 0.05
        module = WEIGHT.removesuffix(".weight")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                written = scheme.write(weight, module)
        except (ValueError, RuntimeError, AssertionError, ZeroDivisionError, IndexError):
            assert case, "the library writes the sizes of the other tests"
            continue
        source = source_of(written.tensors, scheme.model_config)
        expected = written.expected.float()
        if not torch.isfinite(expected).all():
            continue
        read, rows = source.read(WEIGHT), rng.integers(0, len(expected), 4)
        rounded = read.to(scheme.precision).float()
        # bitsandbytes multiplies by a rounded 1/127 last, and the reader divides first, so one rounding differs.
        tolerance = 2.0**-22 if name == "int8-bitsandbytes" else 0.0
        is_equal = rounded.shape == expected.shape and torch.allclose(rounded, expected, rtol=tolerance, atol=0.0)
        tally.agree(library_of(name), f"{name} of shape {tuple(sizes)}", is_equal)
        tally.equal(library_of(name), f"rows of {name}", source.read_rows(WEIGHT, rows), read[torch.from_numpy(rows)])
