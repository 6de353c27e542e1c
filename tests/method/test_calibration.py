import math

import numpy as np
import pytest
import torch
from mdir_hf.method.calibration import calibrate, count_off_match_channels, privileged_basis_z

from mdir_hf.method import calibration as calibration_module
from mdir_hf.method.embedding import EmbeddingTest
from mdir_hf.method.matching import REMARKABLE, best_matching
from mdir_hf.method.polar import row_factors
from mdir_hf.method.rows import pair_rows

LOG10_LEVEL = math.log10(REMARKABLE)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(r, n, seed):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((r, n)))


def sparse(r, n, seed, share=0.05):
    """Every token loads on a few axes: a model with a privileged basis."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((r, n)) * (rng.uniform(size=(r, n)) < share))


@pytest.mark.parametrize("widths", [(64, 64), (64, 96), (96, 64)])
def test_placebos_of_strangers_are_not_significant(widths):
    for seed in range(5):
        found = calibrate(
            pair_rows(gaussian(300, widths[0], seed), gaussian(300, widths[1], 100 + seed)), generator=generator(seed)
        )
        assert found.re_paired.log10_p > LOG10_LEVEL
        assert found.rotated.log10_p > LOG10_LEVEL
        assert found.rotated.channels == min(widths)


def test_placebos_of_relatives_are_not_significant():
    e = gaussian(300, 64, 0)
    found = calibrate(pair_rows(e, e + 0.1 * gaussian(300, 64, 1)), generator=generator())
    assert found.re_paired.log10_p > LOG10_LEVEL
    assert found.rotated.log10_p > LOG10_LEVEL


def test_re_pairing_shows_an_artefact_of_column_scales():
    scales = torch.from_numpy(np.exp(2.5 * np.random.default_rng(0).standard_normal(64)))
    found = calibrate(pair_rows(gaussian(300, 64, 1) * scales, gaussian(300, 64, 2) * scales), generator=generator())
    plain = calibrate(pair_rows(gaussian(300, 64, 1), gaussian(300, 64, 2)), generator=generator())
    assert found.re_paired.trace > plain.re_paired.trace + 3
    assert found.rotated.trace == pytest.approx(plain.rotated.trace, abs=2.0)  # a rotation hides it


def test_the_rotated_placebo_agrees_with_the_null():
    # From a separate simulation of 24 draws: at n = 128 the null has mean 27.85 and sd 0.33; the threshold is 31.73.
    found = calibrate(pair_rows(gaussian(512, 128, 1), gaussian(512, 128, 2)), generator=generator())
    assert found.rotated.trace == pytest.approx(27.85, abs=4 * 0.33)
    assert found.rotated.threshold == pytest.approx(31.73, abs=0.01)


def test_the_random_frame_is_uniform():
    # Without fixed signs, the first entry of LAPACK's Q is never positive.
    like = torch.zeros(6, 3, dtype=torch.float64)
    frames = torch.stack([calibration_module._haar_frame(like, generator(seed)) for seed in range(2000)])
    np.testing.assert_allclose(frames.mT @ frames, np.broadcast_to(np.eye(3), (2000, 3, 3)), atol=1e-12)
    assert float(frames.mean(dim=0).abs().max()) < 4.5 / math.sqrt(6 * 2000)  # 18 means of sd 1/sqrt(6 draws)
    np.testing.assert_allclose((frames**2).mean(dim=0), 1 / 6, atol=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_the_axes_of_a_rotation_invariant_model_do_not_stand_out(seed):
    rows = pair_rows(gaussian(400, 96, seed), gaussian(400, 96, 50)).reference
    assert abs(privileged_basis_z(rows, generator=generator(seed))) < 4.0


def test_the_axes_of_an_anisotropic_model_do_not_stand_out():
    rng = np.random.default_rng(1)
    q, _ = np.linalg.qr(rng.standard_normal((96, 96)))
    e = torch.from_numpy(rng.standard_normal((2000, 96)) * (1.0 + np.arange(96)) ** -0.5 @ q)
    rows = pair_rows(e, e).reference
    assert abs(privileged_basis_z(rows, generator=generator())) < 4.0


@pytest.mark.parametrize(
    "model",
    [sparse(400, 96, 0), gaussian(400, 96, 0) * torch.from_numpy(np.exp(np.random.default_rng(1).standard_normal(96)))],
    ids=["sparse", "column scales"],
)
def test_the_axes_of_a_model_with_a_basis_of_its_own_stand_out(model):
    rows = pair_rows(model, model).reference
    assert abs(privileged_basis_z(rows, generator=generator())) > 6.0


def test_the_shape_of_columns_matches_the_textbook():
    columns = sparse(60, 2 * calibration_module.COLUMNS_AT_ONCE + 3, 0, share=0.5)
    kurtosis, spread = calibration_module._shape(columns)

    x = columns.numpy()
    centred = x - x.mean(axis=0)
    log_norm = np.log(centred.std(axis=0))
    # Sums of 60 values in a different order: a few units in the last place of float64.
    np.testing.assert_allclose(kurtosis, (centred**4).mean(axis=0) / centred.var(axis=0) ** 2 - 3.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(spread, abs(log_norm - log_norm.mean()), rtol=0, atol=1e-12)


def test_too_few_rows_have_no_index():
    rows = pair_rows(gaussian(7, 16, 0), gaussian(7, 16, 1)).reference
    assert privileged_basis_z(rows, generator=generator()) == 0.0


def test_the_calibration_is_decided_by_its_seed():
    rows = pair_rows(gaussian(100, 48, 0), gaussian(100, 48, 1))
    assert calibrate(rows, generator=generator(3)) == calibrate(rows, generator=generator(3))
    assert calibrate(rows, generator=generator(3)) != calibrate(rows, generator=generator(4))


@pytest.mark.parametrize(("most_rows", "n_made"), [(100, 0), (60, 2)], ids=["all rows", "some rows"])
def test_factors_of_the_screen_serve_again_for_the_same_rows(monkeypatch, most_rows, n_made):
    monkeypatch.setattr(calibration_module, "MAX_PLACEBO_ROWS", most_rows)
    test = EmbeddingTest(log_alpha=math.log(1e-10))
    test.screen(gaussian(100, 48, 0), gaussian(100, 48, 1))
    expected = calibrate(test.rows, generator=generator())
    made = []
    monkeypatch.setattr(calibration_module, "row_factors", lambda rows: made.append(rows) or row_factors(rows))

    assert calibrate(test.rows, generator=generator(), factors=test.row_factors) == expected
    assert len(made) == n_made


def test_many_channels_and_rows_are_sampled(monkeypatch):
    monkeypatch.setattr(calibration_module, "MAX_PLACEBO_CHANNELS", 32)
    monkeypatch.setattr(calibration_module, "MAX_PLACEBO_ROWS", 100)
    found = calibrate(pair_rows(gaussian(300, 48, 0), gaussian(300, 64, 1)), generator=generator())
    assert found.re_paired.channels == 32
    assert found.re_paired.log10_p > LOG10_LEVEL


def test_a_channel_that_resembles_two_is_a_stray():
    polar = torch.eye(256, dtype=torch.float64)
    polar[0, 7] = polar[7, 0] = 0.9  # channels 0 and 7 of each model resemble both of the other
    matching = best_matching(polar, signed=False)
    assert count_off_match_channels(polar, matching) == 2
    assert count_off_match_channels(polar[:, :200], best_matching(polar[:, :200], signed=False)) == 2
    assert count_off_match_channels(torch.eye(64), best_matching(torch.eye(64), signed=False)) == 0


def test_a_haar_matrix_has_no_strays():
    rotation = torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(0))).Q
    # By chance, one entry in a hundred matrices passes the level.
    assert count_off_match_channels(rotation, best_matching(rotation, signed=False)) == 0
