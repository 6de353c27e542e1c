from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mdir_hf.method import embedding as embedding_module
from mdir_hf.method.embedding import TESTS_PER_MATRIX, EmbeddingTest, matched_scale
from mdir_hf.method.matching import PrintedAlgorithm
from mdir_hf.report import PrintedAlgorithm1
from mdir_hf.report.words import printed_text
from tests.method import reference as textbook
from tests.method.reference import haar, polar

LOG_ALPHA = math.log(1e-10)


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


def blocks(e, f, size=None):
    size = size or max(1, len(e))
    return [(e[k : k + size], f[k : k + size]) for k in range(0, len(e), size)]


def look_at(e, f, **kwargs):
    """One look at all rows in memory."""
    test = EmbeddingTest(log_alpha=LOG_ALPHA, **kwargs)
    return test, test.screen(e, f, is_last=True)


def full_look(e, f, size=None, sample=None, **kwargs):
    test = EmbeddingTest(log_alpha=LOG_ALPHA, **kwargs)
    test.screen(e[:sample], f[:sample])
    return test.full(blocks(e, f, size))


SHAPES = [(8, 8), (48, 48), (48, 80), (80, 48), (256, 256), (512, 512)]


@pytest.mark.parametrize(("n", "n_candidate"), SHAPES)
def test_p_matches_the_textbook(n, n_candidate):
    e, f, *_ = pair(max(n, n_candidate), 3 * max(n, n_candidate), noise=0.3, permute=True)
    e, f = e[:, :n], f[:, :n_candidate]
    expected = textbook.embedding_test(e, f)
    for look in (look_at(e, f, n_tests=1)[1], full_look(e, f, n_tests=1)):
        assert look.view == "centred"
        assert look.matching.trace == pytest.approx(expected.trace, rel=1e-9)
        assert look.log_p == pytest.approx(min(0.0, expected.log_p), rel=1e-6)
    assert n == 8 or look.log_p < LOG_ALPHA  # otherwise there would be no numbers to compare


def test_p_of_a_signed_match_matches_the_textbook():
    e, f, *_ = pair(96, 400, permute=True, signs=True)
    expected = textbook.embedding_test(e, f, signed=True)
    look = look_at(e, f, n_tests=1)[1]
    assert look.matching.signed
    assert look.log_p == pytest.approx(expected.log_p, rel=1e-6)


def test_p_of_channels_in_their_own_order_matches_the_textbook():
    e, f, *_ = pair(256, 1500, noise=20.0)
    expected = textbook.embedding_test_in_order(e, f)
    assert expected < LOG_ALPHA  # otherwise there would be no numbers to compare
    for look in (look_at(e, f, n_tests=1)[1], full_look(e, f, n_tests=1)):
        assert look.log_p == pytest.approx(expected, rel=1e-6)
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
    log_alpha = (expected + min(textbooks.values())) / 2  # only the whitened unsigned match is significant
    test = EmbeddingTest(log_alpha=log_alpha, n_tests=1)
    for look in (test.screen(e, f), test.full(blocks(e, f, 100))):
        assert (look.view, look.matching.signed) == ("whitened", False)
        assert look.log_p == pytest.approx(expected, rel=1e-6)
        assert look.log_p < log_alpha


def test_every_p_is_corrected_for_the_possible_tests():
    e, f, *_ = pair(64, 300)
    one, four = look_at(e, f, n_tests=1)[1], look_at(e, f)[1]
    assert four.log_p - one.log_p == pytest.approx(math.log(TESTS_PER_MATRIX), abs=1e-9)
    assert four.log_p_trimmed["n/2"] - one.log_p_trimmed["n/2"] == pytest.approx(math.log(TESTS_PER_MATRIX), abs=1e-9)


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("signs", [False, True])
def test_a_permuted_rescaled_noised_copy_is_found_and_undone(n, signs):
    n_tokens = 12 * n
    e, f, permutation, flips = pair(n, n_tokens, noise=1.0, permute=True, signs=signs, scale=0.37)
    look = full_look(e, f, sample=4 * n)
    assert look.log_p < LOG_ALPHA
    assert look.log_p_robust < LOG_ALPHA
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
    one = full_look(e, f)
    np.testing.assert_array_equal(one.matching.reference, np.sort(kept))
    np.testing.assert_array_equal(kept[one.matching.candidate], one.matching.reference)
    other = full_look(f, e)
    assert one.log_p < LOG_ALPHA
    np.testing.assert_array_equal(other.matching.candidate, kept)


@pytest.mark.parametrize(("n", "r"), [(256, 17), (256, 40), (256, 255), (128, 14)])
def test_a_pure_copy_on_few_rows_is_worth_half_n_times_the_rank(n, r):
    e, _ = strangers(n, r)
    permutation = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    look = look_at(e, e[:, permutation], n_tests=1)[1]
    assert look.rank == r - 1  # centring takes one
    assert look.log_p == pytest.approx(math.lgamma(n + 1) - (r - 1) * n / 2, rel=1e-9)
    np.testing.assert_array_equal(permutation[look.matching.candidate], np.arange(n))


def test_few_rows_of_strangers_are_not_significant():
    for r in (2, 10, 63, 64, 65, 200):
        assert look_at(*strangers(64, r))[1].log_p == 0.0


@pytest.mark.parametrize("size", [1, 7, 100, 599])
def test_the_chunks_of_the_stream_do_not_matter(size):
    e, f, *_ = pair(40, 600)
    whole, cut = full_look(e, f, sample=64), full_look(e, f, size=size, sample=64)
    assert cut.log_p == whole.log_p
    assert cut.n_rows == whole.n_rows == 600
    np.testing.assert_array_equal(cut.matching.candidate, whole.matching.candidate)


def test_a_stream_longer_than_a_block_is_the_sum_of_its_blocks(monkeypatch):
    e, f, *_ = pair(40, 600)
    whole = full_look(e, f, sample=64)
    monkeypatch.setattr(embedding_module, "BLOCK_ROWS", 37)
    for size in (600, 50, 11):
        # A different order of summation: rounding of float64 sums, 1e-16 times a few hundred.
        assert full_look(e, f, size=size, sample=64).log_p == pytest.approx(whole.log_p, rel=1e-12)


def test_a_stream_is_read_once_and_lazily(monkeypatch):
    monkeypatch.setattr(embedding_module, "block_rows", lambda width: 50)
    alive = []
    cross_product = embedding_module.cross_product

    def counting(left, right):
        if len(left) == 50:
            alive.append(given)
        return cross_product(left, right)

    monkeypatch.setattr(embedding_module, "cross_product", counting)
    e, f, *_ = pair(20, 200)
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    test.screen(e, f)
    given = 0

    def stream():
        nonlocal given
        for block in blocks(e, f, 25):
            given += 1
            yield block

    test.full(stream())
    assert alive == [2, 4, 6, 8]


def test_blocks_of_unequal_length_are_refused():
    e, f, *_ = pair(20, 100)
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    test.screen(e, f)
    with pytest.raises(ValueError, match=r"30 rows of the reference with 20"):
        test.full([(e[:30], f[:20])])


def test_a_full_look_before_any_screen_is_refused():
    with pytest.raises(RuntimeError, match="call screen"):
        EmbeddingTest(log_alpha=LOG_ALPHA).full([])


def test_the_order_of_the_tokens_does_not_matter():
    e, f, *_ = pair(40, 300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert full_look(e[order], f[order]).log_p == pytest.approx(full_look(e, f).log_p, rel=1e-10)
    assert look_at(e[order], f[order])[1].log_p == pytest.approx(look_at(e, f)[1].log_p, rel=1e-10)


@pytest.mark.parametrize("scale", [1e-4, 77.0])
def test_scaling_a_model_does_not_matter(scale):
    e, f, *_ = pair(40, 300)
    assert full_look(e, scale * f).log_p == pytest.approx(full_look(e, f).log_p, rel=1e-10)


def test_permuting_channels_permutes_the_matching():
    e, f, *_ = pair(40, 300, noise=0.5)
    p, q = np.random.default_rng(1).permutation(40), np.random.default_rng(2).permutation(40)
    plain, permuted = full_look(e, f), full_look(e[:, p], f[:, q])
    assert permuted.log_p == pytest.approx(plain.log_p, rel=1e-10)
    np.testing.assert_array_equal(q[permuted.matching.candidate], p[permuted.matching.reference])


@pytest.mark.parametrize("n_candidate", [40, 30])
def test_the_models_swapped_give_the_transposed_answer(n_candidate):
    e, f, *_ = pair(40, 300, permute=True, n_candidate=n_candidate)
    for one, other in ((full_look(e, f), full_look(f, e)), (look_at(e, f)[1], look_at(f, e)[1])):
        assert other.log_p == pytest.approx(one.log_p, rel=1e-10)
        assert other.log_p_trimmed == pytest.approx(one.log_p_trimmed, rel=1e-10)
        assert {(a, b) for a, b in zip(one.matching.reference, one.matching.candidate, strict=True)} == {
            (b, a) for a, b in zip(other.matching.reference, other.matching.candidate, strict=True)
        }


def test_the_permutation_test_misses_a_hidden_rotation():
    e, f, *_ = pair(64, 600, noise=0.5)
    q = torch.from_numpy(textbook.haar(64, np.random.default_rng(3)))
    test, look = look_at(e, f @ q)
    assert look.log_p == 0.0
    plain = look_at(e, f)[0]
    np.testing.assert_allclose(test.polar, plain.polar @ q, atol=1e-9)


def test_rotating_one_stranger_does_not_change_the_distribution_of_the_trace():
    # Highly structured strangers: axis-aligned and sparse, with one model the same in every draw.
    rng = np.random.default_rng(4)
    n, n_tokens, n_draws = 24, 100, 150
    e = torch.from_numpy(rng.standard_normal((n_tokens, n)) * (rng.uniform(size=(n_tokens, n)) < 0.1))
    f = e + torch.from_numpy(0.1 * rng.standard_normal((n_tokens, n)))
    structured = [look_at(e, f @ torch.from_numpy(textbook.haar(n, rng)))[1].matching.trace for _ in range(n_draws)]
    gaussian = [look_at(*strangers(n, n_tokens, seed=k))[1].matching.trace for k in range(n_draws)]
    spread = math.sqrt((np.var(structured) + np.var(gaussian)) / n_draws)
    assert abs(np.mean(structured) - np.mean(gaussian)) < 4 * spread
    assert look_at(e, f)[1].matching.trace > max(gaussian) + 5  # the same pair unrotated


def test_rotating_both_alike_hides_no_identity():
    # With E' = E the factor is the identity, and Q^T I Q = I: a copy is found in every basis.
    e, _ = strangers(48, 300)
    q = torch.from_numpy(textbook.haar(48, np.random.default_rng(5)))
    assert look_at(e @ q, e @ q)[1].log_p == pytest.approx(look_at(e, e)[1].log_p, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_weights_are_found_as_well(dtype):
    e, f, *_ = pair(64, 500, permute=True)
    exact, rounded = full_look(e, f), full_look(e.to(dtype), f.to(dtype))
    np.testing.assert_array_equal(rounded.matching.candidate, exact.matching.candidate)
    # bfloat16 rounds each weight by 0.4 %, far less than the noise of the pair.
    assert rounded.log_p == pytest.approx(exact.log_p, rel=1e-2)


def test_duplicate_rows_change_little_of_a_match_and_make_none():
    e, f, *_ = pair(48, 300)
    twice = torch.cat([torch.arange(300), torch.arange(100)])
    assert full_look(e[twice], f[twice]).log_p < LOG_ALPHA
    x, y = strangers(48, 300)
    assert full_look(x[twice], y[twice]).log_p == 0.0


def test_zero_rows_in_the_stream_count_as_no_tokens():
    e, f, *_ = pair(48, 300)
    padded = [torch.cat([m, torch.zeros(50, 48, dtype=m.dtype)]) for m in (e, f)]
    look = full_look(*padded, sample=300)
    assert look.n_rows == 300
    assert look.log_p == pytest.approx(full_look(e, f, sample=300).log_p, rel=1e-12)


def test_rows_that_are_not_finite_count_as_no_tokens():
    e, f, *_ = pair(48, 300)
    f[17, 5] = math.nan
    e[200, 0] = math.inf
    look = full_look(e, f, sample=100)
    assert look.n_rows == 298
    assert look.log_p < LOG_ALPHA


def test_constant_columns_cost_rank_and_nothing_else():
    e, f, *_ = pair(48, 300, noise=0.3)
    e[:, :4] = 0.25
    f[:, :4] = -7.0
    look = full_look(e, f)
    assert look.rank == 44
    assert look.log_p < LOG_ALPHA
    assert np.isfinite(look.matching.entries).all()
    keep = look.matching.reference >= 4
    np.testing.assert_array_equal(look.matching.candidate[keep], np.arange(4, 48))


@pytest.mark.parametrize("r", [0, 1])
def test_a_single_common_token_is_not_significant(r):
    e, f, *_ = pair(16, 50, noise=0.0)
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    look = test.screen(e[:r], f[:r], is_last=True)
    assert (look.rank, look.log_p, look.n_rows) == (0, 0.0, 0)
    assert test.full(blocks(e[:r], f[:r])).log_p == 0.0
    assert not test.is_significant


class TestManyRowsOfWideModels:
    """With more than FEW_ROWS rows and channels, a screen reads only a few channels of the reference."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(embedding_module, "FEW_ROWS", 64)
        monkeypatch.setattr(embedding_module, "SCREEN_CHANNELS", 32)

    def test_a_relative_is_found_on_the_channels_drawn(self):
        e, f, *_ = pair(128, 1500, permute=True)
        test = EmbeddingTest(log_alpha=LOG_ALPHA)
        look = test.screen(e, f)
        assert test.polar.shape == (32, 128)
        assert look.log_p < LOG_ALPHA
        assert test.is_significant

    def test_its_channels_go_by_their_numbers_in_the_model(self):
        e, f, permutation, _ = pair(128, 1500, noise=0.5, permute=True, signs=True)
        look = EmbeddingTest(log_alpha=LOG_ALPHA).screen(e, f)
        np.testing.assert_array_equal(permutation[look.matching.candidate], look.matching.reference)
        np.testing.assert_array_equal(look.channels, look.matching.reference)
        np.testing.assert_array_equal(look.on_factor.reference, np.arange(32))
        assert abs(matched_scale(e, f, look.matching) - 1.0) < 0.01  # 48,000 entries, noise of half their size

    def test_channels_in_their_own_order_are_compared_with_themselves(self):
        e, f, *_ = pair(128, 1500, noise=12.0)
        look = EmbeddingTest(log_alpha=math.log(1e-4)).screen(e, f)
        assert look.matching.log_p_signs is not None
        assert look.log_p < math.log(1e-4)
        assert look.matching.is_identity

    def test_strangers_are_not_found_on_the_channels_drawn(self):
        test = EmbeddingTest(log_alpha=LOG_ALPHA)
        for seed in range(20):
            test.screen(*strangers(128, 400, seed=seed))
        assert test.log_p > math.log(1e-3)

    def test_the_candidate_may_be_narrower_than_the_channels_drawn(self):
        e, f, *_ = pair(128, 1500, n_candidate=24, noise=0.3)
        look = EmbeddingTest(log_alpha=LOG_ALPHA).screen(e, f, is_last=True)
        assert look.matching.trace > 0.0

    def test_the_channels_are_drawn_by_the_seed_alone(self):
        e, f, *_ = pair(128, 400)
        one, same, other = (EmbeddingTest(log_alpha=LOG_ALPHA, seed=s).screen(e, f) for s in (1, 1, 2))
        assert one.log_p == same.log_p != other.log_p

    def test_the_full_look_after_it_is_the_textbooks_in_all_channels(self):
        e, f, *_ = pair(128, 1500)
        test = EmbeddingTest(log_alpha=LOG_ALPHA, n_tests=1)
        test.screen(e, f)
        # Only the sample's means are float32 here; everything after them is float64.
        assert test.full(blocks(e, f, 200)).log_p == pytest.approx(textbook.embedding_test(e, f).log_p, rel=1e-5)


def test_wide_models_are_tested_in_float32_with_the_same_result(monkeypatch):
    e, f, *_ = pair(128, 1000)
    exact = full_look(e, f)
    monkeypatch.setattr(embedding_module, "FLOAT64_CHANNELS", 64)
    look = full_look(e, f)
    assert look.log_p == pytest.approx(exact.log_p, rel=1e-4)
    np.testing.assert_array_equal(look.matching.candidate, exact.matching.candidate)


def test_products_in_slices_are_the_whole_product(monkeypatch):
    e, f, *_ = pair(128, 1000)
    at_once = full_look(e, f)
    monkeypatch.setattr(embedding_module, "PRODUCT_CHANNELS", 48)  # two slices and a remainder
    look = full_look(e, f)
    assert look.log_p == pytest.approx(at_once.log_p, rel=1e-12)  # float64: at most a different order of rounding
    np.testing.assert_array_equal(look.matching.candidate, at_once.matching.candidate)


def test_looks_are_combined_so_that_one_may_stop_at_any():
    e, f, *_ = pair(64, 600, noise=2.0)
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    for rows in (16, 32, 64, 300, 600):
        test.screen(e[:rows], f[:rows])
    corrected = [k.log_p + math.log(s * (s + 1)) for s, k in enumerate(test.looks, start=1)]
    assert test.log_p == min(0.0, *corrected)
    assert test.best_look() is test.looks[int(np.argmin(corrected))]
    assert test.looks[2].log_cost == pytest.approx(math.log(12))


def test_own_order_finds_a_relative_that_no_search_finds():
    # With noise of twenty times the rows, every channel is far below the best of 256 others.
    e, f, *_ = pair(256, 1500, noise=20.0)
    look = full_look(e, f)
    assert max(look.log_p, look.log_p_robust) < LOG_ALPHA
    assert look.log_p_signs is not None
    assert look.matching.is_identity
    e, f, *_ = pair(256, 1500, noise=20.0, permute=True)
    assert full_look(e, f).log_p > math.log(1e-3)


def test_nothing_found_is_reported_by_the_last_look():
    test = EmbeddingTest(log_alpha=LOG_ALPHA)
    for r in (20, 40, 80):
        test.screen(*strangers(32, r))
    assert test.best_look() is test.looks[-1]
    assert not test.is_significant


def test_significance_on_a_few_shared_axes_alone_does_not_settle():
    rng = np.random.default_rng(0)
    n, shared = 128, 30
    e, f = (m.clone() for m in strangers(n, 1000))
    f[:, :shared] = e[:, :shared] + 0.1 * torch.from_numpy(rng.standard_normal((1000, shared)))
    test, look = look_at(e, f)
    assert look.log_p < LOG_ALPHA
    assert look.log_p_robust == 0.0
    assert not test.is_significant


def test_weights_that_require_gradients_are_only_read():
    e, f, *_ = pair(32, 200)
    weight = torch.nn.Parameter(e.float())
    look = full_look(weight, f)
    assert look.log_p < LOG_ALPHA
    assert weight.grad is None


def test_the_scale_of_a_plain_copy_is_one():
    e, _ = strangers(32, 200)
    assert matched_scale(e, e, look_at(e, e)[1].matching) == pytest.approx(1.0, rel=1e-12)


def test_a_negated_copy_has_every_sign_negative():
    e, _ = strangers(32, 200)
    matching = look_at(e, -2.0 * e)[1].matching
    assert matching.signed
    assert matching.n_negative == 32
    assert matched_scale(e, -2.0 * e, matching) == pytest.approx(2.0, rel=1e-12)


# --- Algorithm 1 as the paper prints it, against the textbook, and its sentence in a report


def result(x, y):
    algorithm = PrintedAlgorithm((x.shape[1], y.shape[1]))
    for start in range(0, len(x), 50):
        for _ in algorithm.watching([(x[start : start + 50], y[start : start + 50])]):
            pass
    return algorithm.result(axes_stand_out=None)


@pytest.fixture
def rows():
    return torch.from_numpy(np.random.default_rng(0).standard_normal((300, 24)))


def test_scale_and_order_of_channels_change_no_trace(rows):
    """The paper's theorem on scaling and permutation (appendix)."""
    noisy = rows + 0.5 * torch.from_numpy(np.random.default_rng(1).standard_normal((300, 24)))
    before, after = result(rows, noisy), result(rows, 3.0 * noisy[:, torch.randperm(24)])
    assert after.trace == pytest.approx(before.trace)
    assert before.log10_p == pytest.approx((math.lgamma(25) - before.trace**2 / 2) / math.log(10.0))


def test_the_trace_matches_the_textbook_factor(rows):
    other = rows @ torch.from_numpy(haar(24, np.random.default_rng(2)))
    factor = polar((rows.T @ other).numpy())
    from scipy.optimize import linear_sum_assignment

    assert result(rows, other).trace == pytest.approx(factor[linear_sum_assignment(factor, maximize=True)].sum())


def test_few_tokens_have_a_rank_below_the_width(rows):
    assert result(rows[:10], rows[:10]).rank == 10


def test_embeddings_of_other_width_have_no_p_of_the_paper(rows):
    assert result(rows, rows[:, :16]).log10_p is None


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
