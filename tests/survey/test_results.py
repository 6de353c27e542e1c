"""What follows from the pairs: groups, contradictions, and what was declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdir_hf.errors import InputError
from mdir_hf.survey.results import ModelResult, PairResult, ResultFile, SurveyReport, read_survey

NAMES = ("a", "b", "c", "d")


def survey(*related, declared=None) -> SurveyReport:
    pairs = {}
    for i, first in enumerate(NAMES):
        for second in NAMES[i + 1 :]:
            verdict = "homologous" if (first, second) in related else "no_evidence"
            pairs[first, second] = PairResult(first, second, verdict, log10_p=-50.0 if verdict == "homologous" else 0.0)
    models = {name: ModelResult(name, None, declared_bases=(declared or {}).get(name, ())) for name in NAMES}
    return SurveyReport(NAMES, models, pairs, {"alpha": 1e-10})


def test_chains_join_and_strangers_stand_alone():
    assert survey(("a", "c"), ("c", "d")).groups() == (("a", "c", "d"), ("b",))
    assert survey().groups() == (("a",), ("b",), ("c",), ("d",))


def test_a_chain_that_is_no_clique_is_worth_a_look():
    assert survey(("a", "c"), ("c", "d")).contradictions() == (("a", "c", "d"),)
    assert survey(("a", "c"), ("c", "d"), ("a", "d")).contradictions() == ()


def test_declarations_are_set_beside_the_measurement():
    found = survey(("a", "b"), ("c", "d"), declared={"b": ("a",), "c": ("a", "elsewhere")})
    assert found.undeclared() == (("c", "d"),)
    assert found.unsupported() == (("c", "a"),)


def test_two_models_that_declare_one_base_have_declared_their_relation():
    assert survey(("a", "b"), declared={"a": ("x",), "b": ("x",)}).undeclared() == ()


def test_a_file_is_there_with_its_whole_first_line_or_not_at_all(tmp_path, monkeypatch):
    path, settings = tmp_path / "results.jsonl", {"alpha": 1e-10, "names": list(NAMES)}

    def end(*paths):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as at_any_write:
        at_any_write.setattr(Path, "replace", end)
        with pytest.raises(OSError, match="No space left"):
            ResultFile(path, settings)
    assert list(tmp_path.iterdir()) == []
    ResultFile(path, settings)
    assert read_survey([path]).names == NAMES


def test_a_file_that_is_no_survey_stays_as_it_is(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"somebody's notes")
    with pytest.raises(InputError):
        ResultFile(path, {"alpha": 1e-10})
    assert path.read_bytes() == b"somebody's notes"
