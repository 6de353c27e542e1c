"""Measure stored files: bits per weight, types, and weights that still equal the base's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role, StoredWeight, read_part

N_ROWS = 512
"""Number of embedding rows compared with the base, spread evenly."""


def stored(folder: Path) -> dict[str, Any]:
    """Return the size of a model and the types of its matrices, using the package's own reader."""
    model = Model(open_repository(folder))
    specs = [model.tensors.spec(name) for name in model.tensors.names()]
    n_parameters = sum(math.prod(spec.shape) for spec in specs)
    return {
        "n_bytes": model.tensors.n_bytes,
        "n_parameters": n_parameters,
        "bits_per_weight": round(8 * model.tensors.n_bytes / n_parameters, 2),
        "embedding_type": model.tensors.spec(model.anatomy.embedding.tensor).dtype,
        "layers_type": _types_of_layers(model),
    }


def equal_to_base(folder: Path, base: Path) -> dict[str, bool]:
    """Return whether sampled weights equal the base's, number by number.

    The function compares some rows of the embedding, and values and up of the last layer whose number both models have.
    Matrices that differ in shape or are in only one model count as different.
    """
    model, origin = Model(open_repository(folder)), Model(open_repository(base))
    at = min(model.anatomy.n_layers, origin.anatomy.n_layers) - 1
    parts, origin_parts = (each.anatomy.layers[at].parts for each in (model, origin))
    rows = np.linspace(0, min(model.n_rows, origin.n_rows) - 1, N_ROWS).round().astype(np.int64)
    return {
        "embedding_equal": (model.n_rows, model.width) == (origin.n_rows, origin.width)
        and _are_equal(model, model.anatomy.embedding, origin, origin.anatomy.embedding, rows),
        "layers_equal": all(
            (role in parts) == (role in origin_parts)
            and (role not in parts or _are_equal(model, parts[role], origin, origin_parts[role]))
            for role in (Role.V, Role.UP)
        ),
    }


def _are_equal(
    model: Model,
    part: StoredWeight,
    origin: Model,
    part_of_origin: StoredWeight,
    rows: np.ndarray[Any, Any] | None = None,
) -> bool:
    return torch.equal(
        read_part(model.tensors, part, rows).float(), read_part(origin.tensors, part_of_origin, rows).float()
    )


def _types_of_layers(model: Model) -> str:
    names = {name for layer in model.anatomy.layers for _, part in layer.all_parts() for name in part.tensors}
    specs = [model.tensors.spec(name) for name in names]
    return ", ".join(sorted({spec.dtype for spec in specs if len(spec.shape) > 1}))
