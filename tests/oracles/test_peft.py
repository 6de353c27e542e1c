"""PEFT: random LoRA configurations on small models, against PEFT's own merge."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("peft")

import peft

from mdir_hf.model.files import open_checkpoint
from tests.conformance_tensors import MemoryTree
from tests.model.files.adapters.peft_models import make_adapted
from tests.oracles.tally import cases

pytestmark = pytest.mark.slow

LIBRARY = "peft"
LLAMA, GPT2 = (
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    ("c_attn", "c_proj", "c_fc"),
)


def drawn(rng: np.random.Generator) -> tuple[dict[str, object], str]:
    """Draw options of ``LoraConfig`` and their model family."""
    kind = "gpt2" if rng.random() < 0.3 else "llama"
    names = GPT2 if kind == "gpt2" else LLAMA
    targets = sorted(rng.choice(names, size=rng.integers(1, len(names) + 1), replace=False).tolist())
    options: dict[str, object] = {
        "r": int(rng.integers(1, 9)),
        "lora_alpha": float(rng.integers(1, 33)),
        "target_modules": targets,
        "use_rslora": bool(rng.random() < 0.3),
        "use_dora": bool(rng.random() < 0.3),
    }
    if kind == "gpt2":
        options["fan_in_fan_out"] = True
    if rng.random() < 0.3:
        options["rank_pattern"] = {targets[0]: int(rng.integers(1, 9))}
    if rng.random() < 0.3:
        options["alpha_pattern"] = {targets[-1]: float(rng.integers(1, 33))}
    if rng.random() < 0.2:
        options["layers_to_transform"] = [int(rng.integers(2))]
    if kind == "llama" and rng.random() < 0.3:
        options["modules_to_save"] = ["lm_head"]
    if kind == "llama" and rng.random() < 0.2:
        options["trainable_token_indices"] = rng.choice(40, size=3, replace=False).tolist()
    if kind == "llama" and rng.random() < 0.2:
        options["bias"] = str(rng.choice(["all", "lora_only"]))
    return options, kind


def test_every_tensor_equals_the_merged_model(tally, tmp_path):
    rng = np.random.default_rng(0)
    for case in range(cases(5, 80)):
        options, kind = drawn(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = make_adapted(
                tmp_path / str(case), peft.LoraConfig(**options), kind=kind, safe=bool(rng.random() < 0.8)
            )
        base = open_checkpoint(MemoryTree.from_folder(adapted.base))
        source = open_checkpoint(MemoryTree.from_folder(adapted.adapter), open_base=lambda config, base=base: base)
        for name in source.names():
            # Sums of float32 products in another order.
            is_close = torch.allclose(source.read(name), adapted.merged[name], rtol=1e-5, atol=1e-5)
            tally.agree(LIBRARY, f"{name} of {kind} with {options}", is_close)
