"""Every stack of one model is compared with every stack of the other: talkers, towers and any others."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from mdir_hf import HomologyReport, Verdict, compare
from mdir_hf.model.inventory.by_shape import connector_anatomy, stack_anatomy
from mdir_hf.model.roles import Role
from mdir_hf.report import Treatment
from tests.comparison.relatives import SIZES, changed, write
from tests.method.obfuscation import new_model

WIDTH = 80


def tower(seed, prefix, *, n_layers=3, noise=0.0):
    """A vision tower with the names of SigLIP, with noise if it is a copy."""
    draw, noisy = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)

    def matrix(*shape):
        weight = torch.randn(*shape, generator=draw)
        return weight + noise * torch.randn(*shape, generator=noisy)

    made = {f"{prefix}.embeddings.patch_embedding.weight": matrix(WIDTH, 3, 4, 4)}
    for i in range(n_layers):
        at = f"{prefix}.encoder.layers.{i}"
        made |= {f"{at}.self_attn.{name}_proj.weight": matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        made |= {f"{at}.mlp.fc1.weight": matrix(4 * WIDTH, WIDTH), f"{at}.mlp.fc2.weight": matrix(WIDTH, 4 * WIDTH)}
        made |= {f"{at}.layer_norm1.weight": torch.ones(WIDTH), f"{at}.mlp.fc1.bias": torch.zeros(4 * WIDTH)}
    return made


def with_tensors(folder, more):
    return changed(folder, lambda tensors: tensors.update(more))


def declare(folder, **parts):
    """State parts in the config of a model whose class transformers does not have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | parts | {"model_type": "ours"}))


def related(report):
    return {
        (pair.reference, pair.candidate): [(m.reference, m.candidate) for m in pair.layers]
        for pair in report.parts or ()
        if pair.verdict is Verdict.HOMOLOGOUS
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write(tmp_path_factory.mktemp("stacks") / "base", new_model(seed=0, **SIZES))


@pytest.fixture(scope="module")
def seeing(base, tmp_path_factory):
    """A language model of seed 1 with a tower, and one of seed 2 with a noisy, renamed copy of it."""
    folder = tmp_path_factory.mktemp("seeing")
    made = []
    for seed, prefix, noise in ((1, "vpm", 0.0), (2, "vision_tower", 0.05)):
        model = write(folder / str(seed), new_model(seed=seed, **SIZES))
        made.append(with_tensors(model, tower(7, prefix, noise=noise)))
    return made


def test_a_base_that_is_the_talker_of_another_model_is_found(base, tmp_path):
    talker = {f"talker.{name}": tensor for name, tensor in load_file(base / "model.safetensors").items()}
    omni = with_tensors(write(tmp_path / "omni", new_model(seed=5, **SIZES)), talker)
    declare(omni, talker_config={"hidden_size": SIZES["hidden_size"]})
    found = compare(base, omni, progress=False)
    assert related(found) == {("language model", "talker"): [(i, i) for i in range(4)]}
    assert related(compare(omni, base, progress=False)) == {("talker", "language model"): [(i, i) for i in range(4)]}
    talker = [entry for entry in found.coverage.candidate if entry.part == "talker"]
    assert [entry.is_match for entry in talker] == [True, None]  # gate and up, and the rest of the layers
    assert talker[0].treatment is Treatment.SAMPLED
    assert "the talker of the candidate shares weights with the language model of the reference" in " ".join(
        found.details.split()
    )
    assert HomologyReport.from_json(found.to_json()).parts == found.parts
    assert found.verdict is Verdict.HOMOLOGOUS and found.p_is_bound
    pattern = r"The talker of \S+omni shares weights with the language model of \S+base\."
    assert re.fullmatch(pattern, found.warning)
    assert "shares weights" not in compare(base, write(tmp_path / "plain", new_model(seed=5, **SIZES))).warning


def test_a_tower_under_another_name_is_found_beside_strangers(seeing):
    found = compare(*seeing, progress=False)
    assert found.verdict is Verdict.NO_EVIDENCE  # half of all vision-language models share a public tower
    assert "between the language models of" in found.sentence
    assert related(found) == {("vision tower", "vision tower"): [(i, i) for i in range(3)]}


def projector(seed, prefix, *, width, noise=0.0):
    """A LLaVA-style MLP from the tower to the language model's residual stream, with noise if it is a copy."""
    draw, noisy = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(98)
    shapes = {f"{prefix}.0.weight": (4 * WIDTH, WIDTH), f"{prefix}.2.weight": (width, 4 * WIDTH)}
    return {
        name: torch.randn(*shape, generator=draw) + noise * torch.randn(*shape, generator=noisy)
        for name, shape in shapes.items()
    }


def test_a_shared_connector_is_found_and_does_not_decide(base, tmp_path):
    width = SIZES["hidden_size"]
    models = [
        with_tensors(write(tmp_path / str(seed), new_model(seed=seed, **SIZES)), projector(drawn, prefix, **how))
        for seed, drawn, prefix, how in (
            (1, 7, "multi_modal_projector", {"width": width}),
            (2, 7, "model.mm_projector", {"width": width, "noise": 0.05}),
            (3, 8, "multi_modal_projector", {"width": width}),
        )
    ]
    for model in models:
        declare(model, vision_config={"hidden_size": WIDTH})
    shared = compare(*models[:2], progress=False)
    assert shared.verdict is Verdict.NO_EVIDENCE
    assert related(shared) == {("connector", "connector"): [(0, 0)]}
    text = " ".join(shared.details.split())
    assert "the connector of the candidate shares weights with the connector of the reference" in text
    assert "Between the language models, no match was significant" in text
    connector = [entry for entry in shared.coverage.candidate if entry.part == "connector"]
    assert [entry.treatment for entry in connector] == [Treatment.SAMPLED, Treatment.NOT_COMPARED]
    of_strangers = compare(models[0], models[2], progress=False)
    assert of_strangers.parts and related(of_strangers) == {}


@pytest.mark.parametrize(
    ("shapes", "roles"),
    [
        ({"a.mlp.0.weight": (90, 80), "a.mlp.2.weight": (40, 90)}, ("a.mlp.0.weight", "a.mlp.2.weight")),
        ({"a.fc2.weight": (80, 80), "a.fc1.weight": (80, 80)}, ("a.fc1.weight", "a.fc2.weight")),
        ({"a.mlp.10.weight": (80, 80), "a.mlp.2.weight": (80, 80)}, ("a.mlp.2.weight", "a.mlp.10.weight")),
        ({"a.down.weight": (40, 90), "a.gate.weight": (90, 80)}, ("a.gate.weight", "a.down.weight")),
        ({"a.proj.weight": (90, 80)}, None),
        ({"a.proj.weight": (90, 80), "b.proj.weight": (40, 90)}, None),
        ({"a.patch.weight": (90, 3, 4, 4), "a.out.weight": (40, 90)}, None),
    ],
)
def test_two_matrices_of_a_connector_form_an_mlp(shapes, roles):
    anatomy = connector_anatomy(tuple(shapes), shapes.__getitem__)
    if roles is None:
        assert anatomy is None
    else:
        (layer,) = anatomy.layers
        assert (layer.parts[Role.UP].tensor, layer.parts[Role.DOWN].tensor) == roles


def test_a_given_sample_reports_no_tower(seeing):
    found = compare(*seeing, sample_seed=7, progress=False)
    assert [pair.verdict for pair in found.parts if pair.layers] == [Verdict.INCONCLUSIVE]
    assert related(found) == {} and "shares weights" not in found.sentence + found.details


def test_composites_of_strangers_share_nothing(seeing, tmp_path):
    model = write(tmp_path / "x", new_model(seed=3, **SIZES))
    other = {
        f"talker.{name}": t
        for name, t in load_file(write(tmp_path / "y", new_model(seed=4, **SIZES)) / "model.safetensors").items()
    }
    stranger = with_tensors(model, {**tower(8, "vision_tower"), **other})
    found = compare(seeing[0], stranger, progress=False)
    assert found.parts and related(found) == {}


def test_plain_models_have_no_parts(base, tmp_path):
    assert compare(base, write(tmp_path / "x", new_model(seed=9, **SIZES)), progress=False).parts is None


def test_shapes_give_the_roles_in_a_tower_with_unknown_names(tmp_path):
    shapes = {name: tuple(tensor.shape) for name, tensor in tower(0, "vpm").items()}
    anatomy = stack_anatomy(tuple(shapes), shapes.__getitem__)
    assert (anatomy.n_layers, anatomy.hidden_size) == (3, WIDTH)
    for i, layer in enumerate(anatomy.layers):
        assert layer.parts[Role.UP].tensor == f"vpm.encoder.layers.{i}.mlp.fc1.weight"
        assert layer.parts[Role.DOWN].tensor == f"vpm.encoder.layers.{i}.mlp.fc2.weight"
    assert stack_anatomy(("a.weight",), lambda _: (3, 4)) is None


def test_a_stack_that_cannot_be_read_is_left_out(seeing, tmp_path):
    broken = tower(7, "vision_tower")
    for name in [name for name in broken if "fc1.weight" in name]:
        broken[name] = broken[name].to(torch.int8)
    model = with_tensors(write(tmp_path / "x", new_model(seed=3, **SIZES)), broken)
    assert related(compare(seeing[0], model, progress=False)) == {}


def test_a_comparison_that_is_stopped_before_the_stacks_says_so(seeing):
    interim = []
    report = compare(*seeing, progress=False, on_found=interim.append)
    assert report.parts and interim[0].parts is None
    not_yet = "Experts and other stacks have not been compared yet: the comparison is not finished."
    assert [not_yet in result.caveats for result in interim].count(True) == 1
    assert not_yet not in report.caveats
