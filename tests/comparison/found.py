"""Example results for a pair of matrices and for the layers, for tests of the verdict rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from mdir_hf.report import (
    LayerPattern,
    LayerRole,
    LayersResult,
    LookResult,
    MatrixResult,
    NumberingResult,
    PlaceboResult,
    Placebos,
    ResidualMap,
    SettledBy,
    Transformation,
    View,
)

Found = TypeVar("Found", MatrixResult, LayersResult)

SILENT = PlaceboResult(trace=1.0, threshold=10.0, log10_p=0.0, channels=64)

FOUND = MatrixResult(
    common_tokens=1000,
    rows_used=512,
    rank=1000,
    trace=400.0,
    threshold=10.0,
    normalized_trace=0.4,
    coverage=0.5,
    matched_channels=1000,
    off_match_channels=300,
    transformation=Transformation.IDENTITY,
    scale=1.0,
    view=View.CENTRED,
    log10_p=-217.0,
    log10_p_trimmed={"n/2": -43.0},
    placebo=Placebos(re_paired=SILENT, rotated=SILENT, privileged_basis_z=(0.0, 0.0)),
    looks=(LookResult(512, -217.0),),
    settled_by=SettledBy.SCREEN,
    widths=(64, 64),
    channels=64,
)
NOTHING = replace(FOUND, log10_p=0.0, settled_by=None)

LAYERS = LayersResult(
    role=LayerRole.V,
    residual_map=ResidualMap.IDENTITY,
    fitted_on=None,
    pattern=LayerPattern.IDENTITY,
    matches=(),
    log10_p=-217.0,
    log10_p_fisher=-217.0,
    related_layers_at_least=1,
    off_match_share=0.0,
    placebo_log10_p=0.0,
    reference_layers=(0,),
    candidate_layers=(0,),
    matrix=((-217.0,),),
    null="",
)


def changed(found: Found, **fields: Any) -> Found:
    """Change fields of a result, or values that the rules derive from them.

    Args:
        found: Result for a pair of matrices, or for the layers.
        fields: New values; for matrices also of ``strength``, ``off_match_share``, ``basis_z``, ``re_paired``
            (significant or not), ``log10_p_numbering`` and ``certain_share``.
    """
    if isinstance(found, MatrixResult):
        if "strength" in fields:
            fields["trace"] = fields.pop("strength") * found.rank
        if "off_match_share" in fields:
            fields["off_match_channels"] = round(fields.pop("off_match_share") * (found.matched_channels or 0))
        placebo = found.placebo
        assert placebo is not None
        if "basis_z" in fields:
            placebo = replace(placebo, privileged_basis_z=fields.pop("basis_z"))
        if "re_paired" in fields:
            placebo = replace(placebo, re_paired=replace(SILENT, log10_p=-9.0 if fields.pop("re_paired") else 0.0))
        numbering = {name: fields.pop(name) for name in ("log10_p_numbering", "certain_share") if name in fields}
        if numbering:
            known = found.numbering or NumberingResult(pairs=64, own_number=64, in_order=64, log10_p=0.0)
            fields["numbering"] = replace(
                known,
                log10_p=numbering.get("log10_p_numbering", known.log10_p),
                certain_share=numbering.get("certain_share", known.certain_share),
            )
        fields["placebo"] = placebo
    return replace(found, **fields)
