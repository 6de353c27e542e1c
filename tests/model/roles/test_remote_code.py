"""Families whose code is not in transformers: our roles against the arithmetic of their published modelling files.

Each family stands here as its tensors and as what its code makes of one token at position 0: queries, keys and values
per head, and the output of its MLP.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

from mdir_hf.model.files import MemorySource
from mdir_hf.model.roles import Role, read_part, resolve_anatomy

N, H, G, D, M = 24, 4, 2, 6, 20  # width, query heads, key/value heads, width of a head, neurons
HEADS = {"num_attention_heads": H, "num_key_value_heads": G, "hidden_size": N, "num_hidden_layers": 1}
ALL_HEADS = HEADS | {"num_key_value_heads": H}
LAYER = "model.layers.0."


def draw(*shape):
    return torch.randn(*shape, generator=draw.generator)


draw.generator = torch.Generator().manual_seed(0)


@dataclass
class Published:
    """A layer in the names of its makers, and what their code makes of a token."""

    config: dict
    shapes: dict
    qkv: object
    """Tensors and token -> q ``(H, d)``, k ``(G, d)``, v ``(G, d)``."""
    mlp: object
    """Tensors and token -> output ``(n,)``."""
    act: object
    o: str
    prefix: str = LAYER
    embedding: str = "model.embed_tokens.weight"
    norms: tuple = ("input_layernorm", "post_attention_layernorm")
    also: dict = field(default_factory=dict)


def linear(name):
    return lambda t, x: t[name] @ x


def split_contiguous(name, n_kv):
    """``W x`` cut into all queries, all keys, all values."""

    def qkv(t, x):
        mixed = t[name] @ x
        q, k, v = mixed.split([H * D, n_kv * D, n_kv * D])
        return q.view(H, D), k.view(n_kv, D), v.view(n_kv, D)

    return qkv


def split_per_head(name):
    """``W x`` seen as (heads, 3 d), each head cut into three."""

    def qkv(t, x):
        return (t[name] @ x).view(H, 3 * D).split(D, dim=1)

    return qkv


def split_per_group(name):
    """``W x`` seen as (groups, queries of the group + 2, d)."""

    def qkv(t, x):
        mixed = (t[name] @ x).view(G, H // G + 2, D)
        return mixed[:, :-2].reshape(H, D), mixed[:, -2], mixed[:, -1]

    return qkv


def three(q, k, v):
    def qkv(t, x):
        return tuple((t[name] @ x).view(-1, D) for name in (q, k, v))

    return qkv


def gated(gate, up, down, act=F.silu):
    return lambda t, x: t[down] @ (act(t[gate] @ x) * (t[up] @ x))


def chunked(name, down, act=F.silu, *, first_is_gate=True):
    def mlp(t, x):
        first, second = (t[name] @ x).chunk(2)
        gate, up = (first, second) if first_is_gate else (second, first)
        return t[down] @ (act(gate) * up)

    return mlp


def plain(up, down, act=F.gelu):
    return lambda t, x: t[down] @ act(t[up] @ x)


def gegelu(t, x):
    """Phi-3-small: every other value, the second kind plus one (its clamp at 20 is not reached here)."""
    mixed = t["mlp.up_proj.weight"] @ x
    a_gelu, a_linear = mixed[::2], mixed[1::2]
    return t["mlp.down_proj.weight"] @ (a_gelu * torch.sigmoid(1.702 * a_gelu) * (a_linear + 1))


def telechat(t, x):
    key, value = (t["self_attention.key_value.weight"] @ x).view(G, 2 * D).split(D, dim=1)
    return (t["self_attention.query.weight"] @ x).view(H, D), key, value


def jais(t, x):
    q, k, v = (x @ t["attn.c_attn.weight"]).split(N)  # Conv1D
    return q.view(H, D), k.view(H, D), v.view(H, D)


def jais_mlp(t, x):
    first, second = x @ t["mlp.c_fc.weight"], x @ t["mlp.c_fc2.weight"]
    return (first * F.silu(second)) @ t["mlp.c_proj.weight"]


GLM_MLP = {"mlp.dense_h_to_4h.weight": (2 * M, N), "mlp.dense_4h_to_h.weight": (N, M)}
OF_W = {"feed_forward.w1.weight": (M, N), "feed_forward.w3.weight": (M, N), "feed_forward.w2.weight": (N, M)}
OF_LLAMA = {"mlp.gate_proj.weight": (M, N), "mlp.up_proj.weight": (M, N), "mlp.down_proj.weight": (N, M)}
LLAMA_MLP = gated("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
QWEN_MLP = {"mlp.w1.weight": (M, N), "mlp.w2.weight": (M, N), "mlp.c_proj.weight": (N, M)}
ALL = (H + 2 * G) * D

FAMILIES = {
    "chatglm 2, 3 and GLM-4": Published(
        {"model_type": "chatglm", "num_attention_heads": H, "multi_query_attention": True, "multi_query_group_num": G,
         "kv_channels": D, "hidden_size": N, "num_layers": 1, "padded_vocab_size": 40},
        {"self_attention.query_key_value.weight": (ALL, N), "self_attention.dense.weight": (N, N), **GLM_MLP},
        split_contiguous("self_attention.query_key_value.weight", G),
        chunked("mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"),
        F.silu,
        "self_attention.dense.weight",
        prefix="transformer.encoder.layers.0.",
        embedding="transformer.embedding.word_embeddings.weight",
        also={"transformer.encoder.final_layernorm.weight": (N,), "transformer.output_layer.weight": (40, N)},
    ),
    "chatglm 6b": Published(
        {"model_type": "chatglm", "num_attention_heads": H, "hidden_size": N, "num_layers": 1, "vocab_size": 40},
        {"attention.query_key_value.weight": (3 * N, N), "attention.dense.weight": (N, N),
         "mlp.dense_h_to_4h.weight": (M, N), "mlp.dense_4h_to_h.weight": (N, M)},
        split_per_head("attention.query_key_value.weight"),
        plain("mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"),
        F.gelu,
        "attention.dense.weight",
        prefix="transformer.layers.0.",
        embedding="transformer.word_embeddings.weight",
        also={"lm_head.weight": (40, N), "transformer.final_layernorm.weight": (N,)},
    ),
    "internlm2": Published(
        HEADS | {"model_type": "internlm2"},
        {"attention.wqkv.weight": (ALL, N), "attention.wo.weight": (N, N), **OF_W},
        split_per_group("attention.wqkv.weight"),
        gated("feed_forward.w1.weight", "feed_forward.w3.weight", "feed_forward.w2.weight"),
        F.silu,
        "attention.wo.weight",
        embedding="model.tok_embeddings.weight",
        norms=("attention_norm", "ffn_norm"),
        also={"output.weight": (40, N), "model.norm.weight": (N,)},
    ),
    "files of Llama and Mistral": Published(
        {},
        {"attention.wq.weight": (N, N), "attention.wk.weight": (G * D, N), "attention.wv.weight": (G * D, N),
         "attention.wo.weight": (N, N), **OF_W},
        three("attention.wq.weight", "attention.wk.weight", "attention.wv.weight"),
        gated("feed_forward.w1.weight", "feed_forward.w3.weight", "feed_forward.w2.weight"),
        F.silu,
        "attention.wo.weight",
        prefix="layers.0.",
        embedding="tok_embeddings.weight",
        norms=("attention_norm", "ffn_norm"),
        also={"output.weight": (40, N), "norm.weight": (N,)},
    ),
    "baichuan": Published(
        ALL_HEADS | {"model_type": "baichuan"},
        {"self_attn.W_pack.weight": (3 * N, N), "self_attn.o_proj.weight": (N, N), **OF_LLAMA},
        split_contiguous("self_attn.W_pack.weight", H),
        LLAMA_MLP,
        F.silu,
        "self_attn.o_proj.weight",
        also={"lm_head.weight": (40, N), "model.norm.weight": (N,)},
    ),
    "qwen": Published(
        {"model_type": "qwen", "num_attention_heads": H, "hidden_size": N, "num_hidden_layers": 1},
        {"attn.c_attn.weight": (3 * N, N), "attn.c_proj.weight": (N, N), **QWEN_MLP},
        split_contiguous("attn.c_attn.weight", H),
        lambda t, x: t["mlp.c_proj.weight"] @ ((t["mlp.w1.weight"] @ x) * F.silu(t["mlp.w2.weight"] @ x)),
        F.silu,
        "attn.c_proj.weight",
        prefix="transformer.h.0.",
        embedding="transformer.wte.weight",
        norms=("ln_1", "ln_2"),
        also={"lm_head.weight": (40, N), "transformer.ln_f.weight": (N,)},
    ),
    "exaone": Published(
        HEADS | {"model_type": "exaone", "num_layers": 1},
        {"attn.attention.q_proj.weight": (N, N), "attn.attention.k_proj.weight": (G * D, N),
         "attn.attention.v_proj.weight": (G * D, N), "attn.attention.out_proj.weight": (N, N),
         "mlp.c_fc_0.weight": (M, N), "mlp.c_fc_1.weight": (M, N), "mlp.c_proj.weight": (N, M)},
        three(*(f"attn.attention.{n}_proj.weight" for n in "qkv")),
        gated("mlp.c_fc_0.weight", "mlp.c_fc_1.weight", "mlp.c_proj.weight"),
        F.silu,
        "attn.attention.out_proj.weight",
        prefix="transformer.h.0.",
        embedding="transformer.wte.weight",
        norms=("ln_1", "ln_2"),
        also={"transformer.ln_f.weight": (N,)},
    ),
    "phi-3-small": Published(
        HEADS | {"model_type": "phi3small"},
        {"self_attn.query_key_value.weight": (ALL, N), "self_attn.dense.weight": (N, N),
         "mlp.up_proj.weight": (2 * M, N), "mlp.down_proj.weight": (N, M)},
        split_per_group("self_attn.query_key_value.weight"),
        gegelu,
        None,
        "self_attn.dense.weight",
        also={"model.final_layernorm.weight": (N,)},
    ),
    "phi-2 as first published": Published(
        ALL_HEADS | {"model_type": "phi-msft"},
        {"mixer.Wqkv.weight": (3 * N, N), "mixer.out_proj.weight": (N, N), "mlp.fc1.weight": (M, N),
         "mlp.fc2.weight": (N, M)},
        split_contiguous("mixer.Wqkv.weight", H),
        plain("mlp.fc1.weight", "mlp.fc2.weight"),
        F.gelu,
        "mixer.out_proj.weight",
        prefix="transformer.h.0.",
        embedding="transformer.embd.wte.weight",
        norms=("ln", "ln"),
        also={"lm_head.linear.weight": (40, N)},
    ),
    "phi-2 as a sequence": Published(
        {"model_type": "mixformer-sequential", "n_embd": N, "n_head": H, "n_layer": 1, "rotary_dim": 2},
        {"mixer.Wqkv.weight": (3 * N, N), "mixer.out_proj.weight": (N, N), "mlp.fc1.weight": (M, N),
         "mlp.fc2.weight": (N, M)},
        split_contiguous("mixer.Wqkv.weight", H),
        plain("mlp.fc1.weight", "mlp.fc2.weight"),
        F.gelu,
        "mixer.out_proj.weight",
        prefix="layers.1.",
        embedding="layers.0.wte.weight",
        norms=("ln", "ln"),
        also={"layers.2.linear.weight": (40, N)},
    ),
    "falcon-40b as first published": Published(
        {"model_type": "RefinedWeb", "n_head": H, "n_head_kv": G, "hidden_size": N, "n_layer": 1},
        {"self_attention.query_key_value.weight": (ALL, N), "self_attention.dense.weight": (N, N),
         "mlp.dense_h_to_4h.weight": (M, N), "mlp.dense_4h_to_h.weight": (N, M)},
        split_per_group("self_attention.query_key_value.weight"),
        plain("mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"),
        F.gelu,
        "self_attention.dense.weight",
        prefix="transformer.h.0.",
        embedding="transformer.word_embeddings.weight",
        norms=("ln_attn", "ln_mlp"),
        also={"lm_head.weight": (40, N)},
    ),
    "replit, with grouped heads": Published(
        {"model_type": "mpt", "d_model": N, "n_heads": H, "n_layers": 1,
         "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": G}},
        {"attn.Wqkv.weight": (ALL, N), "attn.out_proj.weight": (N, N), "ffn.up_proj.weight": (M, N),
         "ffn.down_proj.weight": (N, M)},
        split_contiguous("attn.Wqkv.weight", G),
        plain("ffn.up_proj.weight", "ffn.down_proj.weight"),
        F.gelu,
        "attn.out_proj.weight",
        prefix="transformer.blocks.0.",
        embedding="transformer.wte.weight",
        norms=("norm_1", "norm_2"),
    ),
    "gte v1.5": Published(
        {"model_type": "new", "num_attention_heads": H, "hidden_size": N, "num_hidden_layers": 1},
        {"attention.qkv_proj.weight": (3 * N, N), "attention.o_proj.weight": (N, N),
         "mlp.up_gate_proj.weight": (2 * M, N), "mlp.down_proj.weight": (N, M)},
        split_contiguous("attention.qkv_proj.weight", H),
        chunked("mlp.up_gate_proj.weight", "mlp.down_proj.weight", F.gelu, first_is_gate=False),
        F.gelu,
        "attention.o_proj.weight",
        prefix="encoder.layer.0.",
        embedding="embeddings.word_embeddings.weight",
        norms=(),
    ),
    "telechat": Published(
        HEADS | {"model_type": "telechat"},
        {"self_attention.query.weight": (N, N), "self_attention.key_value.weight": (2 * G * D, N),
         "self_attention.dense.weight": (N, N), **OF_LLAMA},
        telechat,
        LLAMA_MLP,
        F.silu,
        "self_attention.dense.weight",
        prefix="transformer.h.0.",
        embedding="transformer.word_embeddings.weight",
        also={"transformer.ln_f.weight": (N,), "lm_head.weight": (40, N)},
    ),
    "jais": Published(
        {"model_type": "jais", "n_head": H, "n_embd": N, "n_layer": 1},
        {"attn.c_attn.weight": (N, 3 * N), "attn.c_proj.weight": (N, N), "mlp.c_fc.weight": (N, M),
         "mlp.c_fc2.weight": (N, M), "mlp.c_proj.weight": (M, N)},
        jais,
        jais_mlp,
        F.silu,
        "attn.c_proj.weight",
        prefix="transformer.h.0.",
        embedding="transformer.wte.weight",
        norms=("ln_1", "ln_2"),
        also={"transformer.ln_f.weight": (N,)},
    ),
    "bailing": Published(
        HEADS | {"model_type": "bailing_moe"},
        {"attention.query_key_value.weight": (ALL, N), "attention.dense.weight": (N, N), **OF_LLAMA},
        split_contiguous("attention.query_key_value.weight", G),
        LLAMA_MLP,
        F.silu,
        "attention.dense.weight",
        embedding="model.word_embeddings.weight",
        also={"model.norm.weight": (N,), "lm_head.weight": (40, N)},
    ),
    "codeshell": Published(
        {"model_type": "codeshell", "n_head": H, "n_embd": N, "n_layer": 1, "num_query_groups": G},
        {"attn.c_attn.weight": (ALL, N), "attn.c_proj.weight": (N, N), "mlp.c_fc.weight": (M, N),
         "mlp.c_proj.weight": (N, M)},
        split_contiguous("attn.c_attn.weight", G),
        plain("mlp.c_fc.weight", "mlp.c_proj.weight"),
        F.gelu,
        "attn.c_proj.weight",
        prefix="transformer.h.0.",
        embedding="transformer.wte.weight",
        norms=("ln_1", "ln_2"),
        also={"transformer.ln_f.weight": (N,), "lm_head.weight": (40, N)},
    ),
    "llada": Published(
        {"model_type": "llada", "n_heads": H, "n_kv_heads": H, "d_model": N, "n_layers": 1},
        {"q_proj.weight": (N, N), "k_proj.weight": (N, N), "v_proj.weight": (N, N), "attn_out.weight": (N, N),
         "ff_proj.weight": (M, N), "up_proj.weight": (M, N), "ff_out.weight": (N, M)},
        three("q_proj.weight", "k_proj.weight", "v_proj.weight"),
        gated("ff_proj.weight", "up_proj.weight", "ff_out.weight"),
        F.silu,
        "attn_out.weight",
        prefix="model.transformer.blocks.0.",
        embedding="model.transformer.wte.weight",
        norms=("attn_norm", "ff_norm"),
        also={"model.transformer.ff_out.weight": (40, N), "model.transformer.ln_f.weight": (N,)},
    ),
    "olmo in its own code": Published(
        {"model_type": "hf_olmo", "n_heads": H, "n_kv_heads": G, "d_model": N, "n_layers": 1},
        {"att_proj.weight": (ALL, N), "attn_out.weight": (N, N), "ff_proj.weight": (2 * M, N), "ff_out.weight": (N, M)},
        split_contiguous("att_proj.weight", G),
        chunked("ff_proj.weight", "ff_out.weight", first_is_gate=False),
        F.silu,
        "attn_out.weight",
        prefix="model.transformer.blocks.0.",
        embedding="model.transformer.wte.weight",
        norms=("attn_norm", "ff_norm"),
    ),
    "yi as first published": Published(
        HEADS | {"model_type": "Yi"},
        {"self_attn.q_proj.weight": (N, N), "self_attn.k_proj.weight": (G * D, N),
         "self_attn.v_proj.weight": (G * D, N), "self_attn.o_proj.weight": (N, N), **OF_LLAMA},
        three(*(f"self_attn.{n}_proj.weight" for n in "qkv")),
        LLAMA_MLP,
        F.silu,
        "self_attn.o_proj.weight",
        norms=("ln1", "ln2"),
    ),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request):
    published = FAMILIES[request.param]
    rests = published.shapes | {f"{norm}.weight": (N,) for norm in published.norms}
    tensors = {rest: draw(*shape) for rest, shape in rests.items()}
    whole = {published.prefix + rest: tensor for rest, tensor in tensors.items()}
    whole[published.embedding] = draw(40, N)
    whole |= {name: draw(*shape) for name, shape in published.also.items()}
    anatomy = resolve_anatomy(published.config, list(whole), lambda name: tuple(whole[name].shape))
    return published, tensors, MemorySource(whole), anatomy


def test_queries_keys_and_values_are_those_of_the_published_code(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    x = draw(N)
    for role, expected in zip((Role.Q, Role.K, Role.V), published.qkv(tensors, x), strict=True):
        got = read_part(source, layer.parts[role]) @ x
        torch.testing.assert_close(got, expected.reshape(-1), rtol=1e-4, atol=1e-5)  # float32 in another order


def test_gate_up_and_down_make_the_output_of_the_published_mlp(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    x = draw(N)
    up, down = (read_part(source, layer.parts[role]) for role in (Role.UP, Role.DOWN))
    gate = layer.parts.get(Role.GATE)
    if gate is None:
        inner = published.act(up @ x)
    elif published.act is None:  # Phi-3-small
        g = read_part(source, gate) @ x
        inner = g * torch.sigmoid(1.702 * g) * (up @ x + 1)
    else:
        inner = published.act(read_part(source, gate) @ x) * (up @ x)
    torch.testing.assert_close(down @ inner, published.mlp(tensors, x), rtol=1e-3, atol=1e-4)


def test_the_rest_is_placed_too(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    stored = tensors[published.o]
    o = read_part(source, layer.parts[Role.O])
    assert torch.equal(o, stored.T if layer.parts[Role.O].transposed else stored)
    named = [f"{published.prefix}{norm}.weight" for norm in published.norms]
    norms = [layer.parts.get(role) for role in (Role.ATTENTION_NORM, Role.MLP_NORM)]
    assert [norm.tensor for norm in norms if norm is not None] == named
    assert anatomy.embedding.tensor == published.embedding
    assert layer.missing == ()
    assert anatomy.unplaced == ()
    anatomy.check_shapes(layer, lambda name: source.spec(name).shape)
    n_kv = published.qkv(tensors, draw(N))[1].shape[0]
    heads = layer.heads or anatomy
    if published.config:
        assert (heads.n_heads, heads.n_kv_heads) == (H, n_kv)
    for name, shape in published.also.items():
        if shape == (40, N):
            assert anatomy.unembedding.tensor == name
        elif shape == (N,):
            assert anatomy.final_norm.tensor == name


def test_queries_of_step_3_are_a_product_and_the_latent_is_no_query():
    shapes = {
        "self_attn.q_proj.weight": (8, N),
        "self_attn.inter_norm.weight": (8,),
        "self_attn.wq.weight": (H * D, 8),
        "self_attn.k_proj.weight": (D, N),
        "self_attn.v_proj.weight": (D, N),
        "self_attn.o_proj.weight": (N, H * D),
    }
    tensors = {LAYER + rest: draw(*shape) for rest, shape in shapes.items()} | {
        "model.embed_tokens.weight": draw(40, N)
    }
    config = {
        "model_type": "step3",
        "text_config": {"num_attention_heads": H, "num_attention_groups": 1, "hidden_size": N},
    }
    anatomy = resolve_anatomy(config, list(tensors), lambda name: tuple(tensors[name].shape))
    (layer,) = anatomy.layers
    a, g, b = (tensors[f"{LAYER}self_attn.{name}.weight"] for name in ("q_proj", "inter_norm", "wq"))
    got = read_part(MemorySource(tensors), layer.parts[Role.Q]).float()
    torch.testing.assert_close(got, (b * g) @ a, rtol=1e-4, atol=1e-5)
    assert (layer.heads.n_heads, layer.heads.n_kv_heads) == (H, 1)


LLAMA_NAMES = [
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
]  # fmt: skip


@pytest.mark.parametrize(
    "model_type", ["internlm", "orion", "xverse", "aquila", "skywork", "mimo", "solar", "pangu_embedded", "minicpm"]
)
def test_families_in_llamas_names_need_no_row(model_type):
    names = ["model.embed_tokens.weight", *(f"{LAYER}{name}.weight" for name in LLAMA_NAMES)]
    anatomy = resolve_anatomy(HEADS | {"model_type": model_type}, names, lambda name: (40, N))
    assert anatomy.layers[0].missing == ()
    assert anatomy.unplaced == ()


@pytest.mark.parametrize("model_type", ["PanguProMoE", "hunyuan", "deepseek"])
def test_mixtures_in_common_names_need_no_row(model_type):
    of_attention = [name for name in LLAMA_NAMES if not name.startswith("mlp")]
    experts = [f"mlp.experts.{e}.{n}_proj" for e in range(2) for n in ("gate", "up", "down")]
    shared = [f"mlp.shared_{'mlp' if model_type == 'hunyuan' else 'experts'}.{n}_proj" for n in ("gate", "up", "down")]
    router = "mlp.gate.wg" if model_type == "hunyuan" else "mlp.gate"
    names = ["model.embed_tokens.weight"]
    names += [f"{LAYER}{name}.weight" for name in (*of_attention, *experts, *shared, router)]
    anatomy = resolve_anatomy(HEADS | {"model_type": model_type, "num_experts": 2}, names, lambda name: (40, N))
    (layer,) = anatomy.layers
    assert len(layer.experts) == 2
    assert len(layer.shared_experts) == 1
    assert Role.ROUTER in layer.parts
    assert layer.missing == ()
    assert anatomy.unplaced == ()


def test_what_no_source_was_found_for_stays_unplaced():
    rests = ["block.q.weight", "block.w1.weight", "block.w2.weight"]
    names = ["model.embed_tokens.weight", *(LAYER + rest for rest in rests)]
    anatomy = resolve_anatomy(HEADS | {"model_type": "of-tomorrow"}, names, lambda name: (40, N))
    assert anatomy.layers[0].parts == {}
    assert len(anatomy.unplaced) == len(rests)
    assert anatomy.unread_layers == (0,)
