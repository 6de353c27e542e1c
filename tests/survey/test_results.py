"""What follows from the pairs: groups, contradictions, and what was declared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mdir_hf.errors import InputError
from mdir_hf.report import ModelSummary
from mdir_hf.survey.results import ModelResult, PairResult, ResultFile, SurveyReport, read_survey

NAMES = ("a", "b", "c", "d")


SETTINGS = {
    "names": list(NAMES),
    "alpha": 1e-10,
    "alpha_of_pair": 1e-11,
    "seed": 0,
    "sampled_tokens": 900,
    "sample": "x",
    "shard": [0, 1],
    "version": "1",
}


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
    path = tmp_path / "results.jsonl"

    def end(*paths):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as at_any_write:
        at_any_write.setattr(Path, "replace", end)
        with pytest.raises(OSError, match="No space left"):
            ResultFile(path, SETTINGS)
    assert list(tmp_path.iterdir()) == []
    ResultFile(path, SETTINGS)
    assert read_survey([path]).names == NAMES


def test_a_file_that_is_no_survey_stays_as_it_is(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"somebody's notes")
    with pytest.raises(InputError):
        ResultFile(path, {"alpha": 1e-10})
    assert path.read_bytes() == b"somebody's notes"


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "results.jsonl"
    written = ResultFile(path, SETTINGS)
    written.add_model(ModelResult("a", ModelSummary("a", None, "0" * 40, "llama", 8, 2, 9), None, 5, ("b", "c")))
    written.add_model(ModelResult("b", None, "it is not there"))
    written.add_pairs(
        [PairResult("a", "b", None, error="b was not read"), PairResult("a", "c", "homologous", None, -12.5, 7)]
    )
    again = ResultFile(path, SETTINGS)
    assert (again.models, again.pairs) == (written.models, written.pairs)
    assert type(again.pairs["a", "c"].verdict) is str
    assert read_survey([path]).settings == {key: SETTINGS[key] for key in SETTINGS if key not in ("names", "shard")}


def test_what_else_a_file_was_made_with_is_kept_and_compared(tmp_path):
    path = tmp_path / "results.jsonl"
    more = {key: SETTINGS[key] for key in ("names", "alpha", "alpha_of_pair", "seed")} | {"suite": "mine", "level": 3}
    ResultFile(path, more)
    ResultFile(path, more)
    assert read_survey([path]).settings == {key: more[key] for key in more if key != "names"}
    with pytest.raises(InputError, match="it was made with suite = 'mine'"):
        ResultFile(path, more | {"suite": "another"})


PAIR = {"kind": "pair", "reference": "a", "candidate": "b", "verdict": "no_evidence", "log10_p": 0.0}
FORGED = {
    "no JSON": (b"{", "line 2 is no JSON object"),
    "depth": (b"[" * 100_000, "line 2 is no JSON object"),
    "another kind": ({"kind": "settings"}, "line 2 cannot be right: its kind is 'settings'"),
    "a verdict that is none": (PAIR | {"verdict": "unrelated"}, "line 2, of a pair, .*its verdict is 'unrelated'"),
    "a p above 1": (PAIR | {"log10_p": 3.0}, "its log10_p is 3.0"),
    "a p that is no number": (PAIR | {"log10_p": float("nan")}, "its log10_p is nan"),
    "a verdict that its p contradicts": (PAIR | {"log10_p": -30.0}, "line 2 contradicts itself"),
    "a verdict without a p": (PAIR | {"verdict": "homologous", "log10_p": None}, "line 2 contradicts itself"),
    "a model that is not in the list": (PAIR | {"candidate": "x"}, "line 2 is about 'x'"),
    "a name that is a number": ({"kind": "model", "name": 5, "model": None}, "its name is 5"),
    "a summary that is none": ({"kind": "model", "name": "a", "model": {"repo": 5}}, "its model is 5"),
    "bytes below nothing": ({"kind": "model", "name": "a", "model": None, "bytes_read": -1}, "its bytes_read is -1"),
    "bases that are no names": ({"kind": "model", "name": "a", "model": None, "declared_bases": [5]}, "declared_bases"),
}


@pytest.mark.parametrize(("line", "said"), FORGED.values(), ids=FORGED)
def test_a_forged_line_is_refused_with_its_number(tmp_path, line, said):
    path = tmp_path / "results.jsonl"
    ResultFile(path, SETTINGS)
    with path.open("ab") as file:
        file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
    for read in (lambda: read_survey([path]), lambda: ResultFile(path, SETTINGS)):
        with pytest.raises(InputError, match=said):
            read()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": "mdir-hf/survey/9"}, "its schema is 'mdir-hf/survey/9'"),
        ({"alpha": 0}, "its alpha is 0"),
        ({"alpha": "small"}, "its alpha is 'small'"),
        ({"names": [5]}, "its names is 5"),
        ({"names": ["a", "a"]}, "a model twice"),
        ({"sampled_tokens": 1e400}, "its sampled_tokens is"),
        ({"more": float("nan")}, "a number that none does"),
        ({"more": [1e400]}, "a number that none does"),
    ],
)
def test_forged_settings_are_refused(tmp_path, changed, said):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"kind": "settings", "schema": "mdir-hf/survey/1", **SETTINGS, **changed}) + "\n")
    with pytest.raises(InputError, match=said):
        read_survey([path])
