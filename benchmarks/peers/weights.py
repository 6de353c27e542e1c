"""Read the weights of a model by role, as stored in its files, through the readers of ``mdir_hf``."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers.interface import CannotSayError
from benchmarks.peers.reads import CountedFolder, Reads
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, read_experts, read_part


def open_model(folder: Path, reads: Reads) -> Model:
    """Open a model in a local folder, and count the bytes read.

    Raises:
        MdirError: If it cannot be read.
    """
    return Model(CountedFolder(folder, reads))


def read_embedding(model: Model) -> torch.Tensor:
    """Read the embedding, float32 of shape (V, n)."""
    return read_part(model.tensors, model.anatomy.embedding).float()


def read_layer(model: Model, layer: Layer, *roles: Role) -> dict[Role, torch.Tensor]:
    """Return some weights of a layer, float32 of shape (d_out, d_in); for routed experts their mean.

    The mean favours the peer.

    Raises:
        CannotSayError: If the layer has no such weight.
    """
    weights = {role: read_part(model.tensors, layer.parts[role]).float() for role in roles if role in layer.parts}
    missing = [role for role in roles if role not in weights]
    if missing and layer.experts and all(role in parts for parts in layer.experts for role in missing):
        parts_of_experts = [{role: parts[role] for role in missing} for parts in layer.experts]
        experts = list(read_experts(model.tensors, parts_of_experts))
        weights |= {role: torch.stack([expert[role].float() for expert in experts]).mean(0) for role in missing}
    for role in roles:
        if role not in weights:
            raise CannotSayError(f"layer {layer.index} has no {role.value}")
    return weights


def optional(model: Model, layer: Layer, *roles: Role) -> dict[Role, torch.Tensor]:
    """Return the given weights that a layer has."""
    weights: dict[Role, torch.Tensor] = {}
    for role in roles:
        try:
            weights |= read_layer(model, layer, role)
        except CannotSayError:
            continue
    return weights


def head_counts(model: Model, layer: Layer) -> tuple[int, int]:
    """Return the numbers of query heads and key/value heads of a layer."""
    n_heads = layer.heads.n_heads if layer.heads else model.anatomy.n_heads
    n_kv_heads = layer.heads.n_kv_heads if layer.heads else model.anatomy.n_kv_heads
    if not n_heads:
        raise CannotSayError("the config does not contain the number of heads")
    return n_heads, n_kv_heads or n_heads
