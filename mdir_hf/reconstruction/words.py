"""A reconstruction in words."""

from __future__ import annotations

from mdir_hf.reconstruction.records import Reconstruction


def describe(reconstruction: Reconstruction) -> list[str]:
    """Summarise a reconstruction in a few lines."""
    stream = reconstruction.stream
    words = {
        "identity": "residual channels keep their places",
        "permutation": "residual channels are reordered",
        "signed_permutation": "residual channels are reordered and change signs",
        "rotation": "the residual stream is rotated",
        "channels": f"{stream.outer.n_candidate} of {stream.outer.n_reference} residual channels are kept",
    }
    scale = "" if stream.scale == 1.0 else f", scaled by {stream.scale:.6g}"
    lines = [f"{words[stream.outer.kind]}{scale}; relative residual {stream.residual:.2g}"]
    pairs = reconstruction.layer_map
    moved = sum(i != j for i, j in pairs)
    lines.append(
        f"{len(pairs)} of {len(reconstruction.layers)} layers have a partner; {moved} of them at another place"
    )
    heads = sum(layer.attention is not None and layer.attention.moves_heads for layer in reconstruction.layers)
    kinds = sorted(
        {
            f"{name}: {blocks.kind.replace('_', ' ')}"
            for layer in reconstruction.layers
            if layer.attention is not None
            for name, blocks in (("values", layer.attention.values), ("keys", layer.attention.keys))
            if blocks is not None
        }
    )
    lines.append(f"heads are reordered in {heads} layers; {', '.join(kinds)}" if kinds else "no heads were matched")
    neurons = [layer.mlp.neurons for layer in reconstruction.layers if layer.mlp is not None]
    if neurons:
        n_moved = sum(int((each.reference != each.candidate).sum()) for each in neurons)
        n_all = sum(len(each.reference) for each in neurons)
        factors = sorted({each.kind for each in neurons} - {"order"})
        lines.append(
            f"{n_moved:,} of {n_all:,} matched neurons moved" + (f"; with {', '.join(factors)}" if factors else "")
        )
    return lines
