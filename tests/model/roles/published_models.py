"""Published models: the relevant part of the config, and names and shapes of all relevant tensors, without weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
        unplaced: Names in a layer that need no role.
    """

    config: dict[str, object]
    embedding: tuple[str, tuple[int, int]]
    layers: tuple[int, int, str]
    layer: Shapes
    heads: tuple[int, int, int]
    others: Shapes = field(default_factory=dict)
    unembedding: tuple[str, tuple[int, int]] | None = None
    rope: tuple[str, int | None] = ("half", None)
    unplaced: tuple[str, ...] = ()

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


def phi3(n: int, qkv: int, q: int, m: int, wrapped: str = "") -> Shapes:
    """A layer of Phi-3."""
    return {
        f"self_attn.qkv_proj{wrapped}.weight": (qkv, n),
        f"self_attn.o_proj{wrapped}.weight": (n, q),
        f"mlp.gate_up_proj{wrapped}.weight": (2 * m, n),
        f"mlp.down_proj{wrapped}.weight": (n, m),
        "input_layernorm.weight": (n,),
        "post_attention_layernorm.weight": (n,),
    }


def neox(n: int, qkv: int, m: int, folder: str, norms: str) -> Shapes:
    """A layer of GPT-NeoX, BLOOM or Falcon."""
    return {
        f"{folder}.query_key_value.weight": (qkv, n),
        f"{folder}.dense.weight": (n, n),
        "mlp.dense_h_to_4h.weight": (m, n),
        "mlp.dense_4h_to_h.weight": (n, m),
        **{f"{norm}.weight": (n,) for norm in norms.split()},
    }


LORA = {
    f"{name}.lora_{side}.{kind}.weight": shape
    for kind in ("speech", "vision")
    for name, widths in (("self_attn.qkv_proj", (3072, 5120)), ("mlp.down_proj", (8192, 3072)))
    for side, shape in (("A", (256, widths[0])), ("B", (widths[1], 256)))
}

MODELS: dict[str, PublishedModel] = {
    "tiiuae/falcon-40b, first config": PublishedModel(
        {"model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "n_layer": 60, "alibi": False},
        ("transformer.word_embeddings.weight", (65024, 8192)),
        (60, 0, "transformer.h"),
        neox(8192, 9216, 32768, "self_attention", "ln_attn ln_mlp"),
        (128, 8, 64),
        unembedding=("lm_head.weight", (65024, 8192)),
    ),
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
    "microsoft/Phi-3.5-vision-instruct": PublishedModel(
        {"model_type": "phi3_v", "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32,
         "num_hidden_layers": 32, "vocab_size": 32064},
        ("model.embed_tokens.weight", (32064, 3072)),
        (32, 0, "model.layers"),
        phi3(3072, 9216, 3072, 8192),
        (32, 32, 96),
        {"model.vision_embed_tokens.img_processor.vision_model.encoder.layers.0.mlp.fc1.weight": (4096, 1024)},
        ("lm_head.weight", (32064, 3072)),
    ),
    "microsoft/Phi-4-multimodal-instruct": PublishedModel(
        {"model_type": "phi4mm", "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8,
         "num_hidden_layers": 32, "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "vocab_size": 200064},
        ("model.embed_tokens.weight", (200064, 3072)),
        (32, 0, "model.layers"),
        phi3(3072, 5120, 3072, 8192, ".base_layer") | LORA,
        (24, 8, 128),
        {"model.embed_tokens_extend.audio_embed.encoder.encoders.0.self_attn.linear_q.weight": (1024, 1024)},
        rope=("half", 96),
    ),
    "OpenGVLab/InternVL2-8B": PublishedModel(
        {"model_type": "internvl_chat", "llm_config": {
            "model_type": "internlm2", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_hidden_layers": 32, "vocab_size": 92553}},
        ("language_model.model.tok_embeddings.weight", (92553, 4096)),
        (32, 0, "language_model.model.layers"),
        {"attention.wqkv.weight": (6144, 4096), "attention.wo.weight": (4096, 4096),
         "feed_forward.w1.weight": (14336, 4096), "feed_forward.w3.weight": (14336, 4096),
         "feed_forward.w2.weight": (4096, 14336), "attention_norm.weight": (4096,), "ffn_norm.weight": (4096,)},
        (32, 8, 128),
        {"vision_model.encoder.layers.0.attn.qkv.weight": (3072, 1024)},
        ("language_model.output.weight", (92553, 4096)),
        rope=("unknown", None),
    ),
    "openbmb/MiniCPM3-4B": PublishedModel(
        {"model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40, "num_key_value_heads": 40,
         "num_hidden_layers": 62, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
         "qk_rope_head_dim": 32, "vocab_size": 73448},
        ("model.embed_tokens.weight", (73448, 2560)),
        (62, 0, "model.layers"),
        {"self_attn.q_a_proj.weight": (768, 2560), "self_attn.q_a_layernorm.weight": (768,),
         "self_attn.q_b_proj.weight": (3840, 768), "self_attn.kv_a_proj_with_mqa.weight": (288, 2560),
         "self_attn.kv_a_layernorm.weight": (256,), "self_attn.kv_b_proj.weight": (5120, 256),
         "self_attn.o_proj.weight": (2560, 2560), "mlp.gate_proj.weight": (6400, 2560),
         "mlp.up_proj.weight": (6400, 2560), "mlp.down_proj.weight": (2560, 6400),
         "input_layernorm.weight": (2560,), "post_attention_layernorm.weight": (2560,)},
        (40, 40, 64),
        rope=("unknown", None),
    ),
    "replit/replit-code-v1_5-3b": PublishedModel(
        {"model_type": "mpt", "d_model": 3072, "n_heads": 24, "n_layers": 32, "vocab_size": 32768,
         "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8, "alibi": True}},
        ("transformer.wte.weight", (32768, 3072)),
        (32, 0, "transformer.blocks"),
        {"attn.Wqkv.weight": (5120, 3072), "attn.out_proj.weight": (3072, 3072), "ffn.up_proj.weight": (12288, 3072),
         "ffn.down_proj.weight": (3072, 12288), "norm_1.weight": (3072,), "norm_2.weight": (3072,)},
        (24, 8, 128),
        rope=("none", None),
    ),
    "OpenAssistant/oasst-rm-2.1-pythia-1.4b": PublishedModel(
        {"model_type": "gpt_neox_reward_model", "hidden_size": 2048, "num_attention_heads": 16, "rotary_pct": 0.25,
         "num_hidden_layers": 24, "vocab_size": 50288},
        ("gpt_neox.embed_in.weight", (50288, 2048)),
        (24, 0, "gpt_neox.layers"),
        neox(2048, 6144, 8192, "attention", "input_layernorm post_attention_layernorm"),
        (16, 16, 128),
        {"out_proj.weight": (1, 2048)},
        rope=("half", 32),
    ),
    "Alibaba-NLP/gte-large-en-v1.5": PublishedModel(
        {"model_type": "new", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24,
         "position_embedding_type": "rope", "pack_qkv": True, "vocab_size": 30528},
        ("embeddings.word_embeddings.weight", (30528, 1024)),
        (24, 0, "encoder.layer"),
        {"attention.qkv_proj.weight": (3072, 1024), "attention.o_proj.weight": (1024, 1024),
         "mlp.up_gate_proj.weight": (8192, 1024), "mlp.down_proj.weight": (1024, 4096),
         "attn_ln.weight": (1024,), "mlp_ln.weight": (1024,)},
        (16, 16, 64),
        unplaced=("attn_ln.weight", "mlp_ln.weight"),
    ),
    "microsoft/phi-2, first files": PublishedModel(
        {"model_type": "mixformer-sequential", "n_embd": 2560, "n_head": 32, "n_layer": 32, "rotary_dim": 32,
         "vocab_size": 51200},
        ("layers.0.wte.weight", (51200, 2560)),
        (32, 1, "layers"),
        {"mixer.Wqkv.weight": (7680, 2560), "mixer.out_proj.weight": (2560, 2560), "mlp.fc1.weight": (10240, 2560),
         "mlp.fc2.weight": (2560, 10240), "ln.weight": (2560,)},
        (32, 32, 80),
        {"layers.33.ln.weight": (2560,)},
        ("layers.33.linear.weight", (51200, 2560)),
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
    "stepfun-ai/step3": PublishedModel(
        {"model_type": "step3_vl", "text_config": {
            "model_type": "step3_text", "hidden_size": 7168, "num_attention_heads": 64, "num_attention_groups": 1,
            "head_dim": 256, "num_hidden_layers": 61, "moe_num_experts": 48, "share_q_dim": 2048,
            "vocab_size": 128815}},
        ("model.embed_tokens.weight", (128815, 7168)),
        (61, 0, "model.layers"),
        {"self_attn.q_proj.weight": (2048, 7168), "self_attn.inter_norm.weight": (2048,),
         "self_attn.wq.weight": (16384, 2048), "self_attn.k_proj.weight": (256, 7168),
         "self_attn.v_proj.weight": (256, 7168), "self_attn.o_proj.weight": (7168, 16384),
         "moe.gate.weight": (48, 7168), "moe.gate_proj.weight": (48, 5120, 7168),
         "moe.up_proj.weight": (48, 5120, 7168), "moe.down_proj.weight": (48, 7168, 5120),
         "share_expert.gate_proj.weight": (5120, 7168), "share_expert.up_proj.weight": (5120, 7168),
         "share_expert.down_proj.weight": (7168, 5120),
         "input_layernorm.weight": (7168,), "post_attention_layernorm.weight": (7168,)},
        (64, 1, 256),
        {"vision_model.transformer.resblocks.0.attn.qkv.weight": (5376, 1792)},
        ("lm_head.weight", (128815, 7168)),
        rope=("unknown", None),
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
    "skt/A.X-K2, light": PublishedModel(
        {"model_type": "axk2", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 32,
         "num_hidden_layers": 48, "q_lora_rank": 384, "kv_lora_rank": 128, "qk_nope_head_dim": 64,
         "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 128, "n_shared_experts": 1,
         "vocab_size": 163840},
        ("model.embed_tokens.weight", (163840, 2048)),
        (48, 0, "model.layers"),
        {"self_attn.q_a_proj.weight": (384, 2048), "self_attn.q_a_layernorm.weight": (384,),
         "self_attn.q_b_proj.weight": (5120, 768), "self_attn.kv_a_proj_with_mqa.weight": (160, 2048),
         "self_attn.kv_a_layernorm.weight": (128,), "self_attn.kv_b_proj.weight": (4096, 128),
         "self_attn.o_proj.weight": (2048, 2048), "mlp.gate.weight": (128, 2048),
         **{f"self_attn.indexer.{name}.weight": shape for name, shape in
            (("wq_b", (2048, 384)), ("wk", (128, 2048)), ("weights_proj", (16, 2048)))},
         **{f"{norm}_layernorm.{name}.weight": shape for norm in ("input", "post_attention") for name, shape in
            (("norm", (2048,)), ("W_down", (16, 2048)), ("W_up", (2048, 16)))},
         **{f"mlp.{mlp}.{name}_proj.weight": (2048, 512) if name == "down" else (512, 2048)
            for mlp in (*(f"experts.{e}" for e in range(128)), "shared_experts") for name in ("gate", "up", "down")}},
        (32, 32, 64),
        unembedding=("lm_head.weight", (163840, 2048)),
        rope=("unknown", None),
        unplaced=tuple(f"self_attn.indexer.{name}.weight" for name in ("weights_proj", "wk", "wq_b")),
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
_FALCON = MODELS["tiiuae/falcon-40b, first config"]
MODELS["tiiuae/falcon-40b, renamed"] = replace(_FALCON, config=_FALCON.config | {"model_type": "falcon"})

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


def _zamba(shared: str, n: int, q: int, mamba: Shapes, mlp: Shapes) -> tuple[Shapes, Shapes, Shapes]:
    """Layers of Zamba: only a mixer, with a shared transformer, and the layer that stores the shared transformer."""
    alone = {"input_layernorm.weight": (n,), **{f"mamba.{name}": shape for name, shape in mamba.items()}}
    sharing = {"linear.weight": (n, n), **{f"mamba_decoder.{name}": shape for name, shape in alone.items()}}
    stored = {
        **{f"self_attn.{x}_proj.weight": (q, 2 * n) for x in "qkv"},
        "self_attn.o_proj.weight": (n, q),
        **{f"feed_forward.{name}.weight": shape for name, shape in mlp.items()},
        "input_layernorm.weight": (2 * n,),
        "pre_ff_layernorm.weight": (n,),
    }
    return alone, sharing, sharing | {f"{shared}.{name}": shape for name, shape in stored.items()}


def _layers(alone: Shapes, sharing: Shapes, storing: Shapes, n_layers: int, shared: tuple[int, ...]) -> Shapes:
    """All layers of a Zamba whose layers ``shared`` share one transformer."""
    kinds = {i: sharing if i in shared else alone for i in range(n_layers)} | {shared[0]: storing}
    return {f"model.layers.{i}.{name}": shape for i, layer in kinds.items() for name, shape in layer.items()}


ZAMBA: dict[str, tuple[dict[str, object], Shapes, tuple[int, ...], tuple[int, int, int]]] = {
    "Zyphra/Zamba-7B-v1": (
        {"model_type": "zamba", "hidden_size": 3712, "num_attention_heads": 16, "num_key_value_heads": 16,
         "attention_head_dim": 464, "num_hidden_layers": 76, "intermediate_size": 14848, "vocab_size": 32000,
         "n_mamba_heads": 2},
        {"model.embed_tokens.weight": (32000, 3712)} | _layers(
            *_zamba("shared_transf", 3712, 7424,
                    {"in_proj.weight": (14848, 3712), "out_proj.weight": (3712, 7424), "A_log": (2, 3712, 16)},
                    {"gate_proj": (14848, 3712), "up_proj": (14848, 3712), "down_proj": (3712, 14848)}),
            76, (2, *range(7, 76, 6))),
        (2, *range(7, 76, 6)),
        (16, 464, 7424),
    ),
    "Zyphra/Zamba2-1.2B": (
        {"model_type": "zamba2", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 32,
         "attention_head_dim": 128, "num_hidden_layers": 38, "intermediate_size": 8192, "vocab_size": 32000,
         "mamba_expand": 2, "mamba_ngroups": 1, "mamba_d_state": 64, "n_mamba_heads": 64, "num_mem_blocks": 1,
         "use_shared_attention_adapter": True, "adapter_rank": 128, "use_mem_rope": True},
        {"model.embed_tokens.weight": (32000, 2048)} | _layers(
            *_zamba("shared_transformer", 2048, 4096,
                    {"in_proj.weight": (8384, 2048), "out_proj.weight": (2048, 4096), "A_log": (64,)},
                    {"gate_up_proj": (16384, 2048), "down_proj": (2048, 8192)}
                    | {f"gate_up_proj_adapter_list.{i}.{side}": ((128, 2048), (16384, 128))[side]
                       for i in range(6) for side in (0, 1)}),
            38, tuple(range(5, 38, 6)))
        | {f"model.layers.5.shared_transformer.self_attn.linear_{x}_adapter_list.{i}.{side}.weight":
           ((128, 4096), (4096, 128))[side] for x in "qkv" for i in range(6) for side in (0, 1)},
        tuple(range(5, 38, 6)),
        (32, 128, 4096),
    ),
}  # fmt: skip
"""Config, all shapes, the layers that share a transformer, and its number of heads, their width and all rows."""
