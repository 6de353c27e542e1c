"""Compute a single map of layers, as most tests need it."""

from __future__ import annotations

from mdir_hf.method import layer_map


def map_layers(reference, candidate, **options) -> layer_map.LayerMap:
    (found,) = layer_map.map_layers([(reference, candidate)], **options)
    return found
