"""State-space mixers, gated convolutions, and the hybrids that have them in some layers.

The input of such a mixer, what multiplies its output, and its output projection have roles of their own, so that layers
of a hybrid are compared with layers of their kind.
"""

from __future__ import annotations

from typing import Literal

from ..roles import WHOLE, FusedRows, Layout, Role
from ..rows import GATE_THEN_UP, LayerRow, rows_in_folder

_ATTENTION = (Role.Q, Role.K, Role.V, Role.O)
_GATED_MLP = (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))
_DENSE_OR_EXPERT: tuple[tuple[str, Literal["numbered"] | None], ...] = (
    ("", None),
    (r"experts\.(?P<expert>\d{1,4})\.", "numbered"),
)


def _of_in_proj(folder: str, model_types: frozenset[str], parts: tuple[tuple[Role, Layout], ...]) -> LayerRow:
    return LayerRow(rf"{folder}\.in_proj\.weight", parts, model_types=model_types)


def _gate_then_input(width: str, state: str, heads: str) -> tuple[tuple[Role, Layout], ...]:
    """Mamba-2: z|x|B|C|dt, z and x as wide as the mixer, B and C a state for each group."""
    shares = (width, width, state, state, heads)
    return ((Role.MIXER_GATE, FusedRows(1, shares, 0)), (Role.SSM_IN, FusedRows(1, shares, 1)))


_MAMBA = frozenset({"mamba", "falcon_mamba"})
_MAMBA2 = frozenset({"mamba2"})
_OF_MAMBA_ALONE = _MAMBA | _MAMBA2
_NEMOTRON = frozenset({"nemotron_h"})
_LFM2 = frozenset({"lfm2", "lfm2_moe", "lfm3"})
_GRIFFIN = frozenset({"recurrent_gemma"})
_FEEDING_FORWARD = frozenset({"jamba", "bamba", "falcon_h1"})
_GRANITE = frozenset({"granitemoehybrid", "granitemoeshared", "granitemoe_swa"})

_INPUT_THEN_GATE = ((Role.SSM_IN, FusedRows(1, (1, 1), 0)), (Role.MIXER_GATE, FusedRows(1, (1, 1), 1)))
_IN_TURNS = ((Role.SSM_IN, FusedRows("rows", (1, 1), 0)), (Role.MIXER_GATE, FusedRows("rows", (1, 1), 1)))
_BY_EXPANSION = _gate_then_input("mamba_expand*hidden_size", "mamba_n_groups*mamba_d_state", "mamba_n_heads")

ROWS: tuple[LayerRow, ...] = (
    _of_in_proj("mixer", _MAMBA, _INPUT_THEN_GATE),
    _of_in_proj("mamba", frozenset({"jamba"}), _INPUT_THEN_GATE),
    _of_in_proj(r"(?:mamba_decoder\.)?mamba", frozenset({"zamba"}), _IN_TURNS),
    _of_in_proj("mixer", _MAMBA2, _gate_then_input("num_heads*head_dim", "n_groups*state_size", "num_heads")),
    _of_in_proj(
        "mixer",
        _NEMOTRON,
        _gate_then_input("mamba_num_heads*mamba_head_dim", "n_groups*ssm_state_size", "mamba_num_heads"),
    ),
    _of_in_proj("mamba", frozenset({"bamba", "granitemoehybrid"}), _BY_EXPANSION),
    _of_in_proj(
        "mamba",
        frozenset({"falcon_h1"}),
        _gate_then_input("mamba_d_ssm", "mamba_n_groups*mamba_d_state", "mamba_n_heads"),
    ),
    _of_in_proj(
        r"(?:mamba_decoder\.)?mamba",
        frozenset({"zamba2"}),
        _gate_then_input("mamba_expand*hidden_size", "mamba_ngroups*mamba_d_state", "n_mamba_heads"),
    ),
    LayerRow(
        r"(?:mixer|(?:mamba_decoder\.)?mamba)\.out_proj\.weight",
        ((Role.SSM_OUT, WHOLE),),
        beside=r"(?:mixer|(?:mamba_decoder\.)?mamba)\.A_log",
    ),
    LayerRow(r"norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_OF_MAMBA_ALONE),
    LayerRow(
        r"mamba_decoder\.input_layernorm\.weight",
        ((Role.ATTENTION_NORM, WHOLE),),
        model_types=frozenset({"zamba", "zamba2"}),
    ),
    # Griffin's recurrent block.
    *rows_in_folder(
        {"linear_x": Role.SSM_IN, "linear_y": Role.MIXER_GATE, "linear_out": Role.SSM_OUT},
        folder="temporal_block",
        model_types=_GRIFFIN,
    ),
    *(
        LayerRow(rf"temporal_block\.{name}_proj\.weight", ((role, WHOLE),), model_types=_GRIFFIN)
        for name, role in zip("qkvo", _ATTENTION, strict=True)
    ),
    *(
        LayerRow(rf"mlp_block\.{name}_proj\.weight", ((role, WHOLE),), model_types=_GRIFFIN)
        for name, role in _GATED_MLP
    ),
    LayerRow(r"temporal_pre_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_GRIFFIN),
    LayerRow(r"channel_pre_norm\.weight", ((Role.MLP_NORM, WHOLE),), model_types=_GRIFFIN),
    # LFM2: B|C|x, out(C * conv(B * x)).
    LayerRow(
        r"conv\.in_proj\.weight",
        ((Role.MIXER_GATE, FusedRows(1, (1, 1, 1), 1)), (Role.SSM_IN, FusedRows(1, (1, 1, 1), 2))),
        model_types=_LFM2,
    ),
    LayerRow(r"conv\.out_proj\.weight", ((Role.SSM_OUT, WHOLE),), model_types=_LFM2),
    LayerRow(r"self_attn\.out_proj\.weight", ((Role.O, WHOLE),), model_types=_LFM2),
    LayerRow(r"self_attn\.q_layernorm\.weight", ((Role.Q_NORM, WHOLE),), model_types=_LFM2),
    LayerRow(r"self_attn\.k_layernorm\.weight", ((Role.K_NORM, WHOLE),), model_types=_LFM2),
    LayerRow(r"operator_norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_LFM2),
    LayerRow(r"ffn_norm\.weight", ((Role.MLP_NORM, WHOLE),), model_types=_LFM2),
    *(
        LayerRow(rf"feed_forward\.{expert}{name}\.weight", ((role, WHOLE),), model_types=_LFM2, experts=kind)
        for expert, kind in _DENSE_OR_EXPERT
        for name, role in (("w1", Role.GATE), ("w3", Role.UP), ("w2", Role.DOWN))
    ),
    LayerRow(
        r"feed_forward\.gate\.weight",
        ((Role.ROUTER, WHOLE),),
        model_types=_LFM2,
        beside=r"feed_forward\.experts\.\d+\..+",
    ),
    # Jamba, Bamba and Falcon-H1: an MLP, or experts, beside each mixer.
    *(
        LayerRow(
            rf"feed_forward\.{expert}{name}_proj\.weight", ((role, WHOLE),), model_types=_FEEDING_FORWARD, experts=kind
        )
        for expert, kind in _DENSE_OR_EXPERT
        for name, role in _GATED_MLP
    ),
    # Granite: the shared MLP is an expert beside others, and the MLP of a layer that has none.
    *(
        LayerRow(
            r"shared_mlp\.input_linear\.weight",
            GATE_THEN_UP,
            model_types=_GRANITE,
            beside=r"block_sparse_moe\..+" if kind else None,
            experts=kind,
        )
        for kind in ("shared", None)
    ),
    *(
        LayerRow(
            r"shared_mlp\.output_linear\.weight",
            ((Role.DOWN, WHOLE),),
            model_types=_GRANITE,
            beside=r"block_sparse_moe\..+" if kind else None,
            experts=kind,
        )
        for kind in ("shared", None)
    ),
    LayerRow(r"block_sparse_moe\.input_linear\.weight", GATE_THEN_UP, model_types=_GRANITE, experts="stacked"),
    LayerRow(
        r"block_sparse_moe\.output_linear\.weight", ((Role.DOWN, WHOLE),), model_types=_GRANITE, experts="stacked"
    ),
    # Nemotron-H: one mixer in a layer, an MLP, attention or a state space, behind one norm.
    *rows_in_folder(
        {"q_proj": Role.Q, "k_proj": Role.K, "v_proj": Role.V, "o_proj": Role.O}, folder="mixer", model_types=_NEMOTRON
    ),
    *rows_in_folder({"up_proj": Role.UP, "down_proj": Role.DOWN}, folder="mixer", model_types=_NEMOTRON),
    *(
        LayerRow(
            rf"mixer\.{folder}\.{name}_proj\.weight",
            ((role, WHOLE),),
            model_types=_NEMOTRON,
            experts="shared" if folder == "shared_experts" else "numbered",
        )
        for folder in (r"experts\.(?P<expert>\d{1,4})", "shared_experts")
        for name, role in (("up", Role.UP), ("down", Role.DOWN))
    ),
    LayerRow(r"mixer\.gate\.weight", ((Role.ROUTER, WHOLE),), model_types=_NEMOTRON, beside=r"mixer\.experts\.\d+\..+"),
    LayerRow(
        r"norm\.weight",
        ((Role.MLP_NORM, WHOLE),),
        model_types=_NEMOTRON,
        beside=r"mixer\.(?:experts\..+|up_proj\.weight)",
    ),
    LayerRow(r"norm\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=_NEMOTRON),
)
