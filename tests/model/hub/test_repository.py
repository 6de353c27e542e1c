import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from mdir_hf.demo.stored_repository import StoredFile
from mdir_hf.errors import (
    ByteBudgetError,
    FileMissingError,
    GatedRepositoryError,
    InputError,
    InvalidReferenceError,
    OfflineError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    ServerError,
    UnsafePathError,
)
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository, resolve_model
from mdir_hf.model.hub.ranges import HubFile
from mdir_hf.model.sources import FileEntry
from tests.loopback.faults import Fault

WEIGHTS = "model.safetensors"


@pytest.fixture
def commit(loopback_hub, model_folder):
    return loopback_hub.add_repository("owner/name", model_folder)


def contents(hub, path):
    """Requests that returned content."""
    return [request for request in hub.sent(path=path) if request.method == "GET" and request.status in (200, 206)]


def other_folder(tmp_path, name="other", text="{}"):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return folder


# Metadata of a repository.


def test_a_repository_is_pinned_to_the_commit_of_its_revision(commit):
    repository = open_repository("owner/name")
    assert (repository.repo, repository.revision, repository.commit) == ("owner/name", None, commit)
    assert repository.label == f"owner/name@{commit[:7]}"
    assert not repository.is_local


def test_the_listing_has_sizes_and_digests(commit, model_folder):
    files = open_repository("owner/name").files
    weights = (model_folder / WEIGHTS).read_bytes()
    assert sorted(files) == ["config.json", WEIGHTS]
    assert files[WEIGHTS].n_bytes == 300_000
    assert files[WEIGHTS].sha256 == hashlib.sha256(weights).hexdigest()
    config = (model_folder / "config.json").read_bytes()
    assert files["config.json"].blob_id == hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest()
    assert files["config.json"].sha256 is None


def test_a_revision_names_its_own_commit_and_files(loopback_hub, model_folder, tmp_path):
    main = loopback_hub.add_repository(
        "owner/name", model_folder, revisions={"v1": other_folder(tmp_path, text='{"v": 1}')}
    )
    repository = open_repository("owner/name", revision="v1")
    assert repository.commit != main
    assert json.loads(repository.read("config.json")) == {"v": 1}
    assert repository.revision == "v1"


def test_a_branch_that_moves_does_not_move_an_opened_repository(loopback_hub, commit, model_folder, tmp_path):
    repository = open_repository("owner/name")
    loopback_hub._repositories["owner/name"].add_revision("main", other_folder(tmp_path))
    assert json.loads(repository.read("config.json"))["hidden_size"] == 64
    assert repository.open(WEIGHTS).read(0, 5) == (model_folder / WEIGHTS).read_bytes()[:5]


def test_a_subfolder_takes_the_place_of_the_root(loopback_hub, model_folder, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    model_folder.rename(root / "inner")
    loopback_hub.add_repository("owner/name", root)
    repository = open_repository("owner/name", subfolder="inner")
    assert sorted(repository.files) == ["config.json", WEIGHTS]
    assert json.loads(repository.read("config.json"))["hidden_size"] == 64
    assert repository.open(WEIGHTS).read(7, 9) == (root / "inner" / WEIGHTS).read_bytes()[7:9]


def test_a_subfolder_that_is_not_there_is_named(commit):
    with pytest.raises(FileMissingError, match="no folder 'nowhere'"):
        open_repository("owner/name", subfolder="nowhere")


def test_a_renamed_repository_is_found_under_its_old_name(loopback_hub, commit, model_folder):
    loopback_hub.rename_repository("owner/name", "new-owner/new-name")
    repository = open_repository("owner/name", RepositoryOptions(token=loopback_hub.token))
    assert repository.repo == "owner/name"
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert repository.open(WEIGHTS).read(5, 50) == (model_folder / WEIGHTS).read_bytes()[5:50]


# Access.


def test_to_a_stranger_a_missing_repository_may_be_private(loopback_hub):
    with pytest.raises(RepositoryNotFoundError, match=r"owner/none: .*private, or gated.*hf auth login"):
        open_repository("owner/none")


def test_a_missing_repository_is_missing_with_a_token_too(loopback_hub):
    with pytest.raises(RepositoryNotFoundError, match="owner/none: there is no such repository"):
        open_repository("owner/none", RepositoryOptions(token=loopback_hub.token))


def test_a_private_repository_does_not_exist_for_strangers(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    for token in (None, loopback_hub.outsider_token):
        with pytest.raises(RepositoryNotFoundError, match="no such repository"):
            open_repository("owner/secret", RepositoryOptions(token=token))
    assert WEIGHTS in open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token)).files


def test_a_gated_repository_refuses_files_without_a_token(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    repository = open_repository("owner/gated")
    with pytest.raises(GatedRepositoryError, match=r"gated and no token was sent.*owner/gated's page.*hf auth login"):
        repository.open(WEIGHTS).read(0, 1)
    with pytest.raises(GatedRepositoryError, match="gated and no token was sent"):
        repository.read("config.json")


def test_a_token_without_access_to_a_gated_repository_gets_an_error(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    repository = open_repository("owner/gated", RepositoryOptions(token=loopback_hub.outsider_token))
    with pytest.raises(GatedRepositoryError, match="this token has not been granted access"):
        repository.open(WEIGHTS).read(0, 1)
    with pytest.raises(GatedRepositoryError, match="this token has not been granted access"):
        repository.read("config.json")


def test_a_token_with_access_reads_a_gated_repository(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    repository = open_repository("owner/gated", RepositoryOptions(token=loopback_hub.token))
    assert repository.open(WEIGHTS).read(0, 4) == (model_folder / WEIGHTS).read_bytes()[:4]
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()


def test_a_wrong_token_is_named_as_the_reason_and_not_repeated(commit):
    wrong = "hf_" + "x" * 34
    with pytest.raises(RepositoryNotFoundError, match="does not accept this token") as caught:
        open_repository("owner/name", RepositoryOptions(token=wrong))
    assert wrong not in str(caught.value)


def test_the_stored_token_is_used_unless_forbidden(loopback_hub, model_folder, hf_home):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    hf_home.mkdir(exist_ok=True)
    (hf_home / "token").write_text(loopback_hub.token)
    assert open_repository("owner/secret").files
    with pytest.raises(RepositoryNotFoundError):
        open_repository("owner/secret", RepositoryOptions(token=False))


def test_no_printed_object_shows_the_token(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    repository = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    source = repository.open(WEIGHTS)
    source.read(0, 1)
    for shown in (repr(repository), repr(source), repr(source._place), repr(source._locator.current())):
        assert loopback_hub.token not in shown
        assert "Signature" not in shown


# Missing files.


@pytest.mark.parametrize("ask", ["open", "read"])
def test_a_missing_file_is_named_without_asking_the_hub(loopback_hub, commit, ask):
    repository = open_repository("owner/name")
    n_requests = len(loopback_hub.requests)
    with pytest.raises(FileMissingError, match=rf"owner/name@{commit[:7]}: there is no file 'tokenizer\.json'"):
        getattr(repository, ask)("tokenizer.json")
    assert len(loopback_hub.requests) == n_requests


def test_a_file_that_vanishes_from_the_hub_is_missing(loopback_hub, commit):
    repository = open_repository("owner/name")
    loopback_hub._repositories["owner/name"].commits[commit].clear()
    with pytest.raises(FileMissingError, match=r"no file 'config\.json'"):
        repository.read("config.json")
    with pytest.raises(FileMissingError, match=f"no file '{WEIGHTS}'"):
        repository.open(WEIGHTS).read(0, 1)


UNSAFE = [
    "",
    "/etc/passwd",
    "../x",
    "a/../x",
    "./x",
    "a//b",
    "a\\..\\x",
    "..\\x",
    "C:\\x",
    "C:/x",
    "c:x",
    "a\nb",
    "\0",
    "\x7f",
    "x/",
]


@pytest.mark.parametrize("path", UNSAFE)
@pytest.mark.parametrize("ask", ["open", "read"])
def test_a_path_that_leaves_a_repository_is_refused(loopback_hub, commit, ask, path):
    repository = open_repository("owner/name")
    n_requests = len(loopback_hub.requests)
    with pytest.raises(UnsafePathError, match=r"is rejected.*leave the repository"):
        getattr(repository, ask)(path)
    assert len(loopback_hub.requests) == n_requests


@pytest.mark.parametrize("subfolder", ["..", "a/../..", "a\\b", "C:x"])
def test_a_subfolder_that_leaves_the_repository_is_refused(commit, subfolder):
    with pytest.raises(UnsafePathError, match="is rejected"):
        open_repository("owner/name", subfolder=subfolder)


# Small files.


def test_a_small_file_is_fetched_once_by_one_request(loopback_hub, commit):
    first = open_repository("owner/name")
    content = first.read("config.json")
    assert (first.ledger.bytes_read, first.ledger.bytes_from_cache) == (len(content), 0)
    assert [request.status for request in loopback_hub.sent(path="config.json")] == [307, 206]  # and no HEAD
    n_requests = len(loopback_hub.sent(path="config.json"))
    second = open_repository("owner/name")
    assert second.read("config.json") == content
    assert len(loopback_hub.sent(path="config.json")) == n_requests
    assert (second.ledger.bytes_read, second.ledger.bytes_from_cache) == (0, len(content))


def test_the_ledger_counts_the_requests_the_hub_saw(loopback_hub, commit):
    loopback_hub.redirects_small_files = False
    repository = open_repository("owner/name")
    repository.read("config.json")
    repository.read(WEIGHTS)
    assert repository.ledger.requests == len(loopback_hub.requests)


def test_the_same_small_file_elsewhere_is_not_fetched_again(loopback_hub, model_folder):
    for name in ("owner/name", "owner/copy"):
        loopback_hub.add_repository(name, model_folder)
        open_repository(name).read("config.json")
    assert len(contents(loopback_hub, "config.json")) == 1


def test_a_file_that_two_threads_read_is_fetched_once(loopback_hub, model_folder):
    loopback_hub.faults.append(Fault("slow", path="config.json", delay_s=0.2, times=None))
    repositories = []
    for name in ("owner/name", "owner/copy"):
        loopback_hub.add_repository(name, model_folder)
        repositories.append(open_repository(name))
    for repository in repositories:
        repository.expect(whole=["config.json"])
    assert repositories[0].read("config.json") == repositories[1].read("config.json")
    assert len(contents(loopback_hub, "config.json")) == 1


def test_expected_files_are_read_together_and_once(loopback_hub, commit, model_folder):
    repository = open_repository("owner/name", RepositoryOptions(use_caches=False))
    repository.expect(whole=["config.json", "not-there.json"], heads=[WEIGHTS])
    weights = (model_folder / WEIGHTS).read_bytes()
    assert repository.open(WEIGHTS).read(0, 4000) == weights[:4000]
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert repository.ledger.bytes_read == 100_008 + 42
    # The listing, a file in two requests, a HEAD and a range.
    assert repository.ledger.requests == len(loopback_hub.requests) == 5


@pytest.mark.parametrize("n_bytes", [-1, (64 << 20) + 1])
def test_a_file_of_an_odd_size_is_not_read_ahead(loopback_hub, commit, n_bytes):
    repository = open_repository("owner/name")
    repository._files["config.json"] = FileEntry("config.json", n_bytes)
    repository.expect(whole=["config.json"])
    assert not repository._coming and not loopback_hub.sent(path="config.json")


def test_an_expected_file_that_fails_raises_when_it_is_read(loopback_hub, commit, waits):
    loopback_hub.faults.append(Fault("status", path="config.json", method="GET", status=500, times=6))
    repository = open_repository("owner/name")
    repository.expect(whole=["config.json"])
    with pytest.raises(ServerError, match="500"):
        repository.read("config.json")
    assert repository.read("config.json")


def test_files_on_a_cdn_need_only_http(loopback_hub, commit, model_folder, monkeypatch):
    # The error of hf_xet if its storage cannot be reached.
    def unreachable(*args, **kwargs):
        raise RuntimeError("CAS service error: error sending request")

    monkeypatch.setattr("huggingface_hub.file_download.xet_get", unreachable)
    monkeypatch.setattr("huggingface_hub.file_download.http_get", unreachable)
    assert open_repository("owner/name").read(WEIGHTS) == (model_folder / WEIGHTS).read_bytes()


def test_a_renamed_repository_is_redirected_once(loopback_hub, commit):
    loopback_hub.rename_repository("owner/name", "new-owner/new-name")
    repository = open_repository("owner/name")
    repository.read("config.json")
    repository.open(WEIGHTS).read(5, 50)
    asked = [request.path for request in loopback_hub.sent("hub")]
    assert [path for path in asked if "new-owner" not in path] == ["/api/models/owner/name/revision/main"]
    assert repository.label == f"owner/name@{commit[:7]}"


# Content must match the listing.


def forge(hub, path, content):
    """Make the Hub serve different bytes of the same length; the listing stays."""
    (stored,) = {id(c[path]): c[path] for r in hub.repositories() for c in r.commits.values()}.values()
    honest = stored.place.read_bytes()
    assert stored.etag and stored.blob_id  # computed from the original bytes and kept
    stored.place.write_bytes(content + honest[len(content) :])
    return lambda: stored.place.write_bytes(honest)


def test_a_small_file_that_contradicts_the_listing_is_refused(loopback_hub, commit, model_folder):
    forge(loopback_hub, "config.json", b'{"model_type": "other"')
    with pytest.raises(ServerError, match=r"the digest that the Hub lists \([0-9a-f]{40}\), even on a second attempt"):
        open_repository("owner/name").read("config.json")
    assert len(contents(loopback_hub, "config.json")) == 2  # it was requested once more


def test_a_wrong_small_file_is_read_once_more(loopback_hub, commit, model_folder):
    mend = forge(loopback_hub, "config.json", b"X")
    repository = open_repository("owner/name")
    whole, n_calls = HubFile.whole, []

    def mended_after_the_first(source):
        content = whole(source)
        n_calls.append(mend())
        return content

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubFile, "whole", mended_after_the_first)
        content = repository.read("config.json")
    assert (content, len(n_calls)) == ((model_folder / "config.json").read_bytes(), 2)
    assert open_repository("owner/name").read("config.json") == content  # the cache contains the correct content


def test_cached_bytes_of_a_lying_server_do_not_fail_later_runs(loopback_hub, commit, model_folder):
    mend = forge(loopback_hub, "config.json", b"X")
    with pytest.raises(ServerError):
        open_repository("owner/name").read("config.json")
    mend()
    assert open_repository("owner/name").read("config.json") == (model_folder / "config.json").read_bytes()


@pytest.mark.parametrize("forged", [b"short", None])
def test_a_forged_file_in_the_clients_cache_is_not_used(loopback_hub, commit, model_folder, forged):
    content = (model_folder / "config.json").read_bytes()
    place = hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    Path(place).write_bytes(forged or b"X" * len(content))
    assert open_repository("owner/name").read("config.json") == content
    assert len(open_repository("owner/name").open("config.json").read(0, 9)) == 9


@pytest.mark.parametrize("etag", ["../../../../../../escaped", "/tmp/escaped", "0" * 39 + "/", "W/x", "0" * 64 + "a"])
def test_an_etag_never_becomes_a_path(loopback_hub, model_folder, tmp_path, hf_home, monkeypatch, etag):
    loopback_hub.add_repository("owner/name", model_folder)
    repository = open_repository("owner/name")
    for path in ("config.json", WEIGHTS):  # a mirror's listing without sizes and digests
        repository._files[path] = FileEntry(path, -1)
    monkeypatch.setattr(StoredFile, "etag", etag)
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert len(repository.open(WEIGHTS).read(0, 100)) == 100
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(model_folder)]
    assert len(kept) == 2
    assert all(path.is_relative_to(hf_home / "mdir-hf" / "ranges") and "escaped" not in str(path) for path in kept)


def test_a_file_too_large_to_be_small_is_not_fetched(loopback_hub, commit):
    repository = open_repository("owner/name")
    with pytest.raises(ByteBudgetError, match=r"300,000 bytes.*limit.*1,000"):
        repository.read(WEIGHTS, max_bytes=1000)
    assert loopback_hub.sent(path=WEIGHTS) == []


def test_a_cache_that_cannot_be_written_does_not_stop_a_read(loopback_hub, commit, model_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MDIR_HF_CACHE", str(tmp_path / "file" / "cache"))
    repository = open_repository("owner/name", RepositoryOptions(cache_dir=tmp_path / "file" / "cache"))
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert repository.ledger.bytes_read == 42


def test_force_download_fetches_again_once(loopback_hub, commit, model_folder):
    loopback_hub.redirects_small_files = False
    open_repository("owner/name").read("config.json")
    n_requests = len(loopback_hub.sent(path="config.json"))
    repository = open_repository("owner/name", RepositoryOptions(force_download=True))
    for _ in range(2):
        assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert len(loopback_hub.sent(path="config.json")) == n_requests + 1
    assert repository.ledger.bytes_read == 42


# Downloaded files.


def test_a_downloaded_weight_file_is_read_without_a_request(loopback_hub, commit, model_folder):
    hf_hub_download("owner/name", WEIGHTS, revision=commit, endpoint=loopback_hub.endpoint)
    before = len(loopback_hub.requests)
    repository = open_repository("owner/name")
    assert repository.open(WEIGHTS).read(1000, 2000) == (model_folder / WEIGHTS).read_bytes()[1000:2000]
    assert [request.path for request in loopback_hub.requests[before:]] == ["/api/models/owner/name/revision/main"]
    assert (repository.ledger.bytes_read, repository.ledger.bytes_from_cache) == (0, 1000)


def test_force_download_asks_the_network_for_a_downloaded_file(loopback_hub, commit):
    hf_hub_download("owner/name", WEIGHTS, revision=commit, endpoint=loopback_hub.endpoint)
    repository = open_repository("owner/name", RepositoryOptions(force_download=True))
    repository.open(WEIGHTS).read(0, 1000)
    assert repository.ledger.bytes_read == 1000


def test_local_files_only_resolves_the_revision_from_the_cache(loopback_hub, commit, model_folder, no_network_later):
    hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    no_network_later()
    repository = open_repository("owner/name", RepositoryOptions(local_files_only=True))
    assert (repository.repo, repository.commit, repository.is_local) == ("owner/name", commit, False)
    assert repository.label == f"owner/name@{commit[:7]}"
    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert (repository.ledger.bytes_read, repository.ledger.bytes_from_cache) == (0, 42)


@pytest.fixture
def no_network_later(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    return lambda: monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_subfolder_is_read_online_and_from_the_cache(loopback_hub, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "config.json").write_text("{}")
    loopback_hub.add_repository("owner/deep", tmp_path / "deep")
    online = open_repository("owner/deep", subfolder="er")
    hf_hub_download("owner/deep", "er/config.json", endpoint=loopback_hub.endpoint)
    offline = open_repository("owner/deep", RepositoryOptions(local_files_only=True), subfolder="er")
    assert (online.subfolder, offline.subfolder) == ("er", "er")
    assert open_repository(tmp_path / "deep", subfolder="er").subfolder == ""  # the subfolder is part of its path


def test_local_files_only_knows_digests_from_the_cache(loopback_hub, commit, model_folder):
    hf_hub_download("owner/name", WEIGHTS, endpoint=loopback_hub.endpoint)
    hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    online = open_repository("owner/name").files
    offline = open_repository("owner/name", RepositoryOptions(local_files_only=True)).files
    assert offline[WEIGHTS].sha256 == online[WEIGHTS].sha256
    assert offline["config.json"].blob_id == online["config.json"].blob_id


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_local_files_only(loopback_hub, commit, monkeypatch, variable, no_network_later):
    hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    monkeypatch.setenv(variable, "1")
    no_network_later()
    assert open_repository("owner/name").commit == commit


def test_the_offline_mode_the_client_was_imported_with_counts_too(loopback_hub, commit, monkeypatch, no_network_later):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    no_network_later()
    with pytest.raises(OfflineError, match=r"owner/name: revision 'main' is not in the cache.*hf download"):
        open_repository("owner/name")


def test_offline_a_file_that_was_not_downloaded_is_named(loopback_hub, commit):
    hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    repository = open_repository("owner/name", RepositoryOptions(local_files_only=True))
    with pytest.raises(OfflineError, match=f"'{WEIGHTS}' is not in the cache"):
        repository.open(WEIGHTS)


def test_offline_a_commit_resolves_to_itself(loopback_hub, commit):
    hf_hub_download("owner/name", "config.json", revision=commit, endpoint=loopback_hub.endpoint)
    assert open_repository(f"owner/name@{commit}", RepositoryOptions(local_files_only=True)).commit == commit


def test_offline_another_revision_is_not_replaced_by_the_one_at_hand(loopback_hub, commit):
    hf_hub_download("owner/name", "config.json", endpoint=loopback_hub.endpoint)
    with pytest.raises(OfflineError, match="revision 'v2' is not in the cache"):
        open_repository("owner/name@v2", RepositoryOptions(local_files_only=True))


@pytest.mark.parametrize("revision", ["../../../x", "/etc/passwd", "a\\b"])
def test_offline_a_revision_never_leaves_the_cache(loopback_hub, commit, revision):
    with pytest.raises(UnsafePathError, match="is rejected"):
        open_repository("owner/name", RepositoryOptions(local_files_only=True), revision=revision)


def test_force_download_without_the_network_is_refused(hf_home):
    with pytest.raises(InputError, match="force_download needs the network"):
        open_repository("owner/name", RepositoryOptions(force_download=True, local_files_only=True))


def test_going_offline_after_opening_is_an_offline_error(loopback_hub, commit, monkeypatch):
    repository = open_repository("owner/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match="network access is off"):
        repository.open(WEIGHTS).read(0, 1)
    with pytest.raises(OfflineError, match="network access is off"):
        repository.read("config.json")


# The listing under errors.


def test_a_used_up_rate_limit_is_waited_out(loopback_hub, commit, waits):
    headers = {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    loopback_hub.faults.append(Fault("status", path="/api/models", status=429, headers=headers))
    open_repository("owner/name")
    # The refused request waits. No time passes in a test's wait, so the next request finds the limit still used up.
    assert waits[0] == 56.0
    assert all(55 < wait_s <= 56 for wait_s in waits)


def test_a_hub_that_cannot_be_reached_is_named(hf_home, monkeypatch, waits):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ServerError, match=r"127.0.0.1 could not be reached .*local_files_only"):
            open_repository("owner/name")


def test_hf_endpoint_is_read_when_a_repository_is_opened(loopback_hub, commit, monkeypatch):
    assert loopback_hub.endpoint != constants.ENDPOINT  # the value at the client's import
    assert open_repository("owner/name").commit == commit
    monkeypatch.delenv("HF_ENDPOINT")
    monkeypatch.setattr(constants, "ENDPOINT", loopback_hub.endpoint + "/")
    assert open_repository("owner/name").commit == commit


# The byte limit.


def test_the_cap_stops_a_small_file_before_it_is_fetched(loopback_hub, commit):
    repository = open_repository("owner/name", ledger=IoLedger(max_bytes=10))
    with pytest.raises(ByteBudgetError, match="needs 42 bytes, but 0 of the 10 bytes allowed"):
        repository.read("config.json")
    assert loopback_hub.sent(path="config.json") == []


def test_two_repositories_may_share_a_ledger(loopback_hub, commit, model_folder):
    loopback_hub.add_repository("owner/second", model_folder)
    ledger = IoLedger()
    for name in ("owner/name", "owner/second"):
        open_repository(name, ledger=ledger).read("config.json")
    assert (ledger.bytes_read, ledger.bytes_from_cache) == (42, 42)
    assert sorted(label.split("@")[0] for label in ledger.files) == ["owner/name", "owner/second"]


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_our_cache_is_readable_by_its_user_alone(loopback_hub, model_folder, hf_home):
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    open_repository("owner/gated", RepositoryOptions(token=loopback_hub.token)).open(WEIGHTS).read(0, 100)
    (kept,) = [path for path in (hf_home / "mdir-hf").rglob("*-*") if path.is_file()]
    assert kept.stat().st_mode & 0o077 == 0
    assert (hf_home / "mdir-hf").stat().st_mode & 0o077 == 0


def everything_under(folder):
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_without_caches_nothing_is_kept_on_this_disk(loopback_hub, model_folder, hf_home):
    loopback_hub.add_repository("owner/secret", model_folder, gated=True)
    repository = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token, use_caches=False))

    assert repository.read("config.json") == (model_folder / "config.json").read_bytes()
    assert (
        repository.open("model.safetensors").read(10, 5000)
        == (model_folder / "model.safetensors").read_bytes()[10:5000]
    )

    assert everything_under(hf_home) == []


def test_without_caches_the_caches_of_other_programs_are_not_read(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, gated=True)
    theirs = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    theirs.read("config.json")
    theirs.open("model.safetensors").read(0, 5000)

    mine = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.outsider_token, use_caches=False))
    with pytest.raises(GatedRepositoryError):
        mine.read("config.json")
    with pytest.raises(GatedRepositoryError):
        mine.open("model.safetensors").read(0, 5000)


def test_without_caches_the_network_is_needed(loopback_hub, commit):
    with pytest.raises(InputError, match="without caches"):
        open_repository("owner/name", RepositoryOptions(use_caches=False, local_files_only=True))


def test_without_a_token_nothing_gated_comes_from_the_caches(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, gated=True)
    owners = open_repository("owner/secret", RepositoryOptions(token=loopback_hub.token))
    owners.read("config.json")
    owners.open("model.safetensors").read(0, 5000)

    strangers = open_repository("owner/secret", RepositoryOptions(token=False))
    with pytest.raises(GatedRepositoryError):
        strangers.read("config.json")
    with pytest.raises(GatedRepositoryError):
        strangers.open("model.safetensors").read(0, 5000)


# --- resolve


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
def test_models_are_public_if_neither_gated_nor_private(loopback_hub, model_folder, access, is_public):
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
