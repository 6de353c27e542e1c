"""The recipes of ``docs/scale.md``, taken out of the page and run with ``hf`` against a Hub on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mdir_hf.index.base_index import BaseIndex
from tests.docs.jobs_hub import JobsHub
from tests.specimens import gaussian, write_model
from tests.survey.conftest import write_population

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BASES = "me/bases-0123456789abcdef01234567"
SERVED = {
    "some-lab/new-model": "a/tuned",
    **{f"some-lab/other-{number}": "b/tuned" for number in range(7)},  # nine models make two tasks, one for each Job
    "bases/first": "a/base",
    "bases/second": "b/base",
}


def block(begin: str) -> str:
    """The one block of the page that begins so."""
    (found,) = [text for text in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.S) if text.startswith(begin)]
    return found


@pytest.fixture
def hub(tmp_path):
    with JobsHub(tmp_path / "hub") as hub:
        folders = write_population(tmp_path / "models")
        for name, made in SERVED.items():
            hub.add_repository(name, folders[made])
        hub.list_under(BASES, "bases/first", "bases/second")
        yield hub
        hub.wait()


@pytest.fixture
def desk(hub, tmp_path):
    """A shell of the user, as a function from a script to what it prints."""
    place = tmp_path / "desk"
    # Git repositories take large files over LFS here; buckets always use Xet.
    environment = hub.environment(place) | {"HF_TOKEN": hub.token, "HF_HUB_DISABLE_XET": "1"}
    for name in ("survey.sh", "check.sh"):
        (place / name).write_text(block(f"# {name}"))

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script], cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (
            f"{script}\n{done.stdout}\n{done.stderr}\n{[j.attempts for j in hub.jobs.values()]}"
        )
        return done.stdout

    run.place = place
    return run


def read_models(hub):
    return [request for request in hub.sent("cdn") if "/lfs/" not in request.path]


@pytest.mark.slow
def test_shards_in_jobs_make_one_survey(hub, desk, tmp_path):
    hub.has_bad_start = True
    desk(block("hf buckets create"))
    first, second = hub.jobs.values()
    assert [len(job.attempts) for job in (first, second)] == [2, 1]
    assert first.spec["timeoutSeconds"] == 4 * 3600 and first.spec["flavor"] == "cpu-upgrade"
    assert first.spec["volumes"] == [
        {"type": "bucket", "source": "me/lineage", "mountPath": "/in", "readOnly": True}
    ]  # fmt: skip
    assert hub.buckets["me/lineage"].private
    body = json.loads((desk.place / "survey" / "whole" / "survey.json").read_text())
    others = {name for name in SERVED if "other" in name}
    assert {frozenset(group) for group in body["groups"]} == {
        frozenset({"some-lab/new-model", "bases/first"}), frozenset({"bases/second", *others})
    }  # fmt: skip
    assert len(list((desk.place / "survey" / "whole" / "fingerprints").iterdir())) == len(SERVED)  # which trees need
    (opened,) = hub.pull_requests("datasets/me/lineage-results")
    assert opened.title == "Add whole"
    # What a Job left in the bucket is enough for another to go on: it reads no weights again.
    hub.requests.clear()
    again = hub.start(second.spec)
    hub.wait()
    assert again.stage == "COMPLETED" and not read_models(hub)
    desk(block("hf jobs scheduled"))
    (asked,) = hub.schedules
    assert asked["schedule"] == "@daily"
    assert {key: asked["jobSpec"][key] for key in ("volumes", "secrets", "flavor")} == {
        key: first.spec[key] for key in ("volumes", "secrets", "flavor")
    }
    # The same script as above; here it is enough what it would be told.
    (tmp_path / "survey.sh").write_text('echo "$@"')
    told = [part.replace("/in/", f"{tmp_path}/") for part in asked["jobSpec"]["command"]]
    said = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"day-\d{4}-\d\d-\d\d --author some-lab\n", said)


@pytest.mark.parametrize(
    "event",
    [
        None,
        ("dataset", {"updatedRefs": [{"ref": "refs/heads/main", "oldSha": None, "newSha": "0" * 40}]}),
        ("model", {"updatedRefs": [{"ref": "refs/pr/1", "oldSha": None, "newSha": "0" * 40}]}),
        ("model", {"updatedRefs": [{"ref": "refs/heads/main", "oldSha": "0" * 40, "newSha": None}]}),
        ("model", {"updatedConfig": {"private": False}}),
    ],
)
def test_events_that_bring_no_weights_end_before_anything_is_installed(event, tmp_path):
    (tmp_path / "check.sh").write_text(block("# check.sh"))
    told = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    if event is not None:
        kind, payload = event
        told |= {"WEBHOOK_REPO_ID": "lab/x", "WEBHOOK_REPO_TYPE": kind, "WEBHOOK_PAYLOAD": json.dumps(payload)}
    done = subprocess.run(["bash", "check.sh"], cwd=tmp_path, env=told, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["check.sh"]


@pytest.mark.slow
def test_a_webhook_has_new_models_identified(hub, desk, tmp_path):
    script = block("mdir-hf index")
    assert "bases/first" in desk(script)
    desk("hf buckets create me/lineage --private; mkdir check; cp check.sh check; pip wheel . -w check")
    desk(block("hf buckets sync check"))
    (first,) = hub.jobs.values()
    hub.wait()
    assert first.stage == "COMPLETED" and first.spec["secrets"] == {"HF_TOKEN": hub.token}
    assert "volumes" not in first.spec  # a webhook's run would be without
    found = hub.buckets["me/lineage"].files

    def pushed(name):
        commit = hub.find(name).commit("main")
        (job,) = hub.deliver(name, updatedRefs=[{"ref": "refs/heads/main", "oldSha": None, "newSha": commit}])
        return job, f"found/{name.replace('/', '--')}@{commit}"

    assert hub.deliver("other-lab/model") == []
    job, kept = pushed("some-lab/new-model")
    assert job.stage == "COMPLETED"
    empty = write_model(tmp_path / "empty", gaussian(1200, 64, 30), words=[])
    hub.add_repository("some-lab/no-tokenizer", empty)
    failed, why = pushed("some-lab/no-tokenizer")
    assert failed.stage == "ERROR"
    assert {path for path in found if path.startswith("found/")} == {f"{kept}.json", f"{why}.txt"}
    hub.download("me/lineage", tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / f"{kept}.json").read_text())["found"] == ["bases/first"]
    assert (tmp_path / "kept" / f"{why}.txt").read_text().startswith("mdir-hf: error: ")
    assert len(BaseIndex.load(desk.place / "bases.safetensors")) == 2
