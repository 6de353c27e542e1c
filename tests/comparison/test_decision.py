"""The verdict rules, one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.comparison.decide import Decision, decide, is_trusted, layers_support, where_tokens_are_unknown
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.report import (
    LayerPair,
    Level,
    MatrixResult,
    NeuronNumbers,
    Reason,
    ResidualMap,
    SettledBy,
    Verdict,
)
from tests.comparison.found import FOUND, LAYERS, NOTHING, changed

ALPHA = 1e-10


def verdict(*evidence: MatrixResult, level: Level = Level.AUTO):
    named = dict(zip(("embedding", "unembedding"), evidence, strict=False))
    decision = decide(named, alpha=ALPHA, level=level)
    return decision.verdict, decision.reason


def test_significant_both_ways_with_a_silent_placebo_is_homologous():
    assert verdict(FOUND) == (Verdict.HOMOLOGOUS, None)


def test_nothing_significant_is_no_evidence():
    assert verdict(NOTHING) == (Verdict.NO_EVIDENCE, None)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (FOUND, (Verdict.HOMOLOGOUS, None)),
        (NOTHING, (Verdict.INCONCLUSIVE, Reason.TOKENS_UNKNOWN)),
        (changed(NOTHING, common_tokens=3), (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)),
    ],
)
def test_where_tokens_are_unknown_only_a_finding_stands(found, expected):
    decision = decide({"embedding": found}, alpha=ALPHA, level=Level.AUTO)
    unknown = where_tokens_are_unknown(decision)
    assert (unknown.verdict, unknown.reason) == expected
    assert (unknown.log10_p, unknown.caveats) == (decision.log10_p, decision.caveats)


def test_one_matrix_is_enough():
    assert verdict(NOTHING, changed(FOUND, settled_by=SettledBy.UNEMBEDDING))[0] is Verdict.HOMOLOGOUS


def test_significant_on_the_best_channels_only_is_few_shared_axes():
    shared = changed(FOUND, settled_by=None)
    assert verdict(shared) == (Verdict.INCONCLUSIVE, Reason.FEW_SHARED_AXES)


def test_a_significant_placebo_makes_it_inconclusive():
    loud = changed(FOUND, re_paired=True)
    assert verdict(loud) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_too_few_tokens_for_even_a_copy_is_inconclusive():
    few = changed(NOTHING, common_tokens=9, rows_used=9)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (NOTHING, (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)),
        (FOUND, (Verdict.HOMOLOGOUS, None)),
        (changed(NOTHING, rows_used=0), (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)),
    ],
)
def test_unreadable_layers_matter_where_nothing_else_decides(evidence, expected):
    decision = decide({"embedding": evidence}, alpha=ALPHA, level=Level.AUTO, layers_are_unreadable=True)
    assert (decision.verdict, decision.reason) == expected


@pytest.mark.parametrize("better", [{"strength": 0.9}, {"off_match_share": 0.01}])
def test_axes_that_stand_out_in_both_ask_for_a_clean_match(better):
    both = changed(FOUND, basis_z=(30.0, -20.0), widths=(256, 256))
    assert verdict(both) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    strong = decide({"embedding": changed(both, **better)}, alpha=ALPHA, level=Level.AUTO)
    assert strong.verdict is Verdict.HOMOLOGOUS
    assert any("bounds nothing here" in caveat for caveat in strong.caveats)


@pytest.mark.parametrize("fitted_on", ["embeddings", "keys of the layers"])
def test_a_rotation_is_said_to_be_fitted_on_what_it_was(fitted_on):
    for is_supported in (True, False):
        layers = changed(LAYERS, residual_map=ResidualMap.ROTATION, fitted_on=fitted_on, is_supported=is_supported)
        caveats = decide({"embedding": NOTHING}, alpha=ALPHA, level=Level.AUTO, layers=layers).caveats
        assert any(f"fitted on the {fitted_on}" in caveat for caveat in caveats)


@pytest.mark.parametrize(("width", "expected"), [(64, Verdict.INCONCLUSIVE), (160, Verdict.HOMOLOGOUS)])
def test_a_narrow_model_is_not_clean_for_want_of_hits(width, expected):
    # A fresh draw of strangers at width 64: strength 0.634, coverage 0.56, not one off-match hit.
    clean = changed(
        FOUND, basis_z=(42.0, 39.0), strength=0.634, coverage=0.56, off_match_share=0.0, widths=(width, width)
    )
    assert verdict(clean)[0] is expected


def test_a_match_of_few_channels_is_not_clean_for_want_of_hits():
    few = changed(FOUND, basis_z=(30.0, -20.0), coverage=0.05, off_match_share=0.0)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_axes_that_stand_out_in_one_model_do_not_matter():
    one = decide({"embedding": changed(FOUND, basis_z=(30.0, 1.0))}, alpha=ALPHA, level=Level.AUTO)
    assert one.verdict is Verdict.HOMOLOGOUS
    assert not any("stand out" in caveat for caveat in one.caveats)


AXES = changed(FOUND, basis_z=(30.0, -20.0), strength=0.9)
NUMBERED = changed(AXES, log10_p_numbering=-300.0, certain_share=0.5)


def stated(evidence):
    decision = decide({"embedding": evidence}, alpha=ALPHA, level=Level.AUTO)
    assert decision.verdict is Verdict.HOMOLOGOUS
    return decision.log10_p, decision.assumption, any("bounds nothing" in caveat for caveat in decision.caveats)


def test_the_headline_is_what_is_proved_and_says_on_what():
    assert stated(FOUND) == (FOUND.log10_p, "rotation", False)
    assert stated(AXES) == (FOUND.log10_p, "calibration", True)
    assert stated(NUMBERED) == (-300.0, "numbering", False)


@pytest.mark.parametrize("less", [{"certain_share": 0.49}, {"log10_p_numbering": -9.0}, {"log10_p_numbering": 0.0}])
def test_numbers_that_somebody_may_have_chosen_are_no_headline(less):
    assert stated(changed(NUMBERED, **less)) == (FOUND.log10_p, "calibration", True)


def test_numbers_alone_are_no_verdict():
    arranged = changed(NOTHING, log10_p_numbering=-300.0, certain_share=0.4)
    assert verdict(arranged) == (Verdict.NO_EVIDENCE, None)


MATCHED = NeuronNumbers(
    tested=32,
    fitted=64,
    reference_layers=(0,),
    candidate_layers=(0,),
    own_number=((32,),),
    certain=((32,),),
    matches=(LayerPair(0, 0),),
    log10_p=-31.0,
)
UNCERTAIN = replace(MATCHED, certain=((8,),), matches=())


def of_neurons(neurons, evidence=NOTHING, layers=None, alpha=ALPHA):
    decision = decide({"embedding": evidence}, layers, neurons, alpha=alpha, level=Level.AUTO)
    return decision.verdict, decision.settled_by, decision.log10_p


def test_neurons_that_match_settle_it():
    assert of_neurons(MATCHED) == (Verdict.HOMOLOGOUS, SettledBy.NEURONS, -31.0)
    assert of_neurons(MATCHED, alpha=1e-31)[0] is Verdict.NO_EVIDENCE  # not below it


def test_significant_neurons_that_are_not_certain_are_a_doubt():
    decision = decide({"embedding": NOTHING}, None, UNCERTAIN, alpha=ALPHA, level=Level.AUTO)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert decision.log10_p_not_accepted == -31.0
    assert of_neurons(UNCERTAIN, alpha=1e-31)[0] is Verdict.NO_EVIDENCE
    assert of_neurons(UNCERTAIN, layers=LAYERS)[:2] == (Verdict.HOMOLOGOUS, SettledBy.LAYERS)


def test_neurons_prove_what_embeddings_with_axes_only_show():
    assert of_neurons(MATCHED, AXES) == (Verdict.HOMOLOGOUS, AXES.settled_by, -31.0)
    assert of_neurons(UNCERTAIN, AXES)[2] == AXES.log10_p
    assert of_neurons(MATCHED, FOUND)[2] == FOUND.log10_p  # which are proof themselves


@pytest.mark.parametrize(
    ("verdict", "log10_p", "headline"),
    [
        (Verdict.HOMOLOGOUS, -60.0, -60.0),
        (Verdict.HOMOLOGOUS, -10.0, math.nextafter(-10.0, -math.inf)),  # rounded up on its way
        (Verdict.NO_EVIDENCE, -11.0, -10.0),
        (Verdict.NO_EVIDENCE, -3.0, -3.0),
        (Verdict.INCONCLUSIVE, 0.5, 0.0),
    ],
)
def test_rounding_carries_no_headline_over_alpha(verdict, log10_p, headline):
    assert Decision(verdict, None, None, log10_p, ()).headline(ALPHA) == headline


def test_layers_settle_what_privileged_axes_leave_open():
    both = changed(FOUND, basis_z=(30.0, -20.0))
    decision = decide({"embedding": both}, alpha=ALPHA, level=Level.AUTO, layers=LAYERS)
    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, "layers")


def layers_verdict(layers):
    decision = decide({"embedding": NOTHING}, alpha=ALPHA, level=Level.AUTO, layers=layers)
    return decision.verdict, decision.reason, decision.settled_by


def test_a_significant_layer_map_alone_is_homologous():
    assert layers_verdict(LAYERS) == (Verdict.HOMOLOGOUS, None, "layers")


def test_a_layer_map_that_is_not_significant_is_no_evidence():
    assert layers_verdict(changed(LAYERS, log10_p=0.0)) == (Verdict.NO_EVIDENCE, None, None)


@pytest.mark.parametrize(
    "doubt",
    [
        {"off_match_share": 0.5},
        {"placebo_log10_p": -9.0},
        {"residual_map": ResidualMap.ROTATION, "is_supported": False},
    ],
)
def test_a_layer_map_whose_null_does_not_hold_is_inconclusive(doubt):
    layers = changed(LAYERS, **doubt)
    assert layers_verdict(layers) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED, None)


# One p that means what people take it for.

NUMBERS = st.floats(-2000.0, 0.0)


@st.composite
def matrices_of_any_kind(draw):
    width = draw(st.sampled_from([64, 119, 121, 896]))
    return changed(
        FOUND,
        log10_p=draw(NUMBERS),
        settled_by=draw(st.sampled_from([None, SettledBy.EMBEDDING])),
        strength=draw(st.floats(0.0, 1.0)),
        coverage=draw(st.floats(0.0, 1.0)),
        off_match_share=draw(st.floats(0.0, 2.0)),
        re_paired=draw(st.booleans()),
        basis_z=draw(st.tuples(st.floats(-50.0, 50.0), st.floats(-50.0, 50.0))),
        common_tokens=draw(st.sampled_from([0, 5, 1000, 50_000])),
        rows_used=draw(st.sampled_from([0, 5, 512])),
        widths=(width, width),
    )


@st.composite
def layers_of_any_kind(draw):
    return changed(
        LAYERS,
        log10_p=draw(NUMBERS),
        log10_p_fisher=draw(NUMBERS),
        residual_map=draw(st.sampled_from([ResidualMap.IDENTITY, ResidualMap.PERMUTATION, ResidualMap.ROTATION])),
        fitted_on="embeddings",
        off_match_share=draw(st.floats(0.0, 1.0)),
        placebo_log10_p=draw(st.sampled_from([0.0, -9.0])),
        is_supported=draw(st.booleans()),
    )


@given(
    matrices=st.lists(matrices_of_any_kind(), min_size=1, max_size=2),
    layers=st.none() | layers_of_any_kind(),
    alpha=st.sampled_from([1e-10, 1e-300, 0.05, math.exp(-100.0)]),
    level=st.sampled_from(Level),
    unreadable=st.booleans(),
    noise=st.floats(0.0, 10.0),
)
@settings(max_examples=600, deadline=None)
def test_p_is_below_alpha_exactly_where_the_verdict_is_homologous(matrices, layers, alpha, level, unreadable, noise):
    named = dict(zip(("embedding", "unembedding"), matrices, strict=False))
    decision = decide(named, layers, alpha=alpha, level=level, layers_are_unreadable=unreadable, layers_noise=noise)
    log10_p = decision.headline(alpha)

    assert (log10_p < math.log10(alpha)) is (decision.verdict is Verdict.HOMOLOGOUS)
    assert log10_p <= 0.0
    found = (*matrices, *([] if layers is None else [layers]))
    significant = [one.log10_p for one in found if one.log10_p < math.log10(alpha)]
    if decision.verdict is Verdict.HOMOLOGOUS:
        of_all_layers = [] if layers is None else [layers.log10_p_fisher]
        assert decision.log10_p in (*significant, *of_all_layers)
    else:
        assert decision.log10_p_not_accepted == min(significant, default=None)  # nothing that was found is hidden


def test_what_settles_the_question_gives_the_p():
    # Unrelated embeddings with 3 % sparse loadings over related layers: the embeddings' p was the headline once.
    sparse = changed(FOUND, log10_p=-358.0, settled_by=None)
    layers = changed(LAYERS, log10_p=-60.0, log10_p_fisher=-20.0)
    decision = decide({"embedding": sparse}, alpha=ALPHA, level=Level.AUTO, layers=layers)

    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.LAYERS)
    assert (decision.log10_p, decision.log10_p_not_accepted) == (-60.0, -358.0)


def test_all_layers_together_give_the_p_and_decide_nothing():
    strong, weak = (changed(LAYERS, log10_p=log10_p, log10_p_fisher=-500.0) for log10_p in (-60.0, -5.0))
    decision = decide({"embedding": NOTHING}, alpha=ALPHA, level=Level.AUTO, layers=strong)
    assert (decision.verdict, decision.log10_p) == (Verdict.HOMOLOGOUS, -500.0)
    assert layers_verdict(weak) == (Verdict.NO_EVIDENCE, None, None)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (1.0, (Verdict.NO_EVIDENCE, None)),
        (0.99, (Verdict.INCONCLUSIVE, Reason.FEW_SHARED_AXES)),
    ],
)
def test_few_shared_axes_are_a_remark_beside_silent_layers(noise, expected):
    shared = changed(FOUND, log10_p=-1800.0, settled_by=None)
    layers = changed(LAYERS, log10_p=0.0)
    decision = decide({"embedding": shared}, alpha=ALPHA, level=Level.AUTO, layers=layers, layers_noise=noise)

    assert (decision.verdict, decision.reason) == expected
    assert (decision.log10_p, decision.log10_p_not_accepted) == (0.0, -1800.0)
    if decision.verdict is Verdict.NO_EVIDENCE:
        assert any("a few channels only" in caveat for caveat in decision.caveats)


# Numbers and not their names: whoever changes one means to change these tests, too.
BOTH = changed(FOUND, basis_z=(30.0, -20.0), widths=(896, 896), strength=0.3, coverage=0.5)


@pytest.mark.parametrize(
    ("fields", "trusted"),
    [
        ({"strength": 0.7}, True),
        ({"strength": 0.699}, False),
        ({"off_match_share": 0.05}, True),
        ({"off_match_share": 0.051}, False),
        ({"off_match_share": 0.0, "coverage": 0.1}, True),
        ({"off_match_share": 0.0, "coverage": 0.099}, False),
        ({"basis_z": (3.0, 30.0)}, True),
        ({"basis_z": (-3.0, 30.0)}, True),
        ({"basis_z": (3.01, 30.0)}, False),
        ({"basis_z": (30.0, -3.01)}, False),
        # An entry of 0.5 is significant by itself from 119 channels on: 0.5^2 n / 2 > ln(2 n^2 / 0.01).
        ({"off_match_share": 0.0, "widths": (119, 119)}, True),
        ({"off_match_share": 0.0, "widths": (118, 118)}, False),
    ],
)
def test_each_number_of_the_rule_for_privileged_axes_counts(fields, trusted):
    assert is_trusted(changed(BOTH, **fields)) is trusted


@pytest.mark.parametrize("off_match_share", [0.1, 0.101])
def test_a_tenth_of_the_pairs_off_the_map_may_be_significant(off_match_share):
    expected = Verdict.HOMOLOGOUS if off_match_share == 0.1 else Verdict.INCONCLUSIVE
    assert layers_verdict(changed(LAYERS, off_match_share=off_match_share))[0] is expected


@pytest.mark.parametrize("test", ["subspaces", "frequencies", "neurons", "blocks", "planes", "permutation"])
def test_behind_a_rotation_each_layer_needs_a_sure_test(test):
    def module(name, log_p):
        return ModuleEvidence("v", name, 1.0, 0.5, log_p, 1.0, None, "")

    level = math.log(ALPHA) - math.log(3)
    others = [(0, 0, module("neurons", level - 1.0)), (1, 1, module("permutation", -900.0))]
    decisive = layers_support([*others, (1, 1, module(test, level - 0.01))], "rotation", math.log(ALPHA))

    assert decisive is (test in ("subspaces", "frequencies", "neurons"))
    assert not layers_support([*others, (1, 1, module(test, level + 0.01))], "rotation", math.log(ALPHA))
    assert layers_support(others, "permutation", math.log(ALPHA))
    assert not layers_support([], "rotation", math.log(ALPHA))
