"""Published models resolve fully from names and shapes as on the Hub; published_models.py has one row for each."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.stacks import expert_sets
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.files import MemorySource
from mdir_hf.model.hub import IoLedger, open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import HeadCounts, Role, params_config, read_experts, read_part, read_sizes, resolve_anatomy
from mdir_hf.model.roles.parts import part_shape
from tests.model.roles.published_models import MAMBA, MODELS, meta

ATTENTION = (Role.Q, Role.K, Role.V, Role.O)


def check_attention(layer, heads, shape_of):
    """Check that heads divide the rows, queries and keys are equally wide, and o reads the values of all heads."""
    shapes = [part_shape(layer.parts[role], shape_of) for role in ATTENTION]
    (q_rows, _), (k_rows, _), (v_rows, _), (_, o_columns) = shapes
    assert q_rows % heads.n_heads == k_rows % heads.n_kv_heads == v_rows % heads.n_kv_heads == 0
    assert q_rows // heads.n_heads == k_rows // heads.n_kv_heads
    assert o_columns // heads.n_heads == v_rows // heads.n_kv_heads


def check_mlp(parts, shape_of):
    """Check that gate and up have as many neurons as down reads."""
    shapes = {role: part_shape(parts[role], shape_of) for role in (Role.GATE, Role.UP, Role.DOWN) if role in parts}
    neurons = {shape[0] if role is not Role.DOWN else shape[1] for role, shape in shapes.items()}
    assert len(neurons) <= 1
    assert not shapes or {Role.UP, Role.DOWN} <= shapes.keys()


@pytest.mark.parametrize("model", MODELS)
def test_a_published_model_resolves_wholly(model):
    published = MODELS[model]
    shapes = published.shapes()
    anatomy = resolve_anatomy(published.config, shapes, shapes.__getitem__)

    assert anatomy.embedding.tensor == published.embedding[0]
    assert (anatomy.unembedding and anatomy.unembedding.tensor) == (published.unembedding and published.unembedding[0])
    n_layers, first, _ = published.layers
    assert [layer.index for layer in anatomy.layers] == list(range(first, first + n_layers))
    assert anatomy.unplaced == ()
    assert (anatomy.rope, anatomy.rotary_dim) == published.rope
    for layer in (anatomy.layers[0], anatomy.layers[-1]):
        assert layer.missing == ()
        assert layer.parts.keys() >= set(ATTENTION)
        heads = layer.heads or HeadCounts(anatomy.n_heads, anatomy.n_kv_heads)
        assert (heads.n_heads, heads.n_kv_heads) == published.heads[:2]
        assert part_shape(layer.parts[Role.V], shapes.__getitem__)[0] == published.heads[1] * published.heads[2]
        anatomy.check_shapes(layer, shapes.__getitem__)
        check_attention(layer, heads, shapes.__getitem__)
        mlps = [*layer.experts, *layer.shared_experts] or [layer.parts]
        for mlp in mlps:
            assert {Role.UP, Role.DOWN} <= mlp.keys()
            check_mlp(mlp, shapes.__getitem__)


def test_norms_after_attention_and_mlp_of_grok_1_have_a_role():
    published = MODELS["xai-org/grok-1 in torch"]
    shapes = published.shapes()
    parts = resolve_anatomy(published.config, shapes, shapes.__getitem__).layers[0].parts
    names = [parts[role].tensor.split(".")[-2] for role in (Role.ATTENTION_OUT_NORM, Role.MLP_OUT_NORM)]
    assert names == ["post_attn_norm", "post_moe_norm"]


@pytest.mark.parametrize("model", MAMBA)
def test_state_spaces_own_mamba_is_recognised_by_its_names(model):
    config, layer = MAMBA[model]
    shapes = {f"backbone.layers.{i}.{rest}": shape for i in range(24) for rest, shape in layer.items()}
    shapes |= {"backbone.embedding.weight": (50280, 768), "backbone.norm_f.weight": (768,)}
    anatomy = resolve_anatomy(config, shapes, shapes.__getitem__)
    assert anatomy.embedding.tensor == "backbone.embedding.weight"
    assert len(anatomy.layers) == 24
    for found in anatomy.layers:
        assert found.missing == ()
        made = {role: part_shape(found.parts[role], shapes.__getitem__) for role in (Role.SSM_IN, Role.MIXER_GATE)}
        assert set(made.values()) == {(1536, 768)}
    first = anatomy.layers[0].parts
    rows = {role: first[role].rows(layer["mixer.in_proj.weight"]) for role in (Role.SSM_IN, Role.MIXER_GATE)}
    assert rows[Role.SSM_IN][0] == (0 if model.endswith("mamba-130m") else 1536)  # x|z of Mamba, z|x|B|C|dt of Mamba-2
    assert rows[Role.MIXER_GATE][0] == (1536 if model.endswith("mamba-130m") else 0)


def test_only_an_untied_head_is_no_embedding():
    published = MODELS["a copy that stores its head alone"]
    shapes = published.shapes()
    anatomy = resolve_anatomy(published.config, shapes, shapes.__getitem__)
    assert anatomy.tied and any("it is used as the embedding" in note for note in anatomy.notes)
    untied = resolve_anatomy(published.config | {"tie_word_embeddings": False}, shapes, shapes.__getitem__)
    assert untied.embedding is None and untied.unembedding is not None and not untied.tied


def test_adapters_beside_weights_are_left_out_and_reported():
    published = MODELS["microsoft/Phi-4-multimodal-instruct"]
    shapes = published.shapes()
    anatomy = resolve_anatomy(published.config, shapes, shapes.__getitem__)
    assert sum("adapters are stored beside the weights" in note for note in anatomy.notes) == 1
    assert ".base_layer." in anatomy.layers[0].parts[Role.Q].tensor


# --- contents of tensors, by value

N, M, E = 12, 8, 3


def draw(*shape):
    return torch.randn(*shape, generator=draw.generator)


draw.generator = torch.Generator().manual_seed(0)


def placed(config, layer):
    tensors = {f"model.layers.0.{rest}": tensor for rest, tensor in layer.items()}
    tensors["model.embed_tokens.weight"] = draw(40, N)
    anatomy = resolve_anatomy(config, list(tensors), lambda name: tuple(tensors[name].shape))
    return anatomy.layers[0], MemorySource(tensors)


def test_an_expert_of_grok_1_does_what_its_code_does():
    layer = {f"moe_block.experts.{e}.{name}.weight": draw(*shape) for e in range(E) for name, shape in
             (("linear", (M, N)), ("linear_v", (M, N)), ("linear_1", (N, M)))}  # fmt: skip
    found, source = placed({"model_type": "grok-1", "hidden_size": N}, layer)
    x = draw(N)
    for e, weights in enumerate(read_experts(source, found.experts)):
        w, v, o = (layer[f"moe_block.experts.{e}.{name}.weight"] for name in ("linear", "linear_v", "linear_1"))
        got = weights[Role.DOWN] @ (F.gelu(weights[Role.GATE] @ x) * (weights[Role.UP] @ x))
        torch.testing.assert_close(got, o @ (F.gelu(w @ x) * (v @ x)))


def test_experts_of_step_3_are_the_matrices_of_its_stacks():
    layer = {f"moe.{name}_proj.weight": draw(E, *shape) for name, shape in
             (("gate", (M, N)), ("up", (M, N)), ("down", (N, M)))}  # fmt: skip
    found, source = placed({"model_type": "step3_text", "hidden_size": N, "moe_num_experts": E}, layer)
    for e, weights in enumerate(read_experts(source, found.experts)):
        for role in (Role.GATE, Role.UP, Role.DOWN):
            assert torch.equal(weights[role], layer[f"moe.{role.value}_proj.weight"][e])


def test_an_mlp_of_arctic_beside_its_experts_does_what_its_code_does():
    layer = {f"residual_mlp.{w}.weight": draw(N, N) for w in ("w1", "w2", "w3")}
    layer |= {f"block_sparse_moe.experts.{e}.{w}.weight": draw(*((N, M) if w == "w2" else (M, N))) for e in range(E)
              for w in ("w1", "w2", "w3")} | {"residual_layernorm.weight": draw(N)}  # fmt: skip
    found, source = placed({"model_type": "arctic", "hidden_size": N, "num_local_experts": E}, layer)
    assert found.parts[Role.SHARED_NORM].tensor == "model.layers.0.residual_layernorm.weight"
    x = draw(N)
    (weights,) = read_experts(source, found.shared_experts)
    w1, w2, w3 = (layer[f"residual_mlp.{w}.weight"] for w in ("w1", "w2", "w3"))
    got = weights[Role.DOWN] @ (F.silu(weights[Role.GATE] @ x) * (weights[Role.UP] @ x))
    torch.testing.assert_close(got, w2 @ (F.silu(w1 @ x) * (w3 @ x)))


def test_each_mlp_of_arctic_is_read_after_its_own_norm():
    layer = {f"{mlp}.{w}.weight": draw(*((N, M) if w == "w2" else (M, N))) for w in ("w1", "w2", "w3")
             for mlp in ("residual_mlp", "block_sparse_moe.experts.0")}  # fmt: skip
    layer |= {f"{norm}_layernorm.weight": 1 + draw(N).abs() for norm in ("input", "post_attention", "residual")}
    tensors = {f"model.layers.0.{rest}": tensor for rest, tensor in layer.items()}
    tensors["model.embed_tokens.weight"] = draw(40, N)
    config = {"model_type": "arctic", "hidden_size": N, "num_local_experts": 1}
    anatomy = resolve_anatomy(config, list(tensors), lambda name: tuple(tensors[name].shape))
    model = SimpleNamespace(anatomy=anatomy, tensors=MemorySource(tensors), label="arctic")
    (experts,) = expert_sets(model)
    assert experts.names == (0, "shared")
    for at, (mlp, norm) in enumerate((("block_sparse_moe.experts.0", "post_attention"), ("residual_mlp", "residual"))):
        gain = layer[f"{norm}_layernorm.weight"]
        for role, name in ((Role.UP, "w3"), (Role.GATE, "w1")):
            rows = RoleReader(experts, role).read(at, None)
            torch.testing.assert_close(rows.float(), unit_rows(layer[f"{mlp}.{name}.weight"] * gain))


def test_arctic_without_experts_has_one_mlp():
    layer = {f"block_sparse_moe.mlp.{w}.weight": draw(*((N, M) if w == "w2" else (M, N))) for w in ("w1", "w2", "w3")}
    found, _ = placed({"model_type": "arctic", "hidden_size": N}, layer)
    names = [found.parts[role].tensor.split(".")[-2] for role in (Role.GATE, Role.UP, Role.DOWN)]
    assert names == ["w1", "w3", "w2"]
    assert (found.experts, found.shared_experts) == ((), ())


def test_zamba_adds_down_through_the_matrix_of_the_layer():
    layer = {"linear.weight": draw(N, N), "shared_transf.feed_forward.down_proj.weight": draw(N, M)}
    found, source = placed({"model_type": "zamba", "hidden_size": N}, layer)
    neurons = draw(M)
    expected = layer["linear.weight"] @ (layer["shared_transf.feed_forward.down_proj.weight"] @ neurons)
    torch.testing.assert_close(read_part(source, found.parts[Role.DOWN]).float() @ neurons, expected)


# --- params.json

PIXTRAL = {
    "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "vocab_size": 131072, "vision_encoder": {"hidden_size": 1024, "num_hidden_layers": 24},
}  # fmt: skip
LLAMA_2 = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": -1}
MIXTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "moe": {"num_experts": 8}}


@pytest.mark.parametrize(
    ("params", "heads", "head_dim", "more"),
    [
        (PIXTRAL, (32, 8), 128, {"n_layers": 40, "hidden_size": 5120, "vocabulary_size": 131072}),
        (LLAMA_2, (32, 32), 128, {"vocabulary_size": None, "n_experts": None}),
        (MIXTRAL, (32, 8), 128, {"n_experts": 8}),
    ],
)
def test_params_json_gives_the_sizes(params, heads, head_dim, more):
    sizes = read_sizes(params_config(params))
    assert sizes.heads == HeadCounts(*heads)
    assert sizes.width_of_head == head_dim
    assert {name: getattr(sizes, name) for name in more} == more


def test_experts_in_mistrals_own_files_have_their_roles():
    n, m = 16, 24
    layer = {rest: shape for rest, shape in meta(n, n, 8, m).items() if "feed_forward" not in rest}
    layer |= {f"feed_forward.experts.{e}.{w}.weight": (n, m) if w == "w2" else (m, n) for e in range(8) for w in
              ("w1", "w2", "w3")} | {"feed_forward.gate.weight": (8, n)}  # fmt: skip
    shapes = {f"layers.0.{rest}": shape for rest, shape in layer.items()} | {"tok_embeddings.weight": (40, n)}
    config = params_config(MIXTRAL | {"dim": n, "head_dim": 4, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1})
    (found,) = resolve_anatomy(config, shapes, shapes.__getitem__).layers
    assert (len(found.experts), found.missing) == (8, ())
    assert Role.ROUTER in found.parts


def test_a_folder_in_mistrals_layout_is_opened_with_its_heads(tmp_path):
    n = 16
    shapes = {f"layers.0.{rest}": shape for rest, shape in meta(n, n, 8, 24).items()}
    shapes |= {"tok_embeddings.weight": (40, n), "output.weight": (40, n), "norm.weight": (n,)}
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "consolidated.safetensors")
    said = {"dim": n, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "vocab_size": 40}
    (tmp_path / "params.json").write_text(json.dumps(said))
    anatomy = Model(open_repository(str(tmp_path), ledger=IoLedger())).anatomy
    assert (anatomy.n_heads, anatomy.n_kv_heads, anatomy.head_dim) == (4, 2, 4)
    assert anatomy.layers[0].rope == "interleaved"
    assert anatomy.notes == ()
