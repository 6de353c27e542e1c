"""Which pairs are judged with which truth, what is kept of a report, and how it is told."""

import itertools
import json

import pytest

from benchmarks.real import judging
from benchmarks.real.judging import judge_all, numbers
from benchmarks.real.pairs import pair, pairs
from benchmarks.real.sources import UnavailableError
from benchmarks.real.table import summary, table
from benchmarks.real.workshop import LARGE, MIDDLE, SENTENCES, SMALL, SWAPPED, Model, members, models
from mdir_hf import HomologyChecker
from tests.specimens import gaussian, write_model

ROW = {
    "a": SMALL,
    "b": f"{SMALL}/permuted",
    "level": "auto",
    "kind": "edit",
    "related": True,
    "verdict": "homologous",
    "reason": None,
    "log10_p": -62571.4,
    "bytes_read": 8_000_000,
    "cpu_s": 2.0,
    "embedding": {"strength": 0.99, "coverage": 1.0, "off_match_share": None},
    "layers": None,
}


def test_no_pair_is_judged_twice_and_all_holds_the_sample():
    sample, every = list(pairs()), list(pairs(every=True))
    assert len({(one.a, one.b) for one in every}) == len(every)
    assert set(sample) <= set(every)
    assert {frozenset((one.a.base, one.b.base)) for one in sample} >= {
        frozenset(two) for two in itertools.combinations((SMALL, MIDDLE, LARGE), 2)
    }


def test_every_model_is_judged_against_its_base():
    judged = {one.b for one in pairs() if one.a == Model(one.b.base)}
    assert judged == {model for model in models() if model.member != "base"}


@pytest.mark.parametrize(
    ("a", "b", "is_related"),
    [
        (Model(SMALL), Model(SMALL, "hidden"), True),
        (Model(SMALL), Model(SMALL, "distilled"), False),
        (Model(SMALL), Model(SMALL, "random"), False),
        (Model(MIDDLE), Model(LARGE), False),
        (Model(MIDDLE), Model(SMALL, "permuted"), False),
        (Model(MIDDLE), Model(SMALL, SWAPPED), True),
        (Model(LARGE), Model(SMALL, SWAPPED), False),
        (Model(SENTENCES[0]), Model(SENTENCES[1]), True),
        (Model(SENTENCES[0]), Model(SMALL), False),
    ],
)
def test_the_truth_about_two_models_follows_from_what_was_done(a, b, is_related):
    assert pair(a, b).is_related is is_related


def test_members_have_names_of_their_own_and_say_what_was_done():
    made = members()
    assert len(made) > 60
    assert all(member.done and not member.done.endswith(".") for member in made.values())


def test_a_pair_is_judged_once_and_what_cannot_be_had_is_passed_over(tmp_path, monkeypatch, capsys):
    chosen = [pair(Model(SMALL), Model(SMALL, "permuted")), pair(Model(MIDDLE), Model(LARGE))]
    asked = []

    def judge(one):
        asked.append(one)
        if one.a.base == MIDDLE:
            raise UnavailableError("no network")
        return ROW

    monkeypatch.setattr(judging, "judge", judge)
    for _ in range(2):
        judge_all(chosen, tmp_path / "pairs.jsonl")
    assert [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()] == [ROW]
    assert asked == [chosen[0], chosen[1], chosen[1]]
    assert f"passed over {MIDDLE} | {LARGE}: no network" in capsys.readouterr().out
    judge_all(chosen[:1], tmp_path / "pairs.jsonl", again=True)
    assert [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()] == [ROW]
    assert asked[3:] == chosen[:1]


def test_the_table_marks_what_goes_against_the_truth():
    wrong = ROW | {"b": MIDDLE, "kind": "stranger", "related": False, "verdict": "inconclusive", "reason": "few"}
    told = table([ROW, wrong])
    assert "| homologous | -62,571 |  | 8 | 2 | 0.99 | 1.00 |  |  |" in told
    assert "| no bound | calibration |" in table([ROW | {"assumption": "calibration"}])
    assert "| **inconclusive** (few) |" in told
    assert summary([ROW, wrong]) == "edit: 1 of 1 homologous\nstranger: 0 of 1 no_evidence"


@pytest.mark.parametrize("related", [True, False])
def test_what_is_kept_of_a_report_is_json_and_says_the_verdict(tmp_path, related):
    a = write_model(tmp_path / "a", gaussian(1500, 96, 0))
    b = write_model(tmp_path / "b", gaussian(1500, 96, 0 if related else 1) + 0.3 * gaussian(1500, 96, 2))
    kept = json.loads(json.dumps(numbers(HomologyChecker.from_pretrained(a).compare(b, progress=False))))
    assert kept["verdict"] == ("homologous" if related else "no_evidence")
    assert (kept["log10_p"] < -10) == related
    assert (kept["embedding"]["strength"] > 0.7) == related
    assert kept["bytes_read"] > 0
