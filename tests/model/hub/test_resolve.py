import pytest

from mdir_hf.errors import GatedRepositoryError, InvalidReferenceError, RevisionNotFoundError
from mdir_hf.model.hub import open_repository, resolve_model
from tests.loopback.faults import Fault


def test_a_name_stands_for_the_commit_of_its_revision(loopback_hub, model_folder, tmp_path):
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "config.json").write_text("{}")
    main = loopback_hub.add_repository("owner/name", model_folder, revisions={"v2": tmp_path / "v2"})

    resolved, other = resolve_model("owner/name"), resolve_model("owner/name@v2")

    assert (resolved.repo, resolved.revision, resolved.commit) == ("owner/name", None, main)
    assert (other.revision, other.commit != main) == ("v2", True)


def test_a_pinned_commit_stays_when_the_branch_moves(loopback_hub, model_folder, tmp_path):
    loopback_hub.add_repository("owner/name", model_folder)
    resolved = resolve_model("https://huggingface.co/owner/name/resolve/main/model.safetensors")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "config.json").write_text("{}")
    loopback_hub.find("owner/name").add_revision("main", tmp_path / "later")

    repository = open_repository(resolved.pinned)

    assert repository.commit == resolved.commit != resolve_model("owner/name").commit
    assert repository.file == "model.safetensors"


def test_a_renamed_repository_is_called_by_its_present_name(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/old", model_folder)
    loopback_hub.rename_repository("owner/old", "owner/new")
    assert resolve_model("owner/old").repo == "owner/new"


@pytest.mark.parametrize(("access", "is_public"), [({}, True), ({"gated": True}, False), ({"private": True}, False)])
def test_public_is_what_is_neither_gated_nor_private_whoever_asks(loopback_hub, model_folder, access, is_public):
    loopback_hub.add_repository("owner/name", model_folder, **access)
    assert resolve_model("owner/name", token=loopback_hub.token).is_public is is_public


def test_a_refusal_of_the_hub_raises_our_error(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    with pytest.raises(RevisionNotFoundError):
        resolve_model("owner/name@nowhere")
    headers = {"X-Error-Code": "GatedRepo"}
    loopback_hub.faults.append(Fault("status", status=403, path="/api/models/owner/name", headers=headers))
    with pytest.raises(GatedRepositoryError):
        resolve_model("owner/name")


def test_a_folder_stands_for_itself_unless_only_the_hub_is_meant(tmp_path, model_folder):
    resolved = resolve_model(model_folder)
    assert (resolved.repo, resolved.commit, resolved.is_public) == (str(model_folder), None, False)
    with pytest.raises(InvalidReferenceError):
        resolve_model(model_folder, allow_local=False)
