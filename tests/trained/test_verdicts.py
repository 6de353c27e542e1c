"""Verdicts on trained models: relatives are found and strangers are not, including the hard stranger."""

import json

import pytest

from mdir_hf import HomologyChecker, Verdict
from tests.benchmarks.evidence import WITH_THE_SCRIPTS
from tests.trained.models import ARCHITECTURES, demo_lineage, one_step_lineage, trained_model

pytestmark = pytest.mark.slow

DEMO = [one_step_lineage, pytest.param(demo_lineage, marks=WITH_THE_SCRIPTS)]
"""All members of the demo; test_transformations.py has relatives trained for hundreds of steps."""


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


@pytest.mark.parametrize("level", ["auto", "layers"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_relatives_are_found(architecture, level):
    base, tuned = (trained_model(architecture, name).folder for name in ("base", "fine-tune"))
    report = compare(base, tuned, level=level)
    assert report.verdict is Verdict.HOMOLOGOUS
    if level == "layers":
        assert report.embedding.transformation == "identity"
        assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(4)]


@pytest.mark.parametrize("level", ["auto", "layers"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_hard_stranger_does_not_match(architecture, level):
    report = compare(
        trained_model(architecture, "base").folder, trained_model(architecture, "other-seed").folder, level=level
    )
    assert report.verdict is Verdict.NO_EVIDENCE, json.dumps(report.to_dict(), indent=1)
    assert report.log10_p == 0.0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_descendants_of_the_other_seed_are_strangers_to_the_base(architecture):
    report = compare(trained_model(architecture, "fine-tune").folder, trained_model(architecture, "other-seed").folder)
    assert report.verdict is Verdict.NO_EVIDENCE, json.dumps(report.to_dict(), indent=1)


def test_two_architectures_of_equal_data_are_strangers():
    report = compare(trained_model("llama", "base").folder, trained_model("gpt-neox", "other-seed").folder)
    assert report.verdict is Verdict.NO_EVIDENCE, json.dumps(report.to_dict(), indent=1)


def test_a_shared_seed_across_architectures_is_not_evidence():
    # Both bases were drawn from seed 0, and their random streams overlap because of the sizes: rows of Llama's up
    # projection in layer 0 started as the same numbers as rows of GPT-NeoX's layer 0, and still have cosines of 0.85
    # with them. GPT-NeoX has no gate, so its neurons cannot be compared with Llama's.
    report = compare(trained_model("llama", "base").folder, trained_model("gpt-neox", "base").folder)
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0)


@pytest.mark.parametrize("built", DEMO)
def test_every_member_of_the_demo_lineage_has_its_intended_relation(built):
    lineage = built()
    expected = {"related": Verdict.HOMOLOGOUS, "stranger": Verdict.NO_EVIDENCE}
    for member in lineage.candidates:
        report = compare(lineage.reference.folder, member.folder)
        assert report.verdict is expected[member.relation], member.repo


@pytest.mark.parametrize("built", DEMO)
def test_channels_of_the_demo_lineage_are_recovered_exactly(built):
    lineage = built()
    for member in lineage.candidates:
        if member.channels is None:
            continue
        report = compare(lineage.reference.folder, member.folder, describes=True)
        reference, candidate = report.arrays.embedding.channels
        assert [member.channels[channel] for channel in candidate] == reference.tolist(), member.repo
