from dataclasses import replace

import pytest

from mdir_space.jobs.access import Access, find_access
from mdir_space.jobs.examples import stored_examples
from mdir_space.jobs.question import PairQuestion, RefusedError
from mdir_space.jobs.results import PublicResults, may_be_kept, result_key
from tests.space.models import BASE, GATED, PRIVATE, RELATED
from tests.specimens import gaussian, write_model

RULES = {"allow_local": False, "may_sign_in": False}


def access(reference, candidate, token=None, **rules):
    return find_access(PairQuestion(reference, candidate), token, **{**RULES, **rules})


@pytest.mark.parametrize("who", ["token", "outsider_token"])
def test_public_results_are_shared_whoever_reads_them(hub, who):
    token = getattr(hub, who)
    found = access(BASE, RELATED, token)
    assert (found.token, found.is_private, found.is_shared) == (token, False, True)
    assert all(request.had_token for request in hub.requests) and len(hub.requests) == 2
    assert result_key(found, PairQuestion(BASE, RELATED)) == result_key(
        access(BASE, RELATED), PairQuestion(BASE, RELATED)
    )


def test_without_signing_in_the_owners_token_or_none_is_sent(hub, monkeypatch):
    assert access(BASE, RELATED).token is None
    monkeypatch.setenv("MDIR_SPACE_TOKEN", f" {hub.outsider_token}\n")
    found = access(BASE, RELATED)
    assert (found.token, found.is_private, found.is_shared) == (hub.outsider_token, False, True)
    assert access(BASE, RELATED, hub.token).token == hub.token


def test_an_invalid_token_does_not_reduce_access(hub, monkeypatch):
    monkeypatch.setenv("MDIR_SPACE_TOKEN", hub.outsider_token)
    found = access(BASE, RELATED, "hf_expired")
    assert (found.token, found.is_shared) == (hub.outsider_token, True)
    monkeypatch.setenv("MDIR_SPACE_TOKEN", "hf_expired_too")
    found = access(BASE, RELATED, "hf_expired")
    assert (found.token, found.is_shared) == (None, True)
    with pytest.raises(RefusedError, match="was not found on the Hub"):
        access(BASE, PRIVATE, "hf_expired")


def test_the_owners_token_is_not_used_for_visitors(hub, monkeypatch):
    strangers = {}
    for name in (PRIVATE, GATED):
        with pytest.raises(RefusedError) as caught:
            access(BASE, name)
        strangers[name] = caught.value.message
    monkeypatch.setenv("MDIR_SPACE_TOKEN", hub.token)
    for name, message in strangers.items():
        with pytest.raises(RefusedError) as caught:
            access(BASE, name)
        assert caught.value.message == message


@pytest.mark.parametrize("pair", [(BASE, GATED), (GATED, BASE), (BASE, PRIVATE), (PRIVATE, GATED)])
def test_private_models_need_the_visitors_token(hub, pair):
    found = access(*pair, hub.token)
    assert (found.token, found.is_private, found.is_shared) == (hub.token, True, False)
    assert result_key(found, PairQuestion(*pair)) is None


def test_a_gated_model_is_refused_without_a_token(hub):
    with pytest.raises(RefusedError, match=f"{GATED} is gated") as caught:
        access(BASE, GATED)
    assert caught.value.runs_locally
    with pytest.raises(RefusedError, match="Sign in") as caught:
        access(GATED, BASE, may_sign_in=True)
    assert caught.value.may_sign_in


def test_a_private_model_looks_missing_to_strangers(hub):
    messages = []
    for name, token in ((PRIVATE, None), ("owner/absent", None), (PRIVATE, hub.outsider_token)):
        with pytest.raises(RefusedError, match="was not found on the Hub") as caught:
            access(BASE, name, token)
        messages.append(caught.value.message.replace(name, "it"))
    assert messages[0] == messages[1]


def test_a_demo_names_the_models_that_it_serves(hub):
    with pytest.raises(RefusedError, match=f"^gpt2 is not a model of this demo, which serves only {BASE}, {RELATED}.$"):
        access("gpt2", BASE, served=(BASE, RELATED))


def test_the_token_of_the_server_opens_nothing(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    for name in (PRIVATE, GATED):
        with pytest.raises(RefusedError):
            access(BASE, name)
    assert not any(request.had_token for request in hub.requests)


def test_the_token_is_not_printed(hub):
    assert hub.token not in repr(access(BASE, GATED, hub.token))


def test_local_paths_are_refused_with_one_message(hub, tmp_path):
    write_model(tmp_path / "mine", gaussian(200, 16, 0))
    messages = set()
    for path in (tmp_path / "mine", tmp_path / "absent", "/etc/passwd"):
        with pytest.raises(RefusedError) as caught:
            access(BASE, str(path))
        messages.add(caught.value.message.replace(str(path), "it"))
    assert len(messages) == 1

    found = access(BASE, str(tmp_path / "mine"), allow_local=True)
    assert (found.candidate.commit, found.token, found.is_shared) == (None, None, False)


def test_a_result_belongs_to_commits_level_and_alpha(hub, tmp_path):
    found = access(BASE, RELATED)
    key = result_key(found, PairQuestion(BASE, RELATED))

    assert key == result_key(access(f"{BASE}@main", RELATED), PairQuestion("typed otherwise", RELATED))
    assert key != result_key(found, PairQuestion(BASE, RELATED, "layers"))
    assert key != result_key(found, PairQuestion(BASE, RELATED, "auto", 1e-6))
    assert key != result_key(access(RELATED, BASE), PairQuestion(RELATED, BASE))

    later = write_model(tmp_path / "later", gaussian(300, 96, 7))
    hub.find(RELATED).add_revision("main", later)
    assert key != result_key(access(BASE, RELATED), PairQuestion(BASE, RELATED))


def test_a_model_that_became_gated_is_not_shared(hub):
    before = access(BASE, RELATED)
    hub.find(RELATED).gated = True
    with pytest.raises(RefusedError, match="gated"):
        access(BASE, RELATED)
    after = access(BASE, RELATED, hub.token)
    assert (before.is_shared, after.is_shared) == (True, False)


def test_the_cache_is_bounded_and_keeps_no_private_result():
    stored = stored_examples()[0].report
    report = replace(stored, io=replace(stored.io, files=()))
    results = PublicResults(most=2)
    for number in range(3):
        results.keep((number,), replace(report, seed=number))
    results.keep(None, report)

    assert results.get((0,)) is None
    assert [results.get((number,)).seed for number in (1, 2)] == [1, 2]
    assert results.get(None) is None


def test_a_result_is_kept_if_it_names_every_repository_it_read():
    commit, found = "0123456789" * 4, Access((), is_shared=True)
    stored = stored_examples()[0].report
    sides = [replace(model, commit=commit) for model in (stored.reference, stored.candidate)]
    names = tuple(f"{model.repo}@{commit[:7]}:model.safetensors" for model in sides)
    report = replace(stored, reference=sides[0], candidate=sides[1], io=replace(stored.io, files=names))
    third = replace(report, io=replace(report.io, files=(*names, "owner/third@0123456:model.safetensors")))
    adapter = replace(third, candidate=replace(sides[1], bases=(f"owner/third@{commit}",)))
    on_folder = replace(third, candidate=replace(sides[1], bases=("/somewhere",)))
    said = [may_be_kept(each, found) for each in (report, third, adapter, on_folder)]
    assert said == [True, False, True, False]
    assert not may_be_kept(report, replace(found, is_shared=False))
