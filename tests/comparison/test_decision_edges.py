"""The verdict rules exactly at their limits, and the caveat for each result."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mdir_hf.comparison.decide import (
    Decision,
    could_settle,
    has_open_numbering,
    is_numbered_alike,
    is_trusted,
    layers_support,
)
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.report import Level, Reason, ResidualMap, Verdict
from tests.comparison.found import FOUND, LAYERS, NOTHING, changed
from tests.comparison.test_decision import ALPHA, SEARCHED, UNCERTAIN, WITNESS, decided

AT_ALPHA = math.log10(ALPHA)
LN_ALPHA = math.log(ALPHA)
SILENT = changed(LAYERS, log10_p=0.0)


def says(decision: Decision, words: str) -> bool:
    return any(words in caveat for caveat in decision.caveats)


# A p equal to alpha is not below alpha.


@pytest.mark.parametrize("doubt", [{}, {"off_match_share": 0.5}])
def test_layers_at_alpha_are_not_significant_trusted_or_not(doubt):
    decision = decided(NOTHING, layers=changed(LAYERS, log10_p=AT_ALPHA, **doubt))
    assert (decision.verdict, decision.log10_p, decision.log10_p_not_accepted) == (Verdict.NO_EVIDENCE, 0.0, None)


def test_an_untrusted_matrix_at_alpha_shares_no_axes():
    decision = decided(changed(NOTHING, log10_p=AT_ALPHA))
    assert (decision.verdict, decision.log10_p, decision.log10_p_not_accepted) == (Verdict.NO_EVIDENCE, 0.0, None)
    assert not says(decision, "a few channels only")


def test_numbers_at_alpha_are_no_evidence():
    one, other = (changed(FOUND, log10_p_numbering=p, certain_share=1.0) for p in (AT_ALPHA, AT_ALPHA - 1e-9))
    assert not is_numbered_alike(one, AT_ALPHA)
    assert is_numbered_alike(other, AT_ALPHA)


@pytest.mark.parametrize(
    ("fields", "is_open"),
    [
        ({"log10_p_numbering": AT_ALPHA}, False),  # numbers do not match at all
        ({}, False),  # all 64 channels match by number, and half are certain
        ({"certain_share": 0.49}, True),
        ({"certain_share": 0.49, "strength": 0.7}, False),
        ({"widths": (68, 80), "channels": 68}, True),  # 94% of the channels match by number
        ({"widths": (67, 80), "channels": 67}, False),
        ({"widths": (80, 67), "channels": 80}, False),
        ({"widths": (900, 900), "channels": 67}, False),  # of the screened channels
    ],
)
def test_numbering_is_open_until_it_is_saturated_and_evidence(fields, is_open):
    matrix = changed(FOUND, **{"log10_p_numbering": -80.0, "certain_share": 0.5, "strength": 0.4, **fields})
    assert has_open_numbering(matrix, AT_ALPHA) is is_open


def test_a_negative_verdict_prints_only_valid_p():
    by_trace = decided(changed(NOTHING, log10_p=-6.9), layers=changed(LAYERS, log10_p=-5.0))
    assert (by_trace.verdict, by_trace.log10_p) == (Verdict.NO_EVIDENCE, 0.0)
    few_numbers = replace(UNCERTAIN, log10_p=-2.0, certain=((0,),))
    assert decided(NOTHING, layers=SILENT, neurons=few_numbers).log10_p == -2.0  # a p from numbers is a bound


def test_the_smallest_of_several_refused_p_stays_visible():
    loud = [changed(FOUND, log10_p=log10_p, re_paired=True) for log10_p in (-300.0, -400.0)]
    assert decided(*loud).log10_p_not_accepted == -400.0


def test_p_is_one_if_all_findings_are_refused():
    decision = decided(changed(FOUND, re_paired=True))
    assert (decision.log10_p, decision.log10_p_not_accepted) == (0.0, FOUND.log10_p)


# Results that would have been significant.


@pytest.mark.parametrize("n", [64, 896, 4096])
def test_the_bound_for_half_of_a_copy_decides_whether_it_could_be_found(n):
    # Half of the channels of a copy with r tokens: trace and energy are r/2, against ln (n!/(n/2)!) + ln C(n, n/2), in
    # the ninth look (9 * 10) of 8 tests.
    tests = math.lgamma(n + 1) - math.lgamma(n // 2 + 1) + math.lgamma(n + 1) - 2 * math.lgamma(n // 2 + 1)
    tests += math.log(720)
    rank = math.ceil(4 * tests / n) + (n == 64)  # slightly more than p = 1 needs
    log_p = tests - 0.25 * n * rank
    tokens = changed(NOTHING, widths=(n, n), common_tokens=rank + 1)
    assert could_settle(tokens, math.exp(log_p + 0.01))
    assert not could_settle(tokens, math.exp(log_p - 0.01))


@pytest.mark.parametrize(("common_tokens", "rows_used"), [(0, 0), (1, 1), (2, 2), (50_000, 0)])
def test_a_copy_with_two_tokens_or_zero_rows_cannot_be_significant(common_tokens, rows_used):
    few = changed(NOTHING, common_tokens=common_tokens, rows_used=rows_used)
    assert not could_settle(few, 0.05)


def test_one_matrix_that_could_have_shown_a_copy_allows_a_negative_verdict():
    few = changed(NOTHING, common_tokens=9, rows_used=9)
    assert decided(few, NOTHING).verdict is Verdict.NO_EVIDENCE
    assert decided(few, few).reason is Reason.TOO_FEW_COMMON_TOKENS


def test_shared_axes_are_inconclusive_if_layers_are_unknown():
    shared = changed(FOUND, settled_by=None)
    assert decided(shared, layers=SILENT).reason is Reason.FEW_SHARED_AXES


def test_the_narrower_model_decides_whether_off_match_hits_would_show():
    clean = changed(FOUND, basis_z=(30.0, -20.0), strength=0.3, off_match_share=0.0)
    assert not is_trusted(changed(clean, widths=(118, 896)))
    assert not is_trusted(changed(clean, widths=(896, 118)))
    assert is_trusted(changed(clean, widths=(119, 896)))


def test_numbered_channels_in_both_require_a_clean_match():
    weak = changed(FOUND, channel_numbers_mean_something=True, strength=0.5, off_match_share=1.0)
    assert not is_trusted(weak) and says(decided(weak), "a channel's number has a meaning, and")
    assert is_trusted(changed(weak, channel_numbers_mean_something=False))
    assert is_trusted(changed(weak, strength=0.7))


def test_a_single_layer_behind_a_rotation_has_all_of_alpha():
    (only,) = [(0, 0, ModuleEvidence("v", "subspaces", 1.0, 0.5, LN_ALPHA - 0.1, 1.0, None, ""))]
    assert layers_support([only], "rotation", LN_ALPHA)
    assert not layers_support([(0, 0, replace(only[2], log_p=LN_ALPHA))], "rotation", LN_ALPHA)


def test_layers_alone_can_be_judged():
    assert decided(layers=SILENT).verdict is Verdict.NO_EVIDENCE
    assert decided(layers=LAYERS, neurons=SEARCHED).verdict is Verdict.HOMOLOGOUS


# Caveats.


def test_own_order_is_mentioned_only_if_it_decided():
    in_order = decided(changed(FOUND, log10_p_signs=-20.0), neurons=WITNESS)
    assert says(in_order, "in their own order") and says(in_order, "computed from the old ones")
    assert not says(decided(FOUND, neurons=WITNESS), "in their own order")


def test_a_finding_describes_its_witness():
    assert says(decided(FOUND, neurons=WITNESS), "separately by down")
    assert says(decided(FOUND, neurons=SEARCHED), "were first searched for among all neurons")
    assert says(decided(NOTHING, neurons=WITNESS), "rests on the neurons alone")


def test_a_doubt_names_its_subject():
    loud = changed(FOUND, re_paired=True)
    assert says(decided(loud), "re-paired tokens is significant")
    both = changed(FOUND, basis_z=(30.0, -20.0))
    assert says(decided(both), "is neither strong")
    assert not says(decided(both), "re-paired")


@pytest.mark.parametrize(
    ("residual_map", "fitted_on", "is_told"),
    [
        ("identity", "keys of the layers", False),
        ("rotation", "embeddings", False),
        ("permutation", "keys of the layers", True),
        ("rotation", "keys of the layers", True),
    ],
)
def test_a_basis_found_on_the_layers_own_keys_is_mentioned(residual_map, fitted_on, is_told):
    layers = changed(LAYERS, residual_map=ResidualMap(residual_map), fitted_on=fitted_on)
    assert says(decided(NOTHING, layers=layers), "fitted on their own keys") is is_told


@pytest.mark.parametrize(
    ("level", "rows_used", "is_told"),
    [(Level.SCREEN, 999, True), (Level.SCREEN, 1000, False), (Level.AUTO, 999, False)],
)
def test_a_negative_screen_says_how_few_tokens_it_read(level, rows_used, is_told):
    seen = changed(NOTHING, common_tokens=1000, rows_used=rows_used)
    assert says(decided(seen, level=level), "common tokens were compared") is is_told


@pytest.mark.parametrize(("widths", "is_told"), [((1001, 1001), True), ((1000, 1000), False), ((64, 2000), False)])
def test_fewer_tokens_than_channels_make_a_weak_test(widths, is_told):
    weak = changed(NOTHING, common_tokens=1000, widths=widths)
    assert says(decided(weak, layers=SILENT), "which makes the test weak") is is_told


def test_a_negative_verdict_without_layers_says_so():
    assert says(decided(NOTHING), "layers were not compared")
    assert not says(decided(NOTHING, layers=SILENT), "layers were not compared")
