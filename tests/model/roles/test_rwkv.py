"""RWKV by arithmetic: the result of each version for one token, from tensors by name and from our roles.

Version 4 is the module of transformers. For 5 to 7 this file contains the published arithmetic of a first token, whose
neighbour is zero, as in the reference files of RWKV-LM and flash-linear-attention.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
import transformers

from mdir_hf.model.files import MemorySource, open_checkpoint
from mdir_hf.model.roles import HeadCounts, Role, read_config, read_part, resolve_anatomy
from tests.conformance_tensors import MemoryTree

# float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

WIDTH, N_HEADS, HEAD, N_NEURONS, LORA = 24, 4, 6, 40, 5


def draw(*shape):
    return torch.randn(*shape, generator=draw.generator) * 0.5


def common(version):
    """Tensors of every version, with the names of RWKV-LM."""
    draw.generator = torch.Generator().manual_seed(version)
    tensors = {
        "emb.weight": draw(40, WIDTH),
        "head.weight": draw(40, WIDTH),
        "ln_out.weight": draw(WIDTH),
        "blocks.0.ln0.weight": draw(WIDTH),
        "blocks.0.ln1.weight": draw(WIDTH),
        "blocks.0.ln2.weight": draw(WIDTH),
        "blocks.0.att.ln_x.weight": draw(WIDTH),
        "blocks.0.ffn.key.weight": draw(N_NEURONS, WIDTH),
        "blocks.0.ffn.value.weight": draw(WIDTH, N_NEURONS),
    }
    return tensors | {f"blocks.0.att.{n}.weight": draw(WIDTH, WIDTH) for n in ("receptance", "key", "value", "output")}


def version_5():
    return common(5) | {
        **{f"blocks.0.att.time_mix_{n}": draw(1, 1, WIDTH) for n in "rkvg"},
        "blocks.0.att.time_faaaa": draw(N_HEADS, HEAD),
        "blocks.0.att.time_decay": draw(N_HEADS, HEAD),
        "blocks.0.att.gate.weight": draw(WIDTH, WIDTH),
        "blocks.0.ffn.receptance.weight": draw(WIDTH, WIDTH),
        **{f"blocks.0.ffn.time_mix_{n}": draw(1, 1, WIDTH) for n in "rk"},
    }


def version_6():
    return common(6) | {
        **{f"blocks.0.att.time_maa_{n}": draw(1, 1, WIDTH) for n in "xwkvrg"},
        "blocks.0.att.time_maa_w1": draw(WIDTH, 5 * LORA),
        "blocks.0.att.time_maa_w2": draw(5, LORA, WIDTH),
        "blocks.0.att.time_decay": draw(1, 1, WIDTH),
        "blocks.0.att.time_decay_w1": draw(WIDTH, LORA),
        "blocks.0.att.time_decay_w2": draw(LORA, WIDTH),
        "blocks.0.att.time_faaaa": draw(N_HEADS, HEAD),
        "blocks.0.att.gate.weight": draw(WIDTH, WIDTH),
        "blocks.0.ffn.receptance.weight": draw(WIDTH, WIDTH),
        **{f"blocks.0.ffn.time_maa_{n}": draw(1, 1, WIDTH) for n in "rk"},
    }


def version_7():
    return common(7) | {
        **{f"blocks.0.att.x_{n}": draw(1, 1, WIDTH) for n in "rwkvag"},
        **{f"blocks.0.att.{n}0": draw(1, 1, WIDTH) for n in "wav"},
        **{f"blocks.0.att.{n}1": draw(WIDTH, LORA) for n in "wavg"},
        **{f"blocks.0.att.{n}2": draw(LORA, WIDTH) for n in "wavg"},
        "blocks.0.att.k_k": draw(1, 1, WIDTH),
        "blocks.0.att.k_a": draw(1, 1, WIDTH),
        "blocks.0.att.r_k": draw(N_HEADS, HEAD),
        "blocks.0.ffn.x_k": draw(1, 1, WIDTH),
    }


def group_norm(x, weight, eps):
    return F.group_norm(x[None], N_HEADS, weight, eps=eps)[0]


def attention_5(t, x, w):
    """``w``: receptance, key, value, gate and output; the neighbour of a first token is zero."""
    r, k, v, g = (w[n] @ (x * t[f"att.time_mix_{n}"].reshape(-1)) for n in "rkvg")
    return w["o"] @ (group_norm(mixed(r, k, v, t["att.time_faaaa"]) / 8, t["att.ln_x.weight"], 1e-5) * F.silu(g))


def attention_6(t, x, w):
    shift = -x  # the neighbour minus x
    xxx = x + shift * t["att.time_maa_x"].reshape(-1)
    low = torch.tanh(xxx @ t["att.time_maa_w1"]).reshape(5, LORA)
    mw, mk, mv, mr, mg = torch.einsum("nl,nlc->nc", low, t["att.time_maa_w2"])
    inputs = {
        n: x + shift * (t[f"att.time_maa_{n}"].reshape(-1) + m)
        for n, m in zip("wkvrg", (mw, mk, mv, mr, mg), strict=True)
    }
    r, k, v, g = (w[n] @ inputs[n] for n in "rkvg")
    return w["o"] @ (group_norm(mixed(r, k, v, t["att.time_faaaa"]), t["att.ln_x.weight"], 64e-5) * F.silu(g))


def mixed(r, k, v, bonus):
    """The output of the heads for a first token, whose state is empty: ``r (u * k v^T)``."""
    r, k, v = (x.reshape(N_HEADS, HEAD) for x in (r, k, v))
    return ((r * bonus * k).sum(dim=1, keepdim=True) * v).reshape(-1)


def attention_7(t, x, w):
    inputs = {n: x - x * t[f"att.x_{n}"].reshape(-1) for n in "rwkvag"}
    r, k, v = (w[n] @ inputs[n] for n in "rkv")
    a = torch.sigmoid(t["att.a0"].reshape(-1) + inputs["a"] @ t["att.a1"] @ t["att.a2"])
    g = torch.sigmoid(inputs["g"] @ t["att.g1"]) @ t["att.g2"]
    k = k * (1 + (a - 1) * t["att.k_a"].reshape(-1))
    r, k, v = (y.reshape(N_HEADS, HEAD) for y in (r, k, v))
    state = v[:, :, None] * k[:, None, :]
    out = group_norm((state @ r[:, :, None]).reshape(-1), t["att.ln_x.weight"], 64e-5)
    return w["o"] @ ((out + ((r * k * t["att.r_k"]).sum(dim=1, keepdim=True) * v).reshape(-1)) * g)


VERSIONS = {
    "rwkv5": (version_5, attention_5),
    "rwkv6": (version_6, attention_6),
    "rwkv7": (version_7, attention_7),
}
OF_ATTENTION = {"r": "receptance", "k": "key", "v": "value", "o": "output", "g": "gate"}
ROLES = {"r": Role.Q, "k": Role.K, "v": Role.V, "o": Role.O, "g": Role.MIXER_GATE}


def resolve(tensors, config=None):
    return resolve_anatomy(config, list(tensors), lambda name: tuple(tensors[name].shape))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_roles_make_what_the_version_makes_of_a_token(version):
    make, attention = VERSIONS[version]
    tensors = make()
    anatomy = resolve(tensors)
    (layer,) = anatomy.layers
    named = {name.removeprefix("blocks.0."): tensor for name, tensor in tensors.items()}
    x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(9))

    by_role = {
        n: read_part(MemorySource(tensors), layer.parts[role]) for n, role in ROLES.items() if role in layer.parts
    }
    by_name = {n: named[f"att.{word}.weight"] for n, word in OF_ATTENTION.items() if f"att.{word}.weight" in named}
    assert by_role.keys() == by_name.keys()
    torch.testing.assert_close(attention(named, x, by_role), attention(named, x, by_name), **CLOSE)
    swapped = by_name | {"r": by_name["k"], "k": by_name["r"]}
    assert not torch.allclose(attention(named, x, swapped), attention(named, x, by_name), rtol=0.1)


@pytest.mark.parametrize("version", VERSIONS)
def test_up_and_down_are_key_and_value_of_the_channel_mixing(version):
    tensors = VERSIONS[version][0]()
    (layer,) = resolve(tensors).layers
    source = MemorySource(tensors)
    up, down = (read_part(source, layer.parts[role]) for role in (Role.UP, Role.DOWN))
    x = draw(WIDTH)
    expected = tensors["blocks.0.ffn.value.weight"] @ torch.relu(tensors["blocks.0.ffn.key.weight"] @ x) ** 2
    torch.testing.assert_close(down @ torch.relu(up @ x) ** 2, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_without_a_config_tells_its_version_and_heads(version):
    tensors = VERSIONS[version][0]()
    anatomy = resolve(tensors)
    assert anatomy.architecture == version
    assert anatomy.embedding.tensor == "emb.weight"
    assert anatomy.unembedding.tensor == "head.weight"
    assert anatomy.final_norm.tensor == "ln_out.weight"
    assert (anatomy.n_heads, anatomy.n_kv_heads, anatomy.head_dim) == (N_HEADS, N_HEADS, HEAD)
    (layer,) = anatomy.layers
    assert layer.rope == "none"
    assert layer.missing == ()
    assert layer.parts[Role.ATTENTION_NORM].tensor == "blocks.0.ln1.weight"
    assert layer.parts[Role.MLP_NORM].tensor == "blocks.0.ln2.weight"
    anatomy.check_shapes(layer, lambda name: tuple(tensors[name].shape))


def test_heads_of_the_tensors_override_the_config():
    # Files of version 5 on the Hub state the width of a head as the number of heads.
    tensors = version_5()
    anatomy = resolve(
        tensors, {"model_type": "rwkv5", "hidden_size": WIDTH, "num_attention_heads": 64, "head_size": 64}
    )
    assert (anatomy.n_heads, anatomy.head_dim) == (N_HEADS, HEAD)


def test_version_4_is_recognised_by_missing_weights():
    names = ["emb.weight", "blocks.0.att.time_mix_r", "blocks.0.att.time_first", "blocks.0.att.key.weight"]
    anatomy = resolve_anatomy(None, names, lambda name: (40, WIDTH))
    assert anatomy.architecture == "rwkv4"
    assert anatomy.n_heads is None


FLA_7 = {
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
}


def in_flash_linear_attention(tensors):
    """The names of version 7 in flash-linear-attention, for the relevant tensors."""
    out = {"model.embeddings.weight": tensors["emb.weight"], "lm_head.weight": tensors["head.weight"]}
    out["model.norm.weight"] = tensors["ln_out.weight"]
    for name, tensor in tensors.items():
        if not name.startswith("blocks.0."):
            continue
        rest = name.removeprefix("blocks.0.")
        for old, new in {**FLA_7, "ln1": "attn_norm", "ln2": "ffn_norm", "ln0": "pre_norm", "att.": "attn."}.items():
            if rest.startswith(old):
                rest = new + rest.removeprefix(old)
                break
        out[f"model.layers.0.{rest}"] = tensor
    return out


def test_flash_linear_attention_has_the_same_roles_under_its_names():
    tensors = version_7()
    renamed = in_flash_linear_attention(tensors)
    (layer,) = resolve(tensors).layers
    anatomy = resolve(renamed, {"model_type": "rwkv7", "hidden_size": WIDTH})
    (other,) = anatomy.layers
    assert layer.parts.keys() == other.parts.keys()
    for role, part in layer.parts.items():
        assert torch.equal(tensors[part.tensor], renamed[other.parts[role].tensor])
    assert anatomy.embedding.tensor == "model.embeddings.weight"
    assert (anatomy.n_heads, anatomy.head_dim) == (N_HEADS, HEAD)


def test_projections_that_carry_their_mixing_along_are_known():
    # flash-linear-attention's version 6.
    names = {
        "attn.r_proj.linear.weight": Role.Q,
        "attn.k_proj.linear.weight": Role.K,
        "attn.v_proj.linear.weight": Role.V,
        "attn.g_proj.linear.weight": Role.MIXER_GATE,
        "attn.o_proj.weight": Role.O,
        "ffn.key.linear.weight": Role.UP,
        "ffn.value.weight": Role.DOWN,
        "attn_norm.weight": Role.ATTENTION_NORM,
        "ffn_norm.weight": Role.MLP_NORM,
    }
    further = ["attn.x_bias", "attn.bonus", "attn.w_proj.linear.lora.0.weight", "ffn.receptance.linear.weight"]
    all_names = ["model.embeddings.weight", *(f"model.layers.0.{rest}" for rest in (*names, *further))]
    anatomy = resolve_anatomy({"model_type": "rwkv6", "hidden_size": WIDTH}, all_names, lambda name: (40, WIDTH))
    placed = {part.tensor.removeprefix("model.layers.0."): role for role, part in anatomy.layers[0].parts.items()}
    assert placed == names


def test_names_of_rwkv_without_its_mixing_stay_unplaced():
    names = ["model.embeddings.weight", "model.layers.0.attention.key.weight", "model.layers.0.ffn.value.weight"]
    anatomy = resolve_anatomy({"model_type": "other", "hidden_size": WIDTH}, names, lambda name: (40, WIDTH))
    assert anatomy.layers[0].parts == {}


# --- version 4, the module of transformers


@pytest.fixture(scope="module")
def version_4(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.RwkvConfig(
        vocab_size=40, hidden_size=WIDTH, attention_hidden_size=30, intermediate_size=N_NEURONS, num_hidden_layers=2
    )
    model = transformers.RwkvForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tree = MemoryTree.from_folder(folder)
    source = open_checkpoint(tree)
    config = read_config(tree.read("config.json"))
    return model, source, resolve_anatomy(config, source.names(), lambda name: source.spec(name).shape)


def test_version_4_gives_its_recurrence_our_keys_and_values(version_4, monkeypatch):
    model, source, anatomy = version_4
    code, given, inputs, outputs = inspect.getmodule(type(model)), [], [], []
    original = code.rwkv_linear_attention

    def recurrence(decay, first, key, value, **kwargs):
        given.append((key.reshape(-1), value.reshape(-1)))
        return original(decay, first, key, value, **kwargs)

    monkeypatch.setattr(code, "rwkv_linear_attention", recurrence)

    def store(_, args, output):
        inputs.append(args[0].reshape(-1))
        outputs.append(output[0].reshape(-1))

    for block in model.rwkv.blocks:
        for module in (block.attention, block.feed_forward):
            module.register_forward_hook(store)
    with torch.no_grad():
        model(torch.tensor([[5]]), use_cache=False)

    assert anatomy.n_heads is None
    for at, (layer, block) in enumerate(zip(anatomy.layers, model.rwkv.blocks, strict=True)):
        assert layer.missing == ()
        weight = {role: read_part(source, part) for role, part in layer.parts.items()}
        x, (key, value), mixing = inputs[2 * at], given[at], block.attention
        torch.testing.assert_close(weight[Role.K] @ (x * mixing.time_mix_key.reshape(-1)), key, **CLOSE)
        torch.testing.assert_close(weight[Role.V] @ (x * mixing.time_mix_value.reshape(-1)), value, **CLOSE)
        r = torch.sigmoid(weight[Role.Q] @ (x * mixing.time_mix_receptance.reshape(-1)))
        torch.testing.assert_close(weight[Role.O] @ (r * value), outputs[2 * at], **CLOSE)  # one token: its own value
        x, feeding = inputs[2 * at + 1], block.feed_forward
        inner = torch.relu(weight[Role.UP] @ (x * feeding.time_mix_key.reshape(-1))) ** 2
        r = torch.sigmoid(feeding.receptance.weight @ (x * feeding.time_mix_receptance.reshape(-1)))
        torch.testing.assert_close(r * (weight[Role.DOWN] @ inner), outputs[2 * at + 1], **CLOSE)


def test_version_4_of_transformers_is_whole(version_4):
    model, source, anatomy = version_4
    assert anatomy.architecture == "rwkv"
    assert torch.equal(read_part(source, anatomy.embedding), model.get_input_embeddings().weight)
    assert torch.equal(read_part(source, anatomy.unembedding), model.get_output_embeddings().weight)
    assert anatomy.final_norm.tensor == "rwkv.ln_out.weight"
    for layer in anatomy.layers:
        anatomy.check_shapes(layer, lambda name: source.spec(name).shape)


def test_counts_of_heads_compare_by_their_number():
    assert HeadCounts(4, 2, {"hidden_size": 8}) == HeadCounts(4, 2)
