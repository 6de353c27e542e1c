"""Compare two folders or repositories and return one verdict."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from mdir_hf import HomologyChecker, HomologyReport, Reason, Verdict
from mdir_hf.comparison.decide import N_BOUNDS
from mdir_hf.comparison.plan import common_tokens
from mdir_hf.errors import (
    ByteBudgetError,
    CorruptCheckpointError,
    InputError,
    MemoryBudgetError,
    RemoteCodeRefusedError,
    VocabularyError,
)
from mdir_hf.report import SCHEMA
from tests.model.hub.fixtures import hf_home, loopback_hub
from tests.specimens import gaussian, mlp_tensors, tokens, write_model

__all__ = ["hf_home", "loopback_hub"]


V, N = 1500, 96


@pytest.fixture
def base(tmp_path):
    return write_model(tmp_path / "base", gaussian(V, N, 0))


@pytest.fixture
def checker(base):
    return HomologyChecker.from_pretrained(base)


def compare(checker, folder, **options) -> HomologyReport:
    return checker.compare(folder, progress=False, **options)


def test_a_noised_copy_is_homologous_and_settled_by_the_screen(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1)))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.settled_by == "screen"
    assert report.embedding.rows_used < V
    assert report.embedding.transformation == "identity"
    assert report.log10_p < -100


def test_a_plan_counts_tokenizers_and_is_reported_with_the_bytes_read(base, tmp_path):
    candidate = write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1))
    opening = sum((folder / name).stat().st_size for folder in (base, candidate) for name in ("tokenizer.json",))
    plan = HomologyChecker.from_pretrained(base).plan(candidate)
    assert plan.opening_bytes >= opening
    assert plan.n_bytes[0] >= opening + plan.screen_bytes[0]
    assert "headers and tokenizers have" in str(plan)

    report = compare(HomologyChecker.from_pretrained(base), candidate)
    least, most = report.io.bytes_planned
    assert opening < least <= report.io.bytes_read <= most
    assert "(planned: " in str(report)
    assert HomologyReport.from_json(report.to_json()).io == report.io


def test_a_checker_names_its_model_and_a_mistyped_keyword_has_a_suggestion(checker, base):
    assert repr(checker) == f"HomologyChecker({str(base)!r}, alpha=1e-10, level=auto)"
    with pytest.raises(TypeError, match="unexpected keyword argument 'levle'; did you mean 'level'"):
        checker.compare(base, levle="auto")


@pytest.mark.parametrize("level", ["embedding", "layers", "full"])
def test_levels_that_read_all_tokens_have_the_numbers_of_the_paper(tmp_path, level):
    rows = gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1)
    matrices = mlp_tensors(N, 4 * N, 3)
    checker = HomologyChecker.from_pretrained(write_model(tmp_path / "base", gaussian(V, N, 0), further=matrices))
    report = compare(checker, write_model(tmp_path / "x", rows, further=matrices), level=level)
    printed = report.embedding.printed
    tokens_of_both = common_tokens(checker.reference, checker.reference)[0].reference_rows
    x, y = (matrix.double().numpy()[tokens_of_both] for matrix in (gaussian(V, N, 0), rows))
    left, _, right = np.linalg.svd(x.T @ y)
    trace = np.trace(left @ right)
    assert (printed.common_tokens, printed.rank, printed.width) == (len(x), N, N)
    assert printed.trace == pytest.approx(trace, rel=1e-6)
    assert printed.log10_p == pytest.approx((math.lgamma(N + 1) - trace**2 / 2) / math.log(10), rel=1e-6)
    assert f"MDIR, Algorithm 1 (all common tokens): trace {trace:.2f}, rank {N} of {N}, p = 10^-" in str(report)
    assert HomologyReport.from_json(report.to_json()).embedding.printed == printed


def test_level_auto_leaves_the_numbers_of_the_paper_out(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0) + 0.3 * gaussian(V, N, 1)))
    assert report.embedding.printed is None
    assert "printed" not in json.loads(report.to_json())["embedding"]


@pytest.mark.parametrize("change", [0.0, 1e-3])
def test_a_copy_in_another_package_is_recognised_by_its_numbers(checker, tmp_path, change):
    """The files differ in bytes but hold the same rows; one different row is enough to drop the caveat."""
    rows = gaussian(V, N, 0)
    rows[: V // 2] += change
    report = compare(checker, write_model(tmp_path / "x", rows))
    assert report.verdict is Verdict.HOMOLOGOUS
    said = any("identical in both models, value for value" in caveat for caveat in report.caveats)
    assert said is (change == 0.0)


def test_a_stranger_of_the_same_config_gives_no_evidence(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1)))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.settled_by is None
    assert report.log10_p == 0.0
    assert report.embedding.rows_used == report.embedding.common_tokens == V - 1  # without the unknown token
    assert report.excludes.embedding_noise > 1.0 and report.excludes.layers_noise is None  # there are no layers
    assert "does not prove that the models are independent" in report.does_not_mean[0]


def test_the_permutation_of_a_noised_copy_is_recovered_exactly(checker, tmp_path):
    permutation = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    moved = 2.5 * (gaussian(V, N, 0) + gaussian(V, N, 1))[:, permutation]  # noise as large as the rows
    report = compare(checker, write_model(tmp_path / "x", moved), level="embedding")
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.transformation == "permutation"
    assert report.embedding.matched_channels == N
    reference, candidate = report.arrays.embedding.channels
    assert np.array_equal(permutation.numpy()[candidate], reference)
    # The standard error of a least-squares slope with noise of the size of the signal, over V N products.
    assert abs(report.embedding.scale / 2.5 - 1.0) < 5.0 / math.sqrt(V * N)


def test_flipped_signs_are_named_as_a_signed_permutation(checker, tmp_path):
    signs = torch.ones(N)
    signs[::2] = -1
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0).flip(1) * signs))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.embedding.transformation == "signed_permutation"


def test_a_copy_with_pruned_channels_is_found(checker, tmp_path):
    kept = torch.randperm(N, generator=torch.Generator().manual_seed(3))[:64].sort().values
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0)[:, kept]))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.candidate.hidden_size == 64
    assert report.embedding.widths == (N, 64)


def test_a_copy_with_another_tokenizer_is_found(checker, tmp_path):
    shuffled = torch.randperm(V, generator=torch.Generator().manual_seed(4))
    words = [tokens(V)[i] for i in shuffled[:1000]] + tokens(300, first=5000)
    rows = torch.cat([gaussian(V, N, 0)[shuffled[:1000]], gaussian(300, N, 9)])
    report = compare(checker, write_model(tmp_path / "x", rows + 0.2 * gaussian(1300, N, 5), words=words))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert 990 <= report.embedding.common_tokens <= 1000


def test_a_retrained_embedding_is_found_by_the_unembedding(tmp_path):
    head = gaussian(V, N, 1)
    base = write_model(tmp_path / "base", gaussian(V, N, 0), unembedding=head)
    other = write_model(tmp_path / "x", gaussian(V, N, 2), unembedding=head + 0.1 * gaussian(V, N, 3))
    report = compare(HomologyChecker.from_pretrained(base), other)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert report.tests == 12  # three groups, two views, two matrices
    assert report.embedding.log10_p == 0.0
    assert report.unembedding.transformation == "identity"


def test_a_relative_in_its_order_is_found_under_much_noise(checker, tmp_path):
    # Noise of 16 times the rows: no single channel can be matched, but together the channels agree with themselves.
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0) + 16.0 * gaussian(V, N, 5)))
    # The channels' own order nominates but does not decide: such rows are not copies, and these models have no layers.
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert report.embedding.transformation == "identity"
    assert report.embedding.log10_p_signs < -10
    assert "by the sign test" in " ".join(str(report).split())
    permuted = gaussian(V, N, 0)[:, torch.randperm(N, generator=torch.Generator().manual_seed(6))]
    report = compare(checker, write_model(tmp_path / "y", permuted + 16.0 * gaussian(V, N, 5)))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.embedding.log10_p_signs is None


def test_a_screen_reports_channels_as_the_model_numbers_them(checker, tmp_path, monkeypatch):
    # Models wider than 1024 channels: 32 channels of the reference against all channels of the candidate.
    monkeypatch.setattr("mdir_hf.method.embedding.FEW_ROWS", 64)
    monkeypatch.setattr("mdir_hf.method.embedding.SCREEN_CHANNELS", 32)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(7))
    for name, kept in (("same", torch.arange(N)), ("permuted", order)):
        rows = 3.0 * (gaussian(V, N, 0) + 0.3 * gaussian(V, N, 5))[:, kept]
        matrix = (report := compare(checker, write_model(tmp_path / name, rows), level="screen")).embedding
        assert matrix.rank == matrix.matched_channels == 32
        assert matrix.coverage == 1.0
        assert 0.8 < matrix.normalized_trace <= 1.0
        assert matrix.off_match_channels == 0
        assert matrix.transformation == ("identity" if name == "same" else "permutation")
        assert abs(matrix.scale - 3.0) < 0.05  # noise of 0.3 on several thousand entries
        mine, theirs = report.arrays.embedding.channels
        assert (kept[torch.from_numpy(theirs)] == torch.from_numpy(mine)).all()


def test_no_common_tokens_is_inconclusive_with_its_reason(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0), words=tokens(V, first=10_000)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason is Reason.TOO_FEW_COMMON_TOKENS
    assert report.log10_p == 0.0
    assert report.embedding.common_tokens == 0
    assert report.embedding.placebo is None


def test_swapping_reference_and_candidate_does_not_change_p(base, tmp_path):
    other = write_model(tmp_path / "x", gaussian(V, N, 0) + gaussian(V, N, 1))
    one = compare(HomologyChecker.from_pretrained(base), other, level="embedding")
    two = compare(HomologyChecker.from_pretrained(other), base, level="embedding")
    assert one.log10_p == pytest.approx(two.log10_p, rel=1e-9)  # the same numbers, summed in a different order


def test_a_model_without_tokenizer_is_paired_by_row_and_says_so(checker, tmp_path):
    report = compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0), words=[]))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert any("paired by number" in caveat for caveat in report.caveats)


def test_nan_weights_are_an_error_that_names_the_tensor(checker, tmp_path):
    broken = gaussian(V, N, 0)
    broken[:, 3] = float("nan")
    with pytest.raises(CorruptCheckpointError, match=r"embed_tokens\.weight"):
        compare(checker, write_model(tmp_path / "x", broken))


def test_rows_that_are_left_out_for_their_length_are_counted(checker, tmp_path):
    near = gaussian(V, N, 0) + 0.1 * gaussian(V, N, 5)
    longer = near.clone()
    longer[::7] *= 2e3
    common = compare(checker, write_model(tmp_path / "near", near)).caveats
    found = compare(checker, write_model(tmp_path / "longer", longer)).caveats
    (caveat,) = set(found) - set(common)
    found = re.fullmatch(
        r"embedding: ([\d,]+) of the ([\d,]+) rows read from the candidate model are more than 1,000 times .*", caveat
    )
    n_long, n_rows = (int(number.replace(",", "")) for number in found.groups())
    assert n_rows / 14 < n_long < n_rows / 4  # a seventh of all rows, and only a sample was read


def test_a_tokenizer_of_another_model_is_an_error_with_both_numbers(checker, tmp_path):
    with pytest.raises(VocabularyError, match="does not match its embedding"):
        compare(checker, write_model(tmp_path / "x", gaussian(V, N, 0), words=tokens(3000)))


def test_the_byte_cap_holds_for_one_comparison(checker, tmp_path):
    other = write_model(tmp_path / "x", gaussian(V, N, 1))
    with pytest.raises(ByteBudgetError, match="limit on bytes"):
        compare(checker, other, max_bytes=100_000)
    assert compare(checker, other, max_bytes=10_000_000).verdict is Verdict.NO_EVIDENCE


def test_a_comparison_that_exceeds_memory_is_refused_before_the_read(checker, tmp_path):
    with pytest.raises(MemoryBudgetError, match="level 'screen'"):
        compare(checker, write_model(tmp_path / "x", gaussian(V, N, 1)), max_memory_bytes=1000)


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
    with pytest.raises(InputError, match="auto, screen, embedding"):
        compare(checker, base, level="deep")


def test_the_report_reads_back_from_its_json_and_holds_the_contract(checker, base):
    report = compare(checker, base, level="embedding")
    assert HomologyReport.from_json(report.to_json()) == report
    body = json.loads(report.to_json())
    assert body["schema"] == SCHEMA
    assert list(body)[:7] == ["schema", "verdict", "reason", "log10_p", "alpha", "tests", "level"]
    assert set(body["reference"]) == {
        "repo", "revision", "commit", "architecture", "hidden_size", "layers", "vocabulary", "quantization",
    }  # fmt: skip
    assert {
        "common_tokens", "rows_used", "rank", "trace", "normalized_trace", "coverage", "matched_channels",
        "transformation", "scale", "log10_p", "log10_p_trimmed", "placebo",
    } <= set(body["embedding"])  # fmt: skip
    assert set(body["embedding"]["log10_p_trimmed"]) == {"n/16", "n/4", "n/2"}
    assert {"bytes_read", "bytes_of_weights", "requests", "files"} <= set(body["io"])
    assert body["layers"] is None and body["modules"] is None


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "nonsense",
        '{"schema": "mdir-hf/report/4"}',
        '{"schema": "mdir-hf/report/4"}',
        '{"schema": "mdir-hf/report/1"}',
    ],
)
def test_other_json_than_a_report_is_refused(text):
    with pytest.raises(InputError, match="report"):
        HomologyReport.from_json(text)


def test_a_stored_tied_head_is_not_an_independent_test(tmp_path):
    config = {"model_type": "llama", "hidden_size": N, "vocab_size": V, "tie_word_embeddings": True}
    folders = [
        write_model(tmp_path / name, gaussian(V, N, seed), unembedding=gaussian(V, N, seed), config=config)
        for name, seed in (("a", 0), ("b", 1))
    ]
    report = compare(HomologyChecker.from_pretrained(folders[0]), folders[1])
    assert report.unembedding is None
    assert report.tests == 6


def sparse_reader(latents, width, seed):
    """An embedding in which every axis reads a few features of the language."""
    generator = torch.Generator().manual_seed(seed)
    shape = (latents.shape[1], width)
    loadings = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.01)
    return 0.02 * latents @ loadings


def test_strangers_of_the_same_language_are_not_homologous(tmp_path):
    width = 192
    generator = torch.Generator().manual_seed(0)
    spectrum = (1.0 + torch.arange(4 * width)) ** -0.5
    latents = torch.randn(8 * width, 4 * width, generator=generator) * spectrum
    folders = [write_model(tmp_path / name, sparse_reader(latents, width, seed)) for name, seed in (("a", 1), ("b", 2))]
    report = compare(HomologyChecker.from_pretrained(folders[0]), folders[1])
    assert min(map(abs, report.embedding.placebo.privileged_basis_z)) > 3
    assert report.verdict is not Verdict.HOMOLOGOUS


@pytest.mark.parametrize("is_reordered", [False, True])
def test_p_of_privileged_axes_is_bounded_by_numbers_alone(tmp_path, is_reordered):
    width = 192
    generator = torch.Generator().manual_seed(0)
    spectrum = (1.0 + torch.arange(4 * width)) ** -0.5
    latents = torch.randn(8 * width, 4 * width, generator=generator) * spectrum
    base = sparse_reader(latents, width, 1)
    drift = 0.3 * base.std() * torch.randn(base.shape, generator=generator)
    tuned = (base + drift).flip(1) if is_reordered else base + drift
    folders = [write_model(tmp_path / "a", base), write_model(tmp_path / "b", tuned)]
    report = compare(HomologyChecker.from_pretrained(folders[0]), folders[1])
    assert report.verdict is Verdict.HOMOLOGOUS
    assert any("No probability is printed" in caveat for caveat in report.caveats) is is_reordered
    assert (report.log10_p is None) is is_reordered
    assert report.p_is_bound is not is_reordered
    assert report.assumption == ("calibration" if is_reordered else "numbering")
    if not is_reordered:
        found = report.embedding.numbering
        assert found.own_number > 0.9 * width
        assert report.log10_p == pytest.approx(found.log10_p + math.log10(N_BOUNDS))
        assert "paired channels kept their number; for independently trained models the" in report.sentence


@pytest.mark.parametrize("device", ["cuda:99", "abacus", "meta:x"])
def test_a_device_that_is_not_there_is_refused_with_a_sentence(base, device):
    with pytest.raises(InputError, match="cannot be used here"):
        HomologyChecker.from_pretrained(base, device=device)


def test_the_device_may_be_chosen_automatically(base):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert HomologyChecker.from_pretrained(base, device="auto").settings.device == expected


@pytest.mark.parametrize(
    ("rows", "channels", "verdict"),
    [
        pytest.param(slice(12), slice(None), "no_evidence", id="1 % of the rows"),
        pytest.param(slice(None), slice(4), "no_evidence", id="4 of 64 channels"),
        pytest.param(slice(600), slice(None), "inconclusive", id="half of the rows"),
    ],
)
def test_a_few_copied_rows_or_channels_are_not_homologous(tmp_path, rows, channels, verdict):
    base, stranger = gaussian(1200, 64, 0), gaussian(1200, 64, 1)
    stranger[rows, channels] = base[rows, channels]
    one, other = write_model(tmp_path / "base", base), write_model(tmp_path / "stranger", stranger)
    report = HomologyChecker.from_pretrained(one).compare(other, level="embedding", progress=False)
    assert report.verdict.value == verdict


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
    assert HomologyChecker.from_pretrained("base").compare("copy", progress=False).settled_by == "screen"


# --- freed memory is returned to the system before the next read


# Each block is too small for its own mapping, and the last one keeps the heap from shrinking.
FREE_UNDER_A_LID = """
from mdir_hf.comparison.reading import return_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

blocks = [b"x" * 100_000 for _ in range(1000)]
lid = b"y" * 100_000
before = resident_mib()
del blocks
freed = resident_mib()
return_freed_memory()
print(before - freed, before - resident_mib())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such function")
def test_freed_memory_is_given_back():
    run = subprocess.run([sys.executable, "-c", FREE_UNDER_A_LID], capture_output=True, text=True, check=True)
    by_itself, in_all = map(float, run.stdout.split())
    assert by_itself < 20 < 80 < in_all  # of 95 MiB
