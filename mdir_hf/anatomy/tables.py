"""The naming of checkpoints, as data. A new model family is a new row here, never a branch in code.

Patterns are regular expressions that must match a whole name, after what is free: the prefix in front of the
embedding, the prefix and the number in front of a layer's tensor. Names are those of files, which differ from a
module's own names (fused experts, changed prefixes). Rows are tried in order and the first that applies counts, so
rows with ``model_types`` stand before general ones.

A wrong role is worse than none: a name that means different things in different families has a row for each family it
is known for, and for the others it stays unplaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .roles import WHOLE, FusedRows, Layout, Role


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """How a tensor outside of the layers may be called.

    Attributes:
        pattern: Matches the name after any prefix of whole components.
        model_types: Families it holds for; empty: any.
        at_root: Whether the name must have no prefix, because it is too short to tell anything.
    """

    pattern: str
    model_types: frozenset[str] = frozenset()
    at_root: bool = False


@dataclass(frozen=True, slots=True)
class LayerRow:
    """How a tensor of a layer may be called, and which weights it holds.

    Attributes:
        pattern: Matches the name after prefix and layer number.
        parts: Role and layout of each weight in it.
        transposed: Whether it is stored ``(d_in, d_out)``.
        model_types: Families it holds for; empty: any.
        beside: The row holds only in a layer that also has a tensor matching this.
        unless_beside: The row does not hold in a layer that has a tensor matching this.
        experts: ``numbered`` where it belongs to the routed expert whose number is the pattern's group ``expert``,
            ``stacked`` where it holds those of all routed experts, ``(n_experts, ..., ...)``, ``shared`` where it
            belongs to the expert that every token passes; None outside of experts.
    """

    pattern: str
    parts: tuple[tuple[Role, Layout], ...]
    transposed: bool = False
    model_types: frozenset[str] = frozenset()
    beside: str | None = None
    unless_beside: str | None = None
    experts: Literal["numbered", "stacked", "shared"] | None = None


_CONV1D = frozenset({"gpt2", "openai-gpt"})
_NEOX = frozenset({"gpt_neox"})
_GATE_THEN_UP = ((Role.GATE, FusedRows(1, (1, 1), 0)), (Role.UP, FusedRows(1, (1, 1), 1)))
# Files written with save_original_format=False have the stacked names of the module.
_STACKED_IN_MODULES = frozenset(
    {
        *("mixtral", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text", "olmoe"),
        *("deepseek_v2", "deepseek_v3", "glm4_moe", "ernie4_5_moe", "hunyuan_v1_moe"),
    }
)

EMBEDDING_ROWS: tuple[EdgeRow, ...] = (
    EdgeRow(r"local_encoder\.embed_tokens\.weight", frozenset({"blt"})),
    EdgeRow(r"w\.weight", frozenset({"ctrl"})),
    EdgeRow(r"embed_tokens\.weight"),
    EdgeRow(r"wte\.weight"),
    EdgeRow(r"word_embeddings\.weight"),
    EdgeRow(r"word_embedding\.weight"),
    EdgeRow(r"tok_embeddings\.weight"),
    EdgeRow(r"tokens_embed\.weight"),
    EdgeRow(r"token_embeddings?\.weight"),
    EdgeRow(r"embed_in\.weight"),
    EdgeRow(r"input_embedding\.weight"),
    EdgeRow(r"embeddings\.weight"),
    EdgeRow(r"embedding\.weight"),
    EdgeRow(r"shared\.weight"),
    EdgeRow(r"embed\.weight"),
    EdgeRow(r"emb\.weight"),
)
"""Input embedding, ``(d_vocab, d_model)``. Every ``get_input_embeddings`` of the causal models of transformers 5.23."""

UNEMBEDDING_ROWS: tuple[EdgeRow, ...] = (
    EdgeRow(r"lm_head\.weight"),
    EdgeRow(r"lm_head\.decoder\.weight"),
    EdgeRow(r"cls\.predictions\.decoder\.weight"),
    EdgeRow(r"generator_lm_head\.weight"),
    EdgeRow(r"embed_out\.weight"),
    EdgeRow(r"output_projection\.weight"),
    EdgeRow(r"output_layer\.weight"),
    EdgeRow(r"pred_layer\.proj\.weight"),
    EdgeRow(r"lm_loss\.weight"),
    EdgeRow(r"proj_out\.weight", at_root=True),
    EdgeRow(r"output\.weight", at_root=True),
    EdgeRow(r"head\.weight", at_root=True),
    EdgeRow(r"decoder\.weight", at_root=True),
)
"""Output head, ``(d_vocab, d_model)``. Every ``get_output_embeddings`` of the causal models of transformers 5.23."""

FINAL_NORM_ROWS: tuple[EdgeRow, ...] = (
    EdgeRow(r"norm\.weight"),
    EdgeRow(r"ln_f\.weight"),
    EdgeRow(r"final_layer_?norm\.weight"),
)
"""Norm in front of the head; searched in the folder of the layer stack only."""

LAYER_ROWS: tuple[LayerRow, ...] = (
    # GPT-2: Conv1D, stored (d_in, d_out); q|k|v contiguous along d_out.
    LayerRow(
        r"attn\.c_attn\.weight",
        tuple((role, FusedRows(1, (1, 1, 1), at)) for at, role in enumerate((Role.Q, Role.K, Role.V))),
        transposed=True,
        model_types=_CONV1D,
    ),
    LayerRow(r"attn\.c_proj\.weight", ((Role.O, WHOLE),), transposed=True, model_types=_CONV1D),
    LayerRow(r"mlp\.c_fc\.weight", ((Role.UP, WHOLE),), transposed=True, model_types=_CONV1D),
    LayerRow(r"mlp\.c_proj\.weight", ((Role.DOWN, WHOLE),), transposed=True, model_types=_CONV1D),
    LayerRow(r"ln_1\.weight", ((Role.ATTENTION_NORM, WHOLE),), model_types=frozenset({"gpt2"})),
    LayerRow(r"ln_2\.weight", ((Role.MLP_NORM, WHOLE),), model_types=frozenset({"gpt2"})),
    # GPT-NeoX: view(n_heads, 3, d_head, d_model).
    LayerRow(
        r"attention\.query_key_value\.weight",
        tuple((role, FusedRows("heads", (1, 1, 1), at)) for at, role in enumerate((Role.Q, Role.K, Role.V))),
        model_types=_NEOX,
    ),
    LayerRow(r"attention\.dense\.weight", ((Role.O, WHOLE),), model_types=_NEOX),
    LayerRow(r"mlp\.dense_h_to_4h\.weight", ((Role.UP, WHOLE),), model_types=_NEOX),
    LayerRow(r"mlp\.dense_4h_to_h\.weight", ((Role.DOWN, WHOLE),), model_types=_NEOX),
    # Phi-3: q|k|v and gate|up contiguous.
    LayerRow(
        r"self_attn\.qkv_proj\.weight",
        tuple(
            (role, FusedRows(1, ("heads", "kv_heads", "kv_heads"), at))
            for at, role in enumerate((Role.Q, Role.K, Role.V))
        ),
        model_types=frozenset({"phi3"}),
    ),
    LayerRow(
        r"mlp\.gate_up_proj\.weight",
        _GATE_THEN_UP,
        model_types=frozenset({"phi3", "glm", "glm4"}),
    ),
    # Qwen3-Next and Qwen3.5 put an output gate beside each query head.
    LayerRow(
        r"self_attn\.q_proj\.weight",
        ((Role.Q, FusedRows("heads", (1, 1), 0)),),
        model_types=frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}),
    ),
    # Llama and everything that took over its names.
    LayerRow(r"self_attn\.q_proj\.weight", ((Role.Q, WHOLE),)),
    LayerRow(r"self_attn\.k_proj\.weight", ((Role.K, WHOLE),)),
    LayerRow(r"self_attn\.v_proj\.weight", ((Role.V, WHOLE),)),
    LayerRow(r"self_attn\.o_proj\.weight", ((Role.O, WHOLE),)),
    LayerRow(r"mlp\.gate_proj\.weight", ((Role.GATE, WHOLE),)),
    LayerRow(r"mlp\.up_proj\.weight", ((Role.UP, WHOLE),)),
    LayerRow(r"mlp\.down_proj\.weight", ((Role.DOWN, WHOLE),)),
    LayerRow(r"self_attn\.q_norm\.weight", ((Role.Q_NORM, WHOLE),)),
    LayerRow(r"self_attn\.k_norm\.weight", ((Role.K_NORM, WHOLE),)),
    LayerRow(r"input_layernorm\.weight", ((Role.ATTENTION_NORM, WHOLE),)),
    LayerRow(r"pre_(feedforward|mlp|ff)_layernorm\.weight", ((Role.MLP_NORM, WHOLE),)),
    # The norm of this name stands in front of the MLP in Llama, and behind attention in Gemma-2 and OLMo-2.
    LayerRow(
        r"post_attention_layernorm\.weight",
        ((Role.MLP_NORM, WHOLE),),
        beside=r"input_layernorm\.weight",
        unless_beside=r"pre_(feedforward|mlp|ff)_layernorm\.weight",
    ),
    # Mixtures of experts. Mixtral: w1 is gate, w3 up, w2 down.
    *(
        LayerRow(
            rf"block_sparse_moe\.experts\.(?P<expert>\d{{1,4}})\.{name}\.weight", ((role, WHOLE),), experts="numbered"
        )
        for name, role in (("w1", Role.GATE), ("w3", Role.UP), ("w2", Role.DOWN))
    ),
    *(
        LayerRow(rf"mlp\.experts\.(?P<expert>\d{{1,4}})\.{name}_proj\.weight", ((role, WHOLE),), experts="numbered")
        for name, role in (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))
    ),
    *(
        LayerRow(
            rf"(?:mlp|feed_forward)\.shared_(?:experts?|mlp)\.{name}_proj\.weight", ((role, WHOLE),), experts="shared"
        )
        for name, role in (("gate", Role.GATE), ("up", Role.UP), ("down", Role.DOWN))
    ),
    # gpt-oss: stored (d_in, d_out), gate and up in turns.
    LayerRow(
        r"mlp\.experts\.gate_up_proj",
        ((Role.GATE, FusedRows("rows", (1, 1), 0)), (Role.UP, FusedRows("rows", (1, 1), 1))),
        transposed=True,
        model_types=frozenset({"gpt_oss"}),
        experts="stacked",
    ),
    # Llama-4: stored (d_in, d_out), gate before up.
    LayerRow(
        r"feed_forward\.experts\.gate_up_proj",
        _GATE_THEN_UP,
        transposed=True,
        model_types=frozenset({"llama4_text"}),
        experts="stacked",
    ),
    LayerRow(
        r"(?:mlp|feed_forward)\.experts\.down_proj",
        ((Role.DOWN, WHOLE),),
        transposed=True,
        model_types=frozenset({"gpt_oss", "llama4_text"}),
        experts="stacked",
    ),
    LayerRow(r"mlp\.experts\.gate_up_proj", _GATE_THEN_UP, model_types=_STACKED_IN_MODULES, experts="stacked"),
    LayerRow(r"mlp\.experts\.down_proj", ((Role.DOWN, WHOLE),), model_types=_STACKED_IN_MODULES, experts="stacked"),
    LayerRow(
        r"block_sparse_moe\.input_linear\.weight",
        _GATE_THEN_UP,
        model_types=frozenset({"granitemoe"}),
        experts="stacked",
    ),
    LayerRow(
        r"block_sparse_moe\.output_linear\.weight",
        ((Role.DOWN, WHOLE),),
        model_types=frozenset({"granitemoe"}),
        experts="stacked",
    ),
    *(
        LayerRow(rf"{folder}\.{name}\.weight", ((Role.ROUTER, WHOLE),), beside=rf"{folder}\.({experts})\..+")
        for folder, name, experts in (
            ("block_sparse_moe", "gate", "experts"),
            ("block_sparse_moe", r"router\.layer", "input_linear"),
            ("mlp", r"(?:gate|gate\.wg|router)", "experts"),
            ("feed_forward", "router", "experts"),
        )
    ),
)
"""Weights of a layer. Source: the modelling files of transformers 5.23, each family checked by value in the tests."""

NOT_WEIGHTS = (
    r"(.*\.)?(bias|masked_bias|rotary_emb\.inv_freq|e_score_correction_bias|(gate_up|down)_proj_bias"
    r"|shared_expert_gate\.weight)"
)
"""Names in a layer that hold no matrix anybody would miss: biases, masks, rotary frequencies, a gate of one row."""

MOST_EXPERTS = 10_000
"""More experts in a layer than this are taken for a mistake."""

OTHER_STACKS = ("vision", "visual", "audio", "image", "video", "speech", "mtp", "draft", "eagle", "medusa")
"""Words in a prefix that say: not the language model, or not its own layers (multi-token prediction heads)."""

NESTED_CONFIGS: tuple[tuple[str, ...], ...] = (
    ("thinker_config", "text_config"),
    ("text_config",),
    ("llm_config",),
    ("language_config",),
)
"""Where the config of the language model lies in that of a larger one."""

HIDDEN_SIZE_KEYS = ("hidden_size", "n_embd", "d_model", "n_embed", "emb_dim", "model_dim", "dim", "hidden_dim")
EMBEDDING_SIZE_KEYS = ("embedding_size", "word_embed_proj_dim", "input_embedding_size", "d_embed", "embed_dim")
UNEMBEDDING_SIZE_KEYS = ("output_embedding_size",)
N_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "num_decoder_layers")
N_HEADS_KEYS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
N_KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
N_EXPERTS_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
HEAD_DIM_KEYS = ("head_dim", "head_size", "attention_head_dim", "kv_channels")
VOCABULARY_SIZE_KEYS = ("vocab_size", "padded_vocab_size", "n_vocab")

RopeLayout = Literal["half", "none", "unknown"]

ROPE_LAYOUTS: dict[str, RopeLayout] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3"),
            *("gemma3_text", "phi3", "olmo", "olmo2", "olmo3", "stablelm", "gpt_neox", "granite", "smollm3"),
        ),
        "half",
    ),
    **dict.fromkeys(("gpt2", "openai-gpt", "opt", "bloom", "mpt", "gpt_bigcode", "gpt_neo"), "none"),
}
"""How the rows of a rotated head pair up, by ``model_type``; ``none`` where positions do not enter q and k."""

PARTIAL_ROTARY_KEYS = ("partial_rotary_factor", "rotary_pct")
"""Config keys for the share of a head that is rotated; also inside of ``rope_parameters``."""

NORMS_ADDING_ONE = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "vaultgemma", "t5gemma", "nemotron"),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    }
)
"""Families whose norms multiply by ``1 + g``."""
