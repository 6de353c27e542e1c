"""Verification of a badge from the commits that it names: match, stale or different."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport, Verdict, make_badge
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import InputError, RepositoryNotFoundError
from mdir_hf.lineage.cards import verify_badge as verify_badge_module
from mdir_hf.lineage.cards.badge import escape, render_svg
from mdir_hf.lineage.cards.badge_folder import write_badge
from mdir_hf.lineage.cards.branches import BranchHead
from mdir_hf.lineage.cards.claim import claim_of_dict, claim_of_report
from mdir_hf.lineage.cards.verify_badge import ATTEMPTS, LEAST_TOLERANCE, RELATIVE_TOLERANCE, agree, verify_badge
from mdir_hf.report import Level, SettledBy
from tests.comparison.test_adapters import write_adapter, write_base
from tests.lineage.cards.reports import a_report
from tests.render.figures.drawn_reports import a_layer_map, a_matrix
from tests.specimens import gaussian, tokens, write_model

V, N = 1200, 64


@pytest.fixture
def hub(loopback_hub, tmp_path):
    """A Hub with owner/base, me/tuned (a relative) and me/other (a stranger)."""
    for repo, rows in (
        ("owner/base", gaussian(V, N, 0)),
        ("me/tuned", gaussian(V, N, 0) + 0.5 * gaussian(V, N, 1)),
        ("me/other", gaussian(V, N, 2)),
    ):
        loopback_hub.add_repository(repo, write_model(tmp_path / repo.replace("/", "-"), rows))
    return loopback_hub


@pytest.fixture
def move(hub, tmp_path):
    """Add a commit with other files to a repository; the old commit remains available."""
    n_folders = itertools.count()

    def move_head(repo, **files):
        repository = hub.find(repo)
        folder = tmp_path / f"next-{next(n_folders)}"
        for path, file in repository.commits[repository.revisions["main"]].items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.place.read_bytes())
        for name, content in files.items():
            path = folder / name.replace("__", ".")
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        return repository.add_revision("main", folder)

    return move_head


def compare(candidate="me/tuned", **options) -> HomologyReport:
    return HomologyChecker.from_pretrained("owner/base").compare(candidate, progress=False, **options)


def saved(tmp_path, report, name="badge.svg"):
    folder = tmp_path / "badge"
    badge = make_badge(report)
    write_badge(badge, report, badge.markdown("badge.svg", "report.json"), folder)
    return folder / name


def verify(source, **options):
    return verify_badge(source, listeners=Listeners(progress=False), **options)


@pytest.mark.parametrize(
    ("name", "kind", "candidate"),
    [
        ("badge.svg", "badge", "me/tuned"),
        ("report.json", "report", "me/tuned"),
        ("report.json", "report", "me/other"),
        ("badge.json", "endpoint", "me/other"),
    ],
)
def test_each_kind_of_file_is_computed_again_and_matches(hub, tmp_path, name, kind, candidate):
    check = verify(saved(tmp_path, compare(candidate), name))
    assert (check.state, check.source.kind, check.differences) == ("match", kind, ())
    assert check.report.verdict is (Verdict.HOMOLOGOUS if candidate == "me/tuned" else Verdict.NO_EVIDENCE)
    assert str(check).startswith("MATCH")


def test_the_pinned_commits_are_read_after_the_heads_moved(hub, tmp_path, move):
    source = saved(tmp_path, compare())
    (tmp_path / "s").mkdir()
    stranger = write_model(tmp_path / "s" / "m", gaussian(V, N, 9)) / "model.safetensors"
    head = move("me/tuned", model__safetensors=stranger.read_bytes())
    check = verify(source)
    assert check.state == "stale" and check.differences == ()
    assert check.branches[1] == BranchHead("me/tuned", check.report.candidate.commit, head, ("model.safetensors",))
    assert "changed: model.safetensors" in str(check)


def test_a_card_that_moves_the_head_makes_nothing_stale(hub, tmp_path, move):
    source = saved(tmp_path, compare())
    move("me/tuned", README__md=b"# shows the badge", LICENSE=b"x", picture__png=b"x", __gitattributes=b"x")
    check = verify(source)
    assert check.state == "match"
    assert check.branches[1].head != check.branches[1].pinned and "no change to the model" in str(check)


def test_a_wrong_number_is_reported_with_its_difference(hub, tmp_path):
    true = compare()
    overstated = dataclasses.replace(true, log10_p=true.log10_p * 2)
    check = verify(saved(tmp_path, overstated))
    assert check.state == "different"
    (difference,) = check.differences
    assert difference.field == "log10_p"
    assert abs(difference.reported - difference.repeated) == pytest.approx(-true.log10_p)
    assert f"log10_p: reported {2 * true.log10_p}, now " in str(check)


def test_a_stranger_called_homologous_is_different(hub, tmp_path):
    claimed = dataclasses.replace(
        compare("me/other"), verdict=Verdict.HOMOLOGOUS, log10_p=-300.0, settled_by=SettledBy.NEAR
    )
    check = verify(saved(tmp_path, claimed))
    assert {one.field for one in check.differences} == {"verdict", "log10_p", "settled_by"}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda r: dataclasses.replace(r, settled_by=SettledBy.NOISE), "settled_by"),
        (lambda r: dataclasses.replace(r, tests=7), "tests"),
        (lambda r: dataclasses.replace(r, unembedding=a_matrix()), "unembedding"),
        (lambda r: dataclasses.replace(r, layers=a_layer_map(1, 1)), "layers"),
        (
            lambda r: dataclasses.replace(r, embedding=dataclasses.replace(r.embedding, transformation="permutation")),
            "embedding.transformation",
        ),
        (
            lambda r: dataclasses.replace(r, embedding=dataclasses.replace(r.embedding, log10_p=-9999.0)),
            "embedding.log10_p",
        ),
        (
            lambda r: dataclasses.replace(r, candidate=dataclasses.replace(r.candidate, hidden_size=65)),
            "candidate.hidden_size",
        ),
    ],
)
def test_more_than_the_headline_of_a_report_is_verified(hub, tmp_path, change, name):
    check = verify(saved(tmp_path, change(compare(describes=True)), "report.json"))
    assert check.state == "different" and name in {one.field for one in check.differences}


def test_another_draw_of_neurons_makes_no_difference(hub, tmp_path, monkeypatch):
    """Models that share only some layers may be settled by another step; a claim is compared with three draws."""
    source, original = saved(tmp_path, compare()), verify_badge_module.compare
    n_calls = 0

    def drawn(*args, **options):
        nonlocal n_calls
        n_calls += 1
        report = original(*args, **options)
        return report if n_calls > 2 else dataclasses.replace(report, settled_by=SettledBy.NUMBER)

    monkeypatch.setattr(verify_badge_module, "compare", drawn)
    assert verify(source).state == "match" and n_calls == 3
    n_calls = -9
    assert verify(source).state == "different" and n_calls == -9 + ATTEMPTS


def test_a_picture_that_contradicts_its_data(hub, tmp_path):
    source = saved(tmp_path, compare())
    svg = source.read_text()
    message = make_badge(compare()).message
    for forged in (
        svg.replace(f">{escape(message)}<", f">{escape('p ≤ 10⁻⁹⁹⁹⁹⁹')}<"),
        svg.replace("<title>", "<title>Certified. "),
        svg.replace("</svg>", '<rect width="9" height="9"/></svg>'),
        svg.replace("<svg ", "<svg onload='x' "),
        svg.replace("aria-label", "aria-labelledby"),
    ):
        assert forged != svg
        source.write_text(forged)
        check = verify(source)
        assert check.state == "different"
        assert check.differences == () and not check.source.is_faithful
        assert "the picture does not show what its data gives" in str(check)


def test_line_endings_of_a_checkout_are_accepted(hub, tmp_path):
    source = saved(tmp_path, compare())
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
    assert verify(source).state == "match"


def test_an_endpoint_that_contradicts_its_report(hub, tmp_path):
    source = saved(tmp_path, compare(), "badge.json")
    source.write_text(json.dumps({**json.loads(source.read_text()), "message": "p ≤ 10⁻⁹⁹⁹⁹⁹"}))
    check = verify(source)
    assert check.state == "different" and "the text does not show what its data gives" in str(check)


def test_at_another_level_only_verdicts_are_compared(hub, tmp_path):
    source = saved(tmp_path, compare(), "report.json")
    check = verify(source, level=Level.LAYERS)
    assert check.report.level == "layers"
    assert check.state == "match" and "only the verdicts" in str(check)
    overturned = dataclasses.replace(compare(), verdict=Verdict.NO_EVIDENCE, log10_p=0.0, settled_by=None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "r.json").write_text(overturned.to_json())
    assert verify(tmp_path / "other" / "r.json", level=Level.LAYERS).state == "different"


def test_from_an_address_on_the_hub(hub, tmp_path, move):
    report = compare()
    badge = make_badge(report)
    move("me/tuned", badge__svg=badge.svg.encode(), report__json=report.to_json().encode(),
         badge__json=badge.endpoint_json.encode())  # fmt: skip
    for name in ("badge.svg", "report.json", "badge.json"):
        check = verify(f"{hub.endpoint}/me/tuned/blob/main/{name}?download=true")
        assert check.differences == ()
    with pytest.raises(InputError, match="not the URL"):
        verify("https://example.com/me/tuned/blob/main/badge.svg")


def test_a_local_folder_cannot_be_pinned(hub, tmp_path):
    report = compare(tmp_path / "me-tuned")
    assert str(tmp_path) not in make_badge(report).svg
    with pytest.raises(InputError, match="local folder"):
        verify(saved(tmp_path, report))


@pytest.fixture
def many(hub, tmp_path):
    """Report of me/many, which has two weight files, so that one must be named; its tokenizer is in me/words."""
    # The rows are shuffled, and the matching tokenizer is in another repository.
    shuffled = torch.randperm(V, generator=torch.Generator().manual_seed(3))
    words = [tokens(V)[row] for row in shuffled]
    whole = write_model(tmp_path / "whole", gaussian(V, N, 0)[shuffled], words=words)
    hub.add_repository("me/words", whole)
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("one.safetensors", "two.safetensors"):
        (folder / name).write_bytes((whole / "model.safetensors").read_bytes())
    (folder / "config.json").write_bytes((whole / "config.json").read_bytes())
    hub.add_repository("me/many", folder)
    checker = HomologyChecker.from_pretrained("owner/base")
    return checker.compare(f"{hub.endpoint}/me/many/blob/main/two.safetensors", tokenizer="me/words", progress=False)


@pytest.mark.parametrize("name", ["badge.svg", "report.json", "badge.json"])
def test_a_tokenizer_named_elsewhere_is_found_again(hub, tmp_path, many, move, name):
    words = many.candidate.tokenizer
    assert (many.candidate.file, words) == ("two.safetensors", f"me/words@{hub.find('me/words').commit('main')}")
    source = saved(tmp_path, many, name)
    move("me/words", tokenizer__json=None)  # the old vocabulary is read as well
    check = verify(source)
    assert check.state == "match"
    assert f"(file two.safetensors, vocabulary of {words})" in str(check)


def test_a_vocabulary_on_a_local_disk_is_named_only_locally(hub, tmp_path):
    report = compare("me/tuned", tokenizer=str(tmp_path / "owner-base"))
    source = saved(tmp_path, report)
    assert str(tmp_path) not in source.read_text()
    with pytest.raises(InputError, match="--candidate-tokenizer"):
        verify(source)
    assert verify(source, tokenizers=(None, "owner/base")).state == "match"


def test_the_base_under_an_adapter_is_read_as_it_was(hub, tmp_path, move):
    pinned = hub.add_repository("lab/base", write_base(tmp_path / "lab-base"))
    hub.add_repository("me/lora", write_adapter(tmp_path / "lora", "lab/base"))
    report = compare("me/lora")
    assert report.candidate.bases == (f"lab/base@{pinned}",)
    source = saved(tmp_path, report)
    stranger = write_base(tmp_path / "next-base", seed=9) / "model.safetensors"
    move("lab/base", model__safetensors=stranger.read_bytes())
    check = verify(source)
    assert (check.state, check.report.candidate.bases) == ("match", report.candidate.bases)
    assert f"on lab/base@{pinned}" in str(check)
    # Without a pin in the report, the current base is read, and the result differs.
    unpinned = dataclasses.replace(report, candidate=dataclasses.replace(report.candidate, bases=None))
    assert verify(saved(tmp_path / "unpinned", unpinned)).state == "different"


@pytest.mark.parametrize(
    "fields",
    [
        {"subfolder": "../up"},
        {"subfolder": ""},
        {"file": "/etc/x.gguf"},
        {"file": "a\nb.gguf"},
        {"variant": 5},
        {"tokenizer": "me/words@main"},
        {"tokenizer": "/home/me/words"},
        {"bases": "owner/base"},
        {"bases": ["owner/base"]},
        {"bases": [f"../x@{'a' * 40}"]},
    ],
)
def test_other_reading_options_of_a_badge_are_refused(fields):
    body = make_badge(a_report()).claim.to_dict()
    assert claim_of_dict(body).to_dict() == body
    body["candidate"].update(fields)
    with pytest.raises(InputError):
        claim_of_dict(body)


def test_the_base_under_an_adapter_is_read_back_from_a_picture():
    claim = make_badge(a_report()).claim
    on_base = dataclasses.replace(claim.candidate, bases=(f"owner/base@{'a' * 40}",))
    claim = dataclasses.replace(claim, candidate=on_base)
    assert claim_of_dict(json.loads(json.dumps(claim.to_dict()))) == claim


def test_a_badge_names_models_on_the_hub_only(hub, tmp_path, monkeypatch):
    source = saved(tmp_path, compare())
    write_model(tmp_path / "cwd" / "owner" / "base", gaussian(V, N, 0))
    monkeypatch.chdir(tmp_path / "cwd")
    assert verify(source).report.reference.commit is not None
    hub.rename_repository("owner/base", "owner/elsewhere")
    hub._renamed.clear()
    with pytest.raises(RepositoryNotFoundError):
        verify(source)


def test_a_deleted_branch_is_reported(hub, tmp_path):
    report = compare()
    report = dataclasses.replace(report, candidate=dataclasses.replace(report.candidate, revision="old-branch"))
    check = verify(saved(tmp_path, report))
    assert check.state == "match" and check.branches[1].head is None and "could not be looked up" in str(check)


def test_the_json_of_a_check_is_complete(hub, tmp_path):
    body = json.loads(json.dumps(verify(saved(tmp_path, compare())).to_dict()))
    assert (body["schema"], body["state"], body["differences"]) == ("mdir-hf/badge-check/1", "match", [])
    assert body["claim"]["log10_p"] == pytest.approx(body["report"]["log10_p"])
    assert [head["repo"] for head in body["heads"]] == ["owner/base", "me/tuned"]
    assert body["tolerance"] == {"log10_p": LEAST_TOLERANCE, "relative": RELATIVE_TOLERANCE}


@pytest.mark.parametrize(
    ("claimed", "measured", "same"),
    [
        (-30.0, -30.0 - 0.9 * LEAST_TOLERANCE, True),
        (-30.0, -30.0 + 1.1 * LEAST_TOLERANCE, False),
        (-1e6, -1e6 * (1 + 0.9 * RELATIVE_TOLERANCE), True),
        (-1e6, -1e6 * (1 - 1.1 * RELATIVE_TOLERANCE), False),
        (0.0, 0.0, True),
    ],
)
def test_values_agree_within_the_larger_tolerance(claimed, measured, same):
    assert agree(claimed, measured) is same


HOSTILE_FILES = {
    "empty": b"",
    "text": b"hello",
    "number": b"5",
    "list": b"[]",
    "unknown object": b'{"a": 1}',
    "deep": b"[" * 200_000,
    "not UTF-8": b"\xff\xfe<svg/>",
    "other schema": b'{"schema": "mdir-hf/report/9"}',
    "half a report": b'{"schema": "mdir-hf/report/1"}',
    "svg without data": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "svg with other data": b"<svg><metadata>{}</metadata></svg>",
    "svg with half data": b'<svg><metadata>{"schema": "mdir-hf/badge/1"}</metadata></svg>',
    "data twice": b"<svg><metadata>{}</metadata><metadata>{}</metadata></svg>",
    "unclosed": b"<svg><metadata>{}",
    "long": b"<svg>" + b" " * (1 << 16) + b"</svg>",
    "bomb": b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><svg><metadata>&b;</metadata></svg>',
    "file": b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg><metadata>&a;</metadata></svg>',
    "endpoint without report": b'{"schemaVersion": 1, "label": "x", "message": "y"}',
    "html": b"<!doctype html><script>alert(1)</script>",
}


@pytest.mark.parametrize("content", HOSTILE_FILES.values(), ids=HOSTILE_FILES.keys())
def test_an_invalid_badge_gives_one_plain_error(tmp_path, hf_home, content):
    path = tmp_path / "x.svg"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        verify(path)
    said = str(caught.value)
    assert said.isprintable() and said.startswith((f"{path}: ", f"{tmp_path / 'report.json'}: "))


def test_a_document_type_is_refused_even_around_true_data(tmp_path, hf_home):
    body = json.dumps(claim_of_report(a_report()).to_dict())
    (tmp_path / "x.svg").write_text(
        f"<!DOCTYPE svg [<!ENTITY a '{body}'>]><svg><metadata>&a;</metadata></svg>".replace('"', "&#34;")
    )
    with pytest.raises(InputError, match="document type"):
        verify(tmp_path / "x.svg")


def test_a_huge_file_is_not_read(tmp_path, hf_home):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="the limit for reports"):
        verify(tmp_path / "x.json")
    with pytest.raises(InputError, match="is a folder"):
        verify(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reference", {"repo": "../../etc", "revision": None, "commit": "a" * 40}),
        ("reference", {"repo": "a/b", "revision": None, "commit": "main"}),
        ("reference", {"repo": "a/b", "revision": "x\n", "commit": "a" * 40}),
        ("reference", {"repo": None, "revision": None, "commit": "a" * 40}),
        ("reference", {"repo": "a/b"}),
        ("reference", "a/b"),
        ("verdict", "related"),
        ("log10_p", float("nan")),
        ("level", ["auto"]),
        ("level", {"a": 1}),
        ("seed", 1.5),
        ("report_sha256", "x"),
        ("extra", 1),
    ],
)
def test_data_of_a_badge_that_was_tampered_with_is_refused(tmp_path, hf_home, field, value):
    svg = render_svg(claim_of_report(a_report()))
    start, stop = svg.index("<metadata>") + 10, svg.index("</metadata>")
    body = {**claim_of_report(a_report()).to_dict(), field: value}
    (tmp_path / "x.svg").write_text(svg[:start] + json.dumps(body).replace("<", "&lt;") + svg[stop:])
    with pytest.raises(InputError):
        verify(tmp_path / "x.svg")
