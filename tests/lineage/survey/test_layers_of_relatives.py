"""A survey with layers describes the drift of each layer of relatives, and reads the rows of a model once."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.lineage.survey.drift import OpenModels, describe_relatives
from mdir_hf.lineage.survey.folder import read_survey
from mdir_hf.lineage.survey.results import MOST_DESCRIBED, PairResult, SurveyReport
from mdir_hf.lineage.survey.run import SurveyPlan, survey
from mdir_hf.lineage.survey.saving import dataset_files, save_survey
from mdir_hf.model.hub import IoLedger
from tests.comparison.test_projections import SIZES, noised
from tests.specimens import save_pretrained

pytest.importorskip("transformers")

from tests.method.obfuscation import new_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, two noised copies (one with two swapped layers), and a stranger."""
    place = tmp_path_factory.mktemp("relatives")
    base = new_model(seed=0, **{**SIZES, "num_hidden_layers": 4})
    swapped = noised(base, 0.2, seed=6)
    layers = swapped.model.layers
    layers[1], layers[2] = layers[2], layers[1]
    models = {
        "base": base,
        "noised": noised(base, 0.3),
        "swapped": swapped,
        "stranger": new_model(seed=9, **{**SIZES, "num_hidden_layers": 4}),
    }
    return {name: str(save_pretrained(place / name, model)) for name, model in models.items()}


@pytest.fixture(scope="module")
def surveyed(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("survey") / "out"
    return survey(folders.values(), layers=True, folder=out, progress=False), out


def drift_of(report, folders, first, second):
    return report.pairs[folders[first], folders[second]].layer_drift


def test_each_layer_of_relatives_has_its_counterpart_and_its_cosine(surveyed, folders):
    report, _ = surveyed
    drift = drift_of(report, folders, "base", "noised")
    assert [layer.layer for layer in drift] == [(at, at) for at in range(4)]
    assert all((layer.agreeing, layer.compared) == (7, 7) for layer in drift)
    assert [layer.cosine for layer in drift] == pytest.approx([1.0 / (1.0 + 0.3**2) ** 0.5] * 4, abs=0.03)


def test_the_ledger_by_bytes_is_that_of_a_comparison(surveyed, folders):
    report, _ = surveyed
    pair = report.pairs[folders["base"], folders["noised"]]
    reference, candidate = pair.ledger
    assert re.fullmatch(r"matches: language model \(\d+ %\).*; not compared: embedding \([\d.]+ %\).*", candidate)
    assert reference == candidate
    assert f"compared by samples: {candidate}" in str(report)
    stranger = report.pairs[folders["base"], folders["stranger"]]
    assert "matches" not in stranger.ledger[0] and stranger.ledger[0].startswith("no match: part of the language model")


def test_the_ledger_has_towers(folders, tmp_path):
    """Two towers are copies, and a third is not."""
    towers = {}
    for name, seed in (("base", 1), ("noised", 1), ("swapped", 2)):
        towers[name] = shutil.copytree(folders[name], tmp_path / name)
        tensors = load_file(towers[name] / "model.safetensors")
        draw = torch.Generator().manual_seed(seed)
        shapes = {"self_attn.q_proj": (64, 64), "mlp.up_proj": (256, 64), "mlp.down_proj": (64, 256)}
        for layer in range(3):
            tensors |= {
                f"vision_tower.layers.{layer}.{part}.weight": torch.randn(shape, generator=draw)
                for part, shape in shapes.items()
            }
        save_file(tensors, towers[name] / "model.safetensors")
    report = survey([str(folder) for folder in towers.values()], layers=True, progress=False)

    def of_candidate(first, second):
        return report.pairs[str(towers[first]), str(towers[second])].ledger[1]

    assert re.search(r"matches: .*part of the vision tower", of_candidate("base", "noised").partition("no match")[0])
    assert re.search(r"no match: part of the vision tower", of_candidate("base", "swapped"))


def test_layers_that_changed_places_are_named(surveyed, folders):
    report, _ = surveyed
    assert [layer.layer for layer in drift_of(report, folders, "base", "swapped")] == [(0, 0), (2, 1), (1, 2), (3, 3)]


def test_strangers_are_not_described(surveyed, folders):
    report, _ = surveyed
    assert drift_of(report, folders, "base", "stranger") is None
    assert report.relatives_to_describe() == ()


def test_the_drift_is_kept_with_the_survey(surveyed, folders, tmp_path):
    report, out = surveyed
    assert read_survey(out).pairs == dict(report.pairs)
    rows = [json.loads(line) for line in dataset_files(report)["pairs.jsonl"].decode().splitlines()]
    by_pair = {(row["reference"], row["candidate"]): row for row in rows}
    row = by_pair[folders["base"], folders["noised"]]
    assert row["layers_agreeing"] == 4 and 0.9 < row["mean_cosine"] < 1.0
    assert by_pair[folders["base"], folders["stranger"]]["layers_agreeing"] is None
    save_survey(report, tmp_path / "saved")
    section = (tmp_path / "saved" / "survey.md").read_text().split("## Layers of relatives")[1]
    assert "sampled rows of all 4 layers agree, mean cosine 0.9" in section


def test_without_layers_no_rows_of_layers_are_read(folders):
    report = survey([folders["base"], folders["noised"]], progress=False)
    assert drift_of(report, folders, "base", "noised") is None
    assert len(report.relatives_to_describe()) == 1


def test_the_rows_of_a_model_are_read_once(surveyed, folders):
    report, _ = surveyed
    ledger = IoLedger()
    watch = Watch(ledger, Listeners(progress=False), from_start=True)
    models = OpenModels({}, SurveyPlan(()).reading, ledger, watch)
    names = [folders[name] for name in ("base", "noised", "swapped")]
    plan = SurveyPlan(tuple(names))
    read = []
    with watch.listening():
        for pair in ((names[0], names[1]), (names[0], names[2]), (names[1], names[2])):
            results = {pair: replace(report.pairs[pair], layer_drift=None)}
            (described,) = describe_relatives([pair], results, models, plan.settings_in_full)
            assert described.layer_drift == report.pairs[pair].layer_drift
            read.append(ledger.bytes_read)
    assert read[0] > 0
    assert read[1] - read[0] == pytest.approx(read[0] / 2, rel=0.05)
    assert read[2] == read[1]


def test_a_pair_that_cannot_be_read_says_why(surveyed, folders):
    report, _ = surveyed
    pair = folders["base"], folders["noised"]
    gone = replace(report.pairs[pair], reference=folders["base"] + "-gone", layer_drift=None)
    watch = Watch(IoLedger(), Listeners(progress=False))
    models = OpenModels({}, SurveyPlan(()).reading, IoLedger(), watch)
    (described,) = describe_relatives([pair], {pair: gone}, models, SurveyPlan(pair).settings_in_full)
    assert described.layer_drift is None
    assert "-gone" in described.layers_error


def test_the_first_model_of_a_large_group_is_described_with_each(surveyed, folders):
    n = MOST_DESCRIBED + 2
    names = tuple(f"m{at}" for at in range(n))
    related = {(a, b): PairResult(a, b, "homologous") for i, a in enumerate(names) for b in names[i + 1 :]}
    report = SurveyReport(names, {}, related)
    assert report.relatives_to_describe() == tuple(("m0", name) for name in names[1:])
    few = SurveyReport(names[:3], {}, {pair: result for pair, result in related.items() if set(pair) <= set(names[:3])})
    assert len(few.relatives_to_describe()) == 3
