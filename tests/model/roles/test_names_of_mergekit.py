"""Roles by names alone, for the names that another project lists, as a check of our tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mdir_hf.model.roles.resolve import resolve_anatomy

WIDTH, N_EXPERTS = 64, 4

HAVE_NO_ROLE = frozenset({
    "mlp.router.gate", "self_attn.gate_proj", "mamba.A_log", "mixer.A_log",
    "mamba.conv1d", "conv.conv", "mixer.conv1d", "mixer.dt_proj", "mixer.x_proj",
    *(f"layer.1.EncDecAttention.{name}" for name in "qkvo"),
    *(f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out")),
})  # fmt: skip
"""A router without experts, a gate of attention, convolutions, inner matrices of mixers, and cross-attention."""


@dataclass(frozen=True)
class ListedNames:
    """One line of ``mergekit_names.txt``."""

    model_type: str
    embedding: str
    prefix: str
    matrices: tuple[str, ...]

    def in_files(self) -> dict[str, str]:
        """Return the full names of the matrices of two layers, with their names inside the layer."""
        first = 0 if self.embedding != "layers.0.wte.weight" else 1  # the first Phi numbers its embedding as a layer
        return {
            f"{self.prefix}{layer}.{name}" + ("" if ".experts." in name or name.endswith("A_log") else ".weight"): name
            for layer in (first, first + 1)
            for name in self.matrices
        }


def listed_names() -> list[ListedNames]:
    text = (Path(__file__).parent / "mergekit_names.txt").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if not line.startswith("#")]
    return [
        ListedNames(model_type, embedding, prefix, tuple(matrices.split()))
        for model_types, embedding, prefix, matrices in rows
        for model_type in model_types.split()
    ]


@pytest.mark.parametrize("listed", listed_names(), ids=lambda listed: f"{listed.model_type} {listed.prefix}")
def test_every_matrix_that_mergekit_lists_has_a_role(listed):
    names = listed.in_files()
    sizes = {"hidden_size": WIDTH, "vocab_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = {"model_type": listed.model_type, "num_hidden_layers": 2, "num_local_experts": N_EXPERTS, **sizes}

    def shape_of(name):
        inside = names.get(name, "")
        if "experts." in inside or inside in ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"):
            return (N_EXPERTS, WIDTH, WIDTH)
        is_state_space = listed.model_type in ("mamba", "granitemoehybrid")
        inner = {"in_proj": (4 * WIDTH, WIDTH), "out_proj": (WIDTH, 2 * WIDTH)} if is_state_space else {}
        return inner.get(inside.rpartition(".")[2], (WIDTH, WIDTH))

    anatomy = resolve_anatomy(config, [listed.embedding, *names], shape_of)
    with_role = {tensor for layer in anatomy.layers for _, part in layer.all_parts() for tensor in part.tensors}
    assert {names[name] for name in names.keys() - with_role} == HAVE_NO_ROLE & set(listed.matrices)
