"""Reconstruct the transformation from one model to another, and align one with the other.

The steps follow the paper: Algorithms 1 to 3, and the appendix "Solving All Transformations".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mdir_hf._version import __version__
from mdir_hf.comparison.api import named
from mdir_hf.comparison.layer_weights import layer_weights
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.comparison.tokens import common_tokens
from mdir_hf.errors import InputError, ReconstructionError
from mdir_hf.method.heads import HeadMap
from mdir_hf.method.inner_maps import BlockMap, Sides, fit_blocks, fit_heads, fit_planes
from mdir_hf.method.layer_weights import LayerWeights
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.planes import PlanePairing
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.processor import available_device, one_pool
from mdir_hf.reconstruction.mlps import (
    bias_name,
    carried_mlp,
    fit_experts,
    mlp_residuals,
    pair_gains,
    read_gains,
    relative_residual,
)
from mdir_hf.reconstruction.records import AttentionMap, MlpMap, NormGains, ReconstructedLayer, Reconstruction, describe
from mdir_hf.reconstruction.stream import find_stream, pair_layers
from mdir_hf.reconstruction.write import Written, inputs_digest, write_into
from mdir_hf.report import HomologyReport, Verdict
from mdir_hf.writing import Output

if TYPE_CHECKING:
    from transformers import PreTrainedModel


OnLayer = Callable[[int, int], None]
"""Callback that receives the number of finished layers and the total."""


def fit_reconstruction(
    reference: Comparable,
    candidate: Comparable,
    report: HomologyReport | None = None,
    *,
    seed: int = 0,
    on_layer: OnLayer | None = None,
) -> Reconstruction:
    """Find the transformation from an opened reference to an opened candidate.

    This reads the embeddings (or a sample of their rows) and all layers of both models, one layer at a time. If no
    report is given, the caller must have checked the verdict.

    Raises:
        ReconstructionError: If no map between the residual streams can be found.
        InputError: If the report is not homologous.
    """
    if report is not None and report.verdict is not Verdict.HOMOLOGOUS:
        raise InputError(
            f"there is no transformation to reconstruct: the verdict is {report.verdict.value}, expected homologous"
        )
    with one_pool():
        common, _ = common_tokens(reference, candidate)
        keeps_mean = _subtracts_mean(candidate)
        stream, residuals = find_stream(reference, candidate, common, seed=seed, keeps_mean=keeps_mean)
        ancestors = {j: i for i, j in pair_layers(reference, candidate, stream, report)}
        n_layers = len(candidate.anatomy.layers)
        layers = []
        for j in range(n_layers):
            if on_layer is not None:
                on_layer(j, n_layers)
            layers.append(_layer(reference, candidate, ancestors.get(j), j, stream, seed=seed))
        if on_layer is not None:
            on_layer(n_layers, n_layers)
        return Reconstruction(
            reference=reference.label,
            candidate=candidate.label,
            stream=stream,
            layers=tuple(layers),
            final_gain=_final_gain(reference, candidate, stream),
            residuals=residuals,
            version=__version__,
        )


def _subtracts_mean(model: PlacedTensors) -> bool:
    norms = [part for layer in model.anatomy.layers[:1] for role, part in layer.parts.items() if role.is_norm]
    if model.anatomy.final_norm is not None:
        norms.append(model.anatomy.final_norm)
    return any(bias_name(model, part) is not None for part in norms)


def _final_gain(reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap) -> NormGains | None:
    if candidate.anatomy.final_norm is None:
        return None
    is_tied = candidate.anatomy.unembedding is None and candidate.anatomy.tied
    return pair_gains(
        read_gains(reference, reference.anatomy.final_norm),
        read_gains(candidate, candidate.anatomy.final_norm),
        stream,
        must_stay=is_tied and stream.outer.kind != "rotation",
    )


def _layer(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    ancestor: int | None,
    position: int,
    stream: StreamMap,
    *,
    seed: int,
) -> ReconstructedLayer:
    gains = _gains(reference, candidate, ancestor, position, stream)
    if ancestor is None:
        return ReconstructedLayer(None, position, None, None, None, gains, {})
    first, second = layer_weights(reference, ancestor), layer_weights(candidate, position)
    residuals: dict[str, float] = {}
    attention = _attention(first, second, stream, residuals)
    mlp = None
    if first.mlp is not None and second.mlp is not None:
        carried = carried_mlp(first.mlp, stream)
        mlp = MlpMap(fit_neurons(carried, second.mlp, seed=seed), len(second.mlp.up))
        residuals.update(mlp_residuals(mlp, carried, second.mlp))
    layer = candidate.anatomy.layers[position]
    experts = None
    if layer.experts or layer.shared_experts:
        experts = fit_experts(reference, candidate, (ancestor, position), stream, residuals, seed=seed)
    return ReconstructedLayer(ancestor, position, attention, mlp, experts, gains, residuals)


def _gains(
    reference: PlacedTensors, candidate: PlacedTensors, ancestor: int | None, position: int, stream: StreamMap
) -> Mapping[str, NormGains]:
    parts = candidate.anatomy.layers[position].parts
    of_ancestor = {} if ancestor is None else reference.anatomy.layers[ancestor].parts
    return {
        role.value: pair_gains(read_gains(reference, of_ancestor.get(role)), read_gains(candidate, parts[role]), stream)
        for role in (Role.ATTENTION_NORM, Role.MLP_NORM, Role.SHARED_NORM)
        if role in parts
    }


def _attention(
    first: LayerWeights, second: LayerWeights, stream: StreamMap, residuals: dict[str, float]
) -> AttentionMap | None:
    """Match heads, fit values and keys, and add the residuals of q, k, v and o to ``residuals``."""
    counts = (first.n_kv_heads, second.n_kv_heads), (first.n_heads, second.n_heads)
    values = _sides(first, second, "v", "o", stream)
    keys = _sides(first, second, "k", "q", stream)
    if values is None and keys is None:
        return None
    layouts = _layouts(first, second)
    head_map = fit_heads(
        values, keys, n_kv_heads=counts[0], n_heads=counts[1], layouts=layouts, rotary_dim=second.rotary_dim
    )

    def fit_keys(x: Sides, y: Sides) -> BlockMap:
        if layouts is None:
            return fit_blocks(x, y)
        signs_only = first.qk_norm or second.qk_norm
        return fit_planes(x, y, layouts, rotary_dim=second.rotary_dim, signs_only=signs_only)

    has_same_groups = counts[1][0] * counts[0][1] == counts[1][1] * counts[0][0]
    value_map = _fit(values, head_map, fit_blocks) if has_same_groups else None
    key_map = _fit(keys, head_map, fit_keys) if has_same_groups else None
    attention = AttentionMap(
        head_map.kv_reference,
        head_map.kv_candidate,
        head_map.q_reference,
        head_map.q_candidate,
        second.n_kv_heads,
        second.n_heads,
        value_map,
        key_map,
        layouts,
        second.rotary_dim,
    )
    maps = {
        "q": attention.query_rows,
        "k": attention.key_rows,
        "v": attention.value_rows,
        "o": attention.output_rows,
    }
    for role, row_map in maps.items():
        x, y = _rows(first, role, stream), _rows(second, role, None)
        if x is not None and y is not None and x.shape[0] == y.shape[0]:
            residuals[role] = relative_residual(row_map.apply(y), x)
    return attention


def _fit(
    sides: tuple[Sides, Sides] | None, head_map: HeadMap, fit: Callable[[Sides, Sides], BlockMap]
) -> BlockMap | None:
    if sides is None:
        return None
    x = sides[0].select(head_map.kv_reference, head_map.q_reference)
    y = sides[1].select(head_map.kv_candidate, head_map.q_candidate)
    if x.single.shape[1] != y.single.shape[1] or x.grouped.shape[2] != x.single.shape[1]:
        return None
    return fit(x, y)


def _layouts(first: LayerWeights, second: LayerWeights) -> tuple[PlanePairing, PlanePairing] | None:
    if "none" in (first.rope, second.rope):
        return None
    layouts = tuple("half" if layer.rope == "unknown" else layer.rope for layer in (first, second))
    return layouts  # type: ignore[return-value]


def _rows(layer: LayerWeights, role: str, stream: StreamMap | None) -> torch.Tensor | None:
    """Return the rows of q, k, v or o^T, mapped into the candidate's stream if ``stream`` is given."""
    rows = layer.inner_rows(role, None if stream is None else stream.outer)  # type: ignore[arg-type]
    if rows is None or stream is None or role != "o":
        return rows
    return rows * stream.scale


def _sides(
    first: LayerWeights, second: LayerWeights, single: str, grouped: str, stream: StreamMap
) -> tuple[Sides, Sides] | None:
    rows = [(_rows(layer, single, s), _rows(layer, grouped, s)) for layer, s in ((first, stream), (second, None))]
    if any(part is None for pair in rows for part in pair):
        return None
    sides = [
        Sides.of(pair[0], pair[1], layer.n_kv_heads, layer.n_heads)  # type: ignore[arg-type]
        for pair, layer in zip(rows, (first, second), strict=True)
    ]
    return sides[0], sides[1]


OnPart = Callable[[str, int, int], None]
"""Callback that receives the unit (``layers`` or ``bytes``), the number done, and the total."""


RESULT = "align.json"
"""Name of the file with the result in the folder of an aligned model."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """An aligned model.

    Attributes:
        report: The report of the preceding comparison.
        reconstruction: The transformation.
        written: The files, and the share of each tensor that the reference explains.
    """

    report: HomologyReport
    reconstruction: Reconstruction
    written: Written

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``align.json``, which ``mdir-hf align --json`` prints."""
        reconstruction = self.reconstruction
        return {
            "schema": "mdir-hf/align/1",
            "reference": reconstruction.reference,
            "candidate": reconstruction.candidate,
            "output": str(self.written.folder),
            "n_bytes": self.written.n_bytes,
            "log10_p": self.report.log10_p,
            "stream": {
                "kind": reconstruction.stream.outer.kind,
                "scale": reconstruction.stream.scale,
                "residual": reconstruction.stream.residual,
            },
            "layers": [list(pair) for pair in reconstruction.layer_map],
            "description": describe(reconstruction),
            "explained": {tensor.name: tensor.share for tensor in self.written.explained},
            "notes": list(self.written.notes),
        }


def reconstruct(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    *,
    report: HomologyReport | None = None,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    on_part: OnPart | None = None,
) -> Reconstruction:
    """Reconstruct the transformation that takes one model to another.

    Args:
        reference: One model, as in :func:`mdir_hf.compare`.
        candidate: The other model.
        report: A report on the two models. By default, they are compared first.
        settings: Settings of that comparison; the seed is also used for the reconstruction.
        reading: Options for opening repositories.
        on_part: Called for each layer.

    Returns:
        The transformation. All layers of both models are read.

    Raises:
        ReconstructionError: If the models are not homologous or no map between their residual streams can be found.
    """
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        models = open_both(named(reference, {}), named(candidate, {}), reading, ledger)
        report = _compared(models, report, settings, ledger)
        return _fitted(models, report, settings, on_part)


def align(
    reference: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    candidate: str | os.PathLike[str] | PreTrainedModel | NamedModel,
    output: str | os.PathLike[str],
    *,
    report: HomologyReport | None = None,
    settings: Settings = Settings(),
    reading: Reading = Reading(),
    full_rotation: bool = False,
    restart: bool = False,
    on_part: OnPart | None = None,
) -> Aligned:
    """Write the candidate's weights in the reference's basis, preserving the logits.

    The files appear together when all are whole. After a kill, the same call continues from the last whole shard.

    Args:
        reference: One model, as in :func:`mdir_hf.compare`.
        candidate: The other model.
        output: Folder for the aligned model, the transformation and ``align.json``. It must be empty or new, or hold
            what a killed run of the same call left.
        report: A report on the two models. By default, they are compared first.
        settings: Settings of that comparison.
        reading: Options for opening repositories.
        full_rotation: Whether to save a rotation in float64, however large.
        restart: Start again, and replace an earlier result of this function in ``output``.
        on_part: Called after each layer and each written tensor.

    Raises:
        ReconstructionError: If the models are not homologous or the candidate cannot be aligned exactly.
        CompleteOutputError: If the aligned model is there already, and ``restart`` is not set.
        MdirError: If the files cannot be read or written.
    """
    ledger = IoLedger()
    with ledger.limited(settings.max_bytes):
        models = open_both(named(reference, {}), named(candidate, {}), reading, ledger)
        options = {name: getattr(settings, name) for name in ("level", "alpha", "seed")}
        inputs = inputs_digest(*models, **options, full_rotation=full_rotation)
        with Output(Path(output), inputs, restart=restart) as place:
            report = _compared(models, report, settings, ledger)
            reconstruction = _fitted(models, report, settings, on_part)
            written = write_into(
                place,
                models[1],
                reconstruction,
                reference=models[0],
                full_rotation=full_rotation,
                on_bytes=None if on_part is None else lambda n_done, n_total: on_part("bytes", n_done, n_total),
            )
            aligned = Aligned(report, reconstruction, written)
            place.put(RESULT, (json.dumps(aligned.to_dict(), indent=2) + "\n").encode())
            place.finish()
    return aligned


def _compared(
    models: tuple[Model, Model], report: HomologyReport | None, settings: Settings, ledger: IoLedger
) -> HomologyReport:
    first, second = models
    if report is None:
        watch = Watch(ledger, Listeners(progress=False), from_start=True)
        with watch.listening():
            device = available_device(settings.device)
            report = compare_models(first, second, replace(settings, device=device), watch)
    if report.verdict is not Verdict.HOMOLOGOUS:
        raise ReconstructionError(
            f"the verdict is {report.verdict.value}; only homologous models have a transformation to reconstruct "
            "(--level layers describes them)",
            subject=f"{first.label} and {second.label}",
        )
    return report


def _fitted(
    models: tuple[Model, Model], report: HomologyReport, settings: Settings, on_part: OnPart | None
) -> Reconstruction:
    return fit_reconstruction(
        *models,
        report,
        seed=settings.seed,
        on_layer=None if on_part is None else lambda n_done, n_total: on_part("layers", n_done, n_total),
    )
