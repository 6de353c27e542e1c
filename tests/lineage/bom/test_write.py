"""Bills of materials of measured models: valid, deterministic, and honest about direction."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from urllib.parse import quote

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from jsonschema.validators import Draft7Validator
from rfc3986_validator import validate_rfc3986

from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import InputError
from mdir_hf.lineage.bom.documents import make_bom, read_model_facts
from mdir_hf.lineage.bom.write import BaseRecord, Standing, bom_json, records_of_check
from mdir_hf.lineage.cards.verify_lineage import verify_lineage
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.report import DirectionFact, FactKind, Verdict
from tests.lineage.bom.models import serve_family

SIDES = ("reference", "candidate")
VALIDATED = {"1.6": SchemaVersion.V1_6, "1.7": SchemaVersion.V1_7}


@pytest.fixture
def hub(loopback_hub, tmp_path):
    serve_family(loopback_hub, tmp_path)
    return loopback_hub


def verified(name):
    return verify_lineage(NamedModel(name), listeners=Listeners(progress=False))


def written(name, **options):
    return make_bom(verified(name), read_model_facts(NamedModel(name)), **options)


def properties_of(component):
    return {one["name"]: one["value"] for one in component["properties"]}


def test_a_confirmed_base_is_an_ancestor_with_evidence(hub):
    body = json.loads(written("me/tuned"))
    (model,) = body["components"]
    commit = hub.find("me/tuned").revisions["main"]
    assert model["type"] == "machine-learning-model" and model["purl"] == f"pkg:huggingface/me/tuned@{commit}"
    assert model["licenses"][0]["license"] == {"id": "Apache-2.0", "acknowledgement": "declared"}
    (ancestor,) = model["pedigree"]["ancestors"]
    assert ancestor["purl"] == f"pkg:huggingface/owner/base@{hub.find('owner/base').revisions['main']}"
    said = properties_of(ancestor)
    assert said["mdir-hf:standing"] == "confirmed" and said["mdir-hf:verdict"] == "homologous"
    assert float(said["mdir-hf:log10-p"]) < -10 and "mdir-hf:rests-on" in said
    assert any(name.startswith("mdir-hf:coverage:") for name in said)


def test_weight_files_have_the_digests_of_the_hub(hub):
    (model,) = json.loads(written("me/tuned"))["components"]
    sha256 = hub.find("me/tuned").commits[hub.find("me/tuned").revisions["main"]]["model.safetensors"].sha256
    (file,) = [one for one in model["components"] if one["type"] == "file"]
    assert file["name"] == "model.safetensors" and file["hashes"] == [{"alg": "SHA-256", "content": sha256}]
    assert model["hashes"] == file["hashes"]


def test_an_unconfirmed_base_is_not_an_ancestor(hub):
    (model,) = json.loads(written("me/forged"))["components"]
    assert "ancestors" not in model["pedigree"] and "variants" not in model["pedigree"]
    said = properties_of(model)["mdir-hf:declared-not-confirmed"]
    assert said.startswith("pkg:huggingface/owner/stranger@") and "no_evidence" in said
    assert "owner/stranger: declared and not confirmed" in model["pedigree"]["notes"]


def test_the_base_of_an_adapter_is_an_ancestor(hub):
    (model,) = json.loads(written("me/adapter"))["components"]
    assert "not measured" not in json.dumps(model) and "not-confirmed" not in json.dumps(model)
    (ancestor,) = model["pedigree"]["ancestors"]
    assert ancestor["purl"] == "pkg:huggingface/owner/base"
    assert properties_of(ancestor)["mdir-hf:standing"] == "by_construction"
    assert "owner/base: declared, and named by the adapter's config." in model["pedigree"]["notes"]


def test_an_unreadable_base_is_not_an_ancestor(hub):
    (model,) = json.loads(written("me/lost"))["components"]
    assert "ancestors" not in model["pedigree"]
    assert "not_measured" in properties_of(model)["mdir-hf:declared-not-confirmed"]


@Draft7Validator.FORMAT_CHECKER.checks("iri-reference")
def is_iri_reference(value):
    """Check an IRI with the mapping to URIs of RFC 3987, because jsonschema's check takes two seconds to import."""
    return bool(validate_rfc3986(quote(value, safe="%!#$&'()*+,/:;=?@[]~" + '"<>\\^`{|} '), rule="URI_reference"))


@pytest.mark.parametrize("version", ["1.6", "1.7"])
@pytest.mark.parametrize("name", ["me/tuned", "me/forged", "me/lost", "me/adapter", "owner/base"])
def test_a_document_is_valid_by_the_official_schema(hub, name, version):
    text = written(name, version=version)
    assert JsonStrictValidator(VALIDATED[version]).validate_str(text) is None
    assert json.loads(text)["specVersion"] == version


@pytest.mark.parametrize("address", ["http://[::1", "a b", "http://example.org/<x>"])
def test_the_official_schema_refuses_an_invalid_address(hub, address):
    body = json.loads(written("me/tuned", version="1.6"))
    body["externalReferences"] = [{"type": "website", "url": address}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(body)) is not None
    body["externalReferences"] = [{"type": "website", "url": "http://example.org/модель"}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(body)) is None


def test_another_version_is_refused_by_name(hub):
    with pytest.raises(InputError, match=r"1\.6 or 1\.7, not '2\.0'"):
        written("me/tuned", version="2.0")


def test_the_same_result_gives_the_same_bytes(hub):
    check, facts = verified("me/tuned"), read_model_facts(NamedModel("me/tuned"))
    text = make_bom(check, facts)
    assert make_bom(check, facts) == text
    other = make_bom(check, replace(facts, licence="mit"))
    assert json.loads(other)["serialNumber"] != json.loads(text)["serialNumber"]


def test_the_date_comes_from_the_commit_or_the_option(hub):
    repository = hub.find("me/tuned")
    repository.dates[repository.revisions["main"]] = "2026-03-04T05:06:07.000Z"
    assert json.loads(written("me/tuned"))["metadata"]["timestamp"] == "2026-03-04T05:06:07+00:00"
    given = datetime(2020, 1, 2, tzinfo=timezone.utc)
    assert json.loads(written("me/tuned", timestamp=given))["metadata"]["timestamp"] == "2020-01-02T00:00:00+00:00"


def test_a_hub_without_dates_gives_a_document_without_a_date(hub):
    hub.find("me/tuned").dates.clear()
    assert "timestamp" not in json.loads(written("me/tuned"))["metadata"]


def test_a_folder_publishes_no_path_and_has_digests(hub, tmp_path):
    folder = tmp_path / "me" / "tuned"
    (model,) = json.loads(make_bom(verified("me/tuned"), read_model_facts(NamedModel(folder))))["components"]
    assert model["name"] == "tuned" and "purl" not in model
    assert model["hashes"][0]["content"] and str(tmp_path) not in json.dumps(model)


def test_the_reference_of_a_report_is_a_variant(hub):
    (one,) = verified("me/tuned").bases
    (model,) = json.loads(make_bom(one.report))["components"]
    assert [found["name"] for found in model["pedigree"]["variants"]] == ["base"]
    assert "ancestors" not in model["pedigree"]


def test_facts_are_properties_and_do_not_make_an_ancestor(hub):
    (one,) = verified("me/tuned").bases
    fact = DirectionFact(FactKind.ROUNDED, "a sentence")
    (model,) = json.loads(make_bom(replace(one.report, direction=(fact,))))["components"]
    assert [found["name"] for found in model["pedigree"]["variants"]] == ["base"]
    assert properties_of(model)["mdir-hf:direction"] == "rounded: a sentence"


def test_a_fact_about_folders_publishes_no_path(hub, tmp_path):
    (one,) = verified("me/tuned").bases
    sides = {name: replace(getattr(one.report, name), repo=f"{tmp_path}/{name}", commit=None) for name in SIDES}
    says = f"{tmp_path}/candidate is {tmp_path}/reference, rounded"
    text = make_bom(replace(one.report, **sides, direction=(DirectionFact(FactKind.ROUNDED, says),)))
    assert "candidate is reference, rounded" in text and str(tmp_path) not in text


def test_an_adapter_is_below_its_base(hub):
    (record,) = records_of_check(verified("me/tuned"))
    report = record.report
    adapter = replace(report, candidate=replace(report.candidate, bases=(report.reference.pinned,)))
    assert replace(record, declared_in=None, report=adapter).place == "ancestors"
    assert replace(record, declared_in=None).place == "variants"


def test_a_declared_base_that_is_an_adapter_on_the_model_is_a_variant(hub):
    (record,) = records_of_check(verified("me/tuned"))
    report = record.report
    opposed = replace(report, reference=replace(report.reference, bases=(report.candidate.pinned,)))
    assert (record.place, replace(record, report=opposed).place) == ("ancestors", "variants")


def test_a_base_that_an_index_proposes_is_a_variant_only_if_a_comparison_finds_it(hub):
    proposed = BaseRecord(name="owner/base", found_by="by 96 tokens", commit="a" * 40)
    assert proposed.standing is None and proposed.place is None
    (record,) = records_of_check(verified("me/tuned"))
    found = replace(proposed, report=replace(record.report, direction=()))
    assert found.standing is Standing.FOUND and found.place == "variants"


def test_parts_of_different_bases_are_components(hub):
    (record,) = records_of_check(verified("me/tuned"))
    tower = replace(
        record, name="owner/tower", report=replace(record.report, verdict=Verdict.NO_EVIDENCE, parts=(_tower(),))
    )
    (model,) = json.loads(bom_json(read_model_facts(NamedModel("me/tuned")), (record, tower)))["components"]
    parts = {one["name"]: one for one in model["components"] if one["type"] == "machine-learning-model"}
    assert set(parts) == {"language model", "vision tower"}
    assert [one["name"] for one in parts["language model"]["pedigree"]["ancestors"]] == ["base"]
    assert [one["name"] for one in parts["vision tower"]["pedigree"]["ancestors"]] == ["tower"]
    assert [one["name"] for one in model["pedigree"]["ancestors"]] == ["base"]


def test_the_library_reads_its_own_document_back(hub):
    bom = Bom.from_json(json.loads(written("me/tuned")))
    (model,) = bom.components
    (ancestor,) = model.pedigree.ancestors
    assert (model.name, ancestor.name, ancestor.purl.namespace) == ("tuned", "base", "owner")


READ_BY_ANOTHER = """
import json, sys
from lib4sbom.parser import SBOMParser
parser = SBOMParser()
parser.parse_file(sys.argv[1])
print(json.dumps(parser.get_packages()))
"""


@pytest.mark.parametrize("version", ["1.6", "1.7"])
def test_another_program_reads_our_documents(hub, tmp_path, version):
    """Run the program in another process, because it leaves files open."""
    path = tmp_path / "bom.json"
    path.write_text(written("me/tuned", version=version))
    command = [sys.executable, "-c", READ_BY_ANOTHER, str(path)]
    model, file = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    commit = hub.find("me/tuned").revisions["main"]
    assert (model["name"], model["version"], model["type"]) == ("tuned", commit, "MACHINE-LEARNING-MODEL")
    assert ["PACKAGE_MANAGER", "purl", f"pkg:huggingface/me/tuned@{commit}"] in model["externalreference"]
    assert model["checksum"] == file["checksum"]


def test_a_model_without_network_has_no_date(hub, tmp_path):
    facts = read_model_facts(NamedModel(tmp_path / "me" / "tuned"), reading=Reading(local_files_only=True))
    assert facts.date is None and facts.licence == "apache-2.0"


def _tower():
    from mdir_hf.report import StackPair
    from mdir_hf.report.parts import LayerPair

    layers = (LayerPair(0, 0), LayerPair(1, 1))
    names = {"reference": "vision tower", "candidate": "vision tower"}
    return StackPair(verdict=Verdict.HOMOLOGOUS, log10_p=-80.0, layers=layers, **names)
