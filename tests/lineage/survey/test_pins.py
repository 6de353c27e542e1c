"""A survey reads the commit that it first saw of a name, even if the repository changes later."""

from dataclasses import replace

import pytest
import torch

from mdir_hf.errors import InputError
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.survey.folder import RESULTS, ROWS, SurveyFolder, _line
from mdir_hf.lineage.survey.run import SurveyPlan, open_folder, prepare_survey, run_survey
from mdir_hf.lineage.survey.sample import Sample
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


def run_in(folder, part=None):
    with open_folder(replace(plan(), part=part), folder) as state:
        return run_survey(replace(plan(), part=part), state)


def test_rows_that_were_dropped_are_read_again_from_the_same_commits(hub, tmp_path):
    first = run_in(tmp_path / "out")
    before = SurveyFolder(tmp_path / "out").all_rows()
    results = tmp_path / "out" / RESULTS
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(line for line in lines if b'"kind": "pair"' not in line and b'"stages"' not in line))
    for kept in (tmp_path / "out" / ROWS).iterdir():
        kept.unlink()
    for name in NAMES[:2]:
        move(hub, name, tmp_path)
    again = run_in(tmp_path / "out")
    after = SurveyFolder(tmp_path / "out").all_rows()
    for name in NAMES:
        assert torch.equal(after[name].rows, before[name].rows), name
        assert again.models[name].model.commit == first.models[name].model.commit


def test_a_model_that_appears_later_is_pinned_when_it_is_read(hub, tmp_path):
    hidden = hub._repositories.pop("some/tuned")
    assert run_in(tmp_path / "out").models["some/tuned"].error is not None
    hub._repositories["some/tuned"] = hidden
    assert run_in(tmp_path / "out").models["some/tuned"].error is None
    assert SurveyFolder(tmp_path / "out").sample.pins["some/tuned"].commit == hidden.revisions["main"]
    assert set(SurveyFolder(tmp_path / "out").all_rows()) == set(NAMES)


def test_parts_of_one_preparation_read_the_same_commits(hub, tmp_path):
    with open_folder(plan(), tmp_path / "sample") as state:
        pins = prepare_survey(plan(), state).pins
    assert len((tmp_path / "sample" / RESULTS).read_bytes().splitlines()) == 2  # the settings and the sample
    move(hub, "some/base", tmp_path)
    with open_folder(plan(), tmp_path / "part") as state:
        state.take_over(SurveyFolder(tmp_path / "sample"))
    commit = run_in(tmp_path / "part", NAMES[:1]).models["some/base"].model.commit
    assert commit == pins["some/base"].commit


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
    state = SurveyFolder(tmp_path, [name, "b"], plan().settings)
    state.begin(Sample((b"w1",), {name: pin}))
    with pytest.raises(InputError, match="files that this name cannot mean"):
        SurveyFolder(tmp_path)


PIN = {"reference": "a", "commit": None, "bases": {}}
DAMAGED = (
    ({"tokens": ["!"]}, "a token is not base64"),
    ({"tokens": [5]}, "its tokens is 5"),
    ({"pins": {"a": {**PIN, "reference": 5}}}, "its pins is 5"),
    ({"pins": {"a": {**PIN, "bases": ["a"]}}}, "its pins is"),
    ({"neuron_seed": -1}, "its neuron_seed is -1"),
)


@pytest.mark.parametrize(("changes", "said"), DAMAGED)
def test_an_invalid_sample_is_reported(tmp_path, changes, said):
    SurveyFolder(tmp_path, ["a", "b"], plan().settings)
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(_line("sample", {"tokens": [], "pins": {}, "neuron_seed": 0, **changes}))
    with pytest.raises(InputError, match=said) as caught:
        SurveyFolder(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1
