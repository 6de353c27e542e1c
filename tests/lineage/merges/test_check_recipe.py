"""A merge that its recipe gives is confirmed, and every mutation of the merge or of the recipe is rejected."""

import json
from dataclasses import replace
from functools import partial

import pytest
import safetensors.torch
import torch
import yaml

from mdir_hf.lineage.check_recipe import TensorOutcome, check_tensors
from mdir_hf.lineage.merge_methods import MergeInputs, merge_tensors
from mdir_hf.lineage.recipe import read_recipe
from mdir_hf.lineage.verify_merge import MergeCheck, RecipeOutcome
from mdir_hf.model.open import NamedModel, Reading

WIDTH, INNER, N_LAYERS = 48, 128, 3
LAYER_SHAPES = {
    "input_layernorm": (WIDTH,),
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "post_attention_layernorm": (WIDTH,),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 100,
}


def names_of(layer):
    return [f"model.layers.{layer}.{name}.weight" for name in LAYER_SHAPES]


def weights(seed):
    torch.manual_seed(seed)
    shapes = {f"model.layers.{n}.{name}.weight": LAYER_SHAPES[name] for n in range(N_LAYERS) for name in LAYER_SHAPES}
    shapes |= {"model.embed_tokens.weight": (100, WIDTH), "model.norm.weight": (WIDTH,), "lm_head.weight": (100, WIDTH)}
    return {name: 0.05 * torch.randn(shape) + float(len(shape) == 1) for name, shape in shapes.items()}


def drifted(state, seed, share=0.05):
    torch.manual_seed(seed)
    return {name: value + share * value.std() * torch.randn_like(value) for name, value in state.items()}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A base, three tunes of it, and a stranger, in the dtype that a test chooses."""
    base = weights(0)
    states = {"base": base, "one": drifted(base, 1), "two": drifted(base, 2), "three": drifted(base, 3)}
    states["stranger"] = weights(9)
    return tmp_path_factory.mktemp("zoo"), states


def save(folder, state, n_layers=N_LAYERS):
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": n_layers}))
    return folder


def in_dtype(zoo, dtype):
    """Return folders and tensors of the parents in a dtype."""
    place, states = zoo
    cast = {name: {k: v.to(dtype) for k, v in state.items()} for name, state in states.items()}
    folders = {name: place / str(dtype).removeprefix("torch.") / name for name in states}
    for name, folder in folders.items():
        if not folder.exists():
            save(folder, cast[name])
    return folders, cast


def check(tmp_path, merged, config, n_layers=N_LAYERS):
    folder = save(tmp_path / "merged", merged, n_layers)
    recipe = read_recipe(yaml.safe_dump(config).encode(), subject="")
    parents = {name: NamedModel(name).open(Reading()) for name in recipe.parents}
    model = NamedModel(folder).open(Reading())
    return MergeCheck("", recipe, (), (), tuple(check_tensors(model, recipe, parents)))


def differing(result):
    return {one.tensor for one in result.tensors if one.outcome is TensorOutcome.DIFFERS}


def slices(folders, *parts):
    sources = [{"sources": [{"model": str(folders[name]), "layer_range": [i, j]}]} for name, i, j in parts]
    return {"merge_method": "passthrough", "slices": sources}


def stacked(states, *places):
    """Return a stack of layers; the embedding is the first model's, the head the last one's."""
    merged = {"model.embed_tokens.weight": states[places[0][0]]["model.embed_tokens.weight"]}
    for name in ("model.norm.weight", "lm_head.weight"):
        merged[name] = states[places[-1][0]][name]
    for at, (model, layer) in enumerate(places):
        for new, old in zip(names_of(at), names_of(layer), strict=True):
            merged[new] = states[model][old].clone()
    return merged


PLACES = [("one", 0), ("one", 1), ("two", 1), ("two", 2)]
PARTS = [("one", 0, 2), ("two", 1, 3)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stack_of_the_stated_slices_is_confirmed(zoo, tmp_path, dtype):
    folders, states = in_dtype(zoo, dtype)
    result = check(tmp_path, stacked(states, *PLACES), slices(folders, *PARTS), 4)
    assert result.outcome is RecipeOutcome.CONFIRMED
    assert {one.outcome for one in result.tensors} == {TensorOutcome.HOLDS}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("places", "layers"),
    [
        (PLACES[::-1], {0, 1, 2, 3}),
        ([PLACES[1], PLACES[0], *PLACES[2:]], {0, 1}),
        ([*PLACES[:3], ("stranger", 2)], {3}),
        ([("one", 0), ("three", 1), *PLACES[2:]], {1}),
    ],
    ids=["reversed", "swapped", "foreign slice", "another tune"],
)
def test_a_stack_of_other_slices_is_contradicted(zoo, tmp_path, dtype, places, layers):
    folders, states = in_dtype(zoo, dtype)
    result = check(tmp_path, stacked(states, *places), slices(folders, *PARTS), 4)
    assert result.outcome is RecipeOutcome.CONTRADICTED
    assert {name for layer in layers for name in names_of(layer)} <= differing(result)
    assert not {name for layer in {0, 1, 2, 3} - layers for name in names_of(layer)} & differing(result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [-1.0, 1.1, 1.01])
def test_one_changed_projection_is_named(zoo, tmp_path, dtype, factor):
    folders, states = in_dtype(zoo, dtype)
    merged = stacked(states, *PLACES)
    name = "model.layers.2.mlp.down_proj.weight"
    merged[name] = (merged[name].float() * factor).to(dtype)
    result = check(tmp_path, merged, slices(folders, *PARTS), 4)
    assert result.outcome is RecipeOutcome.CONTRADICTED
    assert differing(result) == {name}


def test_a_missing_layer_is_contradicted(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    result = check(tmp_path, stacked(states, *PLACES[:3]), slices(folders, *PARTS), 3)
    assert result.outcome is RecipeOutcome.CONTRADICTED
    assert "layer 3" in differing(result)


def test_layers_that_the_model_does_not_load_decide_nothing(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    merged = stacked(states, *PLACES, ("stranger", 0))
    merged |= {name: states["two"][name] for name in ("model.norm.weight", "lm_head.weight")}
    result = check(tmp_path, merged, slices(folders, *PARTS), 4)
    assert result.outcome is RecipeOutcome.CONFIRMED
    assert "not tested: model.layers.4." in str(result)


def test_a_layer_too_many_is_contradicted(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    merged = stacked(states, *PLACES, ("stranger", 0))
    result = check(tmp_path, merged, slices(folders, *PARTS), 5)
    assert result.outcome is RecipeOutcome.CONTRADICTED
    assert set(names_of(4)) <= differing(result)


def test_a_stated_scale_is_expected(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.bfloat16)
    config = slices(folders, *PARTS)
    config["parameters"] = {"scale": [{"filter": "down_proj", "value": 0.5}, {"value": 1.0}]}
    merged = stacked(states, *PLACES)
    assert differing(check(tmp_path, merged, config, 4)) == {f"model.layers.{n}.mlp.down_proj.weight" for n in range(4)}
    merged = {name: value * 0.5 if "down_proj" in name else value for name, value in merged.items()}
    assert check(tmp_path, merged, config, 4).outcome is RecipeOutcome.CONFIRMED


def test_rounding_to_the_stated_dtype_is_allowed(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    config = slices(folders, *PARTS) | {"dtype": "bfloat16"}
    exact = stacked(states, *PLACES)
    rounded = {name: value.to(torch.bfloat16) for name, value in exact.items()}
    assert check(tmp_path, rounded, config, 4).outcome is RecipeOutcome.CONFIRMED
    assert check(tmp_path, exact, config, 4).outcome is RecipeOutcome.CONFIRMED
    scaled = {name: value * 1.002 for name, value in exact.items()}  # less than half a step of bfloat16, 1/256
    assert check(tmp_path, scaled, config, 4).outcome is RecipeOutcome.CONTRADICTED


def models(folders, of_models, **more):
    """Return the recipe of a merge of whole models from the parameters of each model."""
    entries = [{"model": str(folders[name]), "parameters": values} for name, values in of_models.items()]
    if "base_model" in more:
        more["base_model"] = str(folders[more["base_model"]])
    return {"models": entries, **more}


def each(states, function, *names, dtype):
    """Merge tensor by tensor, in float64, and round once."""
    return {k: function(*(states[name][k].double() for name in names)).to(dtype) for k in states["base"]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_merge_and_mutations_of_its_recipe(zoo, tmp_path, dtype):
    folders, states = in_dtype(zoo, dtype)
    merged = each(states, lambda x, y: 0.3 * x + 0.7 * y, "one", "two", dtype=dtype)

    def outcome(parameters, merged=merged):
        return check(tmp_path, merged, models(folders, parameters, merge_method="linear")).outcome

    assert outcome({"one": {"weight": 0.3}, "two": {"weight": 0.7}}) is RecipeOutcome.CONFIRMED
    assert outcome({"one": {"weight": 3}, "two": {"weight": 7}}) is RecipeOutcome.CONFIRMED
    for other in (
        {"one": {"weight": 0.5}, "two": {"weight": 0.5}},
        {"one": {"weight": 0.36}, "two": {"weight": 0.64}},
        {"one": {"weight": 0.7}, "two": {"weight": 0.3}},
        {"one": {"weight": 0.3}, "three": {"weight": 0.7}},
        {"one": {"weight": 0.3}, "stranger": {"weight": 0.7}},
        {"base": {"weight": 0.3}, "two": {"weight": 0.7}},
    ):
        assert outcome(other) is RecipeOutcome.CONTRADICTED, other
    assert outcome({"one": {"weight": 0.3}, "two": {}}) is RecipeOutcome.CANNOT_TELL
    true = {"one": {"weight": 0.3}, "two": {"weight": 0.7}}
    name = "model.layers.1.self_attn.k_proj.weight"
    for other in (-merged[name], merged[name] * 1.1, merged["model.layers.0.self_attn.k_proj.weight"]):
        assert outcome(true, merged | {name: other.clone()}) is RecipeOutcome.CONTRADICTED


def arc(x, y, share):
    angle = torch.arccos((x * y).sum() / (x.norm() * y.norm()))
    return (torch.sin((1 - share) * angle) * x + torch.sin(share * angle) * y) / torch.sin(angle)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slerp_along_a_gradient(zoo, tmp_path, dtype):
    folders, states = in_dtype(zoo, dtype)
    shares = dict(zip(range(N_LAYERS), (0.2, 0.5, 0.8), strict=True))
    merged = each(states, lambda x, y: arc(x, y, 0.2), "base", "stranger", dtype=dtype)
    for layer, share in shares.items():
        for name in names_of(layer):
            first, second = (states[model][name].double() for model in ("base", "stranger"))
            is_flat = (first * second).sum() / first.norm() / second.norm() > 0.9995
            value = (1 - share) * first + share * second if is_flat else arc(first, second, share)
            merged[name] = value.to(dtype)

    def outcome(gradient, names=("base", "stranger"), base="base"):
        parents = {name: {} for name in names}
        config = models(folders, parents, merge_method="slerp", base_model=base, parameters={"t": gradient})
        return check(tmp_path, merged, config).outcome

    assert outcome([0.2, 0.8]) is RecipeOutcome.CONFIRMED
    assert outcome([0.8, 0.2]) is RecipeOutcome.CONTRADICTED
    assert outcome([0.2, 0.8], base="stranger") is RecipeOutcome.CONTRADICTED
    assert outcome([0.2, 0.8], names=("base", "two")) is RecipeOutcome.CONTRADICTED
    assert outcome([{"filter": "mlp", "value": [0.2, 0.8]}, {"value": 0.5}]) is RecipeOutcome.CONTRADICTED


def ties(base, *others, density):
    """TIES with weights of 1, in the way of its paper: trim, elect signs, and average what agrees."""
    deltas = []
    for other in others:
        delta = other - base
        kept = delta.flatten().abs().argsort(descending=True)[: int(density * delta.numel())]
        mask = torch.zeros(delta.numel(), dtype=delta.dtype)
        mask[kept] = 1
        deltas.append(delta * mask.reshape(delta.shape))
    stack = torch.stack(deltas)
    agrees = (stack.sign() == torch.where(stack.sum(0) >= 0, 1.0, -1.0)) & (stack != 0)
    return base + (stack * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def near(base, other, t):
    share = (t / (base - other).abs()).clamp(max=1)
    return base + share * (other - base)


NONLINEAR = {
    "task_arithmetic": (lambda b, x, y: b + 0.8 * (x - b) + 0.8 * (y - b), {"weight": 0.8}, {}),
    "ties": (lambda b, x, y: ties(b, x, y, density=0.4), {"weight": 1.0, "density": 0.4}, {}),
    "nearswap": (lambda b, x: near(b, x, 0.001), {}, {"t": 0.001}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", NONLINEAR)
def test_other_methods_are_computed_again(zoo, tmp_path, method, dtype):
    folders, states = in_dtype(zoo, dtype)
    function, own, shared = NONLINEAR[method]
    names = ["base", "one"] if method == "nearswap" else ["base", "one", "two"]
    merged = each(states, function, *names, dtype=torch.float32)
    merged = {name: value.to(dtype) for name, value in merged.items()}

    def outcome(names=names, own=own, shared=shared, merged=merged):
        parents = dict.fromkeys(names[1:], own)
        config = models(folders, parents, merge_method=method, base_model=names[0], parameters=shared)
        return check(tmp_path, merged, config).outcome

    assert outcome() is RecipeOutcome.CONFIRMED
    assert outcome(names=[*names[:-1], "three"]) is RecipeOutcome.CONTRADICTED
    assert outcome(names=["stranger", *names[1:]]) is RecipeOutcome.CONTRADICTED
    wrong = {"weight": 0.5} if method == "task_arithmetic" else {"weight": 1.0, "density": 0.9}
    assert outcome(own=wrong, shared={"t": 0.004}) is RecipeOutcome.CONTRADICTED
    name = names_of(1)[4]
    assert outcome(merged=merged | {name: -merged[name]}) is RecipeOutcome.CONTRADICTED


@pytest.mark.parametrize("method", ["new_method", ""])
def test_an_unknown_method_cannot_be_told(zoo, tmp_path, method):
    folders, states = in_dtype(zoo, torch.float32)
    parents = {name: {"weight": 0.5, "density": 0.5} for name in ("one", "two")}
    result = check(tmp_path, states["one"], models(folders, parents, merge_method=method, base_model="base"))
    assert result.outcome is RecipeOutcome.CANNOT_TELL
    assert "by its recipe: cannot tell" in str(result)
    assert "not known" in str(result)


def dropped(base, *others, density, weight, has_consensus=False, seed=0, epsilon=0.0):
    """DARE, or DELLA with an ``epsilon``: keep random changes, rescaled so that their sum stays the same."""
    draw = torch.Generator().manual_seed(seed)
    deltas = []
    for other in others:
        delta = other - base
        ranks = delta.flatten().abs().argsort().argsort().reshape(delta.shape) / max(1, delta.numel() - 1)
        share = density + epsilon * (2 * ranks - 1)
        kept = delta * (torch.rand(delta.shape, generator=draw, dtype=delta.dtype) < share)
        size = kept.abs().sum()
        deltas.append(weight * kept * (delta.abs().sum() / size if size else 1.0))
    stack = torch.stack(deltas)
    if has_consensus:
        stack = stack * (stack.sign() == torch.where(stack.sum(0) >= 0, 1.0, -1.0))
    return base + stack.sum(0)


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("dare_linear", torch.bfloat16),
        ("dare_linear", torch.float32),
        ("dare_ties", torch.bfloat16),
        ("dare_ties", torch.float32),
        ("della_linear", torch.float32),  # its factors vary by 22 %, which hides too much beside rounding to 16 bits
    ],
)
def test_random_methods_are_tested_up_to_the_choice_of_changes(zoo, tmp_path, method, dtype):
    place, states = zoo
    folders, states = in_dtype((place / "far", far(states)), dtype)
    names = ["base", "one", "two"]
    more = {"has_consensus": method == "dare_ties", "epsilon": 0.1 if method == "della_linear" else 0.0}
    merged = each(states, partial(dropped, density=0.6, weight=0.5, **more), *names, dtype=torch.float32)
    merged = {k: (states["base"][k] if v.ndim < 2 else v).to(dtype) for k, v in merged.items()}
    parameters = {"weight": 0.5, "density": 0.6} | ({"epsilon": 0.1} if method == "della_linear" else {})

    def outcome(names=("one", "two"), own=parameters, base="base", merged=merged):
        parents = dict.fromkeys(names, own)
        return check(tmp_path, merged, models(folders, parents, merge_method=method, base_model=base)).outcome

    assert outcome() is RecipeOutcome.CONFIRMED
    assert outcome(names=("one", "three")) is RecipeOutcome.CONTRADICTED
    assert outcome(names=("one", "stranger")) is RecipeOutcome.CONTRADICTED
    assert outcome(base="three") is RecipeOutcome.CONTRADICTED
    assert outcome(own=parameters | {"weight": -0.5}) is RecipeOutcome.CONTRADICTED
    assert outcome(own=parameters | {"weight": 1.0}) is RecipeOutcome.CONTRADICTED
    assert outcome(own=parameters | {"density": 0.3}) is RecipeOutcome.CONTRADICTED
    assert outcome(merged=states["one"]) is RecipeOutcome.CONTRADICTED
    name = names_of(1)[4]
    assert outcome(merged=merged | {name: -merged[name]}) is RecipeOutcome.CONTRADICTED


def far(states):
    """Return tunes that differ from the base by more than rounding to 16 bits hides."""
    tunes = {name: drifted(states["base"], seed, 0.5) for seed, name in enumerate(("one", "two", "three"), start=1)}
    return states | tunes


@pytest.mark.parametrize("method", ["slerp", "nuslerp", "karcher", "multislerp"])
def test_weighted_sums_of_large_tensors_are_computed_from_products(zoo, tmp_path, method, monkeypatch):
    folders, states = in_dtype(zoo, torch.float32)
    parents = {name: {"weight": weight} for name, weight in (("one", 0.3), ("stranger", 0.7))}
    more = {"base_model": "one", "parameters": {"t": 0.7}} if method == "slerp" else {}
    config = models(folders, parents, merge_method=method, **more)
    inputs = MergeInputs([], 0 if method == "slerp" else None, lambda name, default: 0.7 if name == "t" else default,
                         lambda at, name, default: (0.3, 0.7)[at])  # fmt: skip
    merged = {
        k: merge_tensors(method, replace(inputs, tensors=[states["one"][k], states["stranger"][k]])).tensor
        for k in states["base"]
    }
    monkeypatch.setattr("mdir_hf.lineage.check_recipe.MOST_VALUES", 1000)
    assert check(tmp_path, merged, config).outcome is RecipeOutcome.CONFIRMED
    config["models"].reverse()
    turned = config | ({"base_model": str(folders["stranger"])} if method == "slerp" else {})
    expected = RecipeOutcome.CONFIRMED if method == "karcher" else RecipeOutcome.CONTRADICTED  # it has no weights
    if method in ("slerp", "karcher"):
        assert check(tmp_path, merged, turned).outcome is expected
    config["models"] = [{"model": str(folders[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")]
    assert check(tmp_path, merged, config).outcome is RecipeOutcome.CONTRADICTED


def test_largest_entries_of_large_tensors_are_not_computed(zoo, tmp_path, monkeypatch):
    folders, states = in_dtype(zoo, torch.float32)
    monkeypatch.setattr("mdir_hf.lineage.check_recipe.MOST_VALUES", 1000)
    parents = {"one": {"weight": 1.0, "density": 0.5}}
    result = check(tmp_path, states["one"], models(folders, parents, merge_method="ties", base_model="base"))
    assert "ties needs the largest entries of whole tensors, and it has more than 1,000" in str(result)


def test_a_random_method_that_keeps_every_entry_is_computed(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    merged = each(states, lambda b, x, y: b + 0.4 * (x - b) + 0.6 * (y - b), "base", "one", "two", dtype=torch.float32)
    parents = {"one": {"weight": 0.4, "density": 1.0}, "two": {"weight": 0.6}}
    config = models(folders, parents, merge_method="dare_linear", base_model="base")
    assert check(tmp_path, merged, config).outcome is RecipeOutcome.CONFIRMED
    config["models"][0]["parameters"]["weight"] = 0.6
    assert check(tmp_path, merged, config).outcome is RecipeOutcome.CONTRADICTED


def test_a_quantised_merge_can_be_contradicted_and_not_confirmed(zoo, tmp_path):
    """A code's step is unknown, but no code of 2 bits or more changes values by half of their size."""
    folders, states = in_dtype(zoo, torch.float32)
    merged = stacked(states, *PLACES)
    codes = {}
    for name, value in merged.items():
        if "proj" not in name:
            codes[name] = value
            continue
        scale = value.abs().amax(dim=1, keepdim=True) / 127
        codes |= {name: (value / scale).round().to(torch.int8), f"{name}_scale": scale}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
        },
        "ignore": ["lm_head"],
    }

    def outcome(parts):
        folder = save(tmp_path / "codes", codes, 4)
        (folder / "config.json").write_text(
            json.dumps(CONFIG | {"num_hidden_layers": 4, "quantization_config": quantization})
        )
        recipe = read_recipe(yaml.safe_dump(slices(folders, *parts)).encode(), subject="")
        parents = {name: NamedModel(name).open(Reading()) for name in recipe.parents}
        checks = tuple(check_tensors(NamedModel(folder).open(Reading()), recipe, parents))
        return MergeCheck("", recipe, (), (), checks).outcome

    assert outcome(PARTS) is RecipeOutcome.CANNOT_TELL
    assert outcome(PARTS[::-1]) is RecipeOutcome.CONTRADICTED
