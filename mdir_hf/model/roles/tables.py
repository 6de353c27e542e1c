"""Tables of model families: names of tensors outside layers, config keys, and exceptions.

Names of tensors inside layers are in ``families/``. A pattern must match the whole name after the prefix, and the first
matching row is used. A wrong role is worse than none, so an ambiguous name has a row for each known family and no
role in other families.
"""

from __future__ import annotations

from mdir_hf.model.roles.families.gguf import NOT_WEIGHTS as GGUF_NOT_WEIGHTS
from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import EdgeRow


def _anywhere(names: str) -> tuple[EdgeRow, ...]:
    return tuple(EdgeRow(rf"{name}\.weight") for name in names.split())


SAME_AS = {"gpt_neox_reward_model": "gpt_neox", "phi3_v": "phi3", "phi4mm": "phi4_multimodal"}
"""Usual family name, keyed by the name in a publisher's config."""

SEQUENTIAL = frozenset({"mixformer-sequential"})
"""Families in which the embedding and head are numbered as the first and last layer."""

VALUES_SHARE_THE_STREAM = frozenset({"minicpm3"})
"""Latent-attention families whose value width defaults to the stream's width divided by the number of heads."""

HEADS_OF_OTHER_TOKENS = frozenset({"csm"})
"""Families whose output head predicts audio codes rather than the embedding's tokens."""

HEADS_ALONE = frozenset({"medusa"})
"""Families that consist only of output heads, which predict further tokens."""

LAYER_ALONE = "midlayer."
"""Prefix of the tensor names in EAGLE-3's only layer."""

TOKENS_OF_DRAFT = "d2t"
"""Name of EAGLE-3's tensor that maps rows of its output head to tokens."""

EMBEDDING_ROWS: tuple[EdgeRow, ...] = (
    EdgeRow(r"embed_text_tokens\.weight", frozenset({"csm"})),
    EdgeRow(r"local_encoder\.embed_tokens\.weight", frozenset({"blt_global_transformer"})),
    EdgeRow(r"w\.weight", frozenset({"ctrl"})),
    *_anywhere("embed_tokens wte"),
    EdgeRow(r"wte\.embedding", frozenset({"molmo", "molmo2", "molmo2_text"})),
    *_anywhere("word_embeddings word_embedding tok_embeddings tokens_embed token_embeddings? embed_in input_embedding"),
    *_anywhere("embeddings embedding shared embed emb"),
    EdgeRow(r"token_embd\.weight", at_root=True),
)
"""Names of the input embedding, ``(d_vocab, d_model)``, in all causal models of transformers 5.23."""

UNEMBEDDING_ROWS: tuple[EdgeRow, ...] = (
    EdgeRow(r"0\.[1-9]\.weight", frozenset({"medusa"}), at_root=True),
    *_anywhere(r"lm_head (?:lm_)?head\.decoder lm_head\.linear"),
    EdgeRow(r"transformer\.ff_out\.weight", frozenset({"llada", "hf_olmo", "molmo"})),
    *_anywhere(r"cls\.predictions\.decoder vocab_projector generator_lm_head"),
    *_anywhere(r"embed_out output_projection output_layer pred_layer\.proj"),
    *_anywhere("lm_loss unembed"),
    EdgeRow(r"layers\.\d+\.linear\.weight", SEQUENTIAL),
    EdgeRow(r"language_model\.output\.weight"),
    *(EdgeRow(rf"{name}\.weight", at_root=True) for name in ("proj_out", "output", "head", "decoder")),
)
"""Names of the output head, ``(d_vocab, d_model)``, in all causal models of transformers 5.23."""

FINAL_NORM_ROWS: tuple[EdgeRow, ...] = (
    *_anywhere("norm ln_f final_layer_?norm norm_f ln_out"),
    EdgeRow(r"final_norm\.weight", frozenset({"recurrent_gemma"})),
    EdgeRow(r"(?:embedding|token_embd)_norm\.weight", frozenset({"lfm2", "lfm2_moe", "lfm3"})),
    *_anywhere("output_norm"),
)
"""Names of the norm before the output head, relative to the parent of the layer stack."""

NOT_WEIGHTS = (
    r"(.*[.|])?(bias|masked_bias|rotary_emb\.inv_freq|e_score_correction_bias|(gate_up|down)_proj_bias"
    r"|shared_expert_gate\.weight|(?:linear_[qkv]|gate_up_proj)_adapter_list\.\d{1,4}\.[01]\.weight"
    rf"|lora_[AB](?:\.\w+)?\.weight|{GGUF_NOT_WEIGHTS})"
)
"""Pattern for tensors in a layer that are neither compared nor reported as unplaced: biases, masks, rotary frequencies,
gates with one row, adapters."""

ONE_SUBLAYER = frozenset({"mamba", "mamba2", "mamba2_ssm", "falcon_mamba", "nemotron_h", "zamba", "zamba2"})
"""Families whose layers may consist of a single sublayer: attention, an MLP or a state-space mixer."""

AWAY_FROM_THE_STREAM: dict[str, frozenset[Role]] = dict.fromkeys(
    ("zamba", "zamba2"), frozenset({Role.O, Role.GATE, Role.UP})
)
"""Roles that layers lack by design, keyed by family, because only the MLP reads attention's output."""

MOST_EXPERTS = 10_000
"""A larger number of experts in a config is ignored."""

MOST_EXPERTS_OF_ALL = 100_000
"""A larger total number of experts is treated as an error. Kimi-K2 has 23,000."""

MOST_LAYERS = 10_000
"""A larger number of layers is treated as an error. Longer lists in a config are read up to this length."""

MOST_STACKS = 1_000
"""Maximum number of stacks examined, largest first."""

OTHER_STACKS = (
    *("vision", "visual", "audio", "image", "video", "speech", "mtp", "draft", "eagle", "medusa"),
    *("cross_attn", ".dit.", "talker", "token2wav", "code2wav", "depth_decoder", "codec_model"),
)
"""Words in the prefixes of stacks that are not the language model, such as towers and multi-token prediction."""

MAIN_STACKS = {"blt_global_transformer": "global_transformer.layers"}
"""The stack to compare in families in which several stacks process the same text. BLT's main stack contains nearly
all weights."""

SEQUENCES = (
    ("prelude", "core_block", "coda"),
    ("prelude", "core", "coda"),
    ("prelude", "recurrent_block", "coda"),
)
"""Stacks of looped models that form one sequence of layers, in the order in which a token passes through them."""

_XLM = frozenset({"attentions", "ffns", "layer_norm1", "layer_norm2"})
FOLDERS_OF_LAYERS: dict[str, frozenset[str]] = dict.fromkeys(("xlm", "flaubert"), _XLM)
"""Folders across which a family splits each layer, as in ``ffns.3``, keyed by family."""

NESTED_CONFIGS: tuple[tuple[str, ...], ...] = (
    ("thinker_config", "text_config"),
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("global_config",),
    ("decoder",),
)
"""Paths of keys to the language model's config within a larger one."""

HIDDEN_SIZE_KEYS = (
    *("hidden_size", "d_latents", "n_embd", "d_model", "n_embed", "emb_dim", "model_dim", "dim", "hidden_dim"),
)
EMBEDDING_SIZE_KEYS = (
    *("embedding_size", "word_embed_proj_dim", "input_embedding_size", "d_embed", "embed_dim", "embedding_rank"),
    "d_model",  # of Perceiver; elsewhere it is the width of the stream
)
EMBEDDING_CONFIGS = {"blt_global_transformer": ("encoder_config", "blt_local_encoder")}
"""Config key and family of the stack that contains the embedding, keyed by model family, if widths differ."""

UNEMBEDDING_SIZE_KEYS = ("output_embedding_size",)
N_LAYERS_KEYS = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "num_decoder_layers"),
    "num_transformer_layers",
)
N_HEADS_KEYS = (
    "num_attention_heads",
    "n_head",
    "num_heads",
    "n_heads",
    "decoder_attention_heads",
    "attention_heads",
    "num_self_attention_heads",
)
N_KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num")
N_EXPERTS_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
N_SHARED_EXPERTS_KEYS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
HEAD_DIM_KEYS = ("head_dim", "head_size", "attention_head_dim", "kv_channels", "d_kv")
VOCABULARY_SIZE_KEYS = ("vocab_size", "padded_vocab_size", "n_vocab")

NORMS_ADDING_ONE = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "vaultgemma", "t5gemma", "nemotron"),
        *("t5_gemma_module", "t5gemma2", "t5gemma2_decoder"),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("minimax_m3_vl_text", "muse_glimmer_text", "muse_spark_text", "step3p5"),
    }
)
"""Families whose norms multiply by ``1 + g``."""

SCALED_BY_ROOT_OF_WIDTH = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "recurrent_gemma", "vaultgemma"),
        "t5gemma",
    }
)
"""Families that multiply embedding rows by the square root of their width without a flag in the config."""

INTERMEDIATE_SIZE_KEYS = (*("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "feed_forward_size"),)
"""Keys for the number of neurons."""

EMBEDDING_SCALE_KEYS = ("embedding_multiplier", "scale_emb")
"""Keys for a factor of the embedding rows."""
