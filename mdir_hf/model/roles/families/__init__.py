"""Names of the tensors in a layer, with one module per group of families. Specific families come first.

Source: the modelling files of transformers 5.23.
"""

from __future__ import annotations

from mdir_hf.model.roles.families import decoders, encoders, experts, gguf, latent_attention, remote_code, state_space
from mdir_hf.model.roles.rows import LayerRow, ProductRow

LAYER_ROWS: tuple[LayerRow, ...] = (
    *latent_attention.ROWS,
    *remote_code.ROWS,
    *state_space.ROWS,
    *encoders.ROWS,
    *decoders.ROWS,
    *experts.ROWS,
    *gguf.ROWS,
)
"""Rows for the tensors of a layer. The first row that applies is used."""

PRODUCT_ROWS: tuple[ProductRow, ...] = (
    *latent_attention.PRODUCT_ROWS,
    *remote_code.PRODUCT_ROWS,
    *gguf.PRODUCT_ROWS,
    *state_space.PRODUCT_ROWS,
    *decoders.PRODUCT_ROWS,
)
"""Rows for weights stored as two factors, used for roles without a tensor of their own."""

__all__ = ["LAYER_ROWS", "PRODUCT_ROWS"]
