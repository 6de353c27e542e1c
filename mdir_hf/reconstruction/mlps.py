"""MLPs of two models in one residual stream, and what a matching of their neurons leaves unexplained."""

from __future__ import annotations

import torch

from mdir_hf.method.neurons import MlpWeights
from mdir_hf.method.row_map import RowMap
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.reconstruction.records import MlpMap


def carried_mlp(mlp: MlpWeights, stream: StreamMap) -> MlpWeights:
    """Carry an MLP of the reference into the candidate's residual stream, the scale of the stream included."""
    carried = mlp.carried(stream.outer)
    return MlpWeights(carried.up, carried.down * stream.scale, carried.gate)


def relative_residual(aligned: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ``|W_aligned - W_reference|_F / |W_aligned|_F``."""
    return float((aligned - reference).norm() / aligned.norm().clamp(min=torch.finfo(aligned.dtype).tiny))


def mlp_residuals(found: MlpMap, first: MlpWeights, second: MlpWeights) -> dict[str, float]:
    """Return the relative residuals of gate, up and down over the matched neurons, by role."""
    k, matched = len(found.neurons.reference), torch.from_numpy(found.neurons.reference)

    def residual(row_map: RowMap, rows: torch.Tensor, other: torch.Tensor) -> float:
        return relative_residual(row_map.apply(rows)[:k], other[matched])

    residuals = {
        "up": residual(found.up_rows, second.up, first.up),
        "down": residual(found.down_rows, second.down.T, first.down.T),
    }
    if first.gate is not None and second.gate is not None:
        residuals["gate"] = residual(found.gate_rows, second.gate, first.gate)
    return residuals
