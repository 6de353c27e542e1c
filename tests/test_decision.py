"""The verdict rules, one by one."""

from __future__ import annotations

import dataclasses
import math

import pytest

from mdir_hf.comparison.decision import BodySummary, Evidence, could_settle, decide
from mdir_hf.report import Level, Reason, SettledBy, Verdict

ALPHA = 1e-10
FOUND = Evidence(
    log_p=-500.0,
    log_p_robust=-100.0,
    is_settled=True,
    settled_by=SettledBy.SCREEN,
    strength=0.4,
    coverage=0.5,
    off_match_share=0.3,
    re_paired_is_significant=False,
    basis_z=(0.0, 0.0),
    common_tokens=1000,
    rows_used=512,
    widths=(64, 64),
)
NOTHING = dataclasses.replace(FOUND, log_p=0.0, log_p_robust=0.0, is_settled=False, settled_by=None)


def verdict(*evidence: Evidence, level: Level = Level.AUTO):
    named = dict(zip(("embedding", "unembedding"), evidence, strict=False))
    decision = decide(named, alpha=ALPHA, level=level)
    return decision.verdict, decision.reason


def test_significant_both_ways_with_a_placebo_that_is_not_is_homologous():
    assert verdict(FOUND) == (Verdict.HOMOLOGOUS, None)


def test_nothing_significant_is_no_evidence():
    assert verdict(NOTHING) == (Verdict.NO_EVIDENCE, None)


def test_one_matrix_is_enough():
    assert verdict(NOTHING, dataclasses.replace(FOUND, settled_by=SettledBy.UNEMBEDDING))[0] is Verdict.HOMOLOGOUS


def test_significant_on_the_best_channels_only_is_few_shared_axes():
    shared = dataclasses.replace(FOUND, log_p_robust=0.0, is_settled=False)
    assert verdict(shared) == (Verdict.INCONCLUSIVE, Reason.FEW_SHARED_AXES)


def test_a_significant_placebo_makes_it_inconclusive():
    loud = dataclasses.replace(FOUND, re_paired_is_significant=True)
    assert verdict(loud) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_too_few_tokens_for_even_a_copy_is_inconclusive():
    few = dataclasses.replace(NOTHING, common_tokens=9, rows_used=9)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (NOTHING, (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)),
        (FOUND, (Verdict.HOMOLOGOUS, None)),
        (dataclasses.replace(NOTHING, rows_used=0), (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)),
    ],
)
def test_layers_that_cannot_be_read_matter_where_nothing_else_decides(evidence, expected):
    decision = decide({"embedding": evidence}, alpha=ALPHA, level=Level.AUTO, layers_are_unreadable=True)
    assert (decision.verdict, decision.reason) == expected


def test_embeddings_of_zeros_are_inconclusive():
    empty = dataclasses.replace(NOTHING, rows_used=0)
    assert verdict(empty) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)


@pytest.mark.parametrize("better", [{"strength": 0.9}, {"off_match_share": 0.01}])
def test_axes_that_stand_out_in_both_models_ask_for_a_strong_or_clean_match_and_become_a_caveat(better):
    both = dataclasses.replace(FOUND, basis_z=(30.0, -20.0), widths=(256, 256))
    assert verdict(both) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    strong = decide({"embedding": dataclasses.replace(both, **better)}, alpha=ALPHA, level=Level.AUTO)
    assert strong.verdict is Verdict.HOMOLOGOUS
    assert any("p is no theorem" in caveat for caveat in strong.caveats)


@pytest.mark.parametrize("fitted_on", ["embeddings", "keys of the layers"])
def test_a_rotation_is_said_to_be_fitted_on_what_it_was(fitted_on):
    for is_supported in (True, False):
        body = dataclasses.replace(BODY, outer="rotation", fitted_on=fitted_on, is_supported=is_supported)
        caveats = decide({"embedding": NOTHING}, alpha=ALPHA, level=Level.AUTO, body=body).caveats
        assert any(f"fitted on the {fitted_on}" in caveat for caveat in caveats)


@pytest.mark.parametrize(("width", "expected"), [(64, Verdict.INCONCLUSIVE), (160, Verdict.HOMOLOGOUS)])
def test_a_model_too_narrow_to_show_off_match_hits_is_not_clean_for_want_of_them(width, expected):
    # A fresh draw of strangers at width 64: strength 0.634, coverage 0.56, not one off-match hit.
    clean = dataclasses.replace(
        FOUND, basis_z=(42.0, 39.0), strength=0.634, coverage=0.56, off_match_share=0.0, widths=(width, width)
    )
    assert verdict(clean)[0] is expected


def test_a_match_of_few_channels_is_not_clean_for_want_of_off_match_hits():
    few = dataclasses.replace(FOUND, basis_z=(30.0, -20.0), coverage=0.05, off_match_share=0.0)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_axes_that_stand_out_in_one_model_do_not_matter():
    one = decide({"embedding": dataclasses.replace(FOUND, basis_z=(30.0, 1.0))}, alpha=ALPHA, level=Level.AUTO)
    assert one.verdict is Verdict.HOMOLOGOUS
    assert not any("stand out" in caveat for caveat in one.caveats)


def test_layers_settle_what_an_embedding_with_privileged_axes_leaves_open():
    both = dataclasses.replace(FOUND, basis_z=(30.0, -20.0))
    decision = decide({"embedding": both}, alpha=ALPHA, level=Level.AUTO, body=BODY)
    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, "body")


@pytest.mark.parametrize("n", [64, 896, 4096])
def test_whether_a_copy_could_be_significant_agrees_with_the_bound(n):
    # Half of the channels of a copy on r tokens: trace and energy r/2, against ln (n!/(n/2)!) + ln C(n, n/2).
    matchings = math.lgamma(n + 1) - math.lgamma(n // 2 + 1) + math.lgamma(n + 1) - 2 * math.lgamma(n // 2 + 1)
    rank_needed = (matchings + math.log(720) - math.log(ALPHA)) * 4 / n
    for rank, able in ((math.ceil(rank_needed) + 1, True), (math.floor(rank_needed) - 1, False)):
        tokens = dataclasses.replace(NOTHING, widths=(n, n), common_tokens=rank + 1)
        assert could_settle(tokens, ALPHA) is able


BODY = BodySummary(
    log_p=-500.0,
    outer="identity",
    fitted_on="embeddings",
    off_match_share=0.0,
    placebo_is_significant=False,
    is_supported=True,
)


def body_verdict(body):
    decision = decide({"embedding": NOTHING}, alpha=ALPHA, level=Level.AUTO, body=body)
    return decision.verdict, decision.reason, decision.settled_by


def test_a_significant_layer_map_is_homologous_where_the_embedding_is_not():
    assert body_verdict(BODY) == (Verdict.HOMOLOGOUS, None, "body")


def test_a_layer_map_that_is_not_significant_is_no_evidence():
    assert body_verdict(dataclasses.replace(BODY, log_p=0.0)) == (Verdict.NO_EVIDENCE, None, None)


@pytest.mark.parametrize(
    "doubt", [{"off_match_share": 0.5}, {"placebo_is_significant": True}, {"outer": "rotation", "is_supported": False}]
)
def test_a_layer_map_whose_null_does_not_hold_is_inconclusive(doubt):
    body = dataclasses.replace(BODY, **doubt)
    assert body_verdict(body) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED, None)
