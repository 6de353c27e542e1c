"""A merge that its recipe gives is confirmed, and every mutation of the merge or of the recipe is rejected."""

from __future__ import annotations

import copy
import json
import re
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


def weights(seed, n_layers=N_LAYERS):
    torch.manual_seed(seed)
    shapes = {f"model.layers.{n}.{name}.weight": LAYER_SHAPES[name] for n in range(n_layers) for name in LAYER_SHAPES}
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


def test_tied_heads_and_buffers_may_be_missing(tmp_path):
    base = weights(0)
    base["lm_head.weight"] = base["model.embed_tokens.weight"].clone()
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    folder = save(tmp_path / "base", base | buffers)
    config = {"merge_method": "passthrough", "models": [{"model": str(folder)}]}
    merged = lacking("lm_head", base, None)
    result = check(tmp_path, merged, config)
    assert result.outcome is RecipeOutcome.CONFIRMED
    untied = save(tmp_path / "untied", weights(0))
    result = check(tmp_path, merged, {**config, "models": [{"model": str(untied)}]})
    assert differing(result) == {"lm_head.weight"}


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


def arc(x, y, share):
    angle = torch.arccos((x * y).sum() / (x.norm() * y.norm()))
    return (torch.sin((1 - share) * angle) * x + torch.sin(share * angle) * y) / torch.sin(angle)


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


def far(states):
    """Return tunes that differ from the base by more than rounding to 16 bits hides."""
    tunes = {name: drifted(states["base"], seed, 0.5) for seed, name in enumerate(("one", "two", "three"), start=1)}
    return states | tunes


def by_gradient(states, dtype):
    """Slerp of the base and the stranger, with another share in each layer."""
    merged = each(states, lambda x, y: arc(x, y, 0.2), "base", "stranger", dtype=dtype)
    for layer, share in enumerate((0.2, 0.5, 0.8)):
        for name in names_of(layer):
            first, second = (states[model][name].double() for model in ("base", "stranger"))
            is_flat = (first * second).sum() / first.norm() / second.norm() > 0.9995
            value = (1 - share) * first + share * second if is_flat else arc(first, second, share)
            merged[name] = value.to(dtype)
    return merged


def on_sphere(method):
    """Return the recipe and the merge of two unrelated models by a method whose weights come from products."""
    is_slerp = method == "slerp"
    parents = {name: {} if is_slerp else {"weight": weight} for name, weight in (("one", 0.3), ("stranger", 0.7))}
    more = {"base_model": "one", "parameters": {"t": 0.7}} if is_slerp else {}
    inputs = MergeInputs([], 0 if is_slerp else None, lambda name, default: 0.7 if name == "t" else default,
                         lambda at, name, default: (0.3, 0.7)[at])  # fmt: skip

    def merge(states, dtype):
        pairs = {k: [states["one"][k], states["stranger"][k]] for k in states["base"]}
        return {k: merge_tensors(method, replace(inputs, tensors=pair)).tensor.to(dtype) for k, pair in pairs.items()}

    return merge, lambda folders: models(folders, parents, merge_method=method, **more)


def at_random(method):
    """Return the recipe and a merge of far tunes by a random method."""
    own = {"weight": 0.5, "density": 0.6} | ({"epsilon": 0.1} if method == "della_linear" else {})
    drop = partial(dropped, density=0.6, weight=0.5, has_consensus=method == "dare_ties", epsilon=own.get("epsilon", 0))

    def merge(states, dtype):
        merged = each(states, drop, "base", "one", "two", dtype=torch.float32)
        return {k: (states["base"][k] if v.ndim < 2 else v).to(dtype) for k, v in merged.items()}

    return merge, lambda folders: models(folders, {"one": own, "two": own}, merge_method=method, base_model="base")


def computed(function, *names, **config):
    """Return a merge by a function of whole tensors, and its recipe; ``of_models`` has the parameters of each model."""
    of_models = config.pop("of_models")

    def merge(states, dtype):
        return {k: v.to(dtype) for k, v in each(states, function, *names, dtype=torch.float32).items()}

    return merge, lambda folders: models(folders, of_models, **config)


def halved(states):
    return {name: value * 0.5 if "down_proj" in name else value for name, value in stacked(states, *PLACES).items()}


HALF = {"parameters": {"scale": [{"filter": "down_proj", "value": 0.5}, {"value": 1.0}]}}
MERGES = {
    "stack": (lambda states, dtype: stacked(states, *PLACES), lambda folders: slices(folders, *PARTS)),
    "scaled stack": (lambda states, dtype: halved(states), lambda folders: slices(folders, *PARTS) | HALF),
    "linear": computed(
        lambda x, y: 0.3 * x + 0.7 * y, "one", "two",
        merge_method="linear", of_models={"one": {"weight": 3}, "two": {"weight": 7}},
    ),
    "task arithmetic": computed(
        lambda b, x, y: b + 0.8 * (x - b) + 0.6 * (y - b), "base", "one", "two",
        merge_method="task_arithmetic", of_models={"one": {"weight": 0.8}, "two": {"weight": 0.6}}, base_model="base",
    ),
    "ties": computed(
        lambda b, x, y: ties(b, x, y, density=0.4), "base", "one", "two",
        merge_method="ties", of_models={name: {"weight": 1.0, "density": 0.4} for name in ("one", "two")},
        base_model="base",
    ),
    "nearswap": computed(
        lambda b, x: near(b, x, 0.001), "base", "one",
        merge_method="nearswap", of_models={"one": {}}, base_model="base", parameters={"t": 0.001},
    ),
    "dare that keeps all": computed(
        lambda b, x, y: b + 0.4 * (x - b) + 0.5 * (y - b), "base", "one", "two",
        merge_method="dare_linear", of_models={"one": {"weight": 0.4, "density": 1.0}, "two": {"weight": 0.5}},
        base_model="base",
    ),
    "slerp along a gradient": (by_gradient, lambda folders: models(
        folders, {"base": {}, "stranger": {}}, merge_method="slerp", base_model="base", parameters={"t": [0.2, 0.8]}
    )),
    **{name: at_random(name) for name in ("dare_linear", "dare_ties", "della_linear")},
    **{f"{name} of large tensors": on_sphere(name) for name in ("slerp", "nuslerp", "karcher", "multislerp")},
}  # fmt: skip
"""Merges, and the recipes that give them."""


def swap_layers(merged):
    pairs = dict(zip([*names_of(0), *names_of(1)], [*names_of(1), *names_of(0)], strict=True))
    return {name: merged[pairs.get(name, name)].clone() for name in merged}


def lacking(part, merged, _):
    return {name: value for name, value in merged.items() if part not in name}


CHANGED = "model.layers.1.mlp.down_proj.weight"
LACKING = ("lm_head", "layers.2.mlp.gate_proj", "model.norm", "layernorm", "embed_tokens")
OF_MERGES = {
    **{f"without {part}": partial(lacking, part) for part in LACKING},
    "negated projection": lambda merged, other: merged | {CHANGED: -merged[CHANGED]},
    "scaled projection": lambda merged, other: merged | {CHANGED: 1.1 * merged[CHANGED]},
    "foreign projection": lambda merged, other: merged | {CHANGED: other[CHANGED].to(merged[CHANGED].dtype)},
    "swapped layers": lambda merged, other: swap_layers(merged),
}


def replaced(config, old, new):
    return json.loads(json.dumps(config).replace(json.dumps(str(old)), json.dumps(str(new))))


def other_number(config, change):
    """Change the first number of a recipe that is not the place of a layer, in its models or its parameters."""
    config = copy.deepcopy(config)
    for parameters in [*(one["parameters"] for one in config.get("models", [])), config.get("parameters", {})]:
        for name, value in parameters.items():
            if isinstance(value, list):
                first = value[0]
                value[0] = first | {"value": change(first["value"])} if isinstance(first, dict) else change(first)
            else:
                parameters[name] = change(value)
            return config
    return None


def turned(config):
    config = copy.deepcopy(config)
    entries = config.get("slices") or config["models"]
    t = config.get("parameters", {}).get("t")
    if isinstance(t, list):
        t.reverse()
    elif "slices" in config:
        entries.reverse()
    elif entries[0].get("parameters") != entries[-1].get("parameters"):
        entries[0]["parameters"], entries[-1]["parameters"] = entries[-1]["parameters"], entries[0]["parameters"]
    elif t is not None and len(entries) > 1:
        config["parameters"]["t"] = 1 - t
    else:
        return None
    return config


def mutations_of_a_recipe(config, folders):
    """Yield recipes that give another merge, with names."""
    used = [name for name, folder in folders.items() if json.dumps(str(folder)) in json.dumps(config)]
    for name in used:
        for new in {"three", "stranger"} - set(used):
            yield f"{new} for {name}", replaced(config, folders[name], folders[new])
    if config["merge_method"] != "karcher":  # it has no weights
        yield "turned", turned(config)
        yield "another number", other_number(config, lambda number: 0.7 * number)
        yield "a negated number", other_number(config, lambda number: -number)


# Rounding to 16 bits hides the varying factors of della, and small changes of weights that come from products.
IN_16_BITS = [merge for merge in MERGES if merge != "della_linear" and "large" not in merge]


@pytest.mark.parametrize(
    ("merge", "dtype"), [*((m, torch.bfloat16) for m in IN_16_BITS), *((m, torch.float32) for m in MERGES)]
)
def test_every_mutation_of_a_merge_and_its_recipe_is_rejected(zoo, tmp_path, monkeypatch, merge, dtype):
    place, states = zoo
    if merge in ("dare_linear", "dare_ties", "della_linear"):  # rounding hides changes of the near tunes
        place, states = place / "far", far(states)
    if "large" in merge:
        monkeypatch.setattr("mdir_hf.lineage.check_recipe.MOST_VALUES", 1000)
    folders, states = in_dtype((place, states), dtype)
    make, recipe_of = MERGES[merge]
    merged, config = make(states, dtype), recipe_of(folders)
    n_layers = len([name for name in merged if name.endswith("up_proj.weight")])
    assert check(tmp_path, merged, config, n_layers).outcome is RecipeOutcome.CONFIRMED
    outcomes = {
        name: check(tmp_path, mutate(merged, states["three"]), config, n_layers).outcome
        for name, mutate in OF_MERGES.items()
    }
    for name, mutated in mutations_of_a_recipe(config, folders):
        if mutated is not None:
            outcomes[name] = check(tmp_path, merged, mutated, n_layers).outcome
    assert {name for name, outcome in outcomes.items() if outcome is not RecipeOutcome.CONTRADICTED} == set()


def test_small_differences_are_counted_and_not_called_smaller_than_rounding(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.bfloat16)
    merged = each(states, lambda x, y: 0.3 * x + 0.7 * y, "one", "two", dtype=torch.bfloat16)
    config = models(folders, {"one": {"weight": 0.34}, "two": {"weight": 0.66}}, merge_method="linear")
    text = str(check(tmp_path, merged, config))
    assert re.search(r"\(\d[\d,]* of \d[\d,]* compared entries differ by more than rounding explains\)", text)


def test_a_recipe_without_a_weight_cannot_be_told(zoo, tmp_path):
    folders, states = in_dtype(zoo, torch.float32)
    config = models(folders, {"one": {"weight": 0.3}, "two": {}}, merge_method="linear")
    assert check(tmp_path, states["one"], config).outcome is RecipeOutcome.CANNOT_TELL


@pytest.mark.parametrize("method", ["new_method", ""])
def test_an_unknown_method_cannot_be_told(zoo, tmp_path, method):
    folders, states = in_dtype(zoo, torch.float32)
    parents = {name: {"weight": 0.5, "density": 0.5} for name in ("one", "two")}
    result = check(tmp_path, states["one"], models(folders, parents, merge_method=method, base_model="base"))
    assert result.outcome is RecipeOutcome.CANNOT_TELL
    assert "by its recipe: cannot tell" in str(result)
    assert "not known" in str(result)


def test_largest_entries_of_large_tensors_are_not_computed(zoo, tmp_path, monkeypatch):
    folders, states = in_dtype(zoo, torch.float32)
    monkeypatch.setattr("mdir_hf.lineage.check_recipe.MOST_VALUES", 1000)
    parents = {"one": {"weight": 1.0, "density": 0.5}}
    result = check(tmp_path, states["one"], models(folders, parents, merge_method="ties", base_model="base"))
    assert "ties needs the largest entries of whole tensors, and it has more than 1,000" in str(result)


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
