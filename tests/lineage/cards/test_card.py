"""A lineage section in a model card, printed or proposed to the loopback Hub."""

import itertools

import pytest
from huggingface_hub import ModelCard

from mdir_hf import HomologyReport, make_badge
from mdir_hf.errors import CardError, InputError, PullRequestError
from mdir_hf.lineage.cards.card import TITLE, propose_card
from mdir_hf.lineage.cards.section import BEGIN, END
from tests.lineage.cards.reports import BASE_COMMIT, HOSTILE_TEXTS, TUNED_COMMIT, a_report, model

CARD = b"---\nlicense: mit # keep\ntags:\n- b\n- a\n---\n# Tuned\n\nWords.\n"


@pytest.fixture
def serve(loopback_hub, tmp_path):
    """Give me/tuned a commit with a card; return its report against owner/base, pinned to that commit."""
    n_commits = itertools.count()

    def serve_tuned(card=CARD, config="{}", **options):
        folder = tmp_path / f"tuned-{next(n_commits)}"
        folder.mkdir()
        (folder / "config.json").write_text(config)
        if card is not None:
            (folder / "README.md").write_bytes(card)
        known = loopback_hub.find("me/tuned")
        if known is None:
            commit = loopback_hub.add_repository("me/tuned", folder, **options)
        else:
            known.has_discussions = options.get("discussions", True)
            commit = known.add_revision("main", folder)
        return a_report(candidate=model("me/tuned", commit))

    return serve_tuned


def propose(report, repo="me/tuned", **options):
    return propose_card(repo, report, **options)


BOM = "\ufeff".encode()


@pytest.mark.parametrize(
    "card",
    [
        CARD,
        CARD.replace(b"\n", b"\r\n"),
        BOM + CARD,
        b"# No front matter\n",
        b"",
        None,
        CARD.rstrip(b"\n"),
        b"---\nlicense: mit\n---",
        b"---\r\nlicense: mit\r\n---\r\n",
        CARD + f"\n```\n{BEGIN}\nan example\n{END}\n```\n".encode(),
        CARD + f"see {BEGIN} and {END}\n".encode(),
        CARD + "Grüße, 漢字 \u2028 \u0085 \x0c\n".encode(),
    ],
)
def test_the_section_is_added_once_and_the_card_is_kept(serve, loopback_hub, card):
    report = serve(card)
    proposal = propose(report)
    assert proposal.before == card
    before = card or b""
    assert proposal.after.startswith(before)
    added = proposal.after[len(before) :].decode()
    assert added.count(BEGIN) == added.count(END) == 1
    if b"\r\n" in before:
        assert added.count("\r\n") == added.count("\n")
    else:
        assert "\r" not in added
    # A second run changes nothing, and another report replaces the section in place.
    serve(proposal.after)
    again = propose(report)
    assert again.after == proposal.after
    other = propose(a_report(candidate=report.candidate, log10_p=-99.5))
    assert other.after.replace(b"1e-99", b"1e-30").replace(b"-99.5", b"-30.2")[: len(before)] == before
    assert other.after.decode().count("p ≤ 10⁻⁹⁹") == 2 and "p ≤ 10⁻³⁰" not in other.after.decode()


def test_metadata_needs_the_authors_confirmation(serve):
    report = serve()
    silent = ModelCard(propose(report).after.decode()).data.to_dict()
    assert silent == {"license": "mit", "tags": ["b", "a"]}
    with pytest.raises(InputError):
        propose(report, relation="finetune")
    with pytest.raises(InputError):
        propose(report, relation="child", confirm_base_model=True)
    said = ModelCard(propose(report, relation="finetune", confirm_base_model=True).after.decode())
    assert said.data.to_dict() == {**silent, "base_model": "owner/base", "base_model_relation": "finetune"}
    bare = propose(report, confirm_base_model=True)
    assert "base_model_relation" not in ModelCard(bare.after.decode()).data.to_dict()
    assert bare.fields == ("base_model",)


@pytest.mark.parametrize(
    ("declared", "relation", "expected"),
    [
        ("base_model: owner/base", "finetune", "owner/base"),
        ("base_model: Owner/Base", None, "Owner/Base"),
        ("base_model:\n- x/y\n- owner/base", "merge", ["x/y", "owner/base"]),
        ("base_model:\n- x/y", "merge", ["x/y", "owner/base"]),
        ("base_model: x/y", "merge", ["x/y", "owner/base"]),
        ("base_model: []", "finetune", "owner/base"),
        ("base_model:", "finetune", "owner/base"),
    ],
)
def test_declared_bases_are_kept_and_extended(serve, declared, relation, expected):
    report = serve(f"---\n{declared}\n---\n# T\n".encode())
    data = ModelCard(propose(report, relation=relation, confirm_base_model=True).after.decode()).data.to_dict()
    assert data["base_model"] == expected
    assert data.get("base_model_relation") == relation


@pytest.mark.parametrize("declared", ["base_model: x/y", "base_model: [x/y, z/w]"])
def test_another_declared_base_is_not_taken_away(serve, declared):
    report = serve(f"---\n{declared}\n---\n# T\n".encode())
    with pytest.raises(CardError, match="x/y"):
        propose(report, relation="finetune", confirm_base_model=True)
    assert declared.encode() in propose(report).after


def test_an_invalid_declaration_is_left_to_the_author(serve):
    with pytest.raises(CardError, match="by hand"):
        propose(serve(b"---\nbase_model: {a: b}\n---\n"), confirm_base_model=True)


def test_a_model_is_not_its_own_base(serve):
    report = serve()
    itself = a_report(reference=report.candidate, candidate=report.candidate)
    with pytest.raises(InputError, match="its own base"):
        propose(itself, confirm_base_model=True)


def test_a_report_of_other_models_is_refused(serve):
    serve()
    with pytest.raises(InputError, match="does not mention"):
        propose(a_report(candidate=model("me/other", TUNED_COMMIT)))


def test_a_report_of_two_folders_has_no_model_to_name(serve):
    serve()
    folders = a_report(reference=model("/here/a", None), candidate=model("/here/b", None))
    with pytest.raises(InputError, match="cards are for Hub repositories; the report compares two local folders"):
        propose(folders)


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: ascii(text)[:30])
def test_a_report_with_a_hostile_other_side_is_refused(serve, text):
    report = serve()
    with pytest.raises(InputError) as caught:
        propose(a_report(reference=model(text, BASE_COMMIT), candidate=report.candidate))
    assert str(caught.value).isascii() and "\n" not in str(caught.value)


def test_a_report_of_a_folder_is_refused_without_its_path(serve):
    report = serve()
    with pytest.raises(InputError, match="local folder") as caught:
        propose(a_report(reference=model("/home/somebody/secret", None), candidate=report.candidate))
    assert "secret" not in str(caught.value)


def test_a_local_folder_has_no_card_on_the_hub(serve, tmp_path):
    with pytest.raises(InputError, match="local folder"):
        propose(serve(), repo=str(tmp_path))


def test_a_folder_does_not_stand_in_for_the_repository(serve, tmp_path, monkeypatch):
    report = serve()
    (tmp_path / "cwd" / "me" / "tuned").mkdir(parents=True)
    (tmp_path / "cwd" / "me" / "tuned" / "README.md").write_text("# Local\n")
    monkeypatch.chdir(tmp_path / "cwd")
    assert propose(report).before == CARD


def test_a_hostile_card_is_one_error(serve):
    with pytest.raises(CardError, match=r"me/tuned@.*README.md: its front matter"):
        propose(serve(b"---\na: &a [*a]\n---\n"), confirm_base_model=True)
    with pytest.raises(CardError, match="UTF-8"):
        propose(serve(b"\xff"))


def test_the_diff_shows_what_changes_and_steers_no_terminal(serve):
    report = serve(CARD + b"\x1b[2Jcleared\r\n")
    diff = propose(report, confirm_base_model=True).diff()
    assert "+base_model: owner/base\n" in diff and "+## Weight ancestry\n" in diff
    assert "-license" not in diff and "+license" not in diff and "\x1b" not in diff and "\r" not in diff


def test_a_pull_request_holds_card_report_and_badge(serve, loopback_hub):
    report = serve()
    proposal = propose(report, relation="finetune", confirm_base_model=True)
    opened = proposal.open_pull_request(token=loopback_hub.token)
    (pull_request,) = loopback_hub.pull_requests("me/tuned")
    assert opened.url.endswith("/me/tuned/discussions/1") and pull_request.title == TITLE
    assert pull_request.base == report.candidate.commit
    for part in ("Shared weight ancestry: p ≤ 10⁻³⁰", f"owner/base@{BASE_COMMIT}", "`base_model`", "no direction"):
        assert part in pull_request.description
    commit = loopback_hub.merge("me/tuned", 1)
    card = loopback_hub.content("me/tuned", "README.md").decode()
    assert f"{loopback_hub.endpoint}/me/tuned/resolve/main/.lineage/badge.svg" in card
    pinned = HomologyReport.from_json(loopback_hub.content("me/tuned", ".lineage/report.json").decode())
    assert pinned == report
    assert loopback_hub.content("me/tuned", ".lineage/badge.svg").decode() == make_badge(report).svg
    # Everything was merged, so there is nothing to propose.
    done = propose(report, relation="finetune", confirm_base_model=True)
    assert done.commit == commit and done.is_unchanged and done.changed == ()


def test_a_missing_pull_request_is_explained(serve, loopback_hub):
    proposal = propose(serve(discussions=False))
    with pytest.raises(PullRequestError, match="disabled"):
        proposal.open_pull_request(token=loopback_hub.token)
    proposal = propose(serve())
    with pytest.raises(PullRequestError, match="hf auth login"):
        proposal.open_pull_request()
    serve(CARD + b"moved\n")
    with pytest.raises(PullRequestError, match="moved"):
        proposal.open_pull_request(token=loopback_hub.token)


def test_files_of_the_model_that_changed_since_the_report_are_named(serve):
    report = serve()
    serve(CARD + b"more\n")
    assert propose(report).changed == ()
    serve(config='{"changed": true}')
    assert propose(report).changed == ("config.json",)


def test_a_report_of_a_commit_that_is_gone_is_refused(serve):
    serve()
    with pytest.raises(InputError, match="no longer has"):
        propose(a_report())


def test_a_branch_gets_its_own_pull_request(serve, loopback_hub, tmp_path):
    (tmp_path / "dev").mkdir()
    report = serve(revisions={"dev": tmp_path / "dev"})
    proposal = propose(report, repo="me/tuned@dev")
    proposal.open_pull_request(token=loopback_hub.token)
    assert loopback_hub.pull_requests("me/tuned")[0].branch == "dev"
