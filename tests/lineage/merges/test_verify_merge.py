"""A merge with known shares, and its recipe: true parents are confirmed, and false ones are not."""

import copy
import json
import warnings

import pytest
import torch

from mdir_hf.cli import main
from mdir_hf.errors import CardError
from mdir_hf.lineage.check_recipe import TensorOutcome
from mdir_hf.lineage.policy import Condition, exit_status
from mdir_hf.lineage.recipe import LayerSource, read_recipe
from mdir_hf.lineage.verify_merge import RecipeOutcome, shares_of, verify_merge
from mdir_hf.model.open import NamedModel
from mdir_hf.report import HomologyReport
from tests.model.memory.test_models_in_memory import build, drifted

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, two tunes of it, a stranger, and merges of them."""
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("merges")
    base = build(num_hidden_layers=3)
    first, second = drifted(base, 0.1), copy.deepcopy(base)
    with torch.no_grad():
        torch.manual_seed(11)
        for weight in second.parameters():
            if weight.ndim > 1:
                weight += 0.1 * weight.std() * torch.randn_like(weight)
    linear = copy.deepcopy(base)
    with torch.no_grad():
        for weight, a, b in zip(linear.parameters(), first.parameters(), second.parameters(), strict=True):
            weight.copy_(0.3 * a + 0.7 * b)
    stacked = copy.deepcopy(first)
    mine, other = first.model.layers, second.model.layers
    stacked.model.layers = torch.nn.ModuleList(map(copy.deepcopy, (mine[0], mine[1], other[1], other[2])))
    stacked.config.num_hidden_layers = 4
    stacked.lm_head = copy.deepcopy(second.lm_head)  # mergekit takes what follows the layers from the last slice
    stacked.model.norm = copy.deepcopy(second.model.norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {"base": base, "first": first, "second": second, "stranger": build(seed=9, num_hidden_layers=3)}
        for name, model in (models | {"linear": linear, "stacked": stacked}).items():
            model.save_pretrained(folder / name)
    return folder


def recipe(place, **config):
    import yaml

    path = place / "recipe.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def models(place, *names):
    return [{"model": str(place / name), "parameters": {"weight": 0.5}} for name in names]


def test_a_linear_merge_has_the_shares_that_it_was_made_with(place):
    weights = {"first": 0.3, "second": 0.7}
    parents = [{"model": str(place / name), "parameters": {"weight": weights[name]}} for name in weights]
    check = verify_merge(NamedModel(place / "linear"), recipe(place, merge_method="linear", models=parents))
    assert check.outcome is RecipeOutcome.CONFIRMED
    assert [one.outcome for one in check.parents] == ["homologous", "homologous"]
    assert len(check.layers) == 3
    for _, found in check.layers:
        assert found.shares == pytest.approx((0.3, 0.7), abs=1e-4)  # float32 weights
        assert found.left_over < 1e-6
    assert json.loads(json.dumps(check.to_dict()))["parents"][1]["share"] == pytest.approx(0.7, abs=1e-4)


def test_a_parent_shows_p_only_if_it_is_a_bound(place, monkeypatch):
    both = recipe(place, merge_method="linear", models=models(place, "first", "second"))
    check = verify_merge(NamedModel(place / "linear"), both)
    assert str(check).count("p ≤ 10⁻") == 2
    monkeypatch.setattr(HomologyReport, "p_is_bound", False)
    assert str(check).count("tested neurons match") == 2 and "10⁻" not in str(check)


def test_a_parent_without_a_share_and_a_stranger_are_reported(place):
    named = models(place, "first", "second", "base", "stranger")
    check = verify_merge(NamedModel(place / "linear"), recipe(place, merge_method="ties", models=named))
    outcomes = {one.parent.rpartition("/")[2]: one.outcome for one in check.parents}
    assert outcomes["first"] == outcomes["second"] == "homologous"
    assert outcomes["base"] == "no_share"
    assert outcomes["stranger"] not in ("homologous", "no_share")
    said = str(check)
    assert "ties of 4 models, by its recipe: cannot tell" in said
    assert "the recipe names no base model" in said
    assert "related, but without a share in any layer" in said


def test_layers_of_a_stack_match_the_recipe(place):
    slices = [
        {"sources": [{"model": str(place / "first"), "layer_range": [0, 2]}]},
        {"sources": [{"model": str(place / "second"), "layer_range": [1, 3]}]},
    ]
    check = verify_merge(
        NamedModel(place / "stacked"), recipe(place, merge_method="passthrough", slices=slices, dtype="float32")
    )
    assert [found.left_over for _, found in check.layers] == [0, 0, 0, 0]
    assert check.layers[2][0] == (LayerSource(str(place / "second"), 1),)
    assert check.outcome is RecipeOutcome.CONFIRMED
    slices[1]["sources"][0]["layer_range"] = [0, 2]
    wrong = verify_merge(NamedModel(place / "stacked"), recipe(place, merge_method="passthrough", slices=slices))
    assert [found.left_over > 0.5 for _, found in wrong.layers] == [False, False, True, True]
    assert wrong.outcome is RecipeOutcome.CONTRADICTED
    differing = {(one.layer, one.tensor) for one in wrong.tensors if one.outcome is TensorOutcome.DIFFERS}
    assert {layer for layer, _ in differing} == {2, 3}
    assert (2, "model.layers.2.self_attn.q_proj.weight") in differing


def test_the_command_reads_the_recipe_beside_the_merge(place, capsys):
    import yaml

    named = {"merge_method": "linear", "models": models(place, "first", "stranger")}
    (place / "linear" / "mergekit_config.yml").write_text(yaml.safe_dump(named))
    arguments = ["verify", str(place / "linear"), "--mergekit", "--quiet"]
    assert main(arguments) == 3
    said = capsys.readouterr().out
    assert "first: related" in said
    assert "by its recipe: contradicted" in said
    assert main([*arguments, "--json", "--require", "all"]) == 3
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], result["outcome"]) == ("mdir-hf/merge/1", "contradicted")


def test_a_merge_that_is_its_own_parent_is_not_confirmed(place):
    own = recipe(place, merge_method="passthrough", models=[{"model": str(place / "base" / ".." / "linear")}])
    check = verify_merge(NamedModel(place / "linear"), own)
    assert [one.outcome for one in check.parents] == ["own_base"]
    assert check.outcome is RecipeOutcome.CANNOT_TELL
    assert [str(one) for one in check.failures()] == []
    assert exit_status(check.failures({Condition.BASES})) == 3


def test_slices_of_the_merge_itself_are_contradicted_and_never_confirmed(place):
    slices = [{"sources": [{"model": str(place / "base"), "layer_range": [i, i + 1]}]} for i in (2, 1, 0)]
    check = verify_merge(NamedModel(place / "base"), recipe(place, merge_method="passthrough", slices=slices))
    assert check.outcome is RecipeOutcome.CONTRADICTED
    assert {one.layer for one in check.tensors if one.outcome is TensorOutcome.DIFFERS} == {0, 2}
    assert "the recipe takes it from the merge itself" in str(check)


def test_a_recipe_that_gives_the_merge_meets_the_policy(place):
    parents = [
        {"model": str(place / name), "parameters": {"weight": weight}}
        for name, weight in (("first", 0.3), ("second", 0.7))
    ]
    check = verify_merge(NamedModel(place / "linear"), recipe(place, merge_method="linear", models=parents))
    assert check.failures({Condition.BASES}) == ()


def test_an_unreadable_parent_is_listed(place):
    check = verify_merge(
        NamedModel(place / "linear"), recipe(place, merge_method="linear", models=models(place, "first", "gone"))
    )
    assert [one.outcome for one in check.parents] == ["homologous", "not_measured"]
    assert check.layers == ()
    assert check.outcome is RecipeOutcome.CANNOT_TELL


@pytest.mark.parametrize("factor", [1.0, -1.0, 1.1, 0.0])
def test_the_share_of_a_single_source_is_measured(factor):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    other = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    found = shares_of(0, [factor * weight if factor else other], [[weight]])
    # The cosine of two random matrices of 4,096 entries has a standard deviation of 1/64; numbers are float32.
    assert found.shares == pytest.approx((factor,), abs=1e-6 if factor else 5 / 64)
    assert (found.left_over == 0) == (factor == 1.0)


def test_identical_sources_have_no_shares():
    weight = torch.randn(8, 8)
    found = shares_of(0, [weight], [[weight], [weight.clone()]])
    assert found.shares is None
    assert found.left_over == 0


def aliases_of_aliases(depth):
    """Return a kilobyte of YAML that expands to ten to the power of ``depth`` values."""
    lines = [f"a{k}: &a{k} [{','.join([f'*a{k - 1}' if k else 'x'] * 10)}]" for k in range(depth + 1)]
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"- a", "expected a mapping, found a list"),
        (b"models: []", "expected a list"),
        (b"models: [{model: 3}]", "names no model"),
        (b"models: [{model: a/b+c/lora}]", "with an adapter"),
        (b"modules: {}", "modules"),
        (b"models: [{model: !!python/object/apply:os.system [ls]}]", "could not determine a constructor"),
        (b"slices: [{sources: [{model: a, layer_range: [0, x]}]}]", "two layer numbers"),
        (
            b"slices: [{sources: [{model: a, layer_range: [0, 2]}, {model: b, layer_range: [0, 3]}]}]",
            "equal positive numbers",
        ),
        (b"\xff\xfe", "decode"),
        (b"models: [" * 2000, "supported"),
        (aliases_of_aliases(9) + b"models: [{model: *a9}]", "aliases are expanded"),
        (aliases_of_aliases(9) + b"models: [{model: a}]\nmerge_method: *a9", "aliases are expanded"),
        (b"models: [{model: a}]\nmerge_method: " + b"1:" * 2000 + b"1", "a number of 4,001 characters"),
        (b"slices:\n" + b"- sources: [{model: a, layer_range: [0, 9999]}]\n" * 2000, "more than 10,000 layers"),
    ],
)
def test_an_invalid_recipe_is_refused(text, message):
    with pytest.raises(CardError, match=message):
        read_recipe(text, subject="recipe.yml")


def test_the_base_model_of_slices_of_several_takes_part():
    text = b"""
base_model: b/base
merge_method: slerp
slices:
  - sources: [{model: a/one, layer_range: [0, 1]}, {model: {model: {path: a/two, revision: v1}}, layer_range: [4, 5]}]
"""
    found = read_recipe(text, subject="")
    assert found.parents == ("b/base", "a/one", "a/two@v1")
    assert found.layer(0, 1).sources == (
        LayerSource("b/base", 0),
        LayerSource("a/one", 0),
        LayerSource("a/two@v1", 4),
    )
    assert found.layer(1, 1) is None
