"""The verdict rules, one by one, just below and just above each limit."""

import math
from dataclasses import replace

import pytest
import torch

from mdir_hf.comparison.decide import Evidence, decide
from mdir_hf.comparison.neuron_sample import NeuronSample
from mdir_hf.comparison.neurons import count_neurons
from mdir_hf.report import (
    Assumption,
    LayerPair,
    MatrixResult,
    NeuronNumbers,
    Reason,
    SettledBy,
    StackPair,
    Transformation,
    Verdict,
)
from mdir_hf.thresholds import LEAST_CERTAIN_SHARE

NEAR = NeuronNumbers(
    step=SettledBy.NEAR,
    tested=64,
    fitted=24,
    reference_layers=(3,),
    candidate_layers=(3,),
    own_number=((64,),),
    certain=((64,),),
    matches=(LayerPair(3, 3),),
    log10_p=-88.8,
)
SILENT = replace(NEAR, own_number=((1,),), certain=((0,),), matches=(), log10_p=0.0)
SEARCHED = replace(NEAR, step=SettledBy.KEYS, log10_p=None)
MATRIX = MatrixResult(
    common_tokens=1000,
    rows_used=512,
    rank=64,
    trace=60.0,
    normalized_trace=0.94,
    matched_channels=64,
    transformation=Transformation.IDENTITY,
    scale=1.0,
    cosine=0.9,
    log10_p=-300.0,
    axes_z=(0.0, 0.0),
    is_significant=True,
    widths=(64, 64),
)


SILENT_MATRIX = replace(MATRIX, is_significant=False, cosine=None)
UNREAD_MATRIX = replace(SILENT_MATRIX, rank=0, common_tokens=0, rows_used=0)


def stacks(reference, candidate, *, matches=True):
    layers = (LayerPair(0, 0),) if matches else ()
    verdict = Verdict.HOMOLOGOUS if matches else Verdict.NO_EVIDENCE
    return StackPair(reference=reference, candidate=candidate, verdict=verdict, log10_p=-80.0, layers=layers)


def verdict_of(**evidence):
    decision = decide(Evidence(**evidence))
    return decision.verdict, decision.reason, decision.settled_by


def test_a_match_in_a_fresh_sample_is_homologous_with_the_p_of_its_step():
    decision = decide(Evidence(neurons=(SILENT, NEAR, SEARCHED)))
    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert (decision.log10_p, decision.assumption) == (-88.8, Assumption.NUMBERING)


def test_a_match_that_was_searched_for_has_no_p():
    decision = decide(Evidence(neurons=(SILENT, SEARCHED)))
    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.KEYS)
    assert (decision.log10_p, decision.assumption) == (None, Assumption.CALIBRATION)


def test_equal_files_are_homologous_whatever_the_numbers_of_neurons():
    assert verdict_of(are_files_equal=True) == (Verdict.HOMOLOGOUS, None, SettledBy.IDENTICAL_FILES)
    assert decide(Evidence(are_files_equal=True)).assumption is None


@pytest.mark.parametrize("evidence", [{"neurons": (NEAR,)}, {"parts": (stacks("language model", "talker"),)}])
def test_a_sample_chosen_by_the_caller_is_inconclusive(evidence):
    decided = verdict_of(is_sample_fresh=False, **evidence)
    assert decided == (Verdict.INCONCLUSIVE, Reason.SAMPLE_CHOSEN, None)


@pytest.mark.parametrize(
    ("reference", "candidate", "counts"),
    [
        ("language model", "talker", True),
        ("experts of layer 3", "experts of layer 0", True),
        ("vision tower", "vision tower", False),
        ("language model", "vision tower", True),  # the main stack of one model, whatever it is
    ],
)
def test_only_main_stacks_and_parts_of_language_models_settle_the_question(reference, candidate, counts):
    decided = verdict_of(neurons=(SILENT,), parts=(stacks(reference, candidate),))
    expected = (Verdict.HOMOLOGOUS, None, SettledBy.PARTS) if counts else (Verdict.NO_EVIDENCE, None, None)
    assert decided == expected
    # Without a language model, the towers are all there is.
    of_towers = verdict_of(parts=(stacks(reference, candidate),), have_layers=False)
    assert of_towers[2] is SettledBy.PARTS


@pytest.mark.parametrize(
    ("reference_is_loaded", "candidate_is_loaded", "expected"),
    [
        (True, True, (Verdict.HOMOLOGOUS, None)),
        (True, None, (Verdict.INCONCLUSIVE, Reason.LOADING_UNKNOWN)),
        (True, False, (Verdict.NO_EVIDENCE, None)),
        (False, None, (Verdict.NO_EVIDENCE, None)),
    ],
)
def test_a_part_counts_if_both_models_load_it(reference_is_loaded, candidate_is_loaded, expected):
    pair = stacks("language model", "talker")
    pair = replace(pair, reference_is_loaded=reference_is_loaded, candidate_is_loaded=candidate_is_loaded)
    assert verdict_of(parts=(pair,))[:2] == expected


@pytest.mark.parametrize(("cosine", "is_copied"), [(0.69, False), (0.7, True)])
def test_copied_embeddings_alone_are_inconclusive(cosine, is_copied):
    decided = verdict_of(neurons=(SILENT,), matrices=(replace(MATRIX, cosine=cosine),))
    expected = (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY, None) if is_copied else (Verdict.NO_EVIDENCE, None, None)
    assert decided == expected


def test_a_matrix_that_is_not_significant_is_no_copy():
    matrix = replace(MATRIX, is_significant=False)
    assert verdict_of(matrices=(matrix,))[0] is Verdict.NO_EVIDENCE


def test_copied_attention_alone_is_inconclusive():
    decided = verdict_of(neurons=(SILENT,), has_copied_heads=True)
    assert decided == (Verdict.INCONCLUSIVE, Reason.ATTENTION_ONLY, None)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        ({"is_unfinished": True}, Reason.UNFINISHED),
        ({"have_compared_layers": False}, Reason.WEIGHTS_UNREADABLE),
        ({"have_layers": False}, Reason.WEIGHTS_UNREADABLE),
        ({"have_layers": False, "matrices": (SILENT_MATRIX,)}, None),
        ({"have_layers": False, "matrices": (UNREAD_MATRIX,)}, Reason.WEIGHTS_UNREADABLE),
        ({"have_compared_layers": False, "matrices": (SILENT_MATRIX,)}, Reason.WEIGHTS_UNREADABLE),
        ({"have_compared_layers": False, "have_other_shapes": True, "matrices": (SILENT_MATRIX,)}, None),
        ({"have_compared_layers": False, "have_other_shapes": True}, Reason.WEIGHTS_UNREADABLE),
        (
            {"have_compared_layers": False, "have_other_shapes": True, "matrices": (UNREAD_MATRIX,)},
            Reason.WEIGHTS_UNREADABLE,
        ),
        (
            {"have_compared_layers": False, "parts": (stacks("vision tower", "vision tower", matches=False),)},
            Reason.WEIGHTS_UNREADABLE,
        ),
        ({"have_compared_layers": False, "parts": (stacks("talker", "talker", matches=False),)}, None),
        ({}, None),
    ],
)
def test_what_was_not_compared_is_inconclusive(evidence, reason):
    expected = Verdict.NO_EVIDENCE if reason is None else Verdict.INCONCLUSIVE
    assert verdict_of(**evidence)[:2] == (expected, reason)


# --- when a pair of layers matches


def sample_of(rows, n_neurons=500, layers=(3,)):
    unit = torch.nn.functional.normalize(rows, dim=-1)
    return NeuronSample(layers, n_neurons, rows.shape[2] - 64, unit)


@pytest.fixture
def rows():
    return torch.randn(1, 2, 128, 96, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_copied", [31, 32])
def test_half_of_the_tested_neurons_must_be_certain(rows, n_copied):
    assert LEAST_CERTAIN_SHARE * 64 == 32
    other = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    other[:, :, : 64 + n_copied] = rows[:, :, : 64 + n_copied]
    counts = count_neurons(sample_of(rows), sample_of(other), SettledBy.NUMBER, alpha=1e-10)
    assert counts.certain == ((n_copied,),)
    assert bool(counts.matches) is (n_copied >= 32)


def test_copies_of_gate_or_of_up_alone_are_not_certain(rows):
    for matrix in (0, 1):
        other = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
        other[:, matrix] = rows[:, matrix]
        counts = count_neurons(sample_of(rows), sample_of(other), SettledBy.NUMBER, alpha=1e-10)
        # In the other matrix, 64 random cosines exceed three standard deviations with probability 0.0013 each.
        assert counts.certain[0][0] <= 3 and not counts.matches


def test_p_must_be_below_alpha(rows):
    # 64 own numbers have p = 10^-89.1, times 6 for the second step by number.
    expected = -math.lgamma(65) / math.log(10) + math.log10(6)
    sample = sample_of(rows)
    for alpha, is_match in ((10**expected * 1.01, True), (10**expected * 0.99, False)):
        counts = count_neurons(sample, sample, SettledBy.NUMBER, alpha=alpha)
        assert counts.log10_p == pytest.approx(expected)
        assert bool(counts.matches) is is_match


def test_nominated_pairs_pay_for_all_that_could_have_been(rows):
    sample = sample_of(rows)
    alone, nominated = (
        count_neurons(sample, sample, SettledBy.EVERY, alpha=1e-10, pairs=[(3, 3)], n_nominated_of=n)
        for n in (None, 900)
    )
    assert nominated.log10_p - alone.log10_p == pytest.approx(math.log10(900))


def test_a_search_gives_no_p(rows):
    sample = sample_of(rows)
    counts = count_neurons(sample, sample, SettledBy.KEYS, alpha=1e-10, is_searched=True)
    assert counts.matches and counts.log10_p is None and counts.is_searched
