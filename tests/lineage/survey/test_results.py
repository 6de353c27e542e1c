"""Results derived from pairs: groups, contradictions and declarations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mdir_hf.errors import InputError
from mdir_hf.lineage.survey import RESULTS
from mdir_hf.lineage.survey.folder import SurveyFolder, _line, read_survey
from mdir_hf.lineage.survey.results import NOT_NOMINATED, ModelResult, PairResult, Stage, SurveyReport
from mdir_hf.lineage.survey.saving import _markdown
from mdir_hf.report import ModelSummary

NAMES = ("a", "b", "c", "d")


SETTINGS = {"alpha": 1e-10, "alpha_of_pair": 1e-11, "seed": 0, "n_tokens": 900, "method": 1, "version": "1"}
DONE = frozenset({Stage.ALL_PAIRS, Stage.HEADS})


def survey(*related, declared=None) -> SurveyReport:
    pairs = {}
    for i, first in enumerate(NAMES):
        for second in NAMES[i + 1 :]:
            verdict = "homologous" if (first, second) in related else "no_evidence"
            found = {"log10_p": -50.0, "settled_by": "number"} if verdict == "homologous" else {"log10_p": 0.0}
            pairs[first, second] = PairResult(first, second, verdict, **found)
    models = {name: ModelResult(name, None, declared_bases=(declared or {}).get(name, ())) for name in NAMES}
    return SurveyReport(NAMES, models, pairs, {"alpha": 1e-10}, DONE)


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
    # Before the end, only compared models are said to have no relative.
    assert replace(report, pairs={}, stages=frozenset()).without_relatives() == ()
    assert replace(report, pairs={}).without_relatives() == NAMES
    # Two families, and two models of one family that were not found to be related
    assert ("a", "d") in survey(("a", "c"), ("b", "d")).layers_to_compare()
    assert survey(("a", "c"), ("c", "d"), ("b", "d")).layers_to_compare() == (("a", "b"), ("a", "d"), ("b", "c"))
    assert report.to_dict()["compared"] == "neurons of four layers"
    assert some.to_dict()["compared"].endswith("; one pair in full")
    assert some.not_found("d", "b") == "not found by the full comparison"
    failed = replace(report.pairs["a", "b"], layers_error="the Hub is away")
    assert failed.not_found.endswith("not compared in full (the Hub is away)")


def test_a_large_survey_compares_only_nominated_pairs_and_says_so(monkeypatch):
    monkeypatch.setattr("mdir_hf.lineage.survey.results.MOST_COMPARED", 3)
    whole = survey(("a", "c"))
    report = replace(whole, pairs={pair: whole.pairs[pair] for pair in (("a", "c"), ("b", "c"))})
    assert report.layers_to_compare() == () and report.is_complete
    assert (report.n_not_compared, report.not_found("d", "a")) == (4, NOT_NOMINATED)
    text = str(report)
    assert "no relative found, compared with 1 of 3: b\n" in text
    assert "no relative found, compared with 0 of 3: d\n" in text
    assert text.endswith(f"4 of 4 models read, 2 of 6 pairs compared\n4 pairs: {NOT_NOMINATED}")
    assert f"4 pairs: {NOT_NOMINATED}." in _markdown(report, ())
    assert report.to_dict()["not_compared"] == 4 and report.contradictions() == ()


def test_texts_claim_no_more_than_was_compared():
    found = survey(("a", "c"), ("c", "d"), declared={"b": ("a",)})
    text, markdown = str(found), _markdown(found, ())
    assert "alone" not in text and "no relative found: b\n" in text
    assert "add --layers to the same command to compare them: 4 full comparisons\n" in text
    assert "mdir-hf compare a b\n" in markdown
    for words in (text, markdown):
        assert "no evidence" not in words and "no relation" not in words
        assert "not found by neurons of four layers; not compared in full" in words


def test_a_pair_shows_p_only_if_it_is_a_bound():
    known = survey(("a", "b"), ("a", "c"), ("a", "d"))
    pairs = dict(known.pairs)
    agreement = "all 64 tested neurons match"
    pairs["a", "b"] = replace(pairs["a", "b"], agreement=agreement)
    searched = replace(pairs["a", "c"], log10_p=None, settled_by="keys", layers_compared=True)
    pairs["a", "c"] = replace(searched, agreement=f"{agreement}, in another order")
    text = str(replace(known, pairs=pairs))
    assert "a ~ b: p ≤ 10⁻⁵⁰, number\n" in text
    assert f"a ~ c: {agreement}, in another order, keys\n" in text
    same = replace(pairs["a", "d"], settled_by="identical_files", log10_p=-77.06)
    assert (same.strength, same.found_by) == ("the same files", "")


def test_declarations_are_set_beside_the_measurement():
    found = survey(("a", "b"), ("c", "d"), declared={"b": ("a",), "c": ("a", "elsewhere")})
    assert found.undeclared() == (("c", "d"),)
    assert found.unsupported() == (("c", "a"),)


def test_a_declared_base_of_the_same_family_counts_without_a_comparison():
    whole = survey(("a", "c"), ("c", "d"), declared={"d": ("a",)})
    assert whole.unsupported() == (("d", "a"),)
    without = replace(whole, pairs={pair: at for pair, at in whole.pairs.items() if pair != ("a", "d")})
    assert without.unsupported() == ()


def state_in(folder, **settings):
    return SurveyFolder(folder, NAMES, SETTINGS | settings)


def test_a_file_has_its_whole_first_line_or_does_not_exist(tmp_path, monkeypatch):
    def end(*paths):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as at_any_write:
        at_any_write.setattr(Path, "replace", end)
        with pytest.raises(InputError, match="No space left"):
            state_in(tmp_path)
    assert list(tmp_path.iterdir()) == []
    state_in(tmp_path)
    assert read_survey(tmp_path).names == NAMES


def test_a_written_result_is_read_back(tmp_path):
    written = state_in(tmp_path)
    written.add_model(ModelResult("a", ModelSummary("a", None, "0" * 40, "llama", 8, 2, 9), None, 5, ("b", "c")))
    written.add_model(ModelResult("b", None, "it is not there"))
    written.add_pairs(
        [
            PairResult("a", "b", None, error="b was not read"),
            PairResult("a", "c", "homologous", None, -12.5, 7, settled_by="number", agreement="5 of 6 neurons match"),
            PairResult("a", "d", "homologous", settled_by="keys", layers_compared=True),
        ]
    )
    written.finish(Stage.NUMBER)
    again = state_in(tmp_path)
    assert again.report == written.report == read_survey(tmp_path)
    assert type(again.pairs["a", "c"].verdict) is str
    assert read_survey(tmp_path).settings == SETTINGS


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_cut_short_does_not_swallow_the_next(tmp_path, cut):
    path, written = tmp_path / RESULTS, state_in(tmp_path)
    written.add_model(ModelResult("a", None, "it is not there"))
    whole = path.read_bytes()
    written.add_model(ModelResult("b", None, "it is not there"))
    path.write_bytes(path.read_bytes()[:-cut])
    assert set(read_survey(tmp_path).models) == {"a"}
    again = state_in(tmp_path)
    assert path.read_bytes() == whole and set(again.models) == {"a"}
    again.add_model(ModelResult("c", None, "it is not there"))
    assert set(read_survey(tmp_path).models) == {"a", "c"}


def test_each_result_is_on_the_disk_before_the_next_is_computed(tmp_path, monkeypatch):
    written, synced = state_in(tmp_path), []
    monkeypatch.setattr("os.fsync", lambda number: synced.append((tmp_path / RESULTS).read_bytes()))
    written.add_model(ModelResult("a", None, "it is not there"))
    written.add_pairs([PairResult("a", "b", "no_evidence", log10_p=0.0)])
    assert [content.count(b"\n") for content in synced] == [2, 3]


def test_a_result_that_cannot_be_written_is_reported(tmp_path):
    written = state_in(tmp_path)
    (tmp_path / RESULTS).unlink()
    (tmp_path / RESULTS).mkdir()
    with pytest.raises(InputError, match=r"a result cannot be written: .*run the same command to resume"):
        written.add_model(ModelResult("a", None, "it is not there"))


def test_other_settings_are_named(tmp_path):
    state_in(tmp_path)
    with pytest.raises(InputError, match="it was made with seed = 0; name another folder"):
        state_in(tmp_path, seed=1)
    with pytest.raises(InputError, match="it was made with other models"):
        SurveyFolder(tmp_path, NAMES[:3], SETTINGS)
    with pytest.raises(InputError, match="is not the folder of a survey"):
        read_survey(tmp_path / "missing")


@pytest.mark.parametrize(("log10_p", "verdict"), [(-11.0, "no_evidence"), (-11.001, "homologous")])
def test_p_of_a_homologous_pair_is_below_alpha(tmp_path, log10_p, verdict):
    settled_by = "number" if verdict == "homologous" else None
    # alpha per pair is 1e-11
    state_in(tmp_path).add_pairs([PairResult("a", "b", verdict, log10_p=log10_p, settled_by=settled_by)])
    assert read_survey(tmp_path).is_related("b", "a") is (verdict == "homologous")


def test_a_survey_as_one_object():
    found = survey(("a", "c"), declared={"c": ("a",), "d": ("b",)}).to_dict()
    assert found["schema"] == "mdir-hf/survey/3" and found["alpha"] == 1e-10
    assert [model["name"] for model in found["models"]] == list(NAMES)
    assert [(pair["reference"], pair["candidate"]) for pair in found["pairs"]][:2] == [("a", "b"), ("a", "c")]
    assert len(found["pairs"]) == 6 and found["groups"] == [["a", "c"], ["b"], ["d"]]
    assert found["unsupported"] == [["d", "b"]] and found["undeclared"] == []


PAIR = {"kind": "pair", "reference": "a", "candidate": "b", "verdict": "no_evidence", "log10_p": 0.0}
FORGED = {
    "another kind": ({"kind": "settings"}, "line 2 is invalid: its kind is 'settings'"),
    "a verdict that is none": (PAIR | {"verdict": "unrelated"}, "line 2, of a pair, .*its verdict is 'unrelated'"),
    "a p above 1": (PAIR | {"log10_p": 3.0}, "its log10_p is 3.0"),
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
    """Lines with a valid checksum are validated, because anybody can compute a checksum."""
    state = state_in(tmp_path)
    names = [line[key] for key in ("name", "reference", "candidate") if isinstance(line.get(key), str)]
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(_line(line["kind"], {**line, "inputs": state._inputs(*names)}))
    for read in (lambda: read_survey(tmp_path), lambda: state_in(tmp_path)):
        with pytest.raises(InputError, match=said):
            read()


@pytest.mark.parametrize("line", [b"{", b"[" * 100_000, b"\xff", b'{"kind": "pair", "sum": "0123456789abcdef"}'])
def test_a_damaged_line_is_ignored(tmp_path, line):
    state_in(tmp_path).add_model(ModelResult("a", None, "it is not there"))
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(line + b"\n")
    state_in(tmp_path).add_model(ModelResult("b", None, "it is not there"))
    assert set(read_survey(tmp_path).models) == {"a", "b"} and SurveyFolder(tmp_path).n_ignored == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": "mdir-hf/survey/2"}, "its schema is 'mdir-hf/survey/2'"),
        ({"alpha": 0}, "its alpha is 0"),
        ({"alpha": "small"}, "its alpha is 'small'"),
        ({"names": [5]}, "its names is 5"),
        ({"names": ["a", "a"]}, "a model twice"),
        ({"seed": 1.5}, "its seed is"),
    ],
)
def test_forged_settings_are_refused(tmp_path, changed, said):
    line = _line("settings", {"schema": "mdir-hf/survey/3", "names": list(NAMES), **SETTINGS, **changed})
    (tmp_path / RESULTS).write_bytes(line)
    with pytest.raises(InputError, match=said):
        read_survey(tmp_path)


def test_a_damaged_first_line_is_refused(tmp_path):
    state_in(tmp_path)
    (tmp_path / RESULTS).write_bytes((tmp_path / RESULTS).read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(InputError, match="the first line, with the settings of a survey, is damaged"):
        read_survey(tmp_path)
