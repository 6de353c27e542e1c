"""Mixtures of experts: routed, shared, and the router."""

from __future__ import annotations

from collections.abc import Iterable

from ..roles import WHOLE, Layout, Role
from ..rows import GATE_THEN_UP, ExpertStorage, LayerRow, fused_rows

_Parts = tuple[tuple[Role, Layout], ...]

_GATED = (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))
_UP: _Parts = ((Role.UP, WHOLE),)
_DOWN: _Parts = ((Role.DOWN, WHOLE),)
_IN_TURNS = fused_rows((Role.GATE, Role.UP), "rows", (1, 1))

# Files written with save_original_format=False have the stacked names of the module.
_STACKED_IN_MODULES = frozenset(
    {
        *("mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "olmoe"),
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "ernie4_5_moe"),
        *("hunyuan_v1_moe", "granitemoe", "granitemoehybrid", "granitemoeshared", "granitemoe_swa", "inkling_text"),
        *("minimax", "minimax_m2", "minimax_m3_vl_text", "zaya", "hy_v3", "hy_v4", "afmoe", "axk1", "axk2"),
        *("bailing_hybrid", "cohere2_moe", "dots1", "dots3_note_text", "exaone_moe", "flex_olmo", "jamba"),
        *("kimi_linear", "kolibri1", "laguna", "lfm2_moe", "mellum", "mimo_v2_flash", "nemotron_h", "qwen4_exp_text"),
        *("solar_open", "inkling2_text", "deepseek_v4"),
    }
)
_STACK = r"(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts"
# Granite's and JetMoE's experts run one after the other on sorted tokens.
_PARALLEL = ("granitemoe", "granitemoeshared", "granitemoehybrid", "jetmoe")


def _stack(
    pattern: str,
    parts: _Parts,
    model_types: Iterable[str],
    *,
    transposed: bool | None = False,
    experts: ExpertStorage = "stacked",
) -> LayerRow:
    return LayerRow(pattern, parts, transposed=transposed, model_types=frozenset(model_types), experts=experts)


ROWS: tuple[LayerRow, ...] = (
    # Mixtral: w1 is gate, w3 up, w2 down.
    *(
        LayerRow(
            rf"block_sparse_moe\.experts\.(?P<expert>\d{{1,4}})\.{name}\.weight", ((role, WHOLE),), experts="numbered"
        )
        for name, role in (("w1", Role.GATE), ("w3", Role.UP), ("w2", Role.DOWN))
    ),
    *(
        LayerRow(rf"mlp\.experts\.(?P<expert>\d{{1,4}})\.{name}_proj\.weight", ((role, WHOLE),), experts="numbered")
        for name, role in _GATED
    ),
    *(
        LayerRow(
            rf"(?:mlp|feed_forward)\.shared_(?:experts?|mlp)\.{name}_proj\.weight", ((role, WHOLE),), experts="shared"
        )
        for name, role in _GATED
    ),
    *(
        LayerRow(
            rf"ffn\.experts\.(?P<expert>\d{{1,4}})\.{name}\.weight",
            ((role, WHOLE),),
            model_types=frozenset({"deepseek_v4"}),
            experts="numbered",
        )
        for name, role in (("w1", Role.GATE), ("w3", Role.UP), ("w2", Role.DOWN))
    ),
    *(
        _stack(rf"ffn\.shared_experts\.{name}\.weight", ((role, WHOLE),), ("deepseek_v4",), experts="shared")
        for name, role in (("w1", Role.GATE), ("w3", Role.UP), ("w2", Role.DOWN))
    ),
    # gpt-oss: stored (d_in, d_out), gate and up in turns. Llama-4 and Aria: gate before up. Not Qwen3-VL: its first
    # files are so, those that transformers 5 writes are not, and names do not tell.
    _stack(r"mlp\.experts\.gate_up_proj", _IN_TURNS, ("gpt_oss",), transposed=True),
    _stack(
        r"(?:mlp|feed_forward)\.experts\.(?:gate_up_proj|fc1\.weight)",
        GATE_THEN_UP,
        ("llama4_text", "aria_text"),
        transposed=True,
    ),
    _stack(
        r"(?:mlp|feed_forward)\.experts\.(?:down_proj|fc2\.weight)",
        _DOWN,
        ("gpt_oss", "llama4_text", "aria_text"),
        transposed=True,
    ),
    # Qwen3-VL: on the Hub stored (d_in, d_out), by transformers from version 5 on (d_out, d_in).
    _stack(r"mlp\.experts\.gate_up_proj", GATE_THEN_UP, ("qwen3_vl_moe_text",), transposed=None),
    _stack(r"mlp\.experts\.down_proj", _DOWN, ("qwen3_vl_moe_text",), transposed=None),
    # DBRX: all experts in one matrix; down is stored (neurons, d_model).
    _stack(r"ffn\.experts\.mlp\.w1", ((Role.GATE, WHOLE),), ("dbrx",), experts="below"),
    _stack(r"ffn\.experts\.mlp\.v1", _UP, ("dbrx",), experts="below"),
    _stack(r"ffn\.experts\.mlp\.w2", _DOWN, ("dbrx",), transposed=True, experts="below"),
    # Inkling: in turns as in gpt-oss, not transposed; and several shared experts.
    _stack(r"mlp\.experts\.w13_weight", _IN_TURNS, ("inkling_text", "inkling2_text")),
    _stack(r"mlp\.experts\.w2_weight", _DOWN, ("inkling_text", "inkling2_text")),
    *(
        _stack(
            rf"mlp\.shared_experts\.{name}_proj",
            ((role, WHOLE),),
            ("inkling_text", "inkling2_text"),
            experts="stacked shared",
        )
        for name, role in _GATED
    ),
    # Shared experts under other names: HY-V4, MiniMax-M3.
    _stack(r"mlp\.shared_experts\.linear_gate\.weight", ((Role.GATE, WHOLE),), ("hy_v4",), experts="shared"),
    _stack(r"mlp\.shared_experts\.gate_up_proj\.weight", GATE_THEN_UP, ("minimax_m3_vl_text",), experts="shared"),
    # Granite and JetMoE, in files; then what modules call their stacks.
    _stack(r"(?:block_sparse_moe|mlp)\.input_linear\.weight", GATE_THEN_UP, _PARALLEL),
    _stack(r"(?:block_sparse_moe|mlp)\.output_linear\.weight", _DOWN, _PARALLEL),
    _stack(rf"{_STACK}\.gate_up_proj", GATE_THEN_UP, _STACKED_IN_MODULES),
    _stack(rf"{_STACK}\.up_proj", _UP, ("nemotron_h",)),
    _stack(rf"{_STACK}\.down_proj", _DOWN, _STACKED_IN_MODULES),
    *(
        LayerRow(rf"{folder}\.{name}\.weight", ((Role.ROUTER, WHOLE),), beside=rf"{folder}\.({experts})\..+")
        for folder, name, experts in (
            ("block_sparse_moe", "(?:gate|router)", "experts"),
            ("(?:block_sparse_moe|mlp)", r"router\.layer", "input_linear"),
            ("ffn", r"(?:router\.layer|gate)", "experts"),
            ("mlp", r"(?:gate|gate\.wg|router|router\.gate)", "experts"),
            ("feed_forward", "router", "experts"),
        )
    ),
)
