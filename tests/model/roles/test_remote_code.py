"""Families whose code is not in transformers: compare our roles with the arithmetic of their published code.

Each family is a row of a table: the names of its tensors, and its code's result for one token at position 0: queries,
keys and values per head, and the output of its MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Piece:
    """A part of a layer: its tensors, and the computation of the family's code on a token.

    Attributes:
        shapes: Shapes by name, without ``.weight``.
        compute: Maps tensors by name and a token to q ``(H, d)``, k and v ``(G, d)``, or to the output of the MLP.
        act: Activation of the MLP.
    """

    shapes: dict[str, tuple[int, ...]]
    compute: Callable
    act: Callable | None = None


@dataclass(frozen=True)
class Published:
    """A family: its layer and the names of its other tensors.

    Attributes:
        config: Its config.
        qkv: Queries, keys and values.
        o: Name of the output projection of attention.
        mlp: The MLP.
        prefix: Before the names in a layer.
        embedding: Name of the embedding.
        norms: Names of the norms before attention and MLP.
        head: Name of the unembedding, if there is one.
        final_norm: Name of the last norm, if there is one.
    """

    config: dict[str, object]
    qkv: Piece
    o: str
    mlp: Piece
    prefix: str = LAYER
    embedding: str = "model.embed_tokens"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head: str | None = None
    final_norm: str | None = None

    @property
    def rest(self):
        """Shapes of the tensors outside the layer, without the embedding, by name."""
        return {name: shape for name, shape in ((self.head, (40, N)), (self.final_norm, (N,))) if name is not None}


# --- attention


def fused(name, n_kv=H):
    """Split ``W x`` into all queries, all keys and all values."""

    def qkv(t, x):
        q, k, v = (t[name] @ x).split([H * D, n_kv * D, n_kv * D])
        return q.view(H, D), k.view(n_kv, D), v.view(n_kv, D)

    return Piece({name: ((H + 2 * n_kv) * D, N)}, qkv)


def fused_per_head(name):
    """View ``W x`` as (heads, 3 d) and split each head into three."""
    return Piece({name: (3 * N, N)}, lambda t, x: (t[name] @ x).view(H, 3 * D).split(D, dim=1))


def fused_per_group(name):
    """View ``W x`` as (groups, queries of the group + 2, d)."""

    def qkv(t, x):
        mixed = (t[name] @ x).view(G, H // G + 2, D)
        return mixed[:, :-2].reshape(H, D), mixed[:, -2], mixed[:, -1]

    return Piece({name: ((H + 2 * G) * D, N)}, qkv)


def separate(pattern, names=("q", "k", "v"), n_kv=G):
    """A tensor each."""
    q, k, v = (pattern % name for name in names)
    shapes = {q: (N, N), k: (n_kv * D, N), v: (n_kv * D, N)}
    return Piece(shapes, lambda t, x: tuple((t[name] @ x).view(-1, D) for name in (q, k, v)))


def telechat(t, x):
    key, value = (t["self_attention.key_value"] @ x).view(G, 2 * D).split(D, dim=1)
    return (t["self_attention.query"] @ x).view(H, D), key, value


def jais(t, x):
    q, k, v = (x @ t["attn.c_attn"]).split(N)  # Conv1D
    return q.view(H, D), k.view(H, D), v.view(H, D)


# --- the MLP


def gated(gate, up, down, act=F.silu):
    """Two projections in."""
    shapes = {gate: (M, N), up: (M, N), down: (N, M)}
    return Piece(shapes, lambda t, x: t[down] @ (act(t[gate] @ x) * (t[up] @ x)), act)


def chunked(name, down, act=F.silu, *, first_is_gate=True):
    """Gate and up in one tensor, one after the other."""

    def mlp(t, x):
        first, second = (t[name] @ x).chunk(2)
        gate, up = (first, second) if first_is_gate else (second, first)
        return t[down] @ (act(gate) * up)

    return Piece({name: (2 * M, N), down: (N, M)}, mlp, act)


def plain(up, down, act=F.gelu):
    """No gate."""
    return Piece({up: (M, N), down: (N, M)}, lambda t, x: t[down] @ act(t[up] @ x), act)


def gegelu(t, x):
    """Phi-3-small: alternating values, one added to the second kind (its clamp at 20 is not reached here)."""
    mixed = t["mlp.up_proj"] @ x
    a_gelu, a_linear = mixed[::2], mixed[1::2]
    return t["mlp.down_proj"] @ (a_gelu * torch.sigmoid(1.702 * a_gelu) * (a_linear + 1))


def jais_mlp(t, x):
    first, second = x @ t["mlp.c_fc"], x @ t["mlp.c_fc2"]
    return (first * F.silu(second)) @ t["mlp.c_proj"]


GLM, PHI_2 = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), ("mlp.fc1", "mlp.fc2")
OF_W = gated(*(f"feed_forward.w{number}" for number in (1, 3, 2)))
OF_LLAMA = gated(*(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
GPT, WORDS = "transformer.h.0.", "transformer.word_embeddings"

FAMILIES = {
    "chatglm 2, 3 and GLM-4": Published(
        {"model_type": "chatglm", "num_attention_heads": H, "multi_query_attention": True, "multi_query_group_num": G,
         "kv_channels": D, "hidden_size": N, "num_layers": 1, "padded_vocab_size": 40},
        fused("self_attention.query_key_value", G), "self_attention.dense", chunked(*GLM),
        prefix="transformer.encoder.layers.0.", embedding="transformer.embedding.word_embeddings",
        head="transformer.output_layer", final_norm="transformer.encoder.final_layernorm",
    ),
    "chatglm 6b": Published(
        {"model_type": "chatglm", "num_attention_heads": H, "hidden_size": N, "num_layers": 1, "vocab_size": 40},
        fused_per_head("attention.query_key_value"), "attention.dense", plain(*GLM),
        prefix="transformer.layers.0.", embedding=WORDS, head="lm_head", final_norm="transformer.final_layernorm",
    ),
    "internlm2": Published(
        HEADS | {"model_type": "internlm2"}, fused_per_group("attention.wqkv"), "attention.wo", OF_W,
        embedding="model.tok_embeddings", norms=("attention_norm", "ffn_norm"), head="output", final_norm="model.norm",
    ),
    "files of Llama and Mistral": Published(
        {}, separate("attention.w%s"), "attention.wo", OF_W,
        prefix="layers.0.", embedding="tok_embeddings", norms=("attention_norm", "ffn_norm"),
        head="output", final_norm="norm",
    ),
    "baichuan": Published(
        ALL_HEADS | {"model_type": "baichuan"}, fused("self_attn.W_pack"), "self_attn.o_proj", OF_LLAMA,
        head="lm_head", final_norm="model.norm",
    ),
    "qwen": Published(
        {"model_type": "qwen", "num_attention_heads": H, "hidden_size": N, "num_hidden_layers": 1},
        fused("attn.c_attn"), "attn.c_proj", gated("mlp.w2", "mlp.w1", "mlp.c_proj"),
        prefix=GPT, embedding="transformer.wte", norms=("ln_1", "ln_2"), head="lm_head", final_norm="transformer.ln_f",
    ),
    "exaone": Published(
        HEADS | {"model_type": "exaone", "num_layers": 1}, separate("attn.attention.%s_proj"),
        "attn.attention.out_proj", gated("mlp.c_fc_0", "mlp.c_fc_1", "mlp.c_proj"),
        prefix=GPT, embedding="transformer.wte", norms=("ln_1", "ln_2"), final_norm="transformer.ln_f",
    ),
    "phi-3-small": Published(
        HEADS | {"model_type": "phi3small"}, fused_per_group("self_attn.query_key_value"), "self_attn.dense",
        Piece({"mlp.up_proj": (2 * M, N), "mlp.down_proj": (N, M)}, gegelu), final_norm="model.final_layernorm",
    ),
    "phi-2 as first published": Published(
        ALL_HEADS | {"model_type": "phi-msft"}, fused("mixer.Wqkv"), "mixer.out_proj", plain(*PHI_2),
        prefix=GPT, embedding="transformer.embd.wte", norms=("ln", "ln"), head="lm_head.linear",
    ),
    "phi-2 as a sequence": Published(
        {"model_type": "mixformer-sequential", "n_embd": N, "n_head": H, "n_layer": 1, "rotary_dim": 2},
        fused("mixer.Wqkv"), "mixer.out_proj", plain(*PHI_2),
        prefix="layers.1.", embedding="layers.0.wte", norms=("ln", "ln"), head="layers.2.linear",
    ),
    "falcon-40b as first published": Published(
        {"model_type": "RefinedWeb", "n_head": H, "n_head_kv": G, "hidden_size": N, "n_layer": 1},
        fused_per_group("self_attention.query_key_value"), "self_attention.dense", plain(*GLM),
        prefix=GPT, embedding=WORDS, norms=("ln_attn", "ln_mlp"), head="lm_head",
    ),
    "replit, with grouped heads": Published(
        {"model_type": "mpt", "d_model": N, "n_heads": H, "n_layers": 1,
         "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": G}},
        fused("attn.Wqkv", G), "attn.out_proj", plain("ffn.up_proj", "ffn.down_proj"),
        prefix="transformer.blocks.0.", embedding="transformer.wte", norms=("norm_1", "norm_2"),
    ),
    "gte v1.5": Published(
        {"model_type": "new", "num_attention_heads": H, "hidden_size": N, "num_hidden_layers": 1},
        fused("attention.qkv_proj"), "attention.o_proj",
        chunked("mlp.up_gate_proj", "mlp.down_proj", F.gelu, first_is_gate=False),
        prefix="encoder.layer.0.", embedding="embeddings.word_embeddings", norms=(),
    ),
    "telechat": Published(
        HEADS | {"model_type": "telechat"},
        Piece({"self_attention.query": (N, N), "self_attention.key_value": (2 * G * D, N)}, telechat),
        "self_attention.dense", OF_LLAMA,
        prefix=GPT, embedding=WORDS, head="lm_head", final_norm="transformer.ln_f",
    ),
    "jais": Published(
        {"model_type": "jais", "n_head": H, "n_embd": N, "n_layer": 1},
        Piece({"attn.c_attn": (N, 3 * N)}, jais), "attn.c_proj",
        Piece({"mlp.c_fc": (N, M), "mlp.c_fc2": (N, M), "mlp.c_proj": (M, N)}, jais_mlp, F.silu),
        prefix=GPT, embedding="transformer.wte", norms=("ln_1", "ln_2"), head="lm_head", final_norm="transformer.ln_f",
    ),
    "bailing": Published(
        HEADS | {"model_type": "bailing_moe"}, fused("attention.query_key_value", G), "attention.dense", OF_LLAMA,
        embedding="model.word_embeddings", head="lm_head", final_norm="model.norm",
    ),
    "codeshell": Published(
        {"model_type": "codeshell", "n_head": H, "n_embd": N, "n_layer": 1, "num_query_groups": G},
        fused("attn.c_attn", G), "attn.c_proj", plain("mlp.c_fc", "mlp.c_proj"),
        prefix=GPT, embedding="transformer.wte", norms=("ln_1", "ln_2"), head="lm_head", final_norm="transformer.ln_f",
    ),
    "llada": Published(
        {"model_type": "llada", "n_heads": H, "n_kv_heads": H, "d_model": N, "n_layers": 1},
        separate("%s_proj", n_kv=H), "attn_out", gated("ff_proj", "up_proj", "ff_out"),
        prefix="model.transformer.blocks.0.", embedding="model.transformer.wte", norms=("attn_norm", "ff_norm"),
        head="model.transformer.ff_out", final_norm="model.transformer.ln_f",
    ),
    "olmo in its own code": Published(
        {"model_type": "hf_olmo", "n_heads": H, "n_kv_heads": G, "d_model": N, "n_layers": 1},
        fused("att_proj", G), "attn_out", chunked("ff_proj", "ff_out", first_is_gate=False),
        prefix="model.transformer.blocks.0.", embedding="model.transformer.wte", norms=("attn_norm", "ff_norm"),
    ),
    "yi as first published": Published(
        HEADS | {"model_type": "Yi"}, separate("self_attn.%s_proj"), "self_attn.o_proj", OF_LLAMA, norms=("ln1", "ln2"),
    ),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request):
    published = FAMILIES[request.param]
    shapes = published.qkv.shapes | {published.o: (N, N)} | published.mlp.shapes
    shapes |= dict.fromkeys(published.norms, (N,))
    tensors = {name: draw(*shape) for name, shape in shapes.items()}
    whole = {f"{published.prefix}{name}.weight": tensor for name, tensor in tensors.items()}
    whole |= {
        f"{name}.weight": draw(*shape) for name, shape in {published.embedding: (40, N), **published.rest}.items()
    }
    anatomy = resolve_anatomy(published.config, list(whole), lambda name: tuple(whole[name].shape))
    return published, tensors, MemorySource(whole), anatomy


def test_queries_keys_and_values_match_the_published_code(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    x = draw(N)
    for role, expected in zip((Role.Q, Role.K, Role.V), published.qkv.compute(tensors, x), strict=True):
        got = read_part(source, layer.parts[role]) @ x
        torch.testing.assert_close(got, expected.reshape(-1), rtol=1e-4, atol=1e-5)  # float32 in a different order


def test_gate_up_and_down_make_the_output_of_the_published_mlp(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    x = draw(N)
    up, down = (read_part(source, layer.parts[role]) for role in (Role.UP, Role.DOWN))
    gate = layer.parts.get(Role.GATE)
    if gate is None:
        inner = published.mlp.act(up @ x)
    elif published.mlp.act is None:  # Phi-3-small
        g = read_part(source, gate) @ x
        inner = g * torch.sigmoid(1.702 * g) * (up @ x + 1)
    else:
        inner = published.mlp.act(read_part(source, gate) @ x) * (up @ x)
    torch.testing.assert_close(down @ inner, published.mlp.compute(tensors, x), rtol=1e-3, atol=1e-4)


def test_the_rest_is_placed_too(family):
    published, tensors, source, anatomy = family
    (layer,) = anatomy.layers
    stored = tensors[published.o]
    o = read_part(source, layer.parts[Role.O])
    assert torch.equal(o, stored.T if layer.parts[Role.O].transposed else stored)
    named = [f"{published.prefix}{norm}.weight" for norm in published.norms]
    norms = [layer.parts.get(role) for role in (Role.ATTENTION_NORM, Role.MLP_NORM)]
    assert [norm.tensor for norm in norms if norm is not None] == named
    assert anatomy.embedding.tensor == f"{published.embedding}.weight"
    assert layer.missing == ()
    assert anatomy.unplaced == ()
    anatomy.check_shapes(layer, lambda name: source.spec(name).shape)
    n_kv = published.qkv.compute(tensors, draw(N))[1].shape[0]
    heads = layer.heads or anatomy
    if published.config:
        assert (heads.n_heads, heads.n_kv_heads) == (H, n_kv)
    for name, part in ((published.head, anatomy.unembedding), (published.final_norm, anatomy.final_norm)):
        assert name is None or part.tensor == f"{name}.weight"


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


def test_names_without_a_source_stay_unplaced():
    rests = ["block.q.weight", "block.w1.weight", "block.w2.weight"]
    names = ["model.embed_tokens.weight", *(LAYER + rest for rest in rests)]
    anatomy = resolve_anatomy(HEADS | {"model_type": "of-tomorrow"}, names, lambda name: (40, N))
    assert anatomy.layers[0].parts == {}
    assert len(anatomy.unplaced) == len(rests)
    assert anatomy.unread_layers == (0,)
