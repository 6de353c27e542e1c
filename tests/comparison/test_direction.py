"""Facts on equal values: they name both ways in which these can come about, and no model as the first."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import compare
from mdir_hf.errors import InputError
from mdir_hf.render.text import markdown_text
from mdir_hf.report import HomologyReport
from tests.specimens import gaussian, mlp_tensors, write_model

V, N, D = 1200, 64, 160


def layers(*seeds, noise=0.0):
    """Layers drawn from these seeds, in this order."""
    made = {}
    for at, seed in enumerate(seeds):
        value = {"self_attn.v_proj.weight": gaussian(N, N, 900 + seed)}
        own = {name.split(".", 3)[3]: values for name, values in mlp_tensors(N, D, 100 * seed).items()}
        for offset, (name, values) in enumerate({**own, **value}.items()):
            drift = noise * gaussian(*values.shape, 5000 + 100 * at + offset)
            made[f"model.layers.{at}.{name}"] = values + drift
    return made


def model(folder, *, rows=None, of=(1, 2, 3, 4), noise=0.0, dtype=torch.float32, **options):
    """Write a small Llama."""
    rows = gaussian(V, N, 0) if rows is None else rows
    config = {"model_type": "llama", "hidden_size": N, "num_attention_heads": 4, "intermediate_size": D}
    config |= {"vocab_size": len(rows), "num_hidden_layers": len(of), "tie_word_embeddings": True}
    write_model(folder, rows, further=layers(*of, noise=noise), config=config, dtype=dtype, **options)
    return folder


def facts(report):
    return [one.fact.value for one in report.direction]


ARROWS = ("came first", "came later", "cannot be undone", "earlier", "original")


def compared(*folders, **options):
    reports = [compare(a, b, progress=False, **options) for a, b in (folders, folders[::-1])]
    assert reports[0].direction == reports[1].direction
    assert not [arrow for arrow in ARROWS for fact in reports[0].direction if arrow in fact.evidence]
    return reports[0]


def test_values_in_fewer_bits_are_stated_both_ways(tmp_path):
    fine, coarse = model(tmp_path / "fine"), model(tmp_path / "coarse", dtype=torch.bfloat16)
    report = compared(fine, coarse)
    assert facts(report) == ["rounded"]
    assert report.direction[0].evidence == (
        f"in 64 sampled rows of the embedding, the values of {coarse} are the values of {fine} rounded to bfloat16: "
        f"{coarse} was rounded, or digits were added to {fine}"
    )


def test_digits_that_were_added_on_purpose_make_no_model_the_first(tmp_path):
    """A thief adds a random remainder inside of each value's rounding cell; the sentence stays true."""
    victim = model(tmp_path / "victim", dtype=torch.bfloat16)
    thief = tmp_path / "thief"
    shutil.copytree(victim, thief)
    torch.manual_seed(0)
    forged = {
        # A quarter of the spacing at most: less than half, so that rounding gives the value back.
        name: value.float() * (1 + (torch.rand(value.shape) - 0.5) * torch.finfo(torch.bfloat16).eps / 4)
        for name, value in load_file(victim / "model.safetensors").items()
    }
    save_file(forged, thief / "model.safetensors")
    (fact,) = compared(victim, thief).direction
    assert fact.evidence.endswith(f"{victim} was rounded, or digits were added to {thief}")


def test_values_in_fp8_are_rounded_values(tmp_path):
    fine = model(tmp_path / "fine")
    coarse = tmp_path / "coarse"
    shutil.copytree(fine, coarse)
    tensors = {}
    for name, weight in load_file(fine / "model.safetensors").items():
        tensors[name] = weight
        if ".layers." in name and weight.ndim == 2:
            scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            tensors |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}
    save_file(tensors, coarse / "model.safetensors")
    report = compared(fine, coarse)
    assert facts(report) == ["rounded"]
    assert f"in 64 sampled rows of V of a middle layer, the values of {coarse} are" in report.direction[0].evidence
    assert "rounded to float8_e4m3fn with a scale" in report.direction[0].evidence


def levels_of_groups(weight, n_levels, group=32):
    """Put each group of a row on a few equidistant levels, as quantisers do."""
    groups = weight.reshape(-1, group)
    step = 2 * groups.abs().amax(dim=1, keepdim=True) / (n_levels - 1)
    lowest = -(n_levels - 1) / 2
    places = (groups / step - lowest).round() + lowest
    return (places * step).reshape(weight.shape)


def changed(base, folder, change):
    """Write a copy of a model with changed layers, stored in 16 bits."""
    shutil.copytree(base, folder)
    weights = load_file(base / "model.safetensors")
    stored = {
        name: change(weight.float(), at).bfloat16() if ".layers." in name else weight
        for at, (name, weight) in enumerate(weights.items())
    }
    save_file(stored, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("n_levels", [4, 8])
def test_values_on_a_few_levels_are_rounded_values(tmp_path, n_levels):
    fine = model(tmp_path / "fine", dtype=torch.bfloat16)
    coarse = changed(fine, tmp_path / "coarse", lambda weight, at: levels_of_groups(weight, n_levels))
    report = compared(fine, coarse)
    assert facts(report) == ["rounded"]
    assert f"in 16 sampled rows of V of a middle layer, the values of {coarse} are" in report.direction[0].evidence


def test_a_model_tuned_a_little_after_rounding_is_stated_both_ways(tmp_path):
    """Its values still round to the levels, and the sentence is true."""
    base = model(tmp_path / "base", dtype=torch.bfloat16)
    first = changed(base, tmp_path / "first", lambda weight, at: levels_of_groups(weight, 8))
    tuned = changed(first, tmp_path / "tuned", lambda weight, at: weight + 0.1 * gaussian(*weight.shape, at))
    (fact,) = compared(first, tuned).direction
    assert fact.evidence.endswith(f"{first} was rounded, or digits were added to {tuned}")


def test_a_model_without_its_smallest_numbers_shows_no_direction(tmp_path):
    base = model(tmp_path / "base", dtype=torch.bfloat16)
    sparse = changed(base, tmp_path / "sparse", lambda weight, at: torch.where(weight.abs() > 0.02, weight, 0.0))
    report = compared(base, sparse)
    assert report.verdict == "homologous" and report.direction == ()


def test_a_tuned_model_in_more_bits_is_not_the_origin(tmp_path):
    coarse = model(tmp_path / "coarse", dtype=torch.bfloat16)
    rows = gaussian(V, N, 0).bfloat16().float() + 0.05 * gaussian(V, N, 8)
    assert compared(coarse, model(tmp_path / "tuned", rows=rows, noise=0.05)).direction == ()


def test_a_fine_tune_in_the_same_form_shows_no_direction(tmp_path):
    rows = gaussian(V, N, 0) + 0.1 * gaussian(V, N, 8)
    report = compared(model(tmp_path / "base"), model(tmp_path / "tuned", rows=rows, noise=0.1))
    assert report.verdict == "homologous" and report.direction == ()


def test_repeated_layers_are_stated_both_ways(tmp_path):
    base, deep = model(tmp_path / "base"), model(tmp_path / "deep", of=(1, 2, 3, 2, 3, 4), noise=0.2)
    report = compared(base, deep)
    assert facts(report) == ["repeated_layers"]
    (fact,) = report.direction
    assert fact.evidence.startswith(f"layers 1 and 3 of {deep} both match layer 1 of {base}, by the first 8 rows of v")
    assert fact.evidence.endswith(f"{deep} repeats the layer, or {base} was made without the repetition")


@pytest.mark.parametrize("of", [(1, 2, 4), (1, 2, 9, 3, 4)], ids=["a layer left out", "a layer put in"])
def test_a_layer_in_only_one_model_shows_no_direction(tmp_path, of):
    """A layer cut from one model and a layer added to the other look the same in the weights."""
    report = compared(model(tmp_path / "base"), model(tmp_path / "other", of=of, noise=0.1))
    assert report.verdict == "homologous" and report.direction == ()


def low_rank(rank):
    return gaussian(D, rank, 1) @ gaussian(rank, N, 2) * 5.0


def test_a_low_rank_difference_shows_no_direction(tmp_path):
    """A merged adapter could have been added or subtracted."""
    base, merged = model(tmp_path / "base"), tmp_path / "merged"
    model(merged)
    changed = layers(1, 2, 3, 4)
    for at in range(4):
        changed[f"model.layers.{at}.mlp.up_proj.weight"] += low_rank(2)
    save_file({"model.embed_tokens.weight": gaussian(V, N, 0), **changed}, merged / "model.safetensors")
    report = compared(base, merged)
    assert report.verdict == "homologous" and report.direction == ()


def test_a_stranger_has_no_direction(tmp_path):
    other = model(tmp_path / "other", rows=gaussian(V, N, 5), of=(11, 12), dtype=torch.bfloat16)
    report = compared(model(tmp_path / "base"), other)
    assert report.verdict == "no_evidence" and report.direction == ()


def test_an_adapter_is_made_of_its_base(loopback_hub, tmp_path):
    loopback_hub.add_repository("lab/base", model(tmp_path / "base"))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "lab/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    factors = {"lora_A": 0.01 * torch.ones(2, N), "lora_B": 0.01 * torch.ones(D, 2)}
    names = {f"base_model.model.model.layers.0.mlp.up_proj.{key}.weight": value for key, value in factors.items()}
    save_file(names, adapter / "adapter_model.safetensors")
    loopback_hub.add_repository("lab/adapter", adapter)
    report = compare("lab/adapter", "lab/base", progress=False)
    (fact,) = report.direction
    assert (fact.fact, fact.evidence) == (
        "adapter",
        "lab/adapter is stored as an adapter: its weights are changes to lab/base",
    )


@pytest.fixture
def rounded(tmp_path):
    return compare(model(tmp_path / "fine"), model(tmp_path / "coarse", dtype=torch.bfloat16), progress=False)


def test_facts_in_json_name_no_first_model(rounded):
    body = json.loads(rounded.to_json())
    assert body["schema"] == "mdir-hf/report/5"
    assert list(body["direction"][0]) == ["fact", "evidence"]
    assert HomologyReport.from_json(rounded.to_json()) == rounded


def test_missing_facts_are_refused(rounded):
    body = json.loads(rounded.to_json())
    del body["direction"]
    with pytest.raises(InputError, match="not valid"):
        HomologyReport.from_json(json.dumps(body))


@pytest.mark.parametrize(
    "odd", [None, [5], [{"fact": "rounded"}], [{"fact": "rounded", "evidence": "a", "from": "b", "to": "c"}], "x"]
)
def test_odd_facts_are_refused(rounded, odd):
    body = json.loads(rounded.to_json()) | {"direction": odd}
    with pytest.raises(ValueError, match="not valid"):
        HomologyReport.from_json(json.dumps(body))


def test_facts_are_printed_beside_the_note_that_a_comparison_has_no_direction(rounded):
    text, page = " ".join(rounded.details.split()), markdown_text(rounded, {})
    assert "direction In 64 sampled rows of the embedding" in text and "## What is equal" in page
    assert "A comparison has no direction" in text and "A comparison has no direction" in page
    assert "What is equal" not in markdown_text(replace(rounded, direction=()), {})
