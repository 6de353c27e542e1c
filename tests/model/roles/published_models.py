"""Published models: the relevant part of the config, and names and shapes of all relevant tensors, without weights."""

from __future__ import annotations

from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PublishedModel:
    """One model and its expected anatomy.

    Attributes:
        config: Fields of its ``config.json``.
        embedding: Name and shape.
        layers: Number of layers, number of the first layer, and prefix.
        layer: Names and shapes in a layer.
        heads: Query heads, key/value heads and their width.
        others: Tensors elsewhere.
        unembedding: Name and shape, None if there is none.
        rope: Pairing of rotated rows, and the number of rotated rows in a head.
    """

    config: dict[str, object]
    embedding: tuple[str, tuple[int, int]]
    layers: tuple[int, int, str]
    layer: Shapes
    heads: tuple[int, int, int]
    others: Shapes = field(default_factory=dict)
    unembedding: tuple[str, tuple[int, int]] | None = None
    rope: tuple[str, int | None] = ("half", None)

    def shapes(self) -> Shapes:
        """Every tensor."""
        n_layers, first, prefix = self.layers
        numbers = range(first, first + n_layers)
        found = {f"{prefix}.{i}.{rest}": shape for i in numbers for rest, shape in self.layer.items()}
        return {**found, **dict(filter(None, (self.embedding, self.unembedding))), **self.others}


def llama(n: int, q: int, kv: int, m: int, *, norms: str = "input post_attention", **more: tuple[int, ...]) -> Shapes:
    """A layer with Llama's names."""
    return {
        "self_attn.q_proj.weight": (q, n),
        "self_attn.k_proj.weight": (kv, n),
        "self_attn.v_proj.weight": (kv, n),
        "self_attn.o_proj.weight": (n, q),
        "mlp.gate_proj.weight": (m, n),
        "mlp.up_proj.weight": (m, n),
        "mlp.down_proj.weight": (n, m),
        **{f"{norm}_layernorm.weight": (n,) for norm in norms.split()},
        **{f"self_attn.{name}.weight": shape for name, shape in more.items()},
    }


def meta(n: int, q: int, kv: int, m: int) -> Shapes:
    """A layer with the names of Meta's and Mistral's own files."""
    return {
        "attention.wq.weight": (q, n),
        "attention.wk.weight": (kv, n),
        "attention.wv.weight": (kv, n),
        "attention.wo.weight": (n, q),
        "feed_forward.w1.weight": (m, n),
        "feed_forward.w3.weight": (m, n),
        "feed_forward.w2.weight": (n, m),
        "attention_norm.weight": (n,),
        "ffn_norm.weight": (n,),
    }


def phi4(n: int, qkv: int, q: int, m: int) -> Shapes:
    """A layer of Phi-4-multimodal, with adapters beside the weights."""
    lora = {
        f"{name}.lora_{side}.{kind}.weight": shape
        for kind in ("speech", "vision")
        for name, widths in (("self_attn.qkv_proj", (n, qkv)), ("mlp.down_proj", (m, n)))
        for side, shape in (("A", (256, widths[0])), ("B", (widths[1], 256)))
    }
    return lora | {
        "self_attn.qkv_proj.base_layer.weight": (qkv, n),
        "self_attn.o_proj.base_layer.weight": (n, q),
        "mlp.gate_up_proj.base_layer.weight": (2 * m, n),
        "mlp.down_proj.base_layer.weight": (n, m),
        "input_layernorm.weight": (n,),
        "post_attention_layernorm.weight": (n,),
    }


def neox(n: int, qkv: int, m: int) -> Shapes:
    """A layer of GPT-NeoX."""
    return {
        "attention.query_key_value.weight": (qkv, n),
        "attention.dense.weight": (n, n),
        "mlp.dense_h_to_4h.weight": (m, n),
        "mlp.dense_4h_to_h.weight": (n, m),
        "input_layernorm.weight": (n,),
        "post_attention_layernorm.weight": (n,),
    }


MODELS: dict[str, PublishedModel] = {
    "Qwen/Qwen2.5-Omni-7B": PublishedModel(
        {"model_type": "qwen2_5_omni", "talker_config": {"hidden_size": 896, "num_attention_heads": 12},
         "thinker_config": {"model_type": "qwen2_5_omni_thinker", "text_config": {
             "hidden_size": 3584, "intermediate_size": 18944, "model_type": "qwen2_5_omni_text",
             "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064}}},
        ("thinker.model.embed_tokens.weight", (152064, 3584)),
        (28, 0, "thinker.model.layers"),
        llama(3584, 3584, 512, 18944),
        (28, 4, 128),
        {"talker.model.embed_tokens.weight": (8448, 3584),
         **{f"talker.model.layers.{i}.{name}": shape
            for i in range(24) for name, shape in llama(896, 1536, 512, 18944).items()},
         "token2wav.code2wav_dit_model.transformer_blocks.0.attn.to_q.weight": (1024, 1024)},
        ("thinker.lm_head.weight", (152064, 3584)),
        rope=("unknown", None),
    ),
    "sesame/csm-1b": PublishedModel(
        {"model_type": "csm", "hidden_size": 2048, "head_dim": 64, "num_attention_heads": 32, "num_key_value_heads": 8,
         "num_hidden_layers": 16, "vocab_size": 2051, "text_vocab_size": 128256,
         "depth_decoder_config": {"hidden_size": 1024, "num_attention_heads": 8}},
        ("embed_text_tokens.weight", (128256, 2048)),
        (16, 0, "backbone_model.layers"),
        llama(2048, 2048, 512, 8192),
        (32, 8, 64),
        {"lm_head.weight": (2051, 2048), "depth_decoder.model.embed_tokens.weight": (65632, 2048),
         "backbone_model.embed_tokens.embed_audio_tokens.weight": (65632, 2048),
         "codec_model.decoder_transformer.layers.0.self_attn.q_proj.weight": (512, 512),
         **{f"depth_decoder.model.layers.{i}.{name}": shape
            for i in range(4) for name, shape in llama(1024, 1024, 256, 8192).items()}},
        rope=("unknown", None),
    ),
    "microsoft/Phi-4-multimodal-instruct": PublishedModel(
        {"model_type": "phi4mm", "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8,
         "num_hidden_layers": 32, "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "vocab_size": 200064},
        ("model.embed_tokens.weight", (200064, 3072)),
        (32, 0, "model.layers"),
        phi4(3072, 5120, 3072, 8192),
        (24, 8, 128),
        {"model.embed_tokens_extend.audio_embed.encoder.encoders.0.self_attn.linear_q.weight": (1024, 1024)},
        rope=("half", 96),
    ),
    "OpenAssistant/oasst-rm-2.1-pythia-1.4b": PublishedModel(
        {"model_type": "gpt_neox_reward_model", "hidden_size": 2048, "num_attention_heads": 16, "rotary_pct": 0.25,
         "num_hidden_layers": 24, "vocab_size": 50288},
        ("gpt_neox.embed_in.weight", (50288, 2048)),
        (24, 0, "gpt_neox.layers"),
        neox(2048, 6144, 8192),
        (16, 16, 128),
        {"out_proj.weight": (1, 2048)},
        rope=("half", 32),
    ),
    "xai-org/grok-1 in torch": PublishedModel(
        {"model_type": "grok-1", "hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 8,
         "num_hidden_layers": 64, "num_experts": 8, "vocab_size": 131072},
        ("model.embed_tokens.weight", (131072, 6144)),
        (64, 0, "model.layers"),
        {"attn.q_proj.weight": (6144, 6144), "attn.k_proj.weight": (1024, 6144), "attn.v_proj.weight": (1024, 6144),
         "attn.o_proj.weight": (6144, 6144), "moe_block.gate.weight": (8, 6144),
         **{f"moe_block.experts.{e}.{name}.weight": shape for e in range(8) for name, shape in
            (("linear", (32768, 6144)), ("linear_v", (32768, 6144)), ("linear_1", (6144, 32768)))},
         **{f"{side}_{part}_norm.scale": (6144,) for side in ("pre", "post") for part in ("attn", "moe")}},
        (48, 8, 128),
        {"model.norm.scale": (6144,)},
        ("lm_head.weight", (131072, 6144)),
    ),
    "Snowflake/snowflake-arctic-base": PublishedModel(
        {"model_type": "arctic", "hidden_size": 7168, "num_attention_heads": 56, "num_key_value_heads": 8,
         "num_hidden_layers": 35, "num_local_experts": 128, "intermediate_size": 4864, "vocab_size": 32000,
         "parallel_attn_mlp_res": True, "use_residual": True},
        ("model.embed_tokens.weight", (32000, 7168)),
        (35, 0, "model.layers"),
        {name: shape for name, shape in llama(7168, 7168, 1024, 0).items() if not name.startswith("mlp")}
        | {"block_sparse_moe.gate.weight": (128, 7168), "residual_layernorm.weight": (7168,)}
        | {f"residual_mlp.{w}.weight": (7168, 7168) for w in ("w1", "w2", "w3")}
        | {f"block_sparse_moe.experts.{e}.{w}.weight": (7168, 4864) if w == "w2" else (4864, 7168)
           for e in range(128) for w in ("w1", "w2", "w3")},
        (56, 8, 128),
        unembedding=("lm_head.weight", (32000, 7168)),
    ),
    "a copy that stores its head alone": PublishedModel(
        {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
         "num_hidden_layers": 24, "tie_word_embeddings": True, "vocab_size": 151936},
        ("lm_head.weight", (151936, 896)),
        (24, 0, "model.layers"),
        llama(896, 896, 128, 4864),
        (14, 2, 64),
    ),
}  # fmt: skip

MAMBA: dict[str, tuple[dict[str, object], Shapes]] = {
    "state-spaces/mamba-130m": (
        {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {}, "rms_norm": True},
        {"mixer.in_proj.weight": (3072, 768), "mixer.out_proj.weight": (768, 1536), "mixer.x_proj.weight": (80, 1536),
         "mixer.dt_proj.weight": (1536, 48), "mixer.A_log": (1536, 16), "mixer.D": (1536,), "norm.weight": (768,)},
    ),
    "state-spaces/mamba2-130m": (
        {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {"layer": "Mamba2"}, "rms_norm": True},
        {"mixer.in_proj.weight": (3352, 768), "mixer.out_proj.weight": (768, 1536), "mixer.norm.weight": (1536,),
         "mixer.A_log": (24,), "mixer.D": (24,), "mixer.dt_bias": (24,), "norm.weight": (768,)},
    ),
}  # fmt: skip
"""Config and a layer of models without model_type in the config."""
