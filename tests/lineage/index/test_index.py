"""An index proposes ancestors from a few rows: it ranks true ones first, and finds nothing among strangers."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.optimize import linear_sum_assignment

from mdir_hf import Verdict
from mdir_hf.errors import CorruptCheckpointError, InputError
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.index import base_index
from mdir_hf.lineage.index.base_index import BYTES_PER_BASE, BaseIndex
from mdir_hf.lineage.index.building import choose_index_tokens, plan_identification
from mdir_hf.lineage.index.identify import identify, judge_hits
from mdir_hf.method import matching
from mdir_hf.model.hub import open_repository
from mdir_hf.model.open import NamedModel
from mdir_hf.model.opened import Model
from mdir_hf.report import ModelSummary, SettledBy
from tests.specimens import gaussian, write_model

WORDS = tuple(f"word{i}".encode() for i in range(96))


def rows(n_rows: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed))


def kept(name: str, values: torch.Tensor) -> Fingerprint:
    model = ModelSummary(name, None, "0" * 40, "llama", values.shape[1], 2, len(values))
    return Fingerprint(model, WORDS[: len(values)], values.bfloat16(), 10**9)


def base(name: str, width: int, seed: int) -> Fingerprint:
    return kept(name, rows(len(WORDS), width, seed)[: BYTES_PER_BASE // (2 * width)])


@pytest.fixture(scope="module")
def index():
    widths = [512, 768, 1024, 2048]
    return BaseIndex(WORDS, [base(f"base/{i}", widths[i % 4], i) for i in range(24)])


@pytest.mark.parametrize(
    ("change", "number"), [("tuned", 3), ("permuted", 2), ("permuted", 0), ("signed", 1), ("pruned", 0)]
)
def test_the_true_base_is_first_and_significant_after_any_change(index, number, change):
    width = index.bases[number].rows.shape[1]
    own = rows(len(WORDS), width, number)
    generator = torch.Generator().manual_seed(7)
    moved = own + 0.2 * rows(len(WORDS), width, 1000)
    if change != "tuned":
        moved = moved[:, torch.randperm(width, generator=generator)]
    if change == "signed":
        moved = moved * torch.where(torch.rand(width, generator=generator) < 0.5, -1.0, 1.0)
    if change == "pruned":
        moved = moved[:, : 3 * width // 4]
    query = kept("query", moved)
    best, second = index.search(query, top=2)
    assert best.base.repo == f"base/{number}"
    assert second.log_p > -40.0


@pytest.mark.parametrize("change", ["tuned", "permuted", "pruned"])
def test_sketches_pick_the_base_from_a_large_index(index, change, tmp_path, monkeypatch):
    """Each part picks one base: rows match channels in order, and shape matches them in any order."""
    index.save(tmp_path / "bases")
    loaded = BaseIndex.load(tmp_path / "bases")
    monkeypatch.setattr(base_index, "SCANNED_BASES", 0)
    monkeypatch.setattr(base_index, "PICKED_BASES", 1)
    monkeypatch.setattr(base_index, "sketch_of", lambda *args: pytest.fail("sketches are stored in the file"))
    for number in range(8):
        width = index.bases[number].rows.shape[1]
        moved = rows(len(WORDS), width, number) + 0.2 * rows(len(WORDS), width, 1000)
        if change != "tuned":
            moved = moved[:, torch.randperm(width, generator=torch.Generator().manual_seed(7))]
        if change == "pruned":
            moved = moved[:, : 3 * width // 4]
        hits = loaded.search(kept("query", moved))
        assert hits[0].base.repo == f"base/{number}" and len(hits) <= 2


@pytest.mark.parametrize("part", ["rows", "shape", "neurons"])
def test_forged_sketches_are_refused(index, part, tmp_path):
    index.save(tmp_path / "bases")
    tensors = load_file(tmp_path / "bases")
    with safe_open(tmp_path / "bases", framework="pt") as file:
        metadata = file.metadata()
    tensors[f"sketches.{part}"] = tensors[f"sketches.{part}"][:-1]
    save_file(tensors, tmp_path / "forged", metadata=metadata)
    with pytest.raises(CorruptCheckpointError, match=f"expected sketches of {part}"):
        BaseIndex.load(tmp_path / "forged")


def test_no_large_assignment_is_solved_for_a_relative(monkeypatch):
    # With 23 rows nothing is robust; once, an insignificant unsigned matching was solved to the end first.
    def small_only(weights):
        assert min(weights.shape) <= matching.GREEDY_REST
        return linear_sum_assignment(weights, maximize=True)

    monkeypatch.setattr(matching, "best_assignment", small_only)
    index = BaseIndex(WORDS, [base("base/0", 4096, 0)])
    assert len(index.bases[0].tokens) == 23
    own, generator = rows(len(WORDS), 4096, 0), torch.Generator().manual_seed(8)
    moved = (own + 0.2 * rows(len(WORDS), 4096, 1000))[:, torch.randperm(4096, generator=generator)]
    flips = torch.where(torch.rand(4096, generator=generator) < 0.5, -1.0, 1.0)
    for changed in (moved, moved * flips, moved[:, :3000]):
        ((_, log10_p),) = judge_hits(index, kept("query", changed), top=5, alpha=1e-10)
        assert log10_p < -1000


def test_strangers_match_nothing(index):
    for seed in range(500, 508):
        query = kept("query", rows(len(WORDS), [512, 1024, 2048][seed % 3], seed))
        assert all(log10_p > -3.0 for _, log10_p in judge_hits(index, query, top=5, alpha=1e-10))


def test_an_index_survives_its_file(index, tmp_path):
    index.save(tmp_path / "deep" / "bases.safetensors")
    loaded = BaseIndex.load(tmp_path / "deep" / "bases.safetensors")
    assert loaded.tokens == index.tokens
    assert [one.model for one in loaded.bases] == [one.model for one in index.bases]
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(loaded.bases, index.bases, strict=True))
    query = kept("query", rows(len(WORDS), 768, 1))
    assert loaded.search(query) == index.search(query)


def test_saving_creates_folders_and_overwrites(index, tmp_path):
    place = tmp_path / "a" / "b" / "bases.safetensors"
    index.save(place)
    BaseIndex(WORDS, index.bases[:2]).save(place)
    assert len(BaseIndex.load(place)) == 2
    with pytest.raises(InputError, match="cannot write there: "):
        index.save(place / "below-a-file")


def test_missing_bases_are_reported(index):
    with pytest.raises(InputError, match="the index holds no else/where"):
        index.fingerprint(base("else/where", 512, 0).model)


@pytest.mark.parametrize("n_common", [0, 7, 8, 9])
def test_bases_with_fewer_than_eight_tokens_in_common_are_not_ranked(index, n_common):
    query = kept("query", rows(len(WORDS), 512, 0))
    tokens = (*WORDS[:n_common], *(f"other{number}".encode() for number in range(len(WORDS) - n_common)))
    query = Fingerprint(query.model, tokens, query.rows, 5)
    assert [hit.common_tokens for hit in index.search(query, top=3)] == ([n_common] * 3 if n_common > 7 else [])


ABOUT = {
    "model": {"repo": "a/b", "revision": None, "commit": "0" * 40, "architecture": "llama", "hidden_size": 16}
    | {"layers": 2, "vocabulary": 9, "quantization": None},
    "tokens": 0,
    "bytes_of_weights": 5,
    "digests": None,
}
KEPT = [list(range(9))]
FORGED = {
    "no list": ("bases", {}, "not a JSON object"),
    "depth": ("bases", "[" * 100_000, "not a JSON object"),
    "a base that is nothing": ("bases", [None], "its item 0 is None"),
    "a name that is a number": ("bases", [ABOUT | {"model": ABOUT["model"] | {"repo": 5}}], "its model is 5"),
    "more than is known of models": ("bases", [ABOUT | {"model": ABOUT["model"] | {"x": 5}}], "its model is 5"),
    "a place before the first token": ("kept", [[-1, *range(1, 9)]], "its item 0 is -1"),
    "a place after the last token": ("kept", [[*range(1, 9), 99]], "out of range"),
    "a token twice": ("kept", [[0, 0, *range(2, 9)]], "a token has two rows"),
    "fewer rows than tokens": ("kept", [list(range(10))], "one row for each of 10 tokens"),
    "a list of tokens that is not there": ("bases", [ABOUT | {"tokens": 7}], "out of range"),
    "more bases than rows": ("bases", [ABOUT, ABOUT], "base.00001"),
    "a size without end": ("bases", [ABOUT | {"bytes_of_weights": 10**400}], "its bytes_of_weights is"),
    "digests that are none": ("bases", [ABOUT | {"digests": {"a": 5}}], "its digests is 5"),
    "tokens that are none": ("tokens", [5], "its item 0 is 5"),
    "tokens that are not base64": ("tokens", ["\u20ac"], "ASCII"),
    "tokens that are base64 and more": ("tokens", ["YW*Jj"], "base64"),
}


@pytest.mark.parametrize(("name", "value", "said"), FORGED.values(), ids=FORGED)
def test_a_forged_index_is_refused(tmp_path, name, value, said):
    tokens = [base64.b64encode(word).decode() for word in WORDS[:12]]
    known = {"tokens": tokens, "kept": KEPT, "bases": [ABOUT], name: value}
    metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in known.items()}
    save_file({"base.00000": rows(9, 16, 0).half()}, tmp_path / "x", metadata={"format": "mdir-hf/index/2", **metadata})
    with pytest.raises(CorruptCheckpointError, match=f"this is not an index of base models: .*{said}") as caught:
        BaseIndex.load(tmp_path / "x")
    assert str(caught.value).count(str(tmp_path)) == 1


@pytest.mark.parametrize(("n_bases", "said"), [(100_000, "it has no"), (5_000_000, "values; the limit is")])
def test_a_flood_of_bases_costs_no_more_than_the_first(tmp_path, n_bases, said):
    known = {"format": "mdir-hf/index/2", "tokens": "[]", "kept": "[]", "bases": f"[{','.join(['{}'] * n_bases)}]"}
    save_file({"base.00000": rows(9, 16, 0).half()}, tmp_path / "x", metadata=known)
    with pytest.raises(CorruptCheckpointError, match=said) as caught:
        BaseIndex.load(tmp_path / "x")
    inner = caught.value.__cause__.__cause__
    assert inner is None or inner.error_count() < 10


@pytest.mark.parametrize("forged", [rows(9, 16, 0).int(), rows(9, 0, 0).half(), rows(9, 16, 0).half()[None]])
def test_invalid_rows_of_an_index_are_refused(tmp_path, forged):
    known = {"tokens": [base64.b64encode(word).decode() for word in WORDS[:12]], "kept": KEPT, "bases": [ABOUT]}
    metadata = {key: json.dumps(value) for key, value in known.items()}
    save_file({"base.00000": forged}, tmp_path / "x", metadata={"format": "mdir-hf/index/2", **metadata})
    with pytest.raises(CorruptCheckpointError, match="expected"):
        BaseIndex.load(tmp_path / "x")


def test_a_fingerprint_is_not_an_index(tmp_path):
    (tmp_path / "x").write_bytes(base("x", 512, 0).to_bytes())
    with pytest.raises(CorruptCheckpointError, match="expected mdir-hf/index/2"):
        BaseIndex.load(tmp_path / "x")


@pytest.fixture
def folders(tmp_path):
    return {
        name: str(write_model(tmp_path / name, values))
        for name, values in {
            "first": gaussian(1500, 96, 0),
            "second": gaussian(1500, 96, 1),
            "tuned": gaussian(1500, 96, 1) + 0.2 * gaussian(1500, 96, 2),
            "stranger": gaussian(1500, 96, 3),
        }.items()
    }


@pytest.fixture
def built(folders):
    models = [Model(open_repository(folders[name])) for name in ("first", "second")]
    index = BaseIndex(choose_index_tokens([model.vocabulary for model in models], 96))
    for model in models:
        index.add(model)
    return index


def test_a_model_is_identified_and_confirmed_by_comparison(built, folders):
    found = identify(NamedModel(folders["tuned"]), built)
    assert [one.base.repo for one in found.found] == [folders["second"]]
    assert found.found[0].report.verdict is Verdict.HOMOLOGOUS
    assert found.found[0].report.alpha == pytest.approx(1e-10 / 2)
    assert found.bytes_read < found.found[0].report.io.bytes_of_weights
    assert "shared weight ancestry" in str(found)


def test_a_stranger_has_the_planned_costs_and_no_comparison(built, folders):
    planned = plan_identification(NamedModel(folders["stranger"]), built)
    found = identify(NamedModel(folders["stranger"]), built)
    stated = (planned.n_bases, planned.n_of_width, planned.excluded_noise)
    assert stated == (found.n_bases, found.n_of_width, found.excluded_noise) and stated[2] > 1.0
    assert planned.n_rows == len(built.tokens) and 0 < planned.n_bytes <= found.bytes_read
    assert found.found == ()
    assert all(one.report is None for one in found.ancestors)
    assert "does not show that there is none" in str(found)


@pytest.mark.parametrize("times", [1e14, 1e-30])  # larger values are refused in layers
def test_rows_of_any_size_are_found(built, folders, tmp_path, times):
    huge = str(write_model(tmp_path / "huge", times * (gaussian(1500, 96, 1) + 0.2 * gaussian(1500, 96, 2))))
    built.add(Model(open_repository(huge)))
    found = identify(NamedModel(folders["tuned"]), built)
    assert {one.base.repo for one in found.found} == {folders["second"], huge}
    assert [one.base.repo for one in identify(NamedModel(huge), built, top=3).found][1:] == [folders["second"]]


def test_a_few_huge_rows_hide_nothing(built, folders, tmp_path):
    rows = gaussian(1500, 96, 1) + 0.2 * gaussian(1500, 96, 2)
    (as_it_is, *_) = identify(NamedModel(folders["tuned"]), built).ancestors
    rows[::20] *= 1e18
    found = identify(NamedModel(write_model(tmp_path / "odd", rows)), built)
    assert [one.base.repo for one in found.ancestors if one.is_nominated] == [folders["second"]]
    assert found.ancestors[0].log10_score < 0.9 * as_it_is.log10_score  # the score of the remaining rows


@pytest.mark.parametrize("value", [0.0, 0.1, 3e38])
def test_uninformative_rows_exclude_nothing(built, tmp_path, value):
    folder = write_model(tmp_path / "alike", torch.full((1500, 96), value), has_layer=False)
    with pytest.raises(InputError, match=r"only 0 of its .* are informative, and 8 are needed"):
        identify(NamedModel(folder), built)
    with pytest.raises(InputError, match=r"only 0 of its .* are informative"):
        built.add(Model(open_repository(folder)))
    # An index from another program may contain such a base.
    made = BaseIndex(WORDS, [kept("alike", torch.full((96, 96), value)), kept("other", rows(96, 96, 3))])
    (hit,) = made.search(kept("query", rows(96, 96, 3)))
    assert hit.base.repo == "other"


def test_a_missing_base_affects_no_other_base(built, folders, tmp_path):
    (tmp_path / "second" / "model.safetensors").unlink()
    (hit, *_) = identify(NamedModel(folders["tuned"]), built).ancestors
    assert hit.report is None and "no weights" in hit.error


def test_the_width_of_a_base_limits_its_kept_rows(built, folders, tmp_path):
    wide = write_model(tmp_path / "wide", gaussian(1500, 4096, 0), dtype=torch.float32)
    added = built.add(Model(open_repository(str(wide))))
    assert added.rows.shape == (23, 4096) and added.rows.dtype == torch.bfloat16
    assert added.tokens == built.tokens[:23]
    assert [len(base.tokens) for base in built.bases] == [96, 96, 23]
    assert sum(base.rows.nbytes for base in built.bases) == 2 * (2 * 96 * 96 + 23 * 4096)
    assert built.n_bytes == sum(base.rows.nbytes + base.neurons.n_bytes for base in built.bases)


def test_rows_of_sixteen_bits_are_kept_as_they_are(built, tmp_path):
    half = write_model(tmp_path / "half", gaussian(1500, 96, 5), dtype=torch.float16)
    assert built.add(Model(open_repository(str(half)))).rows.dtype == torch.float16


@pytest.mark.parametrize(("n_known", "n_held"), [(7, 0), (8, 8)])
def test_a_base_of_another_vocabulary_is_held_by_its_neurons(folders, n_known, n_held, tmp_path):
    model = Model(open_repository(folders["first"]))
    index = BaseIndex((*list(model.vocabulary.row_of)[-n_known:], b"of no model"))
    base = index.add(model)
    assert len(base.tokens) == len(base.rows) == n_held and base.neurons is not None
    index.save(tmp_path / "bases")
    (loaded,) = BaseIndex.load(tmp_path / "bases").bases
    assert (loaded.tokens, loaded.rows.shape) == (base.tokens, base.rows.shape)


def test_a_base_of_another_vocabulary_without_neurons_is_refused(tmp_path):
    model = Model(open_repository(str(write_model(tmp_path / "bare", gaussian(1500, 96, 0), has_layer=False))))
    index = BaseIndex((*list(model.vocabulary.row_of)[-7:], b"of no model"))
    with pytest.raises(InputError, match="it holds 7 of the 8 tokens of the index, and 8 are needed"):
        index.add(model)
    assert not index.bases


def test_an_empty_index_is_reported(folders):
    with pytest.raises(InputError, match="no base models"):
        identify(NamedModel(folders["tuned"]), BaseIndex(WORDS))


def test_the_bound_for_channels_in_one_order_is_kept_among_strangers():
    widths, n_bases = (256, 512), 200
    strangers = BaseIndex(WORDS, [kept(f"s/{at}", rows(40, widths[at % 2], at)) for at in range(n_bases)])
    found = [
        hit.identity_log_p
        for seed in range(5)
        for hit in strangers.search(kept("query", rows(96, widths[seed % 2], 10_000 + seed)), top=n_bases)
    ]
    # Each of 500 pairs of one width is below ln q with probability at most q: five expected, P(16 or more) = 1e-4.
    assert sum(log_p < math.log(0.01) for log_p in found) <= 15
    assert min(found) > math.log(1e-6)


def test_p_is_the_comparisons_and_never_of_tokens(built, folders):
    identification = identify(NamedModel(folders["tuned"]), built)
    (one,) = identification.found
    assert (one.neurons, one.evidence) == (None, "by 96 tokens")
    assert one.p_is_bound and one.log10_p == one.report.log10_p != pytest.approx(one.log10_score)
    (stated, *_) = identification.to_dict()["candidates"]
    assert (stated["log10_p"], stated["verdict"]) == (one.report.log10_p, "homologous")
    assert f"by 96 tokens, homologous by comparison ({one.report.strength})" in str(identification)
    proposed = replace(one, report=None)
    assert proposed.log10_p is None and not proposed.p_is_bound
    searched = replace(one, report=replace(one.report, log10_p=None, settled_by=SettledBy.KEYS))
    assert searched.log10_p is None and not searched.p_is_bound


def test_the_score_pays_for_three_tests_of_every_base():
    own = rows(len(WORDS), 512, 1)
    query = kept("query", own + rows(len(WORDS), 512, 1000))
    log10_p = {}
    for n_bases in (1, 8):
        index = BaseIndex(WORDS, [kept(f"b/{at}", rows(len(WORDS), 512, at)) for at in range(1, 1 + n_bases)])
        ((hit, log10_p[n_bases]), *_) = judge_hits(index, query, top=1, alpha=1e-10)
        assert log10_p[n_bases] == pytest.approx((hit.identity_log_p + math.log(3 * n_bases)) / math.log(10))
    assert log10_p[8] - log10_p[1] == pytest.approx(math.log10(8))


def test_a_long_continuation_is_found_by_few_rows_of_a_wide_base():
    own = rows(len(WORDS), 4096, 1)
    wide = BaseIndex(WORDS, [kept(f"b/{at}", rows(23, 4096, at)) for at in (0, 1, 2)])
    query = kept("query", own + rows(len(WORDS), 4096, 1000))  # noise with the norm of the original
    # The first rows do not depend on the number of rows drawn.
    assert torch.equal(rows(23, 4096, 1), own[:23])
    (hit, log10_p), *others = judge_hits(wide, query, top=3, alpha=1e-10)
    assert hit.base.repo == "b/1" and log10_p < -100
    assert all(p > -10 for _, p in others)
