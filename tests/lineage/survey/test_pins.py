"""A survey reads the commit that it first saw of a name, even if the repository changes later."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.survey import run as run_module
from mdir_hf.lineage.survey.planning import SAMPLE, load_sample
from mdir_hf.lineage.survey.run import SurveyPlan, kept_fingerprints, prepare_survey, run_survey
from mdir_hf.lineage.survey.work import take
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import Reading
from tests.comparison.test_adapters import serve, write_base


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """A base, an adapter on it and a fine-tune, and a later version of each."""
    for at, name in enumerate(("base", "tuned", "later")):
        loopback_hub.add_repository(f"some/{name}", write_base(tmp_path / name, seed=at))
    serve(loopback_hub, tmp_path, "some/adapter", "some/base")
    return loopback_hub


def move(hub, name, tmp_path):
    """Add a commit to a repository; the old one remains available."""
    return hub.find(name).add_revision("main", tmp_path / "later")


NAMES = ("some/base", "some/adapter", "some/tuned")


def plan(**options):
    return SurveyPlan(NAMES, n_tokens=256, progress=False, **options)


def test_a_pin_opens_the_same_commit_and_the_same_base(hub, tmp_path):
    pin = pin_of("some/adapter", open_model("some/adapter", Reading(), IoLedger()))
    before = take("some/adapter", [b"w1", b"w2"], Reading(), pin).fingerprint.rows
    assert (len(pin.commit), list(pin.bases)) == (40, ["some/base"])
    move(hub, "some/base", tmp_path)
    assert torch.equal(take("some/adapter", [b"w1", b"w2"], Reading(), pin).fingerprint.rows, before)
    assert not torch.equal(take("some/adapter", [b"w1", b"w2"], Reading()).fingerprint.rows, before)


def test_adapters_on_other_commits_of_a_base_are_kept_apart(hub, tmp_path):
    before = pin_of("some/adapter", open_model("some/adapter", Reading(), IoLedger()))
    move(hub, "some/base", tmp_path)
    after = pin_of("some/adapter", open_model("some/adapter", Reading(), IoLedger()))
    assert before.commit == after.commit and before.key != after.key


def test_rows_that_were_dropped_are_read_again_from_the_same_commits(hub, tmp_path):
    first = run_survey(plan(), tmp_path / "out")
    before = kept_fingerprints(tmp_path / "out")[1]
    for kept in (tmp_path / "out" / "fingerprints").iterdir():
        kept.unlink()
    for name in NAMES[:2]:
        move(hub, name, tmp_path)
    again = run_survey(plan(), tmp_path / "out")
    after = kept_fingerprints(tmp_path / "out")[1]
    for name in NAMES:
        assert torch.equal(after[name].rows, before[name].rows), name
        assert again.models[name].model.commit == first.models[name].model.commit


def test_a_model_that_appears_later_is_pinned_when_it_is_read(hub, tmp_path):
    hidden = hub._repositories.pop("some/tuned")
    assert run_survey(plan(), tmp_path / "out").models["some/tuned"].error is not None
    hub._repositories["some/tuned"] = hidden
    assert run_survey(plan(), tmp_path / "out").models["some/tuned"].error is None
    pins = load_sample(tmp_path / "out" / SAMPLE).pins
    assert pins["some/tuned"].commit == hidden.revisions["main"]
    assert set(kept_fingerprints(tmp_path / "out")[1]) == set(NAMES)


def test_shards_of_one_preparation_read_the_same_commits_and_join(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "TILE_MODELS", 1)
    prepare_survey(plan(), tmp_path / "whole")
    assert not (tmp_path / "whole" / "results.jsonl").exists()
    move(hub, "some/base", tmp_path)
    reports = []
    for at in range(2):
        folder = tmp_path / f"shard-{at}"
        folder.mkdir()
        (folder / SAMPLE).write_bytes((tmp_path / "whole" / SAMPLE).read_bytes())
        reports.append(run_survey(plan(shard=(at, 2)), folder))
    commits = {report.models["some/base"].model.commit for report in reports if "some/base" in report.models}
    assert commits == {load_sample(tmp_path / "whole" / SAMPLE).pins["some/base"].commit}


@pytest.mark.parametrize(
    ("name", "pin"),
    [
        ("some/base", Pin("hf://models/some/other@" + "0" * 40, "0" * 40)),
        ("some/base", Pin("hf://models/some/base@" + "1" * 40, "0" * 40)),
        ("some/base", Pin("hf://models/some/base@" + "0" * 40 + "/deep", "0" * 40)),
        ("some/base", Pin("hf://models/some/base@main", "main")),
        ("some/base", Pin("some/other")),
        ("./folder", Pin("./another")),
        ("./folder", Pin("hf://models/some/base@" + "0" * 40, "0" * 40)),
    ],
)
def test_a_sample_that_names_another_model_is_refused(tmp_path, name, pin):
    (tmp_path / SAMPLE).write_text(json.dumps({"tokens": [], "pins": {name: asdict(pin)}}))
    with pytest.raises(InputError, match="files that this name cannot mean"):
        load_sample(tmp_path / SAMPLE)


PIN = {"reference": "a/b", "commit": None, "bases": {}}
DAMAGED = {
    "": "is not a JSON object",
    "[]": "is not a JSON object",
    "{}": "it has no tokens",
    json.dumps({"tokens": ["!"], "pins": {}}): "a token is not base64",
    json.dumps({"tokens": [5], "pins": {}}): "its tokens is 5",
    json.dumps({"tokens": [], "pins": {"a": {**PIN, "reference": 5}}}): "its pins is 5",
    json.dumps({"tokens": [], "pins": {"a": {**PIN, "bases": ["a"]}}}): "its pins is",
    json.dumps({"tokens": [], "pins": {}, "names": None}): "its names is None",
}


@pytest.mark.parametrize(("content", "said"), DAMAGED.items())
def test_a_damaged_sample_is_reported(tmp_path, content, said):
    (tmp_path / SAMPLE).write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        load_sample(tmp_path / SAMPLE)
    assert str(caught.value).count(str(tmp_path)) == 1
