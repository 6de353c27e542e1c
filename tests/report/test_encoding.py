"""A report as JSON: round trips, validation, the shipped schema, and reports of older versions."""

import dataclasses
import json
from importlib.resources import files
from pathlib import Path
from typing import get_args, get_type_hints

import jsonschema
import pytest

from mdir_hf import HomologyReport, Reason, Verdict
from mdir_hf.errors import InputError
from mdir_hf.render.description import describe
from mdir_hf.render.sections import SectionKind
from mdir_hf.report import READ_AS, Exclusion, SettledBy, json_schema, parts, result
from mdir_hf.report.words import DOES_NOT_MEAN, ICON, KEYWORD, MEANS, REASON_TEXT
from tests.render.figures.drawn_reports import HOSTILE_NAMES, NO_ARRAYS, a_model, a_report, some_neurons, stranger

EXAMPLES = sorted((Path(__file__).parents[2] / "space" / "examples").glob("*[!x].json"))

REPORTS = {
    "with everything": a_report(),
    "of strangers": stranger(),
    "inconclusive": a_report(
        verdict=Verdict.INCONCLUSIVE,
        reason=Reason.EMBEDDINGS_ONLY,
        settled_by=None,
        assumption=None,
        log10_p=0.0,
    ),
    "of a negative verdict with its exclusion": dataclasses.replace(stranger(), excludes=Exclusion(0.6, 0.5, None)),
    "of the same files": a_report(
        embedding=None,
        unembedding=None,
        layers=None,
        modules=None,
        settled_by=SettledBy.IDENTICAL_FILES,
        arrays=NO_ARRAYS,
    ),
    "of searched neurons": a_report(
        log10_p=None, settled_by=SettledBy.KEYS, neurons=some_neurons(step=SettledBy.KEYS, log10_p=None)
    ),
    **{f"of {name!r:.30}": a_report(reference=a_model(name)) for name in HOSTILE_NAMES},
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_survives_a_round_trip(report):
    again = HomologyReport.from_json(report.to_json())

    assert again == report
    assert again.to_json() == report.to_json()
    jsonschema.validate(json.loads(report.to_json()), json_schema())


def test_the_shipped_schema_matches_the_classes():
    shipped = json.loads(files("mdir_hf.report").joinpath("report.schema.json").read_text(encoding="utf-8"))

    assert shipped == json_schema(), "run `make schema`"
    jsonschema.Draft202012Validator.check_schema(shipped)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_fits_the_schema(path):
    jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), json_schema())


def test_no_field_of_a_report_is_any():
    seen = set()

    def within(kind):
        yield kind
        for inner in get_args(kind):
            yield from within(inner)

    for name, cls in (vars(parts) | vars(result)).items():
        if dataclasses.is_dataclass(cls):
            hints = get_type_hints(cls, localns={"npt": _Anything(), "np": _Anything(), "Figure": object})
            for field in dataclasses.fields(cls):
                assert "typing.Any" not in {str(part) for part in within(hints[field.name])}, (name, field.name)
                seen.add(name)
    assert {"HomologyReport", "LayersResult", "ModuleResult"} <= seen


class _Anything:
    """A stand-in for numpy when only annotations are read."""

    def __getattr__(self, name):
        return self

    def __getitem__(self, name):
        return int


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_report_of_an_older_schema_is_refused(version):
    body = {**json.loads(a_report().to_json()), "schema": f"mdir-hf/report/{version}"}
    with pytest.raises(
        InputError, match=f"expected a report of schema mdir-hf/report/5, got 'mdir-hf/report/{version}'"
    ):
        HomologyReport.from_json(json.dumps(body))


@pytest.mark.parametrize(
    ("verdict", "log10_p"), [("homologous", -9.9), ("no_evidence", -10.1), ("inconclusive", -800.0)]
)
def test_a_report_that_contradicts_itself_is_refused(verdict, log10_p):
    body = {**json.loads(a_report().to_json()), "verdict": verdict, "log10_p": log10_p}

    with pytest.raises(InputError, match="contradicts itself"):
        HomologyReport.from_json(json.dumps(body))


WRONG = {
    "a number as text": ("log10_p", "-812.4"),
    "a text as number": ("version", 1),
    "p above 1": ("log10_p", 0.5),
    "a verdict of its own": ("verdict", "guilty"),
    "true for a number": ("tests", True),
    "a fraction of a test": ("tests", 1.5),
    "an integer of 400 digits": ("tests", 10**400),
    "a negative count": ("seed", -1),
    "an object for a list": ("caveats", {}),
    "a list for an object": ("io", []),
    "another alpha": ("alpha", 1.0),
    "nothing": ("reference", None),
    "modules of numbers": ("modules", [1, 2]),
    "a match of two": ("layers", {**json.loads(a_report().to_json())["layers"], "matches": [[0, 0]]}),
    "a ragged number": ("layers", {**json.loads(a_report().to_json())["layers"], "matrix": [[0.0], ["x"]]}),
    "a field too many": ("surprise", 1),
}


@pytest.mark.parametrize(("name", "value"), WRONG.values(), ids=WRONG)
def test_json_that_violates_the_schema_is_refused_with_a_message(name, value):
    body = {**json.loads(a_report().to_json()), name: value}

    with pytest.raises(InputError, match=r"not valid|no report") as caught:
        HomologyReport.from_json(json.dumps(body))
    assert len(str(caught.value)) < 600


def test_one_of_many_wrong_items_is_described():
    body = {**json.loads(a_report().to_json()), "modules": [{}] * 100_000}
    with pytest.raises(InputError, match=r"modules\.0\.") as caught:
        HomologyReport.from_json(json.dumps(body))
    assert caught.value.__cause__.error_count() < 30  # of the first item; pydantic would list 2 million


def test_more_values_than_any_report_holds_are_refused():
    text = a_report().to_json(indent=None)[:-1] + ', "x": [' + ",".join("0" * 1_100_000) + "]}"
    with pytest.raises(InputError, match="values; the limit is 1,048,576"):
        HomologyReport.from_json(text)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '{"schema": "mdir-hf/report/3"}', '{"schema": 1}', "[" * 100_000, "NaN"]
)
def test_invalid_reports_are_refused(text):
    with pytest.raises(InputError, match="report"):
        HomologyReport.from_json(text)


# --- the words for a verdict, in every form


def test_every_verdict_has_distinct_texts():
    for words in (ICON, MEANS, DOES_NOT_MEAN, KEYWORD):
        assert set(words) == set(Verdict)
        assert len(set(words.values())) == len(Verdict) and all(words.values())
    assert all(len(icon) == 1 for icon in ICON.values())
    assert set(REASON_TEXT) == set(Reason)


def test_used_reading_options_are_kept_and_shown():
    plain = a_report()
    assert HomologyReport.from_json(plain.to_json()) == plain and not set(READ_AS) & plain.to_dict()["candidate"].keys()
    candidate = dataclasses.replace(
        plain.candidate, subfolder="deep/er", variant="Q4_K_M", tokenizer="./words", bases=(f"owner/base@{'a' * 40}",)
    )
    report = dataclasses.replace(plain, candidate=candidate)
    assert HomologyReport.from_json(report.to_json()) == report
    said = f"folder deep/er, variant Q4_K_M, vocabulary of ./words, on owner/base@{'a' * 40}"
    assert report.candidate.read_as == said and f", {said})" in " ".join(report.details.split())
    (models,) = [section for section in describe(report) if section.kind is SectionKind.MODELS]
    assert ("read as", "", said) in models.tables[0].rows
    (models,) = [section for section in describe(plain) if section.kind is SectionKind.MODELS]
    assert "read as" not in {row[0] for row in models.tables[0].rows}


def test_texts_contain_no_accusation_and_claim_no_independence():
    every = " ".join([*MEANS.values(), *(s for words in DOES_NOT_MEAN.values() for s in words)]).lower()

    assert not [word for word in ("stole", "plagiar", "fraud", "derived from", "theft") if word in every]
    assert "are unrelated" not in every
    for words in DOES_NOT_MEAN.values():
        assert all(sentence.endswith(".") for sentence in words)
