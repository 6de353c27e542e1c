"""Guarantees for a server that compares models for visitors: no local names, and no data shared between visitors."""

import pytest

from mdir_hf import HomologyChecker, compare, declared_lineage
from mdir_hf.errors import GatedRepositoryError, InvalidReferenceError
from tests.specimens import gaussian, write_model

V, N = 1500, 96


@pytest.fixture
def gated_pair(loopback_hub, tmp_path):
    """Names of two related models; the second is gated."""
    loopback_hub.add_repository("owner/open", write_model(tmp_path / "open", gaussian(V, N, 0)))
    related = write_model(tmp_path / "gated", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1))
    loopback_hub.add_repository("owner/gated", related, gated=True)
    return "owner/open", "owner/gated"


def files_under(folder):
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_a_comparison_without_caches_leaves_nothing_on_this_disk(loopback_hub, gated_pair, hf_home):
    checker = HomologyChecker.from_pretrained(gated_pair[0], token=loopback_hub.token, use_caches=False)
    report = checker.compare(gated_pair[1], progress=False)

    assert report.verdict.value == "homologous"
    assert report.io.bytes_from_cache == 0
    assert files_under(hf_home) == []


@pytest.mark.parametrize("which", ["reference", "candidate"])
def test_a_reader_without_access_gets_no_cached_data(loopback_hub, gated_pair, which):
    reference, candidate = gated_pair if which == "candidate" else reversed(gated_pair)
    HomologyChecker.from_pretrained(reference, token=loopback_hub.token).compare(candidate, progress=False)

    with pytest.raises(GatedRepositoryError):
        HomologyChecker.from_pretrained(reference, token=loopback_hub.outsider_token, use_caches=False).compare(
            candidate, progress=False
        )


def test_public_models_may_be_read_with_a_token(loopback_hub, gated_pair, hf_home):
    open_model, gated = gated_pair
    token = loopback_hub.token
    report = compare(open_model, open_model, token=token, public_only=True, progress=False)
    assert report.verdict.value == "homologous"
    assert all(request.had_token for request in loopback_hub.sent("hub"))
    kept = files_under(hf_home)
    for pair in (gated_pair, gated_pair[::-1]):
        with pytest.raises(GatedRepositoryError, match="only public ones are allowed here"):
            compare(*pair, token=token, public_only=True, progress=False)
    with pytest.raises(GatedRepositoryError):
        HomologyChecker.from_pretrained(open_model, token=token, public_only=True).compare(gated, progress=False)
    with pytest.raises(GatedRepositoryError):
        declared_lineage(gated, token=token, public_only=True)
    assert not any("gated" in path.as_posix() for path in files_under(hf_home))
    assert set(files_under(hf_home)) >= set(kept)


@pytest.mark.parametrize("which", ["reference", "candidate"])
def test_local_models_are_refused_if_not_allowed(loopback_hub, gated_pair, tmp_path, which):
    folder = tmp_path / "open"
    reference, candidate = (folder, gated_pair[0]) if which == "reference" else (gated_pair[0], folder)

    with pytest.raises(InvalidReferenceError, match="not allowed here"):
        HomologyChecker.from_pretrained(reference, allow_local=False).compare(candidate, progress=False)
    with pytest.raises(InvalidReferenceError, match="not allowed here"):
        HomologyChecker.from_pretrained(reference, allow_local=False).plan(candidate)


def test_declarations_of_a_card_are_read_without_caches_too(loopback_hub, gated_pair, tmp_path, hf_home):
    (tmp_path / "gated" / "README.md").write_text("---\nbase_model: owner/open\n---\n")
    loopback_hub.add_repository("owner/gated", tmp_path / "gated", gated=True)

    declared = declared_lineage("owner/gated", token=loopback_hub.token, use_caches=False)

    assert declared.base_models == ("owner/open",)
    assert files_under(hf_home) == []
