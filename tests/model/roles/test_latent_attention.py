"""Latent attention by value: each product that we read equals an input of attention, up to the norm of the latent."""

import inspect
import warnings

import pytest
import torch
import transformers

from mdir_hf.errors import AnatomyError
from mdir_hf.model.files import MemorySource, open_checkpoint
from mdir_hf.model.roles import HeadCounts, Role, WeightPart, WeightProduct, part_shape, read_config, read_part
from mdir_hf.model.roles import resolve_anatomy as resolve
from mdir_hf.model.roles.parts import FLOAT64_ENTRIES
from tests.conformance_tensors import MemoryTree
from tests.model.roles.counting_source import CountingSource

# float32 sums of a few dozen products of order 1: rounding in a different order stays far below this.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}

WIDTH, N_HEADS, NOPE, ROPE, VALUE, RANK = 24, 4, 6, 4, 5, 8
SIZES = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "ffn_hidden_size": 36,
    "intermediate_size": 36,
    "moe_intermediate_size": 20,
    "expert_ffn_hidden_size": 20,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_attention_heads": N_HEADS,
    "num_key_value_heads": N_HEADS,
    "n_routed_experts": 3,
    "num_local_experts": 3,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": RANK,
    "q_lora_rank": 7,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
INDEXED = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
FAMILIES = {
    "deepseek_v2": {"q_lora_rank": None},
    "deepseek_v3": {},
    "deepseek_v32": INDEXED,
    "minicpm3": {},
    "longcat_flash": {"zero_expert_num": 1, "head_dim": ROPE},
    "glm_moe_dsa": INDEXED,
    "glm4_moe_lite": {},
    "youtu": {},
    "axk1": {},
    "kimi_linear": {"layer_types": ["full_attention"] * 2, "q_lora_rank": None},
}
ATTENTION = ("self_attn", "self_attn.0")
NAMES_OF_FACTORS = ("q_a_", "q_b_", "kv_a_", "kv_b_", "q_proj", "o_proj")


class Latent:
    """A saved model, our anatomy of it, and each layer's inputs and outputs of attention."""

    def __init__(self, family, folder):
        torch.manual_seed(0)
        keys = transformers.CONFIG_MAPPING[family]().to_dict()
        chosen = {key: value for key, value in SIZES.items() if key in keys} | FAMILIES[family]
        config = transformers.CONFIG_MAPPING[family](**chosen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about generation settings of a handmade config
            self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    if parameter.dim() == 1 and not name.endswith("bias"):
                        parameter.copy_(torch.rand_like(parameter) + 0.5)  # so that a missing norm is detected
            self.model.save_pretrained(folder)
        tree = MemoryTree.from_folder(folder)
        self.source = open_checkpoint(tree)
        self.anatomy = resolve(read_config(tree.read("config.json")), self.source.names(), self.shape_of)
        self.given, self.inputs, self.outputs = {}, {}, {}
        with pytest.MonkeyPatch.context() as patch:
            self._record(patch)

    def shape_of(self, name):
        return self.source.spec(name).shape

    def _record(self, patch):
        noise = torch.Generator().manual_seed(3)

        def attention(module, query, key, value, *_, **__):
            heads = torch.randn(value.shape[1] * value.shape[-1], generator=noise)
            self.given[id(module)] = (query[0, :, 0], key[0, :, 0], value[0, :, 0], heads)
            return heads.reshape(1, 1, value.shape[1], value.shape[-1]), None

        def store(module, args, kwargs, output):
            hidden = args[0] if args else kwargs["hidden_states"]
            self.inputs[id(module)] = hidden.reshape(-1)
            self.outputs[id(module)] = output[0].reshape(-1)

        # Not through the attention interface: sparse attention needs the mask that only eager attention receives.
        patch.setattr(inspect.getmodule(type(self.model)), "eager_attention_forward", attention)
        self.model.config._attn_implementation = "eager"
        for layer in self.model.model.layers:
            self.module_of(layer).register_forward_hook(store, with_kwargs=True)
        with torch.no_grad():
            self.model(torch.tensor([[5]]))

    @staticmethod
    def module_of(layer):
        attention = layer.self_attn
        return attention[0] if isinstance(attention, torch.nn.ModuleList) else attention

    def layers(self):
        for layer, decoder in zip(self.anatomy.layers, self.model.model.layers, strict=True):
            module = self.module_of(decoder)
            yield layer, self.inputs[id(module)], self.given[id(module)], self.outputs[id(module)]


@pytest.fixture(scope="module", params=FAMILIES)
def latent(request, tmp_path_factory):
    return Latent(request.param, tmp_path_factory.mktemp("model"))


def assert_same_but_for_one_factor(got, seen):
    ratio = seen.reshape(-1) / got.reshape(-1)
    # A product of order 0.01 over one of order 1, each accurate to float32.
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=2e-3, atol=0)
    assert abs(float(ratio[0])) > 1e-3


def test_values_are_what_attention_was_given(latent):
    for layer, x, (_, _, value, _), _ in latent.layers():
        weight = read_part(latent.source, layer.parts[Role.V])
        assert weight.shape == (N_HEADS * VALUE, WIDTH)
        assert weight.dtype == torch.float64
        assert_same_but_for_one_factor(weight.float() @ x, value)


def test_queries_and_keys_are_the_rows_without_positions(latent):
    for layer, x, (query, key, _, _), _ in latent.layers():
        for role, seen in ((Role.Q, query), (Role.K, key)):
            weight = read_part(latent.source, layer.parts[role])
            assert weight.shape == (N_HEADS * NOPE, WIDTH)
            assert_same_but_for_one_factor(weight.float() @ x, seen[:, :NOPE])


def test_the_latent_is_what_the_norm_in_between_reads(latent):
    for layer, x, (_, _, value, _), _ in latent.layers():
        latents = read_part(latent.source, layer.parts[Role.KV_LATENT]) @ x
        product = layer.parts[Role.V]
        gain, b = (read_part(latent.source, part) for part in (product.gain, product.left))
        normed = latents * torch.rsqrt(latents.square().mean() + 1e-6) * gain
        assert_same_but_for_one_factor(b @ normed, value)


def test_the_output_projection_makes_the_output_of_attention(latent):
    for layer, _, (_, _, _, heads), output in latent.layers():
        torch.testing.assert_close(read_part(latent.source, layer.parts[Role.O]) @ heads, output, **CLOSE)


def test_every_head_has_keys_and_values_of_its_own_and_no_planes(latent):
    for layer in latent.anatomy.layers:
        assert layer.heads == HeadCounts(N_HEADS, N_HEADS)
        assert layer.rope == "none"


def test_nothing_of_attention_is_missing_unplaced_or_misshapen(latent):
    for layer in latent.anatomy.layers:
        assert not set(layer.missing) & {Role.Q, Role.K, Role.V, Role.O}
        assert Role.ATTENTION_NORM in layer.parts
        latent.anatomy.check_shapes(layer, latent.shape_of)
    left = [name for name in latent.anatomy.unplaced if any(word in name for word in NAMES_OF_FACTORS)]
    assert all("self_attn.1." in name for name in left)  # the second attention of a LongCat layer


@pytest.mark.parametrize("model_type", ["kimi_k2", "unknown to us"])
def test_a_family_that_took_over_deepseeks_names_has_its_roles(model_type, tmp_path):
    latent = Latent("deepseek_v3", tmp_path)
    config = {**SIZES, "model_type": model_type}
    other = resolve(config, latent.source.names(), latent.shape_of)
    for layer, known in zip(other.layers, latent.anatomy.layers, strict=True):
        assert {role: part.tensors for role, part in layer.parts.items()} == {
            role: part.tensors for role, part in known.parts.items()
        }
        assert layer.heads == known.heads
        assert len(layer.experts) == len(known.experts)


def test_a_copy_of_the_embedding_in_a_further_layer_is_left_out():
    names = [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.1.embed_tokens.weight",
        "model.layers.1.shared_head.head.weight",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
    ]
    config = {"model_type": "kimi_k2", "num_hidden_layers": 1, "hidden_size": WIDTH}
    anatomy = resolve(config, names, lambda name: (40, WIDTH))
    assert anatomy.embedding.tensor == "model.embed_tokens.weight"
    assert anatomy.unembedding.tensor == "lm_head.weight"
    assert [layer.index for layer in anatomy.layers] == [0]
    assert "multi-token prediction" in anatomy.notes[0]


# --- handmade products


def product(latent_dim=8, **numbers):
    from mdir_hf.model.roles import FusedRows

    heads = HeadCounts(2, 2, {"nope": 1, "value": 2, "rank": latent_dim, "rope": 1} | numbers)
    return WeightProduct(
        WeightPart("b", FusedRows("heads", ("nope", "value"), 1), heads=heads),
        WeightPart("a", FusedRows(1, ("rank", "rope"), 0), heads=heads),
        WeightPart("g"),
    )


def test_only_the_rows_of_the_factors_are_read():
    b, a, g = torch.randn(6, 8), torch.randn(9, 5), torch.rand(8)
    source = CountingSource({"a": a, "b": b, "g": g})
    got = read_part(source, product())
    expected = b[[1, 2, 4, 5]].double() @ (g.double()[:, None] * a[:8].double())
    torch.testing.assert_close(got, expected)
    assert source.asked == [("a", list(range(8))), ("b", [1, 2, 4, 5])]


def test_the_rank_of_a_product_equals_its_latent_size():
    # A test in float64 would take float32 rounding beyond the rank for structure.
    source = MemorySource({"a": torch.randn(5, 64), "b": torch.randn(48, 4), "g": torch.rand(4) + 0.5})
    got = read_part(source, product(4, rope=1, nope=8, value=16))
    assert int((torch.linalg.svdvals(got) > 1e-13 * torch.linalg.matrix_norm(got, 2)).sum()) == 4


def test_large_products_are_single_precision():
    n = int(FLOAT64_ENTRIES**0.5) + 1
    source = MemorySource({"left": torch.ones(n, 1), "right": torch.ones(1, n)})
    assert read_part(source, WeightProduct(WeightPart("left"), WeightPart("right"))).dtype == torch.float32


@pytest.mark.parametrize("shapes", [((6, 8), (9, 5), (7,)), ((6, 7), (9, 5), (8,)), ((6, 8), (9, 5), (8, 1))])
def test_factors_that_do_not_fit_are_refused_by_name(shapes):
    b, a, g = (torch.ones(shape) for shape in shapes)
    with pytest.raises(AnatomyError, match=r"b x g x a: factors of shapes .* do not form a product"):
        read_part(MemorySource({"a": a, "b": b, "g": g}), product())


def test_a_width_that_the_config_does_not_tell_is_named():
    with pytest.raises(AnatomyError, match="'value' is needed to split it, but the config does not state it"):
        part_shape(product(value=0), {"a": (9, 5), "b": (6, 8), "g": (8,)}.__getitem__)


def test_a_single_factor_gives_no_role():
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.kv_b_proj.weight"]
    anatomy = resolve({"model_type": "deepseek_v3", "hidden_size": WIDTH}, names, lambda name: (40, WIDTH))
    assert Role.V not in anatomy.layers[0].parts
    assert anatomy.unplaced == ("model.layers.0.self_attn.kv_b_proj.weight",)


@pytest.mark.parametrize("architecture", ["llamamla", "deepseek_v3"])
def test_latent_attention_without_a_norm_as_transmla_makes_it(architecture):
    n, n_heads, rank, nope, rope, values = 96, 8, 32, 16, 8, 16
    at = "model.layers.0.self_attn"
    shapes = {
        "model.embed_tokens.weight": (160, n),
        f"{at}.q_proj.weight": (n_heads * (nope + rope), n),
        f"{at}.kv_a_proj_with_mqa.weight": (rank + rope, n),
        f"{at}.kv_b_proj.weight": (n_heads * (nope + values), rank),
        f"{at}.o_proj.weight": (n, n_heads * values),
    }
    config = {
        "model_type": architecture, "hidden_size": n, "num_attention_heads": n_heads, "kv_lora_rank": rank,
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": values, "num_hidden_layers": 1,
    }  # fmt: skip
    anatomy = resolve(config, shapes, shapes.__getitem__)
    parts = anatomy.layers[0].parts
    assert anatomy.unplaced == () and {Role.Q, Role.K, Role.V, Role.O, Role.KV_LATENT} <= parts.keys()
    assert parts[Role.K].gain is None and part_shape(parts[Role.V], shapes.__getitem__) == (n_heads * values, n)
