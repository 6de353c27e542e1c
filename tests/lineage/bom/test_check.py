"""Bills of materials of other programs: their claims are read, and checked against the Hub and the weights."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mdir_hf.cli import main
from mdir_hf.cli.main import build_parser
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import InputError, MissingExtraError
from mdir_hf.lineage.bom.check import check_bom
from mdir_hf.lineage.bom.documents import make_bom, read_model_facts
from mdir_hf.lineage.bom.read import read_bom, read_bom_file
from mdir_hf.lineage.cards.verify_lineage import verify_lineage
from mdir_hf.lineage.policy import Condition, exit_status
from mdir_hf.model.open import NamedModel
from tests.lineage.bom.models import serve_family
from tests.loopback.faults import Fault

QUIET = Listeners(progress=False)


@pytest.fixture
def hub(loopback_hub, tmp_path):
    serve_family(loopback_hub, tmp_path)
    return loopback_hub


def document(*components, version="1.6", **more):
    body = {"bomFormat": "CycloneDX", "specVersion": version, "version": 1, "components": list(components), **more}
    return json.dumps(body).encode()


def listed(name, *, commit=None, bases=(), **more):
    """Return a model as cdxgen lists it, with its ancestors."""
    group, _, own = name.partition("/")
    purl = f"pkg:huggingface/{name}" + (f"@{commit}" if commit else "")
    about = {"type": "machine-learning-model", "group": group, "name": own, "purl": purl, "bom-ref": purl, **more}
    return about | ({"pedigree": {"ancestors": [listed(base) for base in bases]}} if bases else {})


def checked(content):
    return check_bom(read_bom(content), listeners=QUIET)


def commit_of(hub, name):
    return hub.find(name).revisions["main"]


def abbreviated(commit):
    """Return at least eight digits of a commit, one of them a letter: digits alone may be a date."""
    return re.match("[0-9a-f]{7}[0-9]*[a-f]", commit)[0]


def test_a_true_ancestor_is_confirmed(hub):
    check = checked(document(listed("me/tuned", commit=commit_of(hub, "me/tuned"), bases=["owner/base"])))
    (claim,) = check.claims
    assert claim.outcome == "confirmed" and claim.report.candidate.commit == commit_of(hub, "me/tuned")
    assert check.models[0].state == "unchanged"


def test_a_forged_base_is_contradicted_if_the_weights_show_another(hub):
    (claim,) = checked(document(listed("me/tuned", bases=["owner/stranger"]))).claims
    assert claim.outcome == "contradicted" and claim.report.verdict == "no_evidence"
    assert claim.why.endswith("; the weights show owner/base (declared in README.md)")


def test_a_base_without_evidence_is_not_confirmed_if_no_other_is_shown(hub):
    (claim,) = checked(document(listed("owner/base", bases=["owner/stranger"]))).claims
    assert claim.outcome == "not_confirmed" and claim.report.verdict == "no_evidence"
    assert "the weights show" not in claim.why


def test_another_base_of_the_document_can_contradict(hub):
    check = checked(document(listed("owner/base", bases=["owner/stranger", "me/tuned"])))
    assert [claim.outcome.value for claim in check.claims] == ["contradicted", "confirmed"]
    assert "the weights show me/tuned (pedigree.ancestors)" in check.claims[0].why


def test_a_base_whose_commit_is_gone_is_not_read_at_another_one(hub):
    base = listed("owner/base", commit="0123456789" * 4)
    model = listed("me/tuned") | {"pedigree": {"ancestors": [base]}}
    (claim,) = checked(document(model)).claims
    assert claim.outcome == "not_found" and claim.report is None
    assert f"does not have the stated commit {base['purl'].partition('@')[2]}" in claim.why


def test_a_missing_base_is_not_found(hub):
    (claim,) = checked(document(listed("me/tuned", bases=["owner/gone"]))).claims
    assert claim.outcome == "not_found" and claim.report is None


def test_a_gated_base_is_not_read(hub, tmp_path):
    hub.add_repository("owner/gated", tmp_path / "owner" / "base", gated=True)
    (claim,) = checked(document(listed("me/tuned", bases=["owner/gated"]))).claims
    assert claim.outcome == "not_read" and "gated" in claim.why


def test_a_document_of_ours_is_confirmed(hub, tmp_path):
    result = verify_lineage(NamedModel("me/tuned"), listeners=QUIET)
    path = tmp_path / "bom.json"
    path.write_text(make_bom(result, read_model_facts(NamedModel("me/tuned"))))
    check = check_bom(read_bom_file(path), listeners=QUIET)
    assert check.outcomes == ("unchanged", "confirmed")
    assert check.document.tools[0].startswith("mdir-hf ")


def test_unconfirmed_bases_are_not_claims(hub):
    result = verify_lineage(NamedModel("me/forged"), listeners=QUIET)
    text = make_bom(result, read_model_facts(NamedModel("me/forged")))
    assert read_bom(text.encode()).claims == ()


def test_digests_are_those_of_named_files(hub):
    commit = commit_of(hub, "me/tuned")
    stored = hub.find("me/tuned").commits[commit]
    weights, config = stored["model.safetensors"].sha256, stored["config.json"].sha256
    files = [a_file("model.safetensors", weights.upper()), a_file("./config.json", config), a_file("gone.bin", config)]
    (model,) = checked(document(listed("me/tuned", components=files, hashes=[sha256(weights)]))).models
    assert [one.outcome.value for one in model.digests] == ["matches", "matches", "matches", "differs"]
    assert "3 of 4 stated digests match" in model.why and "gone.bin: there is no such file" in model.digests[3].why
    swapped = [a_file("model.safetensors", config), a_file("config.json", weights)]
    (model,) = checked(document(listed("me/tuned", components=swapped))).models
    assert [one.outcome.value for one in model.digests] == ["differs", "differs"]


def test_a_digest_without_a_file_is_of_the_only_weight_file(hub, tmp_path):
    weights = hub.find("me/tuned").commits[commit_of(hub, "me/tuned")]["model.safetensors"].sha256
    (tmp_path / "me" / "tuned" / "note.pt").write_bytes(100 * b"n")
    commit = hub.add_repository("me/tuned", tmp_path / "me" / "tuned")
    files = hub.find("me/tuned").commits[commit]
    files["note.pt"] = replace(files["note.pt"], is_lfs=False)  # the Hub lists no SHA-256 of it
    for digest, outcome in ((weights, "matches"), ("0" * 64, "differs")):
        (model,) = checked(document(listed("me/tuned", hashes=[sha256(digest)]))).models
        assert [one.outcome.value for one in model.digests] == [outcome]
    shutil.copy(tmp_path / "me" / "tuned" / "model.safetensors", tmp_path / "me" / "tuned" / "second.safetensors")
    hub.add_repository("me/tuned", tmp_path / "me" / "tuned")
    (model,) = checked(document(listed("me/tuned", hashes=[sha256(weights)]))).models
    assert model.digests[0].outcome == "cannot_tell" and "2 weight files" in model.digests[0].why


def sha256(content):
    return {"alg": "SHA-256", "content": content}


def a_file(name, content):
    return {"type": "file", "name": name, "hashes": [sha256(content)]}


def test_an_extra_that_is_missing_concerns_its_model_alone(hub, monkeypatch):
    def refuse(*named, **options):
        raise MissingExtraError("needs the extra gguf")

    monkeypatch.setattr("mdir_hf.lineage.bom.check.compare", refuse)
    (claim,) = checked(document(listed("me/tuned", bases=["owner/base"]))).claims
    assert claim.outcome == "not_measured" and "needs the extra gguf" in claim.why


def test_updated_weights_are_a_change(hub, tmp_path):
    before, after = commit_of(hub, "me/tuned"), tmp_path / "after"
    shutil.copytree(tmp_path / "owner" / "stranger", after)
    hub.find("me/tuned").add_revision("main", after)
    check = checked(document(listed("me/tuned", commit=before, bases=["owner/base"])))
    assert check.models[0].state == "changed" and "model.safetensors" in check.models[0].why
    assert check.claims[0].outcome == "confirmed" and check.claims[0].report.candidate.commit == before


def test_a_model_whose_commit_is_gone_is_not_read_at_another_one(hub):
    check = checked(document(listed("me/tuned", commit="a" * 40, bases=["owner/base"])))
    assert check.models[0].state == "commit_gone" and "does not have the stated commit" in check.models[0].why
    assert check.claims[0].outcome == "not_found" and check.claims[0].report is None


def test_the_first_digits_of_a_commit_are_enough(hub):
    check = checked(document(listed("me/tuned", commit=abbreviated(commit_of(hub, "me/tuned")))))
    assert check.models[0].state == "unchanged"


def test_a_model_without_commit_and_digests_is_reported(hub):
    assert checked(document(listed("me/tuned"))).models[0].state == "no_commit"


@pytest.mark.parametrize("base", ["me/tuned", "ME/Tuned", "me/alias", "me/former"])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_model_that_is_its_own_base_has_an_outcome_of_its_own(hub, tmp_path, base, is_pinned):
    hub.rename_repository("me/tuned", "me/present")
    hub.rename_repository("me/present", "me/tuned")
    hub._renamed = {"me/former": "me/tuned", "me/alias": "me/tuned"}  # the Hub answers both with status 307
    commit = commit_of(hub, "me/tuned") if is_pinned else None
    model = listed("me/tuned", commit=commit) | {"pedigree": {"ancestors": [listed(base, commit=commit)]}}
    check = checked(document(model))
    assert check.claims[0].outcome == "own_base" and check.claims[0].report is None
    assert exit_status(check.failures(frozenset({Condition.BASES}))) == 3
    # The same with the roles changed, and with the base as a component of its own.
    components = (listed("me/tuned", **{"bom-ref": "one"}), listed(base, bases=["me/tuned"], **{"bom-ref": "two"}))
    assert [one.outcome.value for one in checked(document(*components)).claims] == ["own_base"]


def test_ancestors_of_ancestors_are_checked_too(hub):
    nested = listed("owner/base", bases=["owner/stranger"])
    model = listed("me/tuned") | {"pedigree": {"ancestors": [nested]}}
    check = checked(document(model))
    assert [one.outcome.value for one in check.claims] == ["confirmed", "not_confirmed"]
    assert "owner/base, an ancestor: base owner/stranger" in str(check)


CARD = {"properties": [{"name": "base_model", "value": "owner/base, owner/stranger"}]}


@pytest.mark.parametrize(
    "component",
    [
        {"name": "me/tuned", "modelCard": CARD},
        {"group": "me", "name": "tuned", "purl": "pkg:huggingface/me/tuned@1.0", "modelCard": CARD},
        {"name": "tuned", "externalReferences": [{"type": "website", "url": "https://huggingface.co/me/tuned"}]} | CARD,
    ],
    ids=["ALOHA", "OWASP AIBOM Generator", "address"],
)
def test_bases_in_fields_of_other_tools_are_found(component):
    document_ = read_bom(document({"type": "machine-learning-model", "bom-ref": "m", **component}))
    assert [(one.model.repo, one.base.repo) for one in document_.claims] == [
        ("me/tuned", "owner/base"),
        ("me/tuned", "owner/stranger"),
    ]


def test_a_model_of_another_registry_is_not_on_the_hub():
    component = {"type": "machine-learning-model", "group": "huggingface", "name": "m"}
    (model,) = read_bom(document({**component, "purl": "pkg:generic/huggingface/m"})).models
    assert model.repo is None


@pytest.mark.parametrize("version", ["1.4", "1.5", "1.6", "1.7"])
def test_each_version_with_model_cards_or_before_is_read(version):
    component = listed("me/tuned", bases=["owner/base"])
    if version == "1.4":
        component["type"] = "library"
    assert len(read_bom(document(component, version=version)).claims) == 1


def test_components_other_than_models_are_left_out():
    library = {"type": "library", "name": "numpy", "purl": "pkg:pypi/numpy@2.0"}
    data = {"type": "data", "name": "owner/text", "purl": "pkg:huggingface/owner/text"}
    assert read_bom(document(library, data)).models == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<bom/>", "is XML"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[]", "expected an object with bomFormat CycloneDX"),
        (b"{}", "not a CycloneDX bill of materials: it has no bomFormat"),
        (b'{"bomFormat": "Other"}', "its bomFormat is 'Other'"),
        (b"", "is empty"),
        (b'{"bomFormat": "CycloneDX", "specVersion": "1.2"}', "expected CycloneDX 1.4 to 1.7, got specVersion '1.2'"),
        (b'{"spdxVersion": "SPDX-2.3"}', "is an SPDX document; mdir-hf reads CycloneDX in JSON"),
        (b'{"@context": "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"}', "is an SPDX document"),
        (b"SPDXVersion: SPDX-2.3\n", "is an SPDX document"),
        (b'{"bomFormat": "CycloneDX", "a": [' + b"0," * (5 << 20) + b"0]}", "is too large"),
    ],
    ids=["xml", "cut", "deep", "list", "object", "other", "empty", "old", "spdx", "spdx 3", "spdx tags", "large"],
)
def test_other_documents_are_refused(content, said):
    with pytest.raises(InputError, match=r"^x\.json: ") as caught:
        read_bom(content, subject="x.json")
    assert said in str(caught.value)


@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, [5], {"properties": 5}, {"ancestors": [5, None, {"name": 7}]}])
def test_odd_fields_break_nothing(odd):
    component = {"type": "machine-learning-model", "name": odd, "purl": odd, "hashes": odd, "pedigree": odd}
    component |= {"modelCard": odd, "properties": odd, "components": odd, "externalReferences": odd, "version": odd}
    document_ = read_bom(document(component, metadata={"tools": odd, "component": odd}))
    assert len(document_.models) == 1


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc", "C:\\x", "file:///etc/passwd", "http://127.0.0.1/a/b"])
def test_a_document_opens_no_folder_of_this_machine(hub, tmp_path, name):
    (claim,) = checked(
        document({"type": "machine-learning-model", "name": name, "pedigree": {"ancestors": [{}]}})
    ).claims
    assert claim.outcome == "not_found"


def test_a_folder_of_the_same_name_is_not_read(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nobody" / "here").mkdir(parents=True)
    assert checked(document(listed("nobody/here"))).models[0].state == "not_found"


def test_a_hub_that_fails_is_not_read(hub, waits):
    hub.faults.append(Fault("status", path="me/tuned", status=500, times=None))
    check = checked(document(listed("me/tuned", bases=["owner/base"])))
    assert check.outcomes == ("not_read", "not_read")


def test_a_cap_on_bytes_holds_over_all(hub):
    content = document(listed("me/tuned", bases=["owner/base"]))
    (claim,) = check_bom(read_bom(content), listeners=QUIET, max_bytes=1000).claims
    assert claim.outcome == "not_measured" and "bytes allowed" in claim.why


def test_the_command_line_checks_a_document(hub, tmp_path, capsys):
    path = tmp_path / "theirs.json"
    path.write_bytes(document(listed("me/tuned", bases=["owner/stranger"])))
    assert main(["verify", "--bom", str(path), "--quiet"]) == 3
    out, err = capsys.readouterr()
    assert "base owner/stranger (pedigree.ancestors): contradicted" in out
    assert err.count("\n") == 1 and err.startswith("mdir-hf: not so: bases: me/tuned: base owner/stranger")
    assert main(["verify", "--bom", str(path), "--quiet", "--json", "--require", "pins,bases"]) == 3
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert body["schema"] == "mdir-hf/bom-check/2" and body["claims"][0]["outcome"] == "contradicted"
    assert body["required"] == ["bases", "pins"] and len(body["failures"]) == 2
    assert [line.split(": ")[2] for line in err.splitlines()] == ["pins", "bases"]


def test_the_command_line_writes_a_document(hub, tmp_path, capsys):
    path = tmp_path / "out.json"
    assert main(["verify", "me/tuned", "--bom", str(path), "--bom-version", "1.7", "--quiet"]) == 0
    assert json.loads(path.read_text())["specVersion"] == "1.7"
    assert main(["verify", "--bom", str(path), "--quiet", "--require", "all"]) == 0
    assert capsys.readouterr().err == ""


def test_verify_without_model_and_document_says_how(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify"])
    assert caught.value.code == 2 and "name a model" in capsys.readouterr().err


def test_a_document_of_a_recipe_is_not_written(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", "me/merge", "--mergekit", "--bom", "bom.json"])
    assert caught.value.code == 2 and "exclude each other" in capsys.readouterr().err


def test_an_extra_that_is_missing_is_named_before_reading(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mdir_hf.installing.find_spec", lambda name: None)
    assert main(["verify", "me/tuned", "--bom", str(tmp_path / "bom.json")]) == 1
    assert "[bom]" in capsys.readouterr().err and not hub.requests


def test_a_document_that_cannot_be_written_is_reported_before_reading(hub, tmp_path, capsys):
    assert main(["verify", "me/tuned", "--bom", str(tmp_path)]) == 1
    assert "it is a folder; name a file" in capsys.readouterr().err and not hub.requests


def test_the_pipeline_of_the_guide_is_valid():
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "bill-of-materials.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    steps = yaml.safe_load(block)["jobs"]["check"]["steps"]
    (command,) = [step["run"] for step in steps if "mdir-hf verify" in step.get("run", "")]
    words = shlex.split(command.partition(">")[0])
    options = build_parser().parse_args(words[1:])
    assert (options.bom, options.require) == (Path("bom.json"), [{"all"}])
