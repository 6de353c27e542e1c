"""The family of one model: bases from an index and from its card, and the origin of each layer."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import compare
from mdir_hf.cli import main
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import ByteBudgetError, InputError, RepositoryNotFoundError, RevisionNotFoundError
from mdir_hf.lineage.bom.documents import make_bom, read_model_facts
from mdir_hf.lineage.family import _with_parents_of_layers, find_family
from mdir_hf.lineage.fingerprints.fingerprint import neurons_of
from mdir_hf.lineage.index.base_index import BaseIndex
from mdir_hf.lineage.index.building import choose_index_tokens
from mdir_hf.lineage.index.identify import identify
from mdir_hf.lineage.part_origins import origins_of_parts
from mdir_hf.lineage.publishing import family_section, save_family
from mdir_hf.model.hub import open_repository
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.render.layer_words import layers_text
from mdir_hf.report import Verdict
from tests.comparison.relatives import SIZES, drift, new_embeddings, with_layers
from tests.comparison.test_stacks import tower
from tests.method.obfuscation import new_model, obfuscate
from tests.specimens import save_pretrained

pytest.importorskip("transformers")


def mixed(first, second):
    """Mix the embedding and two layers of one model with two layers of another."""
    model = copy.deepcopy(first)
    for at in (2, 3):
        model.model.layers[at] = copy.deepcopy(second.model.layers[at])
    return drift(model, 0.1)


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """Two bases; a fine-tune with two layers of one, whose card declares the other."""
    base = new_model(seed=0, **SIZES)
    models = {
        "base": base,
        "other": new_model(seed=9, **SIZES),
        "tuned": drift(copy.deepcopy(base), 0.1),
        "mixed": mixed(base, new_model(seed=9, **SIZES)),
        "part": new_embeddings(drift(with_layers(base, [1, 3]), 0.1)),
    }
    for name, model in models.items():
        folder = tmp_path / name
        save_pretrained(folder, model)
        declared = {"tuned": "lab/base", "part": "lab/other"}.get(name)
        if declared:
            (folder / "README.md").write_text(f"---\nbase_model: {declared}\nbase_model_relation: finetune\n---\n")
        loopback_hub.add_repository(f"lab/{name}", folder)
    return loopback_hub


@pytest.fixture
def index(hub):
    models = [Model(open_repository(f"lab/{name}")) for name in ("other", "base")]
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models], 96))
    for model in models:
        index.add(model)
    return index


def test_a_fine_tune_has_the_base_that_it_declares(index, tmp_path):
    steps = []
    family = find_family(NamedModel("lab/tuned"), index, on_step=steps.append)
    assert family.relatives == ("lab/base",) and len(steps) >= 3
    assert layers_text(family.layers["lab/base"]) == "all 4 compared layers match, each in its place"
    text = str(family)
    assert text.startswith("lab/tuned\n└─ lab/base\n     proposed among 2 bases by ")
    assert "declared by its card as finetune; measured: shared weight ancestry, p ≤ 10⁻" in text
    written = save_family(family, tmp_path / "out")
    body = json.loads(written[0].read_text())
    assert body["schema"] == "mdir-hf/family/1" and body["relatives"] == ["lab/base"]
    section = family_section(family)
    assert (
        "| yes | all 4 compared layers match, each in its place; sampled rows of all 4 layers agree, mean cosine 0.9"
        in section
    )
    assert "2 base models" in section
    drift = body["drift"]["lab/base"]
    assert [layer["layer"] for layer in drift] == [[at, at] for at in range(4)]
    assert all(layer["agreeing"] == layer["compared"] == 7 and 0.9 < layer["cosine"] < 1.0 for layer in drift)
    assert "sampled rows of all 4 layers agree, mean cosine 0.9" in text


def test_layers_are_not_described_unless_they_are_wanted(index):
    family = find_family(NamedModel("lab/tuned"), index, settings=Settings())
    assert family.relatives == ("lab/base",)
    assert family.drift == {} and "rows of" not in str(family)


def test_layers_are_attributed_and_a_wrong_declaration_is_reported(index):
    family = find_family(NamedModel("lab/part"), index)
    assert family.relatives == ("lab/base",)
    assert layers_text(family.layers["lab/base"]) == "layers 0 and 1 of 2 compared match its layers 1 and 3"
    text = str(family)
    assert "├─ lab/base\n" in text and "not declared by its card" in text
    assert "└─ lab/other\n" in text and "measured: no evidence of shared weight ancestry found" in text


def test_both_parents_of_a_mixture_are_named_with_their_layers(index):
    family = find_family(NamedModel("lab/mixed"), index)
    assert set(family.relatives) == {"lab/base", "lab/other"}
    assert layers_text(family.layers["lab/base"]) == "layers 0 and 1 of 4 compared match, each in its place"
    assert layers_text(family.layers["lab/other"]) == "layers 2 and 3 of 4 compared match, each in its place"
    assert "by neuron numbers in its layers" in str(family)
    agreeing = {base: [layer.agreeing for layer in drift] for base, drift in family.drift.items()}
    assert agreeing == {"lab/base": [7, 7, 0, 0], "lab/other": [0, 0, 7, 7]}


def test_an_unconfirmed_parent_is_not_a_relative(index, monkeypatch):
    strangers = find_family(NamedModel("lab/other"), index, verifies=False)

    def refuse(one, *asked):
        return replace(one, report=replace(strangers.found.ancestors[0].report, verdict=Verdict.NO_EVIDENCE))

    monkeypatch.setattr("mdir_hf.lineage.family.compared", refuse)
    family = find_family(NamedModel("lab/mixed"), index)
    assert family.relatives == ("lab/base",)
    assert {one.base.repo: one.verdict for one in family.found.ancestors}["lab/other"] == "no_evidence"
    # A match of neurons does not restore a parent that the comparison rejected.
    neurons = neurons_of(Model(open_repository("lab/mixed")), every=True)
    asked = (index, neurons, Settings, Reading(), Listeners())
    monkeypatch.delattr("mdir_hf.lineage.family.compared")
    assert _with_parents_of_layers(family.found, NamedModel("lab/mixed"), *asked) == family.found


def bill_of_materials(name, index):
    family = find_family(NamedModel(name), index)
    (model,) = json.loads(make_bom(family, read_model_facts(NamedModel(name))))["components"]
    named = {key: [one["name"] for one in model["pedigree"].get(key, [])] for key in ("ancestors", "variants")}
    return model, named


def test_layers_of_two_bases_are_parts_of_the_document(index):
    model, named = bill_of_materials("lab/mixed", index)
    assert named == {"ancestors": [], "variants": ["base", "other"]}
    parts = {one["name"]: one["pedigree"]["variants"] for one in model["components"] if "pedigree" in one}
    assert {name: [base["name"] for base in bases] for name, bases in parts.items()} == {
        "language model, layers 0, 1": ["base"],
        "language model, layers 2, 3": ["other"],
    }


def test_a_found_base_beside_a_wrong_declaration_is_a_variant(index):
    model, named = bill_of_materials("lab/part", index)
    assert named == {"ancestors": [], "variants": ["base"]}
    said = {one["name"]: one["value"] for one in model["properties"]}
    assert "huggingface/lab/other@" in said["mdir-hf:declared-not-confirmed"]


def test_a_declared_base_that_is_found_is_an_ancestor(index):
    assert bill_of_materials("lab/tuned", index)[1] == {"ancestors": ["base"], "variants": []}


def test_the_command_writes_the_document_of_a_family(hub, tmp_path, capsys):
    path = tmp_path / "bom.json"
    assert main(["family", "lab/tuned", "--among", "lab/base", "--bom", str(path), "--quiet"]) == 0
    assert json.loads(path.read_text())["components"][0]["pedigree"]["ancestors"][0]["name"] == "base"


def test_a_model_without_a_family_gets_an_exclusion(index):
    family = find_family(NamedModel("lab/other"), BaseIndex(index.tokens, index.bases[1:]))
    assert family.relatives == () and not family.layers
    assert "no shared ancestry found" in str(family) and "it has no card" in str(family)
    assert "1 of them has its width" in str(family)


def test_a_half_that_fails_is_reported(index, hub, tmp_path):
    family = find_family(NamedModel("lab/tuned"), BaseIndex(index.tokens))
    assert family.found is None and "holds no base models" in str(family)
    assert family.relatives == ("lab/base",)
    with pytest.raises(RepositoryNotFoundError):
        find_family(NamedModel("lab/none"), index)


def adapter(folder, width_of_change, base="lab/base"):
    """Write a LoRA adapter on the keys of the last layer of a base."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    d_out, _ = new_model(seed=0, **SIZES).model.layers[3].self_attn.k_proj.weight.shape
    factors = {"lora_A.weight": 0.01 * torch.ones(2, width_of_change), "lora_B.weight": torch.ones(d_out, 2)}
    module = "base_model.model.model.layers.3.self_attn.k_proj"
    save_file({f"{module}.{name}": factor for name, factor in factors.items()}, folder / "adapter_model.safetensors")
    return folder


def test_a_base_that_is_not_the_adapters_is_an_error(index, hub, tmp_path):
    hub.add_repository("lab/adapter", adapter(tmp_path / "adapter", SIZES["hidden_size"]))
    family = find_family(NamedModel("lab/adapter"), index)
    assert family.relatives == ("lab/base",)
    assert [base.outcome for base in family.declared.bases] == ["by_construction"]
    with pytest.raises(RevisionNotFoundError):
        find_family(NamedModel("lab/adapter", bases=(f"lab/base@{'0' * 40}",)), index)
    part = open_repository("lab/part")
    for name, why in (("adapter", "it is an adapter on lab/base"), ("tuned", "it is not an adapter")):
        with pytest.raises(InputError, match=f"lab/part is not its base: {why}"):
            find_family(NamedModel(f"lab/{name}", bases=(f"lab/part@{part.commit}",)), index)


@pytest.mark.parametrize("named", ["lab/base", "lab/former"])
def test_a_renamed_base_of_an_adapter_is_read_at_its_commit(hub, tmp_path, named):
    hub._renamed = {"lab/former": "lab/base"}
    hub.add_repository("lab/adapter", adapter(tmp_path / "adapter", SIZES["hidden_size"], "lab/former"))
    commit = open_repository("lab/base").commit
    opened = NamedModel("lab/adapter", bases=(f"{named}@{commit}",)).open(Reading())
    assert opened.summary().bases == (f"{named}@{commit}",)


def test_an_adapter_with_changes_of_another_shape_is_not_one_of_its_base(hub, tmp_path):
    hub.add_repository("lab/adapter", adapter(tmp_path / "adapter", SIZES["hidden_size"] + 8))
    (base,) = find_family(NamedModel("lab/adapter"), None).declared.bases
    assert base.outcome == "not_measured" and "made for another base" in base.why_not


def test_an_adapter_with_a_whole_tensor_of_another_width_does_not_fit(hub, tmp_path):
    folder = adapter(tmp_path / "adapter", SIZES["hidden_size"])
    tensors = load_file(folder / "adapter_model.safetensors")
    n_rows, width = new_model(seed=0, **SIZES).model.layers[3].mlp.up_proj.weight.shape
    tensors["base_model.model.model.layers.3.mlp.up_proj.weight"] = torch.ones(n_rows, width + 8)
    save_file(tensors, folder / "adapter_model.safetensors")
    hub.add_repository("lab/adapter", folder)
    (base,) = find_family(NamedModel("lab/adapter"), None).declared.bases
    assert base.outcome == "not_measured" and "has shape" in base.why_not


def test_layers_that_could_not_be_read_are_reported(index, monkeypatch):
    whole = find_family(NamedModel("lab/tuned"), index, verifies=False)
    assert whole.layers and not whole.not_mapped

    def refused(*_, **__):
        raise ByteBudgetError("the limit on bytes is reached")

    monkeypatch.setattr("mdir_hf.lineage.family.neurons_of", refused)
    family = find_family(NamedModel("lab/tuned"), index, verifies=False)
    assert family.relatives == ("lab/base",) and not family.layers
    assert "not all layers were compared: the limit on bytes" in str(family) and family.to_dict()["not_mapped"]


def test_a_search_that_reaches_its_limit_keeps_the_comparisons(index, monkeypatch):
    """The comparison with the base that the tokens propose fails, and then so does the search by neurons."""

    def refused(*_, **__):
        raise ByteBudgetError("the limit on bytes is reached")

    for name in ("compare", "neurons_of"):
        monkeypatch.setattr(f"mdir_hf.lineage.index.identify.{name}", refused)
    identification = identify(NamedModel("lab/tuned"), index)
    assert identification.found == ()
    assert "lab/base; not compared: the limit on bytes is reached" in str(identification)
    with pytest.raises(ByteBudgetError):  # no tokens propose a base, so nothing is left
        identify(NamedModel("lab/part"), index)


def test_the_command_prints_and_writes_a_family(index, tmp_path, capsys):
    index.save(tmp_path / "bases")
    command = ["family", "lab/tuned", "--index", str(tmp_path / "bases"), "--output", str(tmp_path / "out")]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "└─ lab/base" in out and "family.md" in err
    assert main([*command[:4], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["relatives"] == ["lab/base"]


def test_bases_can_be_named_in_place_of_an_index(hub, capsys):
    command = ["family", "lab/mixed", "--among", "lab/base", "lab/other", "lab/none", "--json"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    family = json.loads(out)
    assert set(family["relatives"]) == {"lab/base", "lab/other"} == family["layers"].keys()
    assert "lab/none is left out: " in err
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--index", "bases"])
    assert "--among and --index exclude each other" in capsys.readouterr().err


def test_a_base_of_a_tower_alone_is_in_the_document_and_the_sentence(composite, tmp_path, capsys):
    path = tmp_path / "bom.json"
    assert main(["family", "lab/composite", "--among", "lab/other", "lab/seeing", "--bom", str(path)]) == 0
    out = capsys.readouterr().out
    assert "vision tower: lab/seeing" in out and "no shared ancestry of the main stack found" in out
    (model,) = json.loads(path.read_text())["components"]
    assert "lab/seeing" in json.dumps(next(part for part in model["components"] if part["name"] == "vision tower"))


def test_named_bases_without_a_tokenizer_are_found_by_their_neurons(hub, tmp_path, capsys):
    copies = [shutil.copytree(tmp_path / name, tmp_path / "bare" / name) for name in ("base", "other")]
    for folder in copies:
        (folder / "tokenizer.json").unlink()
    assert main(["family", "lab/mixed", "--among", *map(str, copies), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["relatives"]) == set(map(str, copies))


def test_a_named_base_is_compared_if_its_rows_and_neuron_numbers_show_nothing(hub, tmp_path, capsys):
    base, hidden = str(tmp_path / "base"), str(tmp_path / "hidden")
    save_pretrained(tmp_path / "hidden", obfuscate(new_model(seed=0, **SIZES), seed=3)[0])
    assert compare(base, hidden, progress=False).verdict is Verdict.HOMOLOGOUS
    assert main(["family", hidden, "--among", base, str(tmp_path / "other")]) == 0
    out = capsys.readouterr().out
    assert f"{base}\n" in out and "proposed" not in out
    assert main(["family", str(tmp_path / "tuned"), "--among", str(tmp_path / "other")]) == 0
    out = capsys.readouterr().out
    assert "by comparison: No shared weights were found" in out
    assert "would have been proposed" not in out  # the comparison has its own limit


def test_bases_that_cannot_be_opened_say_why(hub, capsys):
    assert main(["family", "lab/tuned", "--among", "lab/none"]) == 1
    assert "no base model can be opened; lab/none" in capsys.readouterr().err


@pytest.fixture
def composite(hub, tmp_path):
    """A fine-tune with the vision tower of a stranger, whose card declares both."""
    donor = {name: weight.float() for name, weight in new_model(seed=9, **SIZES).state_dict().items()}
    tuned = {name: weight.float() for name, weight in drift(new_model(seed=0, **SIZES), 0.1).state_dict().items()}
    for name, tensors, noise in (("seeing", donor, 0.0), ("composite", tuned, 0.05)):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "tuned", folder)
        save_file({**tensors, **tower(7, "vision_tower", noise=noise)}, folder / "model.safetensors")
        (folder / "README.md").write_text("---\nbase_model:\n- lab/base\n- lab/seeing\n---\n")
        hub.add_repository(f"lab/{name}", folder)


def test_the_parts_of_a_composite_are_listed_by_base(composite):
    family = find_family(NamedModel("lab/composite"), None, settings=Settings())
    origins = {origin.part: (origin.base, origin.part_of_base) for origin in family.parts}
    assert origins == {
        "language model": ("lab/base", "language model"),
        "vision tower": ("lab/seeing", "vision tower"),
    }
    assert "    vision tower: lab/seeing" in str(family).splitlines()
    assert "  part: language model: lab/base" in str(family.declared).splitlines()
    assert [part["base"] for part in family.to_dict()["parts"]] == ["lab/base", "lab/seeing"]


def test_a_part_without_a_base_is_reported(composite):
    family = find_family(NamedModel("lab/composite"), None, settings=Settings())
    of_base = {"lab/base": family.reports["lab/base"]}
    assert [str(origin) for origin in origins_of_parts(of_base)] == [
        "language model: lab/base",
        "vision tower: not compared",
    ]


@pytest.fixture
def tunes(hub, tmp_path):
    """Two fine-tunes of the base, their weighted sum, and a later fine-tune of the first."""
    base = new_model(seed=0, **SIZES)
    first, second = (drift(copy.deepcopy(base), 0.1, seed=seed) for seed in (1, 2))
    merge = copy.deepcopy(base)
    with torch.no_grad():
        for weight, a, b in zip(merge.parameters(), first.parameters(), second.parameters(), strict=True):
            weight.copy_(0.6 * a + 0.4 * b)
    made = {"first": first, "second": second, "merge": merge, "later": drift(copy.deepcopy(first), 0.02, seed=3)}
    for name, model in made.items():
        hub.add_repository(f"lab/{name}", save_pretrained(tmp_path / name, model))
    models = [Model(open_repository(f"lab/{name}")) for name in ("first", "second")]
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models], 96))
    for model in models:
        index.add(model)
    return index


def test_a_merge_of_two_tunes_has_its_shares(tunes):
    family = find_family(NamedModel("lab/merge"), tunes, verifies=False)
    names, shares = family.mixture
    # Rows of the index have 16 bits: an error of 1 / 2^11 of a weight, compared with a drift of 0.1 of it.
    assert dict(zip(names, shares.shares, strict=True)) == pytest.approx(
        {"lab/first": 0.6, "lab/second": 0.4}, abs=0.02
    )
    assert "embeddings depend linearly: lab/merge = 0." in str(family)
    assert "that gives these 3 models no order" in str(family)


def test_a_copy_of_a_base_does_not_lie_between_bases(tunes, hub, tmp_path):
    """The index has rows of 16 bits, and the copy of 32: rounding alone kept them apart."""
    hub.add_repository("lab/copy", tmp_path / "first")
    family = find_family(NamedModel("lab/copy"), tunes, verifies=False)
    assert family.nearest[0] == ("lab/first", 0.0)
    assert "lies between" not in str(family)


def test_the_nearer_of_two_candidates_is_named_and_is_not_a_mixture(tunes):
    family = find_family(NamedModel("lab/later"), tunes, verifies=False)
    (first, near), (second, far) = family.nearest
    assert (first, second) == ("lab/first", "lab/second") and 3 * near < far
    assert family.mixture is None
    assert "nearest base first: lab/first" in str(family)
