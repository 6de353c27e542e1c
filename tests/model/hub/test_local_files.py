import os
import sys

import pytest
from huggingface_hub import hf_hub_download

from mdir_hf.errors import ByteBudgetError, FileMissingError, InputError, ShortReadError, UnsafePathError
from mdir_hf.model.hub import IoLedger, LocalFile, open_repository

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX links or pipes")
UNSAFE = ["", "/etc/passwd", "../secret", "sub/../../secret", "..\\secret", "C:\\secret", "c:secret", "a\0b"]


@pytest.fixture
def folder(model_folder):
    (model_folder / "sub").mkdir()
    (model_folder / "sub" / "extra.json").write_text("{}")
    (model_folder.parent / "secret").write_text("secret")
    return model_folder


def test_a_folder_is_a_repository_without_a_commit(folder):
    repository = open_repository(folder)
    assert (repository.repo, repository.commit, repository.revision, repository.is_local) == (
        str(folder),
        None,
        None,
        True,
    )
    assert repository.label == str(folder)
    assert sorted(repository.files) == ["config.json", "model.safetensors", "sub/extra.json"]
    assert repository.files["model.safetensors"].n_bytes == 300_000


def test_hidden_folders_are_not_part_of_a_model(folder):
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    assert ".git/config" not in open_repository(folder).files


def test_a_weight_file_is_a_repository_that_names_it(folder):
    repository = open_repository(folder / "model.safetensors")
    assert repository.file == "model.safetensors"
    assert repository.open("model.safetensors").read(0, 4) == (folder / "model.safetensors").read_bytes()[:4]
    assert repository.read("config.json")


def test_a_subfolder_takes_the_place_of_the_root(folder):
    repository = open_repository(folder, subfolder="sub")
    assert list(repository.files) == ["extra.json"]
    assert repository.read("extra.json") == b"{}"
    assert repository.repo == f"{folder}/sub"


def test_a_subfolder_that_is_not_there_is_named(folder):
    with pytest.raises(FileMissingError, match="no folder 'nowhere'"):
        open_repository(folder, subfolder="nowhere")


def test_a_folder_has_no_revisions(folder):
    with pytest.raises(InputError, match="revision 'v1' was given for a local folder"):
        open_repository(folder, revision="v1")


@pytest.mark.parametrize("ask", ["open", "read"])
def test_a_missing_file_is_named(folder, ask):
    with pytest.raises(FileMissingError, match=r"no file 'tokenizer\.json' in this folder"):
        getattr(open_repository(folder), ask)("tokenizer.json")


@pytest.mark.parametrize("path", UNSAFE)
@pytest.mark.parametrize("ask", ["open", "read"])
def test_a_path_that_leaves_the_folder_is_refused(folder, ask, path):
    with pytest.raises(UnsafePathError, match="is rejected"):
        getattr(open_repository(folder), ask)(path)


@posix
@pytest.mark.parametrize("ask", ["open", "read"])
def test_a_link_that_leaves_the_folder_is_refused(folder, ask):
    (folder / "innocent.json").symlink_to("../secret")
    (folder / "elsewhere").symlink_to("..")
    repository = open_repository(folder)
    for path in ("innocent.json", "elsewhere/secret"):
        with pytest.raises(UnsafePathError, match="is a link that leaves the folder"):
            getattr(repository, ask)(path)


@posix
def test_a_link_to_nowhere_is_not_listed_and_missing(folder):
    (folder / "gone.json").symlink_to("nowhere")
    repository = open_repository(folder)
    assert "gone.json" not in repository.files
    with pytest.raises(FileMissingError, match=r"no file 'gone.json'"):
        repository.open("gone.json")


@posix
def test_a_pipe_is_not_a_file_and_does_not_hang(folder):
    os.mkfifo(folder / "model.bin")
    repository = open_repository(folder)
    assert "model.bin" not in repository.files
    with pytest.raises(FileMissingError, match=r"no file 'model.bin'"):
        repository.open("model.bin")
    with pytest.raises(FileMissingError, match="not a regular file"):
        LocalFile(folder / "model.bin")


def test_a_file_that_shrinks_while_it_is_read_is_a_short_read(folder):
    source = open_repository(folder).open("model.safetensors")
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(ShortReadError, match="now ends at 1,000"):
        source.read(500, 2000)


def test_a_file_too_large_to_be_small_is_refused(folder):
    with pytest.raises(ByteBudgetError, match=r"300,000 bytes.*limit.*1,000"):
        open_repository(folder).read("model.safetensors", max_bytes=1000)


def test_bytes_read_from_a_folder_are_counted_and_capped(folder):
    repository = open_repository(folder, ledger=IoLedger(max_bytes=1000))
    repository.open("model.safetensors").read(0, 900)
    assert (repository.ledger.bytes_read, repository.ledger.requests) == (900, 0)
    with pytest.raises(ByteBudgetError, match="needs 101 bytes, but 900 of the 1,000"):
        repository.open("model.safetensors").read(0, 101)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(FileMissingError, match=r"gone\.bin: cannot be opened: No such file"):
        LocalFile(tmp_path / "gone.bin")


def test_closing_gives_the_file_back(folder):
    source = LocalFile(folder / "model.safetensors")
    source.close()
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(source._descriptor)


def test_reading_without_pread_gives_the_same(folder, monkeypatch):
    monkeypatch.delattr(os, "pread", raising=False)
    content = (folder / "model.safetensors").read_bytes()
    assert LocalFile(folder / "model.safetensors").read(123, 4567) == content[123:4567]


# A folder that is a snapshot in the Hub's cache.


@pytest.fixture
def snapshot(loopback_hub, model_folder, hf_home):
    commit = loopback_hub.add_repository("owner/name", model_folder)
    for name in ("config.json", "model.safetensors"):
        hf_hub_download("owner/name", name, endpoint=loopback_hub.endpoint)
    return hf_home / "hub" / "models--owner--name" / "snapshots" / commit


def test_a_snapshot_folder_knows_its_commit_and_digests(snapshot, loopback_hub):
    repository = open_repository(snapshot)
    assert (repository.commit, repository.is_local) == (snapshot.name, True)
    online = open_repository("owner/name").files
    assert repository.files["model.safetensors"].sha256 == online["model.safetensors"].sha256
    assert repository.files["config.json"].blob_id == online["config.json"].blob_id


def test_the_links_of_a_snapshot_may_lead_to_its_blobs(snapshot, model_folder):
    assert (snapshot / "config.json").is_symlink()
    repository = open_repository(snapshot)
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert repository.open("model.safetensors").read(0, 9) == (model_folder / "model.safetensors").read_bytes()[:9]


def test_a_weight_file_in_a_snapshot_finds_its_siblings(snapshot):
    repository = open_repository(snapshot / "model.safetensors")
    assert repository.commit == snapshot.name
    assert repository.read("config.json")


def test_blobs_shared_by_all_repositories_of_a_cache_are_followed(snapshot):
    blob = (snapshot / "model.safetensors").resolve()
    shared = snapshot.parents[2] / "blobs" / "ab" / ("f" * 64)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    repository = open_repository(snapshot)
    assert repository.files["model.safetensors"].sha256 == blob.name  # not its name in the shared store
    assert len(repository.open("model.safetensors").read(0, 10)) == 10


def test_a_link_of_a_snapshot_to_anywhere_else_is_refused(snapshot, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (snapshot / "innocent.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsafePathError, match="is a link that leaves the folder"):
        open_repository(snapshot).read("innocent.json")


def test_a_snapshot_has_its_own_commit_and_no_other(snapshot):
    assert open_repository(snapshot, revision=snapshot.name).commit == snapshot.name
    with pytest.raises(InputError, match="was given for a local folder"):
        open_repository(snapshot, revision="main")
