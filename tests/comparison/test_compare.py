"""Compare two folders or repositories and return one verdict."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport, Reason, Verdict
from mdir_hf.comparison.plan import BASE_MEMORY_BYTES, GAPS
from mdir_hf.errors import (
    ByteBudgetError,
    CorruptCheckpointError,
    InputError,
    MemoryBudgetError,
    RemoteCodeRefusedError,
)
from mdir_hf.report import SCHEMA, SettledBy
from tests.specimens import gaussian, tokens, write_model

V, N = 1500, 96


@pytest.fixture
def base(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0))


@pytest.fixture
def checker(base):
    return HomologyChecker.from_pretrained(base)


def compare(checker, folder, **options) -> HomologyReport:
    return checker.compare(folder, progress=False, **options)


def test_a_noised_copy_is_homologous_and_settled_by_neurons_alone(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1)))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, "near")
    assert report.log10_p < -80  # all 64 neurons of one layer at their own number have 10^-89
    assert report.embedding is None


def test_embeddings_are_described_on_request(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1)), describes=True)
    assert report.settled_by == "near"
    assert report.embedding.rows_used < report.embedding.common_tokens == V - 1  # without the unknown token
    assert report.embedding.transformation == "identity"


def test_a_plan_names_each_step_and_is_reported_with_the_bytes_read(base, tmp_path):
    candidate = write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1))
    plan = HomologyChecker.from_pretrained(base).plan(candidate)
    steps = dict(plan.steps)
    assert list(steps) == ["near", "number", "every", "noise", "searches", "embeddings"]  # there is no attention
    assert plan.n_bytes == (plan.opening_bytes + steps["near"] // GAPS, plan.opening_bytes + sum(steps.values()))
    assert all(f"{name} " in str(plan) for name in steps)

    report = compare(HomologyChecker.from_pretrained(base), candidate)
    assert 0 < report.io.bytes_read <= report.io.bytes_planned[1]
    assert "(planned: " in report.details
    assert HomologyReport.from_json(report.to_json()).io == report.io


def test_a_checker_names_its_model_and_a_mistyped_keyword_has_a_suggestion(checker, base):
    assert repr(checker) == f"HomologyChecker({str(base)!r}, alpha=1e-10, level=auto)"
    with pytest.raises(TypeError, match="unexpected keyword argument 'levle'; did you mean 'level'"):
        checker.compare(base, levle="auto")


@pytest.mark.parametrize("change", [0.0, 1e-3])
def test_equal_rows_of_embeddings_are_recognised(checker, tmp_path, change):
    """The files differ in bytes, because of a tensor that is not compared."""
    rows = gaussian(V, N, 0)
    rows *= 1 + change
    folder = write_model(tmp_path / "x", rows, further={"model.norm.weight": torch.ones(N)})
    report = compare(checker, folder, describes=True)
    assert report.settled_by == "near"
    assert report.embedding.rows_are_equal is (change == 0.0)


def test_a_stranger_of_the_same_config_gives_no_evidence(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1)))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.settled_by is None
    assert report.log10_p == 0.0
    assert report.excludes.neurons < 0.9 and report.excludes.embedding < 0.5
    assert report.excludes.keys is None  # there is no attention
    assert "does not prove that the models are independent" in report.does_not_mean[0]


def test_the_permutation_of_a_noised_copy_is_recovered_exactly(checker, tmp_path):
    permutation = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    moved = 2.5 * (gaussian(V, N, 0) + gaussian(V, N, 1))[:, permutation]  # noise as large as the rows
    report = compare(checker, write_model(tmp_path / "x", moved), describes=True)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.transformation == "permutation"
    assert report.embedding.matched_channels == N
    reference, candidate = report.arrays.embedding.channels
    assert np.array_equal(permutation.numpy()[candidate], reference)
    # The standard error of a least-squares slope with noise of the size of the signal, over the products of all rows.
    assert abs(report.embedding.scale / 2.5 - 1.0) < 5.0 / math.sqrt(report.embedding.rows_used * N)


def test_flipped_signs_are_named_as_a_signed_permutation(checker, tmp_path):
    signs = torch.ones(N)
    signs[::2] = -1
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0).flip(1) * signs), describes=True)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.transformation == "signed_permutation"


def test_a_copy_with_pruned_channels_is_found(checker, tmp_path):
    kept = torch.randperm(N, generator=torch.Generator().manual_seed(3))[:64].sort().values
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0)[:, kept]), describes=True)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.candidate.hidden_size == 64
    assert report.embedding.widths == (N, 64)


def test_copied_embeddings_are_found_by_token_and_do_not_settle_the_question(checker, tmp_path):
    shuffled = torch.randperm(V, generator=torch.Generator().manual_seed(4))
    words = [tokens(V)[i] for i in shuffled[:1000]] + tokens(300, first=5000)
    rows = torch.cat([gaussian(V, N, 0)[shuffled[:1000]], gaussian(300, N, 9)])
    report = compare(checker, write_model(tmp_path / "x", rows + 0.2 * gaussian(1300, N, 5), words=words))
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert 990 <= report.embedding.common_tokens <= 1000
    assert "The embeddings are copies (mean cosine of paired rows 0.98)." in report.caveats


def test_a_model_without_layers_is_compared_by_its_embedding(tmp_path):
    base = write_model(tmp_path / "base", gaussian(V, N, 0), has_layer=False)
    outcomes = {}
    for name, seed in (("copy", 0), ("stranger", 2)):
        rows = gaussian(V, N, seed) + 0.1 * gaussian(V, N, 3)
        outcomes[name] = compare(
            HomologyChecker.from_pretrained(base), write_model(tmp_path / name, rows, has_layer=False)
        )
    assert (outcomes["copy"].verdict, outcomes["copy"].reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert outcomes["stranger"].verdict is Verdict.NO_EVIDENCE


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (tokens(V, first=10_000), "no usable tokens in common"),
        (
            tokens(2 * V),
            "not compared: tokenizer.json: the tokenizer of the candidate does not match its embedding",
        ),
    ],
)
def test_a_stranger_with_other_tokens_is_compared_by_neurons_alone(checker, tmp_path, words, note):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1), words=words))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert any(note in caveat for caveat in report.caveats)
    assert report.excludes.embedding is None and report.excludes.neurons is not None


def test_swapping_reference_and_candidate_does_not_change_p(base, tmp_path):
    other = write_model(tmp_path / "x", gaussian(V, N, 0) + gaussian(V, N, 1))
    report = compare(HomologyChecker.from_pretrained(base), other, describes=True)
    swapped = compare(HomologyChecker.from_pretrained(other), base, describes=True)
    # The same numbers, summed in a different order.
    assert report.embedding.log10_p == pytest.approx(swapped.embedding.log10_p, rel=1e-6)


def test_a_model_without_tokenizer_is_paired_by_row_and_says_so(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1), words=[]))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert any("paired by number" in caveat for caveat in report.caveats)


def test_nan_weights_are_an_error_that_names_the_tensor(checker, tmp_path):
    broken = gaussian(V, N, 0)
    broken[:, 3] = float("nan")
    with pytest.raises(CorruptCheckpointError, match=r"gate_proj\.weight"):
        compare(checker, write_model(tmp_path / "x", broken))


def test_the_byte_cap_holds_for_one_comparison(checker, tmp_path):
    other = write_model(tmp_path / "x", gaussian(V, N, 1))
    with pytest.raises(ByteBudgetError, match="limit on bytes"):
        compare(checker, other, max_bytes=100_000)
    assert compare(checker, other, max_bytes=10_000_000).verdict is Verdict.NO_EVIDENCE


def test_a_comparison_that_exceeds_memory_is_refused_before_the_read(checker, tmp_path):
    with pytest.raises(MemoryBudgetError, match="level 'auto'"):
        compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1)), max_memory_bytes=1000)


def test_steps_that_exceed_memory_are_left_out_and_the_others_decide(checker, tmp_path):
    rows = gaussian(V, N, 0)
    copy = write_model(tmp_path / "copy", rows + 0.01 * gaussian(V, N, 1))
    report = compare(checker, copy, max_memory_bytes=BASE_MEMORY_BYTES)
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert not any("--max-memory" in caveat for caveat in report.caveats)
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1)), max_memory_bytes=BASE_MEMORY_BYTES)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert any("were not searched: that takes 44" in caveat for caveat in report.caveats)
    assert report.warning is not None and "not searched: there was too little memory" in report.warning


def test_remote_code_is_refused_with_a_sentence(base, checker):
    with pytest.raises(RemoteCodeRefusedError, match="never runs"):
        HomologyChecker.from_pretrained(base, trust_remote_code=True)
    with pytest.raises(RemoteCodeRefusedError, match="never runs"):
        compare(checker, base, trust_remote_code=True)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_level_is_refused(base, alpha):
    with pytest.raises(InputError, match="between 0 and 1"):
        HomologyChecker.from_pretrained(base, alpha=alpha)


def test_an_unknown_level_of_comparison_is_refused(checker, base):
    with pytest.raises(InputError, match="choose from auto, layers, paper"):
        compare(checker, base, level="deep")


def test_the_report_reads_back_from_its_json_and_holds_the_contract(checker, base):
    report = compare(checker, base, level="layers")
    assert HomologyReport.from_json(report.to_json()) == report
    body = json.loads(report.to_json())
    assert body["schema"] == SCHEMA
    assert list(body)[:7] == ["schema", "verdict", "reason", "log10_p", "alpha", "tests", "level"]
    assert set(body["reference"]) == {
        "repo", "revision", "commit", "architecture", "hidden_size", "layers", "vocabulary", "quantization",
    }  # fmt: skip
    assert {
        "common_tokens", "rows_used", "rank", "trace", "normalized_trace", "matched_channels", "transformation",
        "scale", "cosine", "log10_p", "axes_z", "is_significant", "widths",
    } <= set(body["embedding"])  # fmt: skip
    assert {"bytes_read", "bytes_of_weights", "requests", "files"} <= set(body["io"])
    assert body["modules"] is None


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "nonsense",
        '{"schema": "mdir-hf/report/4"}',
        '{"schema": "mdir-hf/report/1"}',
    ],
)
def test_other_json_than_a_report_is_refused(text):
    with pytest.raises(InputError, match="report"):
        HomologyReport.from_json(text)


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta:x"])
def test_a_device_that_is_not_there_is_refused_with_a_sentence(base, device):
    with pytest.raises(InputError, match="cannot be used here"):
        HomologyChecker.from_pretrained(base, device=device)


def test_the_device_may_be_chosen_automatically(base):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert HomologyChecker.from_pretrained(base, device="auto").settings.device == expected


def test_a_folder_against_itself_is_the_same_files_by_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "base", gaussian(V, N, 0))
    (tmp_path / "link").symlink_to("base")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").hardlink_to(tmp_path / "base" / "model.safetensors")
    for name in ("base", "./base", "link", "base/model.safetensors", "other"):
        report = HomologyChecker.from_pretrained("base").compare(name, progress=False)
        assert report.settled_by == "identical_files" and report.strength == "the same files"
    write_model(tmp_path / "copy", gaussian(V, N, 0))
    assert HomologyChecker.from_pretrained("base").compare("copy", progress=False).settled_by == "near"
