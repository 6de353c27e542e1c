import json
import types

import pytest

from mdir_space.html.links import page_address, query_of, read_link, server_address
from mdir_space.jobs.limits import CPU_BASIC, Limits, limits_from_environment
from mdir_space.jobs.visitor import Visitor, signing_in_is_possible, visitor_of
from mdir_space.page.suggestions import MAX_REQUESTS_PER_MINUTE, MAX_SUGGESTIONS, Suggestion, Suggestions, datalist
from tests.loopback.faults import Fault
from tests.space.models import BASE, GATED, PRIVATE


def request(query=None, headers=None, host="1.2.3.4"):
    return types.SimpleNamespace(
        query_params=query or {}, headers=headers or {}, client=types.SimpleNamespace(host=host), session=None
    )


def test_a_link_restores_its_question():
    from urllib.parse import parse_qsl

    for question in [("a/b", "c/d@v1", "auto", 1e-10), ("https://huggingface.co/a/b", "c d&e=f#g", "layers", 1e-6)]:
        asked = read_link(request(dict(parse_qsl(query_of(*question)))))
        assert (asked.reference, asked.candidate, asked.level, float(asked.alpha or 1e-10)) == question


def test_links_name_the_space_or_else_the_host(monkeypatch):
    for name in ("SPACE_ID", "SPACE_HOST"):
        monkeypatch.delenv(name, raising=False)
    asked = request(headers={"host": "127.0.0.1:7860"})
    assert page_address(asked) == "http://127.0.0.1:7860/"
    behind = request(headers={"Host": "inner:80", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "models.example"})
    assert server_address(behind) == "https://models.example"
    strange = request(headers={"host": "h", "x-forwarded-proto": "javascript"})
    assert server_address(strange) == "http://h"

    monkeypatch.setenv("SPACE_ID", "owner/space")
    monkeypatch.setenv("SPACE_HOST", "owner-space.hf.space,custom.example")
    assert page_address(asked) == "https://huggingface.co/spaces/owner/space"
    assert server_address(asked) == "https://owner-space.hf.space"


def test_the_token_of_a_visitor_is_not_printed():
    account = types.SimpleNamespace(username="somebody")
    token = types.SimpleNamespace(token="hf_secret")
    signed_in = visitor_of(request(), account, token)
    assert (signed_in.key, signed_in.token) == ("account somebody", "hf_secret")
    assert "hf_secret" not in repr(signed_in)
    assert visitor_of(request()).key == "address 1.2.3.4"
    forged = request(headers={"X-Forwarded-For": "5.6.7.8, 9.9.9.9"})
    assert visitor_of(forged).key == "address 1.2.3.4"
    assert visitor_of(forged, n_proxies=1).key == "address 9.9.9.9"
    assert visitor_of(request(headers={"X-HF-Token": "hf_own"})).token == "hf_own"
    assert visitor_of(None) == Visitor("address ")


def test_the_servers_token_belongs_to_no_visitor(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_server")
    assert visitor_of(request()).token is None


def test_signing_in_is_offered_in_a_space_only(monkeypatch):
    monkeypatch.setenv("OAUTH_CLIENT_ID", "x")
    monkeypatch.delenv("SYSTEM", raising=False)
    assert not signing_in_is_possible()
    monkeypatch.setenv("SYSTEM", "spaces")
    assert signing_in_is_possible()
    monkeypatch.delenv("OAUTH_CLIENT_ID")
    assert not signing_in_is_possible()


def test_the_owner_may_change_the_limits(monkeypatch):
    assert limits_from_environment() == CPU_BASIC
    monkeypatch.setenv("MDIR_SPACE_SECONDS", "1_200")
    monkeypatch.setenv("MDIR_SPACE_N_BYTES", "0")
    monkeypatch.setenv("MDIR_SPACE_N_RUNNING", "8")
    limits = limits_from_environment()
    assert (limits.seconds, limits.n_bytes, limits.n_running) == (1200.0, None, 8)
    assert limits.memory_bytes == CPU_BASIC.memory_bytes
    monkeypatch.setenv("MDIR_SPACE_SECONDS", "long")
    with pytest.raises(ValueError, match="MDIR_SPACE_SECONDS is 'long'"):
        limits_from_environment()
    assert Limits().seconds is None


def names_of(suggestions, typed):
    return tuple(model.name for model in suggestions.models(typed))


def test_a_suggestion_has_size_downloads_and_access(hub):
    repository = hub.find(GATED)
    repository.downloads, repository.n_parameters = 1_234_567, 494_032_768
    found = {model.name: model.about for model in Suggestions().models("owner/")}
    assert found[GATED] == "\N{LOCK} gated · 494M parameters · 1.23M downloads a month"
    assert found[BASE] == "0 downloads a month"
    assert len(hub.sent("hub", "/api/models")) == 1


def test_suggestions_are_public_and_requested_once(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    suggestions = Suggestions()
    assert BASE in names_of(suggestions, "owner/")
    assert PRIVATE not in names_of(suggestions, "owner/")
    assert len(hub.sent("hub", "/api/models")) == 1
    assert not any(asked.had_token for asked in hub.requests)


def test_further_typing_sends_no_request_if_all_names_are_known(hub):
    suggestions = Suggestions()
    found = names_of(suggestions, BASE[:-1])
    assert BASE in found and len(found) < MAX_SUGGESTIONS
    for typed in (BASE, BASE.upper(), f"{BASE}-nothing-of-the-kind"):
        assert names_of(suggestions, typed) == tuple(name for name in found if typed.lower() in name)
    assert len(hub.sent("hub", "/api/models")) == 1
    names_of(suggestions, "other")
    assert len(hub.sent("hub", "/api/models")) == 2


def test_requests_of_a_fast_typist_are_limited(hub):
    suggestions = Suggestions()
    for number in range(MAX_REQUESTS_PER_MINUTE + 20):
        names_of(suggestions, f"{number:03}")
    assert len(hub.sent("hub", "/api/models")) == MAX_REQUESTS_PER_MINUTE


def test_the_owners_token_adds_no_private_suggestion(hub, monkeypatch):
    monkeypatch.setenv("MDIR_SPACE_TOKEN", hub.token)
    suggestions = Suggestions()
    assert BASE in names_of(suggestions, "owner/")
    assert PRIVATE not in names_of(suggestions, "owner/")
    assert all(asked.had_token for asked in hub.sent("hub", "/api/models"))


@pytest.mark.parametrize(
    "typed", ["", "ow", "https://huggingface.co/owner", "/etc/passwd", "~/x", "owner/base@v", "x" * 97]
)
def test_an_impossible_beginning_of_a_name_sends_no_request(hub, typed):
    assert names_of(Suggestions(), typed) == ()
    assert hub.requests == []


def test_a_hub_that_fails_is_left_alone_for_a_while(hub, waits):
    hub.faults.append(Fault("status", path="/api/models", status=500, times=None))
    suggestions = Suggestions()
    assert names_of(suggestions, "owner/") == ()
    asked = len(hub.requests)
    assert names_of(suggestions, "other") == ()
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    "said",
    [{}, None, [5], [{"id": 5, "private": False}], [{"private": False}], [{"id": "a/b"}], "x" * (1 << 21)],
    ids=lambda said: repr(said)[:20],
)
def test_an_invalid_list_of_models_gives_no_suggestions(hub, said):
    hub.faults.append(Fault("status", path="/api/models", status=200, body=json.dumps(said).encode(), times=None))
    assert names_of(Suggestions(), "owner/") == ()
    assert len(hub.sent("hub", "/api/models")) == 1


def test_an_incomplete_entry_hides_no_other(hub):
    listed = json.dumps([{"id": "a/unsaid"}, {"id": "a/b", "private": False}]).encode()
    hub.faults.append(Fault("status", path="/api/models", status=200, body=listed, times=None))
    assert names_of(Suggestions(), "owner/") == ("a/b",)


@pytest.mark.parametrize("count", [-1, 10**400, 1.5, "7", True, None])
def test_an_invalid_count_is_left_out(hub, count):
    model = {"id": "a/b", "private": False, "downloads": count, "safetensors": {"total": count}}
    hub.faults.append(Fault("status", path="/api/models", status=200, body=json.dumps([model]).encode(), times=None))
    assert Suggestions().models("owner/") == (Suggestion("a/b"),)


def test_only_the_first_page_of_a_list_is_read(hub):
    after = {"Link": f'<{hub.endpoint}/api/models?cursor=1>; rel="next"'}
    hub.faults.append(Fault("status", path="/api/models", status=200, headers=after, body=b"[]", times=None))
    assert names_of(Suggestions(), "owner/") == ()
    assert len(hub.sent("hub", "/api/models")) == 1


def test_an_answer_that_takes_too_long_is_abandoned(hub, monkeypatch):
    monkeypatch.setattr("mdir_space.page.suggestions.ANSWER_S", -1.0)
    suggestions = Suggestions()
    assert names_of(suggestions, "owner/") == ()
    assert names_of(suggestions, BASE) == ()
    assert len(hub.sent("hub", "/api/models")) == 1


def test_suggested_names_are_text():
    strange = (Suggestion('"><script>', is_gated=True), Suggestion("a/b", 12))
    assert datalist("x", strange) == (
        '<datalist id="x"><option value="&#34;&gt;&lt;script&gt;" label="\N{LOCK} gated"></option>'
        '<option value="a/b" label="12 downloads a month"></option></datalist>'
    )
