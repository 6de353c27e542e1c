"""The pairs of real models that are judged, and their true labels."""

import itertools
import re

import pytest

from benchmarks.real.pairs import pair, pairs
from benchmarks.real.sources import REQUIREMENTS, SOURCES
from benchmarks.real.workshop import LARGE, MIDDLE, SENTENCES, SMALL, SWAPPED, Model, models


def test_no_pair_is_judged_twice_and_all_bases_meet():
    judged = list(pairs())
    assert len({(one.a, one.b) for one in judged}) == len(judged)
    assert {frozenset((one.a.base, one.b.base)) for one in judged} >= {
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


# --- packages that contain real models are pinned


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_every_package_is_pinned_by_version_and_hash(source):
    lines = (REQUIREMENTS / f"{source.name}.txt").read_text().splitlines()
    assert lines
    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert re.fullmatch("[0-9a-f]{64}", source.sha256)
