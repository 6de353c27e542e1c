"""Lists of models: an author's, page by page, and a collection's."""

import pytest

from mdir_hf.errors import HubError, InputError, InvalidReferenceError, OfflineError, RepositoryNotFoundError
from mdir_hf.model.hub import models_of_author, models_of_collection


@pytest.fixture
def hub(loopback_hub, model_folder):
    for at in range(5):
        loopback_hub.add_repository(f"lab/model-{at}", model_folder, downloads=at)
    loopback_hub.add_repository("lab/picture", model_folder, pipeline_tag="text-to-image", downloads=99)
    loopback_hub.add_repository("lab/hidden", model_folder, private=True)
    loopback_hub.add_repository("laboratory/other", model_folder)
    loopback_hub.add_repository("lab/rows", model_folder, kind="dataset")
    return loopback_hub


def test_models_of_an_author_come_by_downloads_over_all_pages(hub):
    hub.largest_page = 2
    found = models_of_author("lab")
    assert found.names == tuple(f"lab/model-{at}" for at in (4, 3, 2, 1, 0))
    assert not found.is_cut
    assert len(hub.sent(path="/api/models")) == 3


def test_a_truncated_list_is_reported(hub):
    found = models_of_author("lab", limit=3)
    assert (found.names, found.is_cut) == (("lab/model-4", "lab/model-3", "lab/model-2"), True)
    assert not models_of_author("lab", limit=5).is_cut


@pytest.mark.parametrize(
    ("author", "limit", "message"),
    [
        ("nobody", 9, "lists no model"),
        ("lab/model-1", 9, "not an author"),
        ("", 9, "not an author"),
        ("lab", 0, "one or more"),
    ],
)
def test_an_invalid_list_of_an_author_is_reported(hub, author, limit, message):
    with pytest.raises(InputError, match=message):
        models_of_author(author, limit=limit)


def test_a_collection_gives_its_models_in_order(hub):
    slug = hub.add_collection("me", "My Models", ["lab/model-3", ("paper", "2508.06309"), "lab/model-0", "lab/model-3"])
    for name in (slug, f"{hub.endpoint}/collections/{slug}"):
        assert models_of_collection(name).names == ("lab/model-3", "lab/model-0")


def test_a_private_collection_needs_its_owner(hub):
    slug = hub.add_collection("me", "Mine", ["lab/model-3"], private=True)
    with pytest.raises(RepositoryNotFoundError):
        models_of_collection(slug)
    assert models_of_collection(slug, token=hub.token).names == ("lab/model-3",)


@pytest.mark.parametrize("name", ["", "me", "a/b/c", "../x", "https://example.org/collections/a/b"])
def test_an_invalid_collection_name_is_refused_without_a_request(hub, name):
    with pytest.raises(InvalidReferenceError, match="collection"):
        models_of_collection(name)
    assert not hub.sent(path="/api/collections")


def test_a_collection_without_models_is_reported(hub):
    with pytest.raises(InputError, match="no model in this collection"):
        models_of_collection(hub.add_collection("me", "Papers", [("paper", "2508.06309")]))


def test_offline_mode_sends_no_request(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for ask in (lambda: models_of_author("lab"), lambda: models_of_collection("me/x-1")):
        with pytest.raises(OfflineError):
            ask()
    assert issubclass(OfflineError, HubError)
    assert not hub.sent()
