"""The coverage section says how each part of both models was treated."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import HomologyReport, Verdict, compare
from mdir_hf.comparison.coverage import ReadOfModel, ledger_of, read_of
from mdir_hf.model.hub import open_repository
from mdir_hf.model.inventory import ModelInventory, ModelPart, PartKind
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.report import ModuleRole, PartCoverage, Treatment, ledger_text, not_compared_text
from tests.comparison.relatives import SIZES, write
from tests.method.obfuscation import new_model, obfuscate
from tests.model.files.quantization.writers import SCHEMES

N = SIZES["hidden_size"]


def part(name, kind, n_bytes=100, *, owner=None, layers=0, reason=None):
    return ModelPart(name, kind, owner, reason, (f"{name}.weight",), n_bytes, tuple(map(str, range(layers))))


INVENTORY = ModelInventory(
    (
        part("language model", PartKind.STACK, 600, layers=4),
        part("vision tower", PartKind.STACK, 120, layers=24),
        part("embedding", PartKind.TABLE, 100),
        part("unembedding", PartKind.TABLE, 100),
        part("positions", PartKind.TABLE, 10),
        part("connector", PartKind.CONNECTOR, 30),
        part("experts of the language model", PartKind.EXPERTS, 20, owner="language model", layers=4),
        part("storage of the language model", PartKind.STORAGE, 5, owner="language model"),
        part("norms, biases and buffers of the vision tower", PartKind.VECTORS, 5, owner="vision tower"),
        part(
            "unplaced in the language model: no known role in its layer", PartKind.UNPLACED, 10,
            owner="language model", reason="no known role in its layer",
        ),
    ),
    1100,
)  # fmt: skip


def treatments(read):
    return {entry.part: entry.treatment for entry in ledger_of(INVENTORY, read)}


def test_unread_parts_are_not_compared():
    ledger = ledger_of(INVENTORY, ReadOfModel(4))
    assert {entry.treatment for entry in ledger} == {Treatment.NOT_COMPARED}
    assert all(entry.reason for entry in ledger)
    assert sum(entry.bytes for entry in ledger) == INVENTORY.n_bytes


def test_equal_files_compare_everything_that_can_be_read():
    found = treatments(ReadOfModel(4, are_files_equal=True))
    unplaced = next(name for name in found if name.startswith("unplaced"))
    assert found.pop(unplaced) is Treatment.NOT_COMPARED
    assert set(found.values()) == {Treatment.COMPARED}


@pytest.mark.parametrize(
    ("read", "treatment"),
    [
        (ReadOfModel(4, neuron_layers=frozenset({0, 3})), Treatment.SAMPLED),
        (ReadOfModel(4, row_layers=frozenset(range(4)), rows_of=(ModuleRole.V,)), Treatment.SAMPLED),
        (ReadOfModel(4, whole_layers=frozenset(range(4)), whole_roles=(ModuleRole.UP,)), Treatment.SAMPLED),
        (ReadOfModel(4), Treatment.NOT_COMPARED),
    ],
)
def test_layers_count_as_far_as_they_were_read(read, treatment):
    found = treatments(read)
    assert found["language model"] is treatment
    stored_beside = Treatment.NOT_COMPARED if treatment is Treatment.NOT_COMPARED else Treatment.REPRESENTED
    assert found["storage of the language model"] is stored_beside
    for name in ("vision tower", "connector", "positions", "norms, biases and buffers of the vision tower"):
        assert found[name] is Treatment.NOT_COMPARED


def test_projections_of_the_papers_algorithms_are_named(tmp_path):
    folders = [write(tmp_path / name, new_model(seed=0, **SIZES)) for name in ("a", "b")]
    tensors = load_file(folders[1] / "model.safetensors")
    tensors["model.norm.weight"] += 0.5  # otherwise the files would be identical
    save_file(tensors, folders[1] / "model.safetensors")
    report = compare(*folders, level="paper", progress=False)
    reads = read_of(report, "reference", Model(open_repository(folders[0])).anatomy.layers)
    assert reads.whole_layers == reads.row_layers == frozenset(range(4))
    language = next(entry for entry in ledger_of(INVENTORY, reads) if entry.part == "language model")
    assert language.treatment is Treatment.SAMPLED and "all of q, k, v, up of 4 of 4 layers" in language.reason


def test_first_experts_do_not_stand_for_all():
    entries = {
        entry.part: entry for entry in ledger_of(INVENTORY, ReadOfModel(4, first_expert_layers=frozenset({0, 3})))
    }
    experts = entries["experts of the language model"]
    assert experts.treatment is Treatment.SAMPLED
    assert experts.reason == "some neurons of the first expert of 2 of 4 layers"
    rows = ReadOfModel(4, expert_row_layers=frozenset(range(3)))
    reason = {entry.part: entry for entry in ledger_of(INVENTORY, rows)}[experts.part].reason
    assert reason == "rows of a few experts of 3 of 4 layers"


def test_a_part_that_matches_in_part_is_divided():
    shares = {"language model": (0.5, 0.25), "experts of the language model": (0.0, 1.0)}
    read = ReadOfModel(
        4,
        row_layers=frozenset({0}),
        expert_row_layers=frozenset({0}),
        matching_parts=frozenset({"language model"}),
        shares=shares,
    )
    ledger = ledger_of(INVENTORY, read)
    divided = [(entry.is_match, entry.bytes) for entry in ledger if entry.part == "language model"]
    assert divided == [(True, 300), (False, 150), (None, 150)]
    assert sum(entry.bytes for entry in ledger) == INVENTORY.n_bytes
    assert sum(entry.tensors for entry in ledger) == sum(part.n_tensors for part in INVENTORY.parts)
    assert ledger_text(ledger).startswith(
        "matches: part of the language model (30 %); no match: part of the language model (15 %), "
        "experts of the language model (2.0 %); not compared: part of the language model (15 %)"
    )


def test_a_copy_of_one_layer_is_no_match_of_the_whole_model():
    """A draft model of one layer may be a copy of a layer: four layers of a stack are sampled."""
    read = ReadOfModel(
        4,
        neuron_layers=frozenset({0, 3}),
        matching_parts=frozenset({"language model"}),
        stack_layers={"language model": frozenset({0})},
    )
    ledger = ledger_of(INVENTORY, read)
    divided = [(entry.is_match, entry.bytes) for entry in ledger if entry.part == "language model"]
    assert divided == [(True, 150), (None, 450)]


@pytest.mark.parametrize("is_match", [True, False])
def test_a_main_stack_that_was_compared_with_a_tower_alone_was_compared(is_match):
    """A vision model against a model that contains it."""
    names = ["language model"] if is_match else []
    read = ReadOfModel(4, other_stacks={"language model": 1}, matching_parts=frozenset(names))
    (language,) = [entry for entry in ledger_of(INVENTORY, read) if entry.part == "language model"]
    assert (language.treatment, language.is_match) == (Treatment.SAMPLED, is_match)


def test_the_line_counts_scales_with_the_weights_that_are_read_through_them():
    read = ReadOfModel(4, neuron_layers=frozenset({0}), matching_parts=frozenset({"language model"}))
    scales = part("storage of the language model", PartKind.STORAGE, 200, owner="language model")
    inventory = ModelInventory((INVENTORY.parts[0], scales, part("embedding", PartKind.TABLE, 200)), 1000)
    assert ledger_text(ledger_of(inventory, read)) == "matches: language model (80 %); not compared: embedding (20 %)"


def test_the_line_names_parts_with_layers_and_shares():
    read = ReadOfModel(4, neuron_layers=frozenset({0}), first_expert_layers=frozenset({1}))
    assert not_compared_text(ledger_of(INVENTORY, read)) == (
        "vision tower (12 %), embedding (10 %), unembedding (10 %), positions (1.0 %), "
        "connector (3.0 %), 1 tensor without a known role (1.0 %)"
    )
    assert not_compared_text(ledger_of(INVENTORY, ReadOfModel(4, are_files_equal=True))) == (
        "1 tensor without a known role (1.0 %)"
    )


def test_a_part_of_unknown_size_is_named_without_a_share():
    entry = PartCoverage(
        part="talker",
        layers=2,
        tensors=9,
        bytes=None,
        treatment=Treatment.NOT_COMPARED,
        reason="only language models",
        is_match=None,
        is_loaded=True,
    )
    assert not_compared_text([entry]) == "talker"
    assert not_compared_text([]) is None


@pytest.fixture(scope="module")
def composites(tmp_path_factory):
    """Two models that have a tower and the same language model."""
    folder = tmp_path_factory.mktemp("composites")
    made = []
    for seed in (0, 1):
        model = write(folder / str(seed), new_model(seed=0, **SIZES))
        tensors = load_file(model / "model.safetensors")
        draw = torch.Generator().manual_seed(seed)
        for i in range(3):
            for name in "qkvo":
                tensors[f"vision_tower.layers.{i}.attn.{name}_proj.weight"] = torch.randn(N, N, generator=draw)
        save_file(tensors, model / "model.safetensors")
        made.append(model)
    return made


def test_a_report_holds_the_ledger_of_both_models(composites):
    found = compare(*composites, progress=False)
    ledger = json.loads(found.to_json())["coverage"]
    for side, model in zip(("reference", "candidate"), composites, strict=True):
        by_name = {entry["part"]: entry for entry in reversed(ledger[side])}  # the first entry of each part
        assert by_name["vision tower"]["treatment"] == "not_compared" and by_name["vision tower"]["layers"] == 3
        assert by_name["language model"]["treatment"] == "sampled"
        assert by_name["embedding"]["treatment"] == "not_compared"  # neurons settled the question
        sizes = [t.numel() * t.element_size() for t in load_file(model / "model.safetensors").values()]
        assert sum(entry["tensors"] for entry in ledger[side]) == len(sizes)
        assert sum(entry["bytes"] for entry in ledger[side]) == sum(sizes)
    assert HomologyReport.from_json(found.to_json()).coverage == found.coverage
    assert re.search(r"compared +by samples: matches: part of the language model", str(found))


def test_neurons_count_for_gate_and_up_alone(tmp_path):
    """A model with foreign attention and down is not said to match in them."""
    base = write(tmp_path / "base", new_model(seed=0, **SIZES))
    tune = write(tmp_path / "tune", new_model(seed=1, **SIZES))
    tensors, copied = load_file(tune / "model.safetensors"), load_file(base / "model.safetensors")
    tensors |= {name: tensor for name, tensor in copied.items() if "gate_proj" in name or "up_proj" in name}
    save_file(tensors, tune / "model.safetensors")
    report = compare(base, tune, progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    matching = sum(entry.bytes for entry in report.coverage.candidate if entry.is_match)
    of_neurons = sum(t.nbytes for name, t in tensors.items() if "gate_proj" in name or "up_proj" in name)
    assert matching == pytest.approx(of_neurons, rel=0.01)  # norms count with their layers
    of_layers = compare(base, tune, level="layers", progress=False)
    unmatched = sum(entry.bytes for entry in of_layers.coverage.candidate if entry.is_match is False)
    assert unmatched > 0 and "No match in part of the language model" in of_layers.warning


def test_a_searched_layer_does_not_stand_for_all(tmp_path):
    """Keys and neurons of one layer are copies, in another order."""
    base, own = new_model(seed=0, **SIZES), new_model(seed=1, **SIZES)
    hidden, _ = obfuscate(base, seed=3)
    own.model.layers[2] = hidden.model.layers[2]
    report = compare(write(tmp_path / "base", base), write(tmp_path / "own", own), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.neurons.is_searched
    matching = sum(entry.bytes for entry in report.coverage.candidate if entry.is_match)
    tensors = load_file(tmp_path / "own" / "model.safetensors")
    of_neurons = sum(t.nbytes for name, t in tensors.items() if "gate_proj" in name or "up_proj" in name)
    assert matching == pytest.approx(of_neurons / 4, rel=0.02)  # one of four layers; norms count with their layers


def test_a_gate_does_not_count_if_the_other_model_has_none(tmp_path):
    folders = [write(tmp_path / str(seed), new_model(seed=seed, **SIZES)) for seed in (0, 1)]
    report = compare(*folders, progress=False)
    layers = Model(open_repository(folders[0])).anatomy.layers
    both, without = (
        read_of(report, "reference", layers, roles_of_other=roles).shares_read["language model"]
        for roles in (set(Role), set(Role) - {Role.GATE})
    )
    # Gate, up and keys of seven matrices; every matrix counts alike without sizes.
    assert (both, without) == pytest.approx((3 / 7, 2 / 7))


def test_a_chosen_sample_gives_the_shares_of_a_fresh_one(tmp_path):
    base = write(tmp_path / "base", new_model(seed=0, **SIZES))
    tune = write(tmp_path / "tune", new_model(seed=1, **SIZES))
    tensors, copied = load_file(tune / "model.safetensors"), load_file(base / "model.safetensors")
    save_file(
        tensors | {n: t for n, t in copied.items() if ".layers.0." in n or ".layers.1." in n},
        tune / "model.safetensors",
    )
    fresh, chosen = (compare(base, tune, level="layers", progress=False, sample_seed=seed) for seed in (None, 3))
    assert (fresh.verdict, chosen.verdict) == (Verdict.HOMOLOGOUS, Verdict.INCONCLUSIVE)
    shares = [
        [(entry.part, entry.is_match, entry.bytes) for entry in report.coverage.candidate] for report in (fresh, chosen)
    ]
    assert shares[0] == shares[1]


def test_rows_that_agree_are_named_although_no_neurons_match(tmp_path):
    base = write(tmp_path / "base", new_model(seed=0, **SIZES))
    own = write(tmp_path / "own", new_model(seed=1, **SIZES))
    tensors, copied = load_file(own / "model.safetensors"), load_file(base / "model.safetensors")
    kept = ("q_proj", "o_proj", "down_proj")
    save_file(tensors | {n: t for n, t in copied.items() if any(role in n for role in kept)}, own / "model.safetensors")
    report = compare(base, own, level="layers", progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.warning.startswith("Sampled rows of 12 projections agree; no neurons match")
    n_kept = sum(t.nbytes for name, t in copied.items() if any(role in name for role in kept))
    matching = sum(entry.bytes for entry in report.coverage.candidate if entry.is_match)
    assert matching == pytest.approx(n_kept, rel=0.02)  # norms count with their layers


def test_packed_codes_are_weights_and_not_vectors(tmp_path):
    model = new_model(seed=0, **SIZES)
    base = write(tmp_path / "base", model)
    folder = write(tmp_path / "nf4", model)
    scheme, written = SCHEMES["nf4-nested"], {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        is_coded = "_proj" in name
        written |= scheme.write(tensor.float(), name.removesuffix(".weight")).tensors if is_coded else {name: tensor}
    save_file(written, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | scheme.model_config
    (folder / "config.json").write_text(json.dumps(config))
    report = compare(base, folder, progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert any(entry.part == "language model" and entry.is_match for entry in report.coverage.candidate)


def test_equal_files_are_not_sampled(tmp_path):
    folder = write(tmp_path / "base", new_model(seed=0, **SIZES))
    report = compare(folder, folder, progress=False)
    assert "by digests: matches:" in str(report) and "by samples" not in report.details


def test_keys_count_too_if_no_neurons_match(tmp_path):
    folders = [write(tmp_path / str(seed), new_model(seed=seed, **SIZES)) for seed in (0, 1)]
    report = compare(*folders, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE and report.excludes.keys is not None
    tensors = load_file(folders[0] / "model.safetensors")
    of_roles = sum(
        t.nbytes for name, t in tensors.items() if any(role in name for role in ("gate_proj", "up_proj", "k_proj"))
    )
    language = [entry for entry in report.coverage.reference if entry.part == "language model"]
    assert language[0].is_match is False
    assert language[0].bytes == pytest.approx(of_roles, rel=0.01)  # norms count with their layers


def test_a_report_that_compared_everything_names_no_part(tmp_path):
    models = []
    for name, seed in (("model", 0), ("stranger", 7)):
        folder = write(tmp_path / name, new_model(seed=seed, tie_word_embeddings=True, **SIZES))
        tensors = load_file(folder / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors")
        models.append(folder)
    report = compare(*models, level="layers", progress=False)
    assert not_compared_text(report.coverage.candidate) is None
    assert "not compared" not in str(report) and "(no name)" not in str(report)
    assert "No shared weights were found between" in report.sentence and "of the bytes" not in report.sentence


def test_a_negative_verdict_does_not_cover_parts_that_were_not_compared(composites, tmp_path):
    report = compare(composites[0], write(tmp_path / "stranger", new_model(seed=7, **SIZES)), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert re.search(r"No shared weights were found between .* in \d+ % of the bytes\.", report.sentence)
