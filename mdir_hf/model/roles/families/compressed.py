"""Names that compression methods write: wrapped weights, low-rank factors, rotations of the shortcuts.

Source: the modules that SVD-LLM, ASVD, QuaRot, SpinQuant and SliceGPT save.
"""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import ATTENTION, GATED_MLP, LayerRow, ProductRow, named, rows

SHORTCUTS = r"(?:attn|mlp)_shortcut_Q"
"""SliceGPT's matrices that turn the stream from the basis of one layer into the basis of the next."""

_PROJECTIONS: dict[str, Role] = {
    **dict(zip((r"self_attn\.q", r"self_attn\.k", r"self_attn\.v", r"self_attn\.o"), ATTENTION, strict=True)),
    **dict(zip((r"mlp\.gate", r"mlp\.up", r"mlp\.down"), GATED_MLP, strict=True)),
}

ROWS: tuple[LayerRow, ...] = (
    # QuaRot and SpinQuant wrap a weight to quantise its input; the weight itself is unchanged.
    *rows(named(r"self_attn\.%s_proj\.module", "q k v o", ATTENTION)),
    *rows(named(r"mlp\.%s_proj\.module", "gate up down", GATED_MLP)),
    *rows({SHORTCUTS: ()}, ending=""),
)

PRODUCT_ROWS: tuple[ProductRow, ...] = tuple(
    ProductRow(role, rf"{name}{left}\.weight", rf"{name}{right}\.weight", None)
    for name, role in _PROJECTIONS.items()
    for left, right in (
        (r"_u_proj", r"_v_proj"),  # SVD-LLM: U, then V
        (r"_proj\.ALinear", r"_proj\.BLinear"),  # ASVD
    )
)
