"""Read one small file by its URL: only from the Hub, and bounded in size."""

import pytest

from mdir_hf.demo.stored_repository import StoredFile
from mdir_hf.errors import (
    ByteBudgetError,
    FileMissingError,
    GatedRepositoryError,
    InvalidReferenceError,
    OfflineError,
    ServerError,
    UnsafePathError,
)
from mdir_hf.model.hub.hub_file import fetch_hub_file, parse_file_url, read_hub_file
from tests.loopback.hub import FullHub

HUB = "https://huggingface.co"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"{HUB}/o/n/resolve/main/a.svg", ("model", "o/n", "main", "a.svg")),
        (f"{HUB}/o/n/blob/v1.0/.lineage/report.json?x=1#y", ("model", "o/n", "v1.0", ".lineage/report.json")),
        (f"{HUB}/gpt2/raw/main/a.svg", ("model", "gpt2", "main", "a.svg")),
        (f"{HUB}/datasets/o/n/resolve/{'a' * 40}/b/c.json", ("dataset", "o/n", "a" * 40, "b/c.json")),
        (f"{HUB}/spaces/o/n/resolve/main/c.json", ("space", "o/n", "main", "c.json")),
        (f"{HUB}/models/o/n/resolve/main/c.json", ("model", "o/n", "main", "c.json")),
        (f"{HUB}/o/n/resolve/refs/pr/3/c%20d.json", ("model", "o/n", "refs/pr/3", "c d.json")),
        (f"{HUB}/o/n/resolve/refs%2Fpr%2F3/c.json", ("model", "o/n", "refs/pr/3", "c.json")),
        ("https://hf.co/o/resolve/resolve/main/c.json", ("model", "o/resolve", "main", "c.json")),
    ],
)
def test_an_address_is_taken_apart(hf_home, url, expected):
    assert parse_file_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/o/n/resolve/main/a.svg",
        "https://huggingface.co.evil.example/o/n/resolve/main/a.svg",
        "https://huggingface.co@evil.example/o/n/resolve/main/a.svg",
        "https://user@huggingface.co/o/n/resolve/main/a.svg",
        "https://huggingface.co:444/o/n/resolve/main/a.svg",
        "file:///etc/passwd",
        "ftp://huggingface.co/o/n/resolve/main/a.svg",
        "http://[",
        f"{HUB}/o/n/tree/main/a.svg",
        f"{HUB}/o/n/resolve/main",
        f"{HUB}/o/n/resolve/main/",
        f"{HUB}/o/n/p/resolve/main/a",
        f"{HUB}/o/n--m/resolve/main/a",
        f"{HUB}/",
        HUB,
    ],
)
def test_addresses_other_than_hub_files_are_refused(hf_home, url):
    with pytest.raises(InvalidReferenceError):
        parse_file_url(url)


@pytest.mark.parametrize("path", ["../../x", "a/%2e%2e/%2e%2e/b", "a\\..\\b", "%00"])
def test_a_path_that_leaves_the_repository_is_refused(hf_home, path):
    with pytest.raises(UnsafePathError):
        parse_file_url(f"{HUB}/o/n/resolve/main/{path}")


def test_it_is_read_at_the_commit_of_its_branch(loopback_hub, model_folder):
    commit = loopback_hub.add_repository("owner/name", model_folder)
    url = f"{loopback_hub.endpoint}/owner/name/blob/main/config.json"
    content = (model_folder / "config.json").read_bytes()
    assert read_hub_file(url, max_bytes=len(content)) == (content, commit)


def test_a_larger_file_is_not_downloaded(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    url = f"{loopback_hub.endpoint}/owner/name/resolve/main/model.safetensors"
    with pytest.raises(ByteBudgetError, match="300,000 bytes"):
        read_hub_file(url, max_bytes=299_999)
    assert not loopback_hub.sent("cdn") and all(request.method == "HEAD" for request in loopback_hub.requests)


def test_refusals_raise_the_usual_errors(loopback_hub, model_folder, monkeypatch):
    loopback_hub.add_repository("owner/name", model_folder)
    loopback_hub.add_repository("owner/gated", model_folder, gated=True)
    with pytest.raises(FileMissingError):
        read_hub_file(f"{loopback_hub.endpoint}/owner/name/resolve/main/none.json", max_bytes=99)
    gated = f"{loopback_hub.endpoint}/owner/gated/resolve/main/config.json"
    with pytest.raises(GatedRepositoryError):
        read_hub_file(gated, max_bytes=99)
    assert read_hub_file(gated, max_bytes=99, token=loopback_hub.token)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError):
        read_hub_file(f"{loopback_hub.endpoint}/owner/name/resolve/main/other.json", max_bytes=99)


def test_requests_go_to_the_endpoint_for_any_address(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/name", model_folder)
    with FullHub() as other, pytest.raises(InvalidReferenceError):
        read_hub_file(f"{other.endpoint}/owner/name/resolve/main/config.json", max_bytes=99)
    assert read_hub_file(f"{HUB}/owner/name/resolve/main/config.json", max_bytes=99)
    assert len(loopback_hub.requests) > 0


def test_a_file_that_is_to_stay_is_downloaded_once_and_checked(loopback_hub, model_folder, hf_home):
    loopback_hub.add_repository("owner/name", model_folder)
    url = f"{loopback_hub.endpoint}/owner/name/resolve/main/model.safetensors"
    content = (model_folder / "model.safetensors").read_bytes()
    place, _ = fetch_hub_file(url, max_bytes=len(content))
    assert place.read_bytes() == content and place.is_relative_to(hf_home / "mdir-hf")
    assert fetch_hub_file(url, max_bytes=len(content))[0] == place
    assert len(loopback_hub.sent("cdn")) == 1
    place.write_bytes(bytes(len(content)))
    assert fetch_hub_file(url, max_bytes=len(content))[0].read_bytes() == content
    assert [path.name for path in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize("read", [read_hub_file, fetch_hub_file])
def test_an_invalid_commit_or_etag_never_becomes_a_path(loopback_hub, model_folder, tmp_path, monkeypatch, read):
    commit = loopback_hub.add_repository("owner/name", model_folder)
    url = f"{loopback_hub.endpoint}/owner/name/resolve/main/config.json"
    loopback_hub.redirects_small_files = False
    before = set(tmp_path.rglob("*"))
    monkeypatch.setattr(StoredFile, "etag", "../../../../../escaped")
    read(url, max_bytes=99)
    files = loopback_hub.find("owner/name").commits.pop(commit)
    loopback_hub.find("owner/name").revisions["main"] = "../../../../escaped"
    loopback_hub.find("owner/name").commits["../../../../escaped"] = files
    with pytest.raises(ServerError, match=r"expected 40 hex digits, got '[./]+escaped'"):
        read(url, max_bytes=99)
    new = [path for path in set(tmp_path.rglob("*")) - before if path.is_file()]
    assert len(new) == 1
    assert new[0].is_relative_to(tmp_path / "hf-home" / "mdir-hf") and "escaped" not in str(new[0])


def test_bytes_that_do_not_match_the_etag_are_refused(loopback_hub, model_folder, monkeypatch):
    loopback_hub.add_repository("owner/name", model_folder)
    monkeypatch.setattr(StoredFile, "etag", "0" * 40)
    with pytest.raises(ServerError, match=f"differs from the digest.*{'0' * 40}"):
        read_hub_file(f"{loopback_hub.endpoint}/owner/name/resolve/main/config.json", max_bytes=99)
