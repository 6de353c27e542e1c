"""One map of layers by itself, as most tests want it."""

from __future__ import annotations

from mdir_hf.method import layer_map


def map_layers(reference, candidate, **options) -> layer_map.LayerMap:
    (found,) = layer_map.map_layers([(reference, candidate)], **options)
    return found
