"""Algorithm 1 as the paper prints it, against the textbook, and the sentence that a report has of it."""

import math

import numpy as np
import pytest
import torch

from mdir_hf.method.paper import PrintedAlgorithm
from mdir_hf.report import PrintedAlgorithm1
from mdir_hf.report.words import printed_text
from tests.method.reference import haar, polar


def result(x, y):
    algorithm = PrintedAlgorithm((x.shape[1], y.shape[1]))
    for start in range(0, len(x), 50):
        for _ in algorithm.watching([(x[start : start + 50], y[start : start + 50])]):
            pass
    return algorithm.result()


@pytest.fixture
def rows():
    return torch.from_numpy(np.random.default_rng(0).standard_normal((300, 24)))


def test_scale_and_order_of_channels_change_no_trace(rows):
    """The theorem of the paper's appendix on scaling and permutation."""
    noisy = rows + 0.5 * torch.from_numpy(np.random.default_rng(1).standard_normal((300, 24)))
    before, after = result(rows, noisy), result(rows, 3.0 * noisy[:, torch.randperm(24)])
    assert after.trace == pytest.approx(before.trace)
    assert before.log_p == pytest.approx(math.lgamma(25) - before.trace**2 / 2)


def test_the_trace_matches_the_textbook_factor(rows):
    other = rows @ torch.from_numpy(haar(24, np.random.default_rng(2)))
    factor = polar((rows.T @ other).numpy())
    from scipy.optimize import linear_sum_assignment

    assert result(rows, other).trace == pytest.approx(factor[linear_sum_assignment(factor, maximize=True)].sum())


def test_few_tokens_have_a_rank_below_the_width(rows):
    assert result(rows[:10], rows[:10]).rank == 10


def test_embeddings_of_other_width_have_no_p_of_the_paper(rows):
    assert result(rows, rows[:, :16]).log_p is None


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
