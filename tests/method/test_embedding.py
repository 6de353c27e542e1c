"""One look at the rows of two embeddings: the textbook's p, invariances, planted copies, and strangers."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method import matching
from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.embedding import (
    BLOCK_ROWS,
    FEWEST_BLOCK_ROWS,
    MOST_ROWS,
    TESTS_PER_MATRIX,
    block_rows,
    look_at_rows,
    matched_scale,
)
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import polar_factor
from mdir_hf.report import PrintedAlgorithm1
from mdir_hf.report.words import printed_text
from tests.method import reference as textbook

LOG_ALPHA = math.log(1e-10)
LOG_TESTS = math.log(TESTS_PER_MATRIX)


def pair(n, n_tokens, *, noise=1.0, seed=0, permute=False, signs=False, scale=1.0, n_candidate=None):
    """Embeddings of a relative: E and E' = scale (E + noise RMS(E) N) P, with a power-law spectrum and a mean."""
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n_tokens, n)) * (1.0 + np.arange(n)) ** -0.3
    e = latent @ textbook.haar(n, rng) + 0.3 * rng.standard_normal(n)
    f = e + noise * math.sqrt((e**2).mean()) * rng.standard_normal(e.shape)
    kept = rng.permutation(n) if permute else np.arange(n)
    kept = kept[:n_candidate]
    flips = np.where(rng.uniform(size=len(kept)) < 0.5, -1.0, 1.0) if signs else np.ones(len(kept))
    return torch.from_numpy(e), torch.from_numpy(scale * f[:, kept] * flips), kept, flips


def strangers(n, n_tokens, *, n_candidate=None, seed=0):
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.standard_normal((n_tokens, n))),
        torch.from_numpy(rng.standard_normal((n_tokens, n_candidate or n))),
    )


def look_at(e, f, **options):
    return look_at_rows(e, f, **{"log_alpha": LOG_ALPHA, **options})


# --- p against the textbook


@pytest.mark.parametrize(("n", "n_candidate"), [(48, 48), (48, 80), (80, 48), (256, 256)])
def test_p_matches_the_textbook(n, n_candidate):
    e, f, *_ = pair(max(n, n_candidate), 3 * max(n, n_candidate), noise=0.3, permute=True)
    e, f = e[:, :n], f[:, :n_candidate]
    expected = textbook.embedding_test(e, f)
    look = look_at(e, f)
    assert look.is_significant  # otherwise the smallest p of several views would be compared
    assert look.matching.trace == pytest.approx(expected.trace, rel=1e-9)
    assert look.log_p == pytest.approx(expected.log_p + LOG_TESTS, rel=1e-6)


def test_p_of_a_signed_match_matches_the_textbook():
    e, f, *_ = pair(96, 400, permute=True, signs=True)
    expected = textbook.embedding_test(e, f, signed=True)
    look = look_at(e, f)
    assert look.matching.signed
    assert look.log_p == pytest.approx(expected.log_p + LOG_TESTS, rel=1e-6)


def test_p_of_channels_in_their_own_order_matches_the_textbook():
    e, f, *_ = pair(256, 1000, noise=15.0)
    expected = textbook.embedding_test_in_order(e, f)
    assert expected < LOG_ALPHA  # otherwise there would be no numbers to compare
    look = look_at(e, f)
    assert look.log_p == pytest.approx(expected + LOG_TESTS, rel=1e-6)
    assert look.matching.is_identity


def test_p_of_the_whitened_view_matches_the_textbook():
    # A few columns of huge scale hide the match from the centred view.
    rng = np.random.default_rng(0)
    scales = np.exp(2.0 * rng.standard_normal(64))
    e, f, *_ = pair(64, 600, noise=3.0, permute=True)
    f = f * torch.from_numpy(rng.permutation(scales))
    e = e * torch.from_numpy(scales)
    textbooks = {
        (view, signed): textbook.embedding_test(e, f, signed=signed, whitened=view == "whitened").log_p
        for view in ("centred", "whitened")
        for signed in (False, True)
    }
    expected = textbooks.pop(("whitened", False))
    # Only the whitened unsigned match is significant, after the correction for all tests.
    log_alpha = (expected + min(textbooks.values())) / 2 + LOG_TESTS
    look = look_at(e, f, log_alpha=log_alpha, must_be_robust=False)
    assert look.is_significant
    assert not look.matching.signed
    assert look.log_p == pytest.approx(expected + LOG_TESTS, rel=1e-6)


@pytest.mark.parametrize(("n", "r"), [(256, 17), (256, 40), (256, 255), (128, 14)])
def test_a_pure_copy_on_few_rows_is_worth_half_n_times_the_rank(n, r):
    e, _ = strangers(n, r)
    permutation = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    look = look_at(e, e[:, permutation])
    assert look.rank == r - 1  # centring takes one
    assert look.log_p == pytest.approx(math.lgamma(n + 1) - (r - 1) * n / 2 + LOG_TESTS, rel=1e-9)
    np.testing.assert_array_equal(permutation[look.matching.candidate], np.arange(n))


# --- planted copies


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("signs", [False, True])
def test_a_permuted_rescaled_noised_copy_is_found_and_undone(n, signs):
    e, f, permutation, flips = pair(n, MOST_ROWS, noise=0.7, permute=True, signs=signs, scale=0.37)
    look = look_at(e, f)
    assert look.is_significant
    assert look.log_p < LOG_ALPHA
    assert look.matching.signed == signs
    order = np.argsort(permutation)
    np.testing.assert_array_equal(look.matching.candidate, order)
    np.testing.assert_array_equal(look.matching.signs, flips[order])
    assert look.matching.n_negative == (flips < 0).sum()
    # Least squares with noise of variance s^2 RMS(E)^2 per entry: SE = s RMS(E) / |E| = s / sqrt(entries).
    standard_error = 0.37 / math.sqrt(e.numel())
    assert abs(matched_scale(e, f, look.matching) - 0.37) < 4 * standard_error


def test_a_copy_with_pruned_channels_is_found_either_way_round():
    e, f, kept, _ = pair(96, 600, noise=0.5, permute=True, n_candidate=60)
    one, other = look_at(e, f), look_at(f, e)
    assert one.is_significant and other.is_significant
    np.testing.assert_array_equal(one.matching.reference, np.sort(kept))
    np.testing.assert_array_equal(kept[one.matching.candidate], one.matching.reference)
    np.testing.assert_array_equal(other.matching.candidate, kept)


def test_own_order_finds_a_relative_that_no_search_finds():
    # With noise of fifteen times the rows, every channel is far below the best of 256 others.
    e, f, *_ = pair(256, 1000, noise=15.0)
    look = look_at(e, f)
    assert look.is_significant
    assert look.matching.log_p_signs is not None
    assert not look_at(e, f, own_order=False).is_significant
    e, f, *_ = pair(256, 1000, noise=15.0, permute=True)
    assert look_at(e, f).log_p > math.log(1e-3)


def test_further_rows_than_the_maximum_are_ignored():
    e, f, *_ = pair(40, MOST_ROWS + 200)
    look = look_at(e, f)
    assert len(look.rows.reference) == MOST_ROWS
    assert look.log_p == look_at(e[:MOST_ROWS], f[:MOST_ROWS]).log_p


def test_a_negated_copy_has_every_sign_negative():
    e, _ = strangers(32, 200)
    matching = look_at(e, -2.0 * e).matching
    assert matching.signed
    assert matching.n_negative == 32
    assert matched_scale(e, -2.0 * e, matching) == pytest.approx(2.0, rel=1e-12)  # float64 sums of equal numbers


def test_the_scale_of_a_plain_copy_is_one():
    e, _ = strangers(32, 200)
    assert matched_scale(e, e, look_at(e, e).matching) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_weights_are_found_as_well(dtype):
    e, f, *_ = pair(64, 500, permute=True)
    exact, rounded = look_at(e, f), look_at(e.to(dtype), f.to(dtype))
    np.testing.assert_array_equal(rounded.matching.candidate, exact.matching.candidate)
    # bfloat16 rounds each weight by 0.4 %, far less than the noise of the pair.
    assert rounded.log_p == pytest.approx(exact.log_p, rel=1e-2)


def test_weights_that_require_gradients_are_only_read():
    e, f, *_ = pair(32, 200)
    weight = torch.nn.Parameter(e.float())
    assert look_at(weight, f).is_significant
    assert weight.grad is None


# --- invariances


def test_the_order_of_the_tokens_does_not_matter():
    e, f, *_ = pair(40, 300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert look_at(e[order], f[order]).log_p == pytest.approx(look_at(e, f).log_p, rel=1e-10)


@pytest.mark.parametrize("scale", [1e-4, 77.0])
def test_scaling_a_model_does_not_matter(scale):
    e, f, *_ = pair(40, 300)
    assert look_at(e, scale * f).log_p == pytest.approx(look_at(e, f).log_p, rel=1e-10)


def test_permuting_channels_permutes_the_matching():
    e, f, *_ = pair(40, 300, noise=0.5)
    p, q = np.random.default_rng(1).permutation(40), np.random.default_rng(2).permutation(40)
    plain, permuted = look_at(e, f), look_at(e[:, p], f[:, q])
    assert permuted.log_p == pytest.approx(plain.log_p, rel=1e-10)
    np.testing.assert_array_equal(q[permuted.matching.candidate], p[permuted.matching.reference])


@pytest.mark.parametrize("n_candidate", [40, 30])
def test_the_models_swapped_give_the_transposed_answer(n_candidate):
    e, f, *_ = pair(40, 300, noise=0.5, permute=True, n_candidate=n_candidate)
    one, other = look_at(e, f), look_at(f, e)
    assert other.log_p == pytest.approx(one.log_p, rel=1e-10)
    assert other.matching.log_p_half == pytest.approx(one.matching.log_p_half, rel=1e-10)
    assert {(a, b) for a, b in zip(one.matching.reference, one.matching.candidate, strict=True)} == {
        (b, a) for a, b in zip(other.matching.reference, other.matching.candidate, strict=True)
    }


def test_the_look_misses_a_hidden_rotation_but_returns_it():
    e, f, *_ = pair(64, 600, noise=0.5)
    q = torch.from_numpy(textbook.haar(64, np.random.default_rng(3)))
    look = look_at(e, f @ q)
    assert look.log_p == 0.0
    assert not look.is_significant
    plain = look_at(e, f)
    np.testing.assert_allclose(look.polar, plain.polar @ q, atol=1e-9)  # float64, with an SVD in between


def test_rotating_both_alike_hides_no_identity():
    # With E' = E the factor is the identity, and Q^T I Q = I: a copy is found in every basis.
    e, _ = strangers(48, 300)
    q = torch.from_numpy(textbook.haar(48, np.random.default_rng(5)))
    assert look_at(e @ q, e @ q).log_p == pytest.approx(look_at(e, e).log_p, rel=1e-9)


def test_rotating_one_stranger_does_not_change_the_distribution_of_the_trace():
    # Highly structured strangers: axis-aligned and sparse, with one model the same in every draw.
    rng = np.random.default_rng(4)
    n, n_tokens, n_draws = 24, 100, 150
    e = torch.from_numpy(rng.standard_normal((n_tokens, n)) * (rng.uniform(size=(n_tokens, n)) < 0.1))
    f = e + torch.from_numpy(0.1 * rng.standard_normal((n_tokens, n)))

    def trace(x, y):
        rows = look_at(x, y).rows
        return best_matching(polar_factor(rows.reference.T @ rows.candidate).matrix, signed=False).trace

    structured = [trace(e, f @ torch.from_numpy(textbook.haar(n, rng))) for _ in range(n_draws)]
    gaussian = [trace(*strangers(n, n_tokens, seed=k)) for k in range(n_draws)]
    spread = math.sqrt((np.var(structured) + np.var(gaussian)) / n_draws)
    assert abs(np.mean(structured) - np.mean(gaussian)) < 4 * spread
    assert trace(e, f) > max(gaussian) + 5  # the same pair unrotated


# --- rows that carry no information


def test_duplicate_rows_change_little_of_a_match_and_make_none():
    e, f, *_ = pair(48, 300)
    twice = torch.cat([torch.arange(300), torch.arange(100)])
    assert look_at(e[twice], f[twice]).is_significant
    x, y = strangers(48, 300)
    assert look_at(x[twice], y[twice]).log_p == 0.0


def test_zero_rows_count_as_no_tokens():
    e, f, *_ = pair(48, 300)
    look = look_at(*(torch.cat([m, torch.zeros(50, 48, dtype=m.dtype)]) for m in (e, f)))
    assert len(look.rows.reference) == 300
    assert look.log_p == pytest.approx(look_at(e, f).log_p, rel=1e-12)


def test_rows_that_are_not_finite_count_as_no_tokens():
    e, f, *_ = pair(48, 300)
    f[17, 5] = math.nan
    e[200, 0] = math.inf
    look = look_at(e, f)
    assert len(look.rows.reference) == 298
    assert look.is_significant


def test_constant_columns_cost_rank_and_nothing_else():
    e, f, *_ = pair(48, 300, noise=0.3)
    e[:, :4] = 0.25
    f[:, :4] = -7.0
    look = look_at(e, f)
    assert look.rank == 44
    assert look.is_significant
    assert np.isfinite(look.matching.entries).all()
    keep = look.matching.reference >= 4
    np.testing.assert_array_equal(look.matching.candidate[keep], np.arange(4, 48))


@pytest.mark.parametrize("r", [0, 1])
def test_a_single_common_token_gives_no_look(r):
    e, f, *_ = pair(16, 50, noise=0.0)
    assert look_at(e[:r], f[:r]) is None


def test_few_rows_of_strangers_are_not_significant():
    for r in (2, 10, 63, 64, 65, 200):
        assert look_at(*strangers(64, r)).log_p == 0.0


def test_significance_on_a_few_shared_axes_alone_is_not_robust():
    rng = np.random.default_rng(0)
    n, shared = 128, 30
    e, f = strangers(n, 1000)
    f[:, :shared] = e[:, :shared] + 0.1 * torch.from_numpy(rng.standard_normal((1000, shared)))
    look = look_at(e, f)
    assert look.log_p < LOG_ALPHA
    assert look.matching.log_p_robust == 0.0
    assert not look.is_significant
    assert look_at(e, f, must_be_robust=False).is_significant


@pytest.mark.parametrize(
    ("width", "expected"), [(64, BLOCK_ROWS), (4096, 2048), (1 << 20, FEWEST_BLOCK_ROWS), (0, BLOCK_ROWS)]
)
def test_blocks_hold_at_most_32_mebibytes_unless_rows_are_very_wide(width, expected):
    assert block_rows(width) == expected
    assert expected == FEWEST_BLOCK_ROWS or expected * width * 4 <= 1 << 25


# --- the sentence on Algorithm 1 as printed


@pytest.mark.parametrize(
    ("rank", "stand_out", "log10_p", "words"),
    [
        (24, False, -12.0, "its assumption holds as far as it was measured"),
        (24, True, -12.0, "does not hold here: axes stand out in both embeddings"),
        (10, False, -12.0, "does not hold here: the product has no full rank"),
        (24, None, 0.0, "p not below 1 by the paper's formula; whether its assumption holds was not measured"),
        (24, False, None, "the paper has no p for embeddings of different width"),
    ],
)
def test_the_sentence_says_whether_the_assumption_holds(rank, stand_out, log10_p, words):
    assert words in printed_text(PrintedAlgorithm1(300, 12.0, rank, 24, log10_p, stand_out))


def test_unrelated_rows_need_no_assignment_of_all_channels(monkeypatch):
    n_assigned = []

    def counting(scores):
        n_assigned.append(len(scores))
        return best_assignment(scores)

    monkeypatch.setattr(matching, "best_assignment", counting)
    rows = [torch.randn(64, 600, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    look = look_at_rows(*rows, log_alpha=math.log(1e-10), own_order=False)
    assert look is not None and not look.is_significant and len(look.matching.reference) == 600
    assert max(n_assigned) <= matching.GREEDY_REST
