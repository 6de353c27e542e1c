"""Mixtures of experts: routed experts, shared experts and routers."""

from __future__ import annotations

from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import GATE_AND_UP_IN_TURNS, GATE_THEN_UP, GATED_MLP, NUMBER, LayerRow, named, rows

# Files written with save_original_format=False have the stacked names of the module.
_STACKED_IN_MODULES = {
    *("mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "olmoe"),
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "ernie4_5_moe"),
    *("hunyuan_v1_moe", "granitemoe", "granitemoehybrid", "granitemoeshared", "granitemoe_swa", "inkling_text"),
    *("minimax", "minimax_m2", "minimax_m3_vl_text", "zaya", "hy_v3", "hy_v4", "afmoe", "axk1", "axk2"),
    *("bailing_hybrid", "cohere2_moe", "dots1", "dots3_note_text", "exaone_moe", "flex_olmo", "jamba"),
    *("kimi_linear", "kolibri1", "laguna", "lfm2_moe", "mellum", "mimo_v2_flash", "nemotron_h", "qwen4_exp_text"),
    *("solar_open", "inkling2_text", "deepseek_v4", "mistral4", "mistral_large4_text", "muse_spark_text"),
}
_STACK = r"(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts"
# Granite's and JetMoE's experts process sorted tokens one after the other.
_PARALLEL = {"granitemoe", "granitemoeshared", "granitemoehybrid", "jetmoe"}
_INKLING = {"inkling_text", "inkling2_text"}
_GEMMA4 = {"gemma4_text", "gemma4_unified_text"}
_FIRST_STACKS = {"llama4_text", "aria_text"}

_ROUTERS = (
    ("block_sparse_moe", "(?:gate|router)", "experts"),
    ("(?:block_sparse_moe|mlp)", r"router\.layer", "input_linear"),
    ("ffn", r"(?:router\.layer|gate)", "experts"),
    ("mlp", r"(?:gate|gate\.wg|router|router\.gate)", "experts"),
    ("feed_forward", "router", "experts"),
    (r"mlp\.deepspeed_moe", r"gate\.wg", "experts"),
)
"""Patterns for a router's folder, and for the router and experts in it."""

ROWS: tuple[LayerRow, ...] = (
    # Mixtral: w1 is gate, w3 up, w2 down.
    *rows(named(rf"block_sparse_moe\.experts\.{NUMBER}\.%s", "w1 w3 w2", GATED_MLP), experts="numbered"),
    # Stored separately; Llama 4 and Gemma 4 stack them, and quantisers split the stacks.
    *rows(
        {rf"mlp\.experts\.{NUMBER}\.gate_up_proj": GATE_AND_UP_IN_TURNS},
        {"gpt_oss"},
        experts="numbered",
    ),
    *rows({rf"mlp\.experts\.gate_up_projs\.{NUMBER}": GATE_AND_UP_IN_TURNS}, {"gpt_oss"}, experts="numbered"),
    *rows({rf"mlp\.experts\.down_projs\.{NUMBER}": Role.DOWN}, {"gpt_oss"}, experts="numbered"),
    *rows(
        named(
            rf"(?:(?:mlp|feed_forward|moe|block_sparse_moe)\.)?experts\.{NUMBER}\.%s_proj", "gate up down", GATED_MLP
        ),
        experts="numbered",
    ),
    *rows(
        {
            rf"block_sparse_moe\.experts\.{NUMBER}\.input_linear": GATE_THEN_UP,
            rf"block_sparse_moe\.experts\.{NUMBER}\.output_linear": Role.DOWN,
        },
        _PARALLEL,
        experts="numbered",
    ),
    # LLaMA-MoE splits the MLP of a dense model into experts; MoE-LLaVA uses DeepSpeed's.
    *rows(
        named(rf"mlp\.calculator\.experts\.weight_%s\.{NUMBER}", "gate up down", GATED_MLP),
        ending="",
        experts="numbered",
    ),
    *rows(
        named(rf"mlp\.deepspeed_moe\.experts\.deepspeed_experts\.{NUMBER}\.%s_proj", "gate up down", GATED_MLP),
        experts="numbered",
    ),
    *rows(
        named(r"(?:mlp|feed_forward)\.shared_(?:experts?|mlp)\.%s_proj", "gate up down", GATED_MLP), experts="shared"
    ),
    *rows(named(rf"ffn\.experts\.{NUMBER}\.%s", "w1 w3 w2", GATED_MLP), {"deepseek_v4"}, experts="numbered"),
    *rows(named(r"ffn\.shared_experts\.%s", "w1 w3 w2", GATED_MLP), {"deepseek_v4"}, experts="shared"),
    # gpt-oss: stored (d_in, d_out), gate and up interleaved. Llama-4 and Aria: gate before up. Not Qwen3-VL: its first
    # files are stored like this and files written by transformers 5 are not, under the same names.
    *rows(
        {r"mlp\.experts\.gate_up_proj": GATE_AND_UP_IN_TURNS},
        {"gpt_oss"},
        ending="",
        transposed=True,
        experts="stacked",
    ),
    *rows(
        {r"(?:mlp|feed_forward)\.experts\.(?:gate_up_proj|fc1\.weight)": GATE_THEN_UP},
        _FIRST_STACKS,
        ending="",
        transposed=True,
        experts="stacked",
    ),
    *rows(
        {r"(?:mlp|feed_forward)\.experts\.(?:down_proj|fc2\.weight)": Role.DOWN},
        {"gpt_oss"} | _FIRST_STACKS,
        ending="",
        transposed=True,
        experts="stacked",
    ),
    # Qwen3-VL: stored (d_in, d_out) on the Hub, and (d_out, d_in) by transformers from version 5 on.
    *rows(
        {r"mlp\.experts\.gate_up_proj": GATE_THEN_UP, r"mlp\.experts\.down_proj": Role.DOWN},
        {"qwen3_vl_moe_text"},
        ending="",
        transposed=None,
        experts="stacked",
    ),
    # DBRX: all experts in one matrix; down is stored (neurons, d_model).
    *rows(named(r"ffn\.experts\.mlp\.%s", "w1 v1", (Role.GATE, Role.UP)), {"dbrx"}, ending="", experts="below"),
    *rows({r"ffn\.experts\.mlp\.w2": Role.DOWN}, {"dbrx"}, ending="", transposed=True, experts="below"),
    # Inkling: interleaved as in gpt-oss, not transposed, and with several shared experts.
    *rows(
        {r"mlp\.experts\.w13_weight": GATE_AND_UP_IN_TURNS, r"mlp\.experts\.w2_weight": Role.DOWN},
        _INKLING,
        ending="",
        experts="stacked",
    ),
    *rows(
        named(r"mlp\.shared_experts\.%s_proj", "gate up down", GATED_MLP),
        _INKLING,
        ending="",
        experts="stacked shared",
    ),
    # Shared experts with other names: HY-V4, MiniMax-M3.
    *rows({r"mlp\.shared_experts\.linear_gate": Role.GATE}, {"hy_v4"}, experts="shared"),
    *rows({r"mlp\.shared_experts\.gate_up_proj": GATE_THEN_UP}, {"minimax_m3_vl_text"}, experts="shared"),
    # Granite and JetMoE, names in files; then the modules' names of the stacks.
    *rows(
        {
            r"(?:block_sparse_moe|mlp)\.input_linear": GATE_THEN_UP,
            r"(?:block_sparse_moe|mlp)\.output_linear": Role.DOWN,
        },
        _PARALLEL,
        experts="stacked",
    ),
    *rows(
        {r"(?:moe\.)?experts\.gate_up_proj": GATE_THEN_UP, r"(?:moe\.)?experts\.down_proj": Role.DOWN},
        _GEMMA4,
        ending="",
        experts="stacked",
    ),
    *rows({rf"{_STACK}\.gate_up_proj": GATE_THEN_UP}, _STACKED_IN_MODULES, ending="", experts="stacked"),
    *rows({rf"{_STACK}\.up_proj": Role.UP}, {"nemotron_h"}, ending="", experts="stacked"),
    *rows({rf"{_STACK}\.down_proj": Role.DOWN}, _STACKED_IN_MODULES, ending="", experts="stacked"),
    *rows({r"router\.proj": Role.ROUTER}, _GEMMA4),
    *(
        row
        for folder, name, experts in _ROUTERS
        for row in rows({rf"{folder}\.{name}": Role.ROUTER}, beside=rf"{folder}\.({experts})\..+")
    ),
)
