"""Results derived from pairs: groups, contradictions and declarations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mdir_hf.cli.survey import _text
from mdir_hf.errors import InputError
from mdir_hf.lineage.survey.result_file import ResultFile, read_survey
from mdir_hf.lineage.survey.results import ModelResult, PairResult, SurveyReport
from mdir_hf.lineage.survey.saving import _markdown
from mdir_hf.report import ModelSummary

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
            found = {"log10_p": -50.0, "settled_by": "number"} if verdict == "homologous" else {"log10_p": 0.0}
            pairs[first, second] = PairResult(first, second, verdict, **found)
    models = {name: ModelResult(name, None, declared_bases=(declared or {}).get(name, ())) for name in NAMES}
    return SurveyReport(NAMES, models, pairs, {"alpha": 1e-10})


def test_a_chain_that_is_not_a_clique_is_a_contradiction():
    assert survey(("a", "c"), ("c", "d")).contradictions() == (("a", "c", "d"),)
    assert survey(("a", "c"), ("c", "d"), ("a", "d")).contradictions() == ()


def test_every_open_pair_of_a_small_survey_is_compared_in_full():
    report = survey(("a", "c"))
    assert report.without_relatives() == ("b", "d")
    every = (("a", "b"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d"))
    assert report.layers_to_compare() == every
    looked = replace(report.pairs["b", "d"], layers_compared=True)
    some = replace(report, pairs={**report.pairs, ("b", "d"): looked})
    assert some.layers_to_compare() == tuple(pair for pair in every if pair != ("b", "d"))
    assert replace(report, pairs={}).without_relatives() == replace(report, pairs={}).layers_to_compare() == ()
    # Two families, and two models of one family that were not found to be related
    assert ("a", "d") in survey(("a", "c"), ("b", "d")).layers_to_compare()
    assert survey(("a", "c"), ("c", "d"), ("b", "d")).layers_to_compare() == (("a", "b"), ("a", "d"), ("b", "c"))
    assert report.to_dict()["compared"] == "neurons of four layers"
    assert some.to_dict()["compared"].endswith("some pairs that these do not settle in full")
    assert some.not_found("d", "b") == "not found by the full comparison"
    failed = replace(report.pairs["a", "b"], layers_error="the Hub is away")
    assert failed.not_found.endswith("not compared in full (the Hub is away)")


def test_a_large_survey_compares_one_model_of_each_family(monkeypatch):
    monkeypatch.setattr("mdir_hf.lineage.survey.results.MOST_COMPARED", 3)
    report = survey(("a", "c"))
    assert report.layers_to_compare() == (("a", "b"), ("a", "d"), ("b", "d"))
    looked = replace(report.pairs["b", "d"], layers_compared=True)
    some = replace(report, pairs={**report.pairs, ("b", "d"): looked})
    assert some.layers_to_compare() == (("a", "b"), ("a", "d"))
    assert survey(("a", "c"), ("b", "d")).layers_to_compare() == ()


def test_texts_claim_no_more_than_was_compared():
    found = survey(("a", "c"), ("c", "d"), declared={"b": ("a",)})
    text, markdown = _text(found), _markdown(found, ())
    assert "alone" not in text and "no relative found: b\n" in text
    assert "add --layers to the same command to compare them: 4 full comparisons\n" in text
    assert "mdir-hf compare a b\n" in markdown
    for words in (text, markdown):
        assert "no evidence" not in words and "no relation" not in words
        assert "not found by neurons of four layers; not compared in full" in words


def test_a_pair_shows_p_only_if_it_is_a_bound():
    known = survey(("a", "b"), ("a", "c"), ("a", "d"))
    pairs = dict(known.pairs)
    agreement = "all 64 neurons that were tested in layer 2 match"
    pairs["a", "b"] = replace(pairs["a", "b"], agreement=agreement)
    searched = replace(pairs["a", "c"], log10_p=None, settled_by="keys", layers_compared=True)
    pairs["a", "c"] = replace(searched, agreement=f"{agreement}, in another order")
    text = _text(replace(known, pairs=pairs))
    assert "a ~ b: log10 p -50, number\n" in text
    assert f"a ~ c: {agreement}, in another order, keys\n" in text
    same = replace(pairs["a", "d"], settled_by="identical_files", log10_p=-77.06)
    assert (same.strength, same.found_by) == ("the same files", "")


def test_declarations_are_set_beside_the_measurement():
    found = survey(("a", "b"), ("c", "d"), declared={"b": ("a",), "c": ("a", "elsewhere")})
    assert found.undeclared() == (("c", "d"),)
    assert found.unsupported() == (("c", "a"),)


def test_a_file_has_its_whole_first_line_or_does_not_exist(tmp_path, monkeypatch):
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


def test_a_written_result_is_read_back(tmp_path):
    path = tmp_path / "results.jsonl"
    written = ResultFile(path, SETTINGS)
    written.add_model(ModelResult("a", ModelSummary("a", None, "0" * 40, "llama", 8, 2, 9), None, 5, ("b", "c")))
    written.add_model(ModelResult("b", None, "it is not there"))
    written.add_pairs(
        [
            PairResult("a", "b", None, error="b was not read"),
            PairResult("a", "c", "homologous", None, -12.5, 7, settled_by="number", agreement="5 of 6 neurons match"),
            PairResult("a", "d", "homologous", settled_by="keys", layers_compared=True),
        ]
    )
    again = ResultFile(path, SETTINGS)
    assert (again.models, again.pairs) == (written.models, written.pairs)
    assert type(again.pairs["a", "c"].verdict) is str
    assert read_survey([path]).settings == {key: SETTINGS[key] for key in SETTINGS if key not in ("names", "shard")}


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_cut_short_does_not_swallow_the_next(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    written = ResultFile(path, SETTINGS)
    written.add_model(ModelResult("a", None, "it is not there"))
    whole = path.read_bytes()
    written.add_model(ModelResult("b", None, "it is not there"))
    path.write_bytes(path.read_bytes()[:-cut])
    assert set(read_survey([path]).models) == {"a"}
    again = ResultFile(path, SETTINGS)
    assert path.read_bytes() == whole and set(again.models) == {"a"}
    again.add_model(ModelResult("c", None, "it is not there"))
    assert set(read_survey([path]).models) == {"a", "c"}


def test_each_result_is_on_the_disk_before_the_next_is_computed(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    written, synced = ResultFile(path, SETTINGS), []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(path.read_bytes()))
    written.add_model(ModelResult("a", None, "it is not there"))
    written.add_pairs([PairResult("a", "b", "no_evidence", log10_p=0.0)])
    assert [content.count(b"\n") for content in synced] == [2, 3]


def test_a_result_that_cannot_be_written_is_reported(tmp_path):
    written = ResultFile(tmp_path / "results.jsonl", SETTINGS)
    (tmp_path / "results.jsonl").unlink()
    (tmp_path / "results.jsonl").mkdir()
    with pytest.raises(InputError, match=r"a result cannot be written: .*run the same command to resume"):
        written.add_model(ModelResult("a", None, "it is not there"))


def test_only_shards_of_one_survey_are_joined(tmp_path):
    first, second, other = (tmp_path / name for name in ("0.jsonl", "1.jsonl", "2.jsonl"))
    one, two = ResultFile(first, SETTINGS | {"shard": [0, 2]}), ResultFile(second, SETTINGS | {"shard": [1, 2]})
    one.add_model(ModelResult("a", None, "it is not there"))
    two.add_model(ModelResult("a", ModelSummary("a", None, "0" * 40, "llama", 8, 2, 9)))
    one.add_model(ModelResult("b", ModelSummary("b", None, "0" * 40, "llama", 8, 2, 9)))
    two.add_model(ModelResult("b", None, "it is not there"))
    two.add_pairs([PairResult("a", "b", "no_evidence", log10_p=0.0)])
    joined = read_survey([first, second])
    assert joined.readable() == ("a", "b") and list(joined.pairs) == [("a", "b")]
    assert "shard" not in joined.settings
    ResultFile(other, SETTINGS | {"seed": 1})
    with pytest.raises(InputError, match="it belongs to another survey than"):
        read_survey([first, other])
    with pytest.raises(InputError, match="cannot read it: No such file"):
        read_survey([tmp_path / "missing"])


@pytest.mark.parametrize(("log10_p", "verdict"), [(-11.0, "no_evidence"), (-11.001, "homologous")])
def test_p_of_a_homologous_pair_is_below_alpha(tmp_path, log10_p, verdict):
    written = ResultFile(tmp_path / "results.jsonl", SETTINGS)  # alpha per pair is 1e-11
    settled_by = "number" if verdict == "homologous" else None
    written.add_pairs([PairResult("a", "b", verdict, log10_p=log10_p, settled_by=settled_by)])
    assert read_survey([tmp_path / "results.jsonl"]).is_related("b", "a") is (verdict == "homologous")


def test_a_survey_as_one_object():
    found = survey(("a", "c"), declared={"c": ("a",), "d": ("b",)}).to_dict()
    assert found["schema"] == "mdir-hf/survey/2" and found["alpha"] == 1e-10
    assert [model["name"] for model in found["models"]] == list(NAMES)
    assert [(pair["reference"], pair["candidate"]) for pair in found["pairs"]][:2] == [("a", "b"), ("a", "c")]
    assert len(found["pairs"]) == 6 and found["groups"] == [["a", "c"], ["b"], ["d"]]
    assert found["unsupported"] == [["d", "b"]] and found["undeclared"] == []


def test_further_options_of_a_file_are_kept_and_compared(tmp_path):
    path = tmp_path / "results.jsonl"
    more = {key: SETTINGS[key] for key in ("names", "alpha", "alpha_of_pair", "seed")} | {"suite": "mine", "level": 3}
    ResultFile(path, more)
    ResultFile(path, more)
    assert read_survey([path]).settings == {key: more[key] for key in more if key != "names"}
    with pytest.raises(InputError, match="it was made with suite = 'mine'"):
        ResultFile(path, more | {"suite": "another"})


PAIR = {"kind": "pair", "reference": "a", "candidate": "b", "verdict": "no_evidence", "log10_p": 0.0}
FORGED = {
    "no JSON": (b"{", "line 2 is not a JSON object"),
    "depth": (b"[" * 100_000, "line 2 is not a JSON object"),
    "another kind": ({"kind": "settings"}, "line 2 is invalid: its kind is 'settings'"),
    "a verdict that is none": (PAIR | {"verdict": "unrelated"}, "line 2, of a pair, .*its verdict is 'unrelated'"),
    "a p above 1": (PAIR | {"log10_p": 3.0}, "its log10_p is 3.0"),
    "a p that is not a number": (PAIR | {"log10_p": float("nan")}, "its log10_p is nan"),
    "a verdict that its p contradicts": (PAIR | {"log10_p": -30.0}, "line 2 contradicts itself"),
    "a step that gives p without a p": (
        PAIR | {"verdict": "homologous", "log10_p": None, "settled_by": "number"},
        "line 2 contradicts itself",
    ),
    "no step and no p": (PAIR | {"verdict": "homologous", "log10_p": None}, "line 2 contradicts itself"),
    "a step of nothing": (PAIR | {"settled_by": "near"}, "line 2 contradicts itself"),
    "a step that is none": (
        PAIR | {"verdict": "homologous", "log10_p": -30.0, "settled_by": "screen"},
        "its settled_by is 'screen'",
    ),
    "a model that is not in the list": (PAIR | {"candidate": "x"}, "line 2 is about 'x'"),
    "a name that is a number": ({"kind": "model", "name": 5, "model": None}, "its name is 5"),
    "a summary that is none": ({"kind": "model", "name": "a", "model": {"repo": 5}}, "its model is 5"),
    "bytes below nothing": ({"kind": "model", "name": "a", "model": None, "bytes_read": -1}, "its bytes_read is -1"),
    "bases that are not names": (
        {"kind": "model", "name": "a", "model": None, "declared_bases": [5]},
        "declared_bases",
    ),
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
        ({"more": float("nan")}, "an invalid number"),
        ({"more": [1e400]}, "an invalid number"),
    ],
)
def test_forged_settings_are_refused(tmp_path, changed, said):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"kind": "settings", "schema": "mdir-hf/survey/2", **SETTINGS, **changed}) + "\n")
    with pytest.raises(InputError, match=said):
        read_survey([path])
