"""The verdict rules, one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdir_hf.comparison.decide import (
    N_BOUNDS,
    Decision,
    Evidence,
    decide,
    is_trusted,
    layers_support,
    where_tokens_are_unknown,
)
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.report import (
    Assumption,
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


def decided(*matrices: MatrixResult, alpha=ALPHA, level=Level.AUTO, **evidence) -> Decision:
    named = dict(zip(("embedding", "unembedding"), matrices, strict=False))
    return decide(Evidence(matrices=named, alpha=alpha, level=level, **evidence))


def verdict(*matrices: MatrixResult, **evidence):
    decision = decided(*matrices, **evidence)
    return decision.verdict, decision.reason


WITNESS = NeuronNumbers(
    tested=64,
    fitted=64,
    reference_layers=(0,),
    candidate_layers=(0,),
    own_number=((64,),),
    certain=((64,),),
    matches=(LayerPair(0, 0),),
    log10_p=-80.0,
    own_number_by_down=((64,),),
)
SEARCHED = replace(WITNESS, log10_p=0.0, is_searched=True)
GATE_AND_UP_ALONE = replace(WITNESS, matches=(), own_number_by_down=((3,),))
UNCERTAIN = replace(WITNESS, certain=((8,),), matches=(), own_number_by_down=None)
NUMBERED = changed(FOUND, log10_p_numbering=-300.0, certain_share=0.5)
BOUNDS = math.log10(N_BOUNDS)


# The second witness.


@pytest.mark.parametrize("cosine", [0.48, 0.99])
@pytest.mark.parametrize("neurons", [None, GATE_AND_UP_ALONE, UNCERTAIN])
def test_embeddings_alone_are_inconclusive(cosine, neurons):
    decision = decided(changed(NUMBERED, cosine=cosine), neurons=neurons)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    shared = [caveat for caveat in decision.caveats if "are shared" in caveat]
    assert bool(shared) is (cosine > 0.7)
    # A caveat mentions the layers only if some of them were compared.
    assert all(("none of the layers that were read are" in caveat) is (neurons is not None) for caveat in shared)


@pytest.mark.parametrize("level", list(Level))
def test_embeddings_alone_are_inconclusive_at_every_level(level):
    assert decided(NUMBERED, level=level).verdict is Verdict.INCONCLUSIVE


def test_layers_alone_are_inconclusive():
    expected = (Verdict.INCONCLUSIVE, Reason.LAYERS_UNCONFIRMED)
    assert verdict(NOTHING, layers=LAYERS) == expected
    assert verdict(FOUND, layers=LAYERS, neurons=GATE_AND_UP_ALONE) == expected
    assert decided(NOTHING, layers=LAYERS).accepts_layers


def test_neurons_by_gate_up_and_down_are_a_witness():
    decision = decided(NOTHING, neurons=WITNESS)
    assert (decision.verdict, decision.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEURONS)
    assert decision.log10_p == -80.0 + BOUNDS
    assert decision.assumption is Assumption.NUMBERING


def test_a_chosen_sample_is_inconclusive():
    assert verdict(NUMBERED, neurons=WITNESS, is_sample_fresh=False) == (Verdict.INCONCLUSIVE, Reason.SAMPLE_CHOSEN)


def test_copied_rows_without_effect_are_named():
    idle = replace(WITNESS, matches=(), idle=(LayerPair(0, 0),))
    decision = decided(NUMBERED, neurons=idle)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert any("copied rows that do little or nothing" in caveat for caveat in decision.caveats)


@pytest.mark.parametrize(("cosine", "expected"), [(0.7, Verdict.HOMOLOGOUS), (0.69, Verdict.INCONCLUSIVE)])
def test_without_layers_copied_rows_decide(cosine, expected):
    assert decided(changed(FOUND, cosine=cosine), have_layers=False).verdict is expected


# The p of a verdict.


def test_the_strongest_bound_is_stated():
    by_channels = decided(NUMBERED, neurons=WITNESS)
    assert (by_channels.log10_p, by_channels.assumption) == (-300.0 + BOUNDS, Assumption.NUMBERING)
    assert by_channels.settled_by is FOUND.settled_by
    weak = changed(NUMBERED, log10_p_numbering=-20.0)
    assert decided(weak, neurons=WITNESS).log10_p == -80.0 + BOUNDS


def test_without_a_bound_no_p_is_stated():
    decision = decided(FOUND, neurons=SEARCHED)
    assert decision.verdict is Verdict.HOMOLOGOUS
    assert (decision.log10_p, decision.assumption) == (None, Assumption.CALIBRATION)
    assert decision.headline(ALPHA) is None
    assert any("No probability is printed" in caveat for caveat in decision.caveats)


def test_layers_give_a_bound_only_if_their_null_was_not_rejected():
    tested = decided(NOTHING, layers=LAYERS, neurons=SEARCHED, are_layers_invariant=True)
    assert (tested.log10_p, tested.assumption) == (LAYERS.log10_p + BOUNDS, Assumption.ROTATION)
    assert tested.settled_by is SettledBy.LAYERS
    rejected = decided(NOTHING, layers=LAYERS, neurons=SEARCHED)
    assert (rejected.verdict, rejected.log10_p) == (Verdict.HOMOLOGOUS, None)


@pytest.mark.parametrize("z", [(0.0, 0.0), (2.9, 2.9), (3.1, 3.1), (30.0, -20.0)])
def test_the_axes_of_embeddings_change_no_label(z):
    strong = changed(FOUND, basis_z=z, strength=0.9)
    assert decided(strong, neurons=SEARCHED).assumption is Assumption.CALIBRATION
    numbered = changed(NUMBERED, basis_z=z, strength=0.9)
    assert decided(numbered, neurons=WITNESS).log10_p == -300.0 + BOUNDS


@pytest.mark.parametrize("less", [{"certain_share": 0.49}, {"log10_p_numbering": -9.0}, {"log10_p_numbering": 0.0}])
def test_arranged_numbers_give_no_bound(less):
    assert decided(changed(NUMBERED, **less), neurons=SEARCHED).log10_p is None


def test_a_clean_match_makes_numbers_a_bound():
    clean = changed(
        NUMBERED, certain_share=0.34, coverage=0.34, off_match_share=0.01, widths=(512, 512), basis_z=(9.0, 9.0)
    )
    assert decided(clean, neurons=SEARCHED).log10_p == -300.0 + BOUNDS


def test_numbers_alone_are_no_verdict():
    arranged = changed(NOTHING, log10_p_numbering=-300.0, certain_share=0.4)
    assert verdict(arranged) == (Verdict.NO_EVIDENCE, None)


# Verdicts without a second witness.


def test_nothing_significant_is_no_evidence():
    assert verdict(NOTHING) == (Verdict.NO_EVIDENCE, None)


@pytest.mark.parametrize(
    ("found", "neurons", "expected"),
    [
        (FOUND, WITNESS, (Verdict.HOMOLOGOUS, None)),
        (NOTHING, None, (Verdict.INCONCLUSIVE, Reason.TOKENS_UNKNOWN)),
        (changed(NOTHING, common_tokens=3), None, (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)),
    ],
)
def test_only_a_significant_result_stands_if_tokens_are_unknown(found, neurons, expected):
    decision = decided(found, neurons=neurons)
    unknown = where_tokens_are_unknown(decision)
    assert (unknown.verdict, unknown.reason) == expected
    assert (unknown.log10_p, unknown.caveats) == (decision.log10_p, decision.caveats)


def test_one_matrix_is_enough_to_nominate():
    assert verdict(NOTHING, changed(FOUND, settled_by=SettledBy.UNEMBEDDING))[1] is Reason.EMBEDDINGS_ONLY


def test_significant_on_the_best_channels_only_is_few_shared_axes():
    assert verdict(changed(FOUND, settled_by=None)) == (Verdict.INCONCLUSIVE, Reason.FEW_SHARED_AXES)


def test_a_significant_placebo_makes_it_inconclusive():
    assert verdict(changed(FOUND, re_paired=True)) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_too_few_tokens_for_even_a_copy_is_inconclusive():
    few = changed(NOTHING, common_tokens=9, rows_used=9)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (NOTHING, (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)),
        (FOUND, (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)),
        (changed(NOTHING, rows_used=0), (Verdict.INCONCLUSIVE, Reason.TOO_FEW_COMMON_TOKENS)),
    ],
)
def test_unreadable_layers_matter_if_the_rest_does_not_decide(evidence, expected):
    assert verdict(evidence, layers_are_unreadable=True) == expected


@pytest.mark.parametrize("better", [{"strength": 0.9}, {"off_match_share": 0.01}])
def test_axes_that_stand_out_in_both_require_a_clean_match(better):
    both = changed(FOUND, basis_z=(30.0, -20.0), widths=(256, 256))
    assert verdict(both) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert verdict(changed(both, **better)) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)


@pytest.mark.parametrize("fitted_on", ["embeddings", "keys of the layers"])
def test_the_text_says_that_a_rotation_was_fitted_on_its_rows(fitted_on):
    for is_supported in (True, False):
        layers = changed(LAYERS, residual_map=ResidualMap.ROTATION, fitted_on=fitted_on, is_supported=is_supported)
        caveats = decided(NOTHING, layers=layers).caveats
        assert any(f"fitted on the {fitted_on}" in caveat for caveat in caveats)


@pytest.mark.parametrize(("width", "is_clean"), [(64, False), (160, True)])
def test_a_narrow_model_without_off_match_hits_is_not_clean(width, is_clean):
    # A random pair of strangers at width 64: strength 0.634, coverage 0.56 and no off-match hits.
    clean = changed(
        FOUND, basis_z=(42.0, 39.0), strength=0.634, coverage=0.56, off_match_share=0.0, widths=(width, width)
    )
    assert is_trusted(clean) is is_clean


def test_a_match_of_few_channels_without_off_match_hits_is_not_clean():
    few = changed(FOUND, basis_z=(30.0, -20.0), coverage=0.05, off_match_share=0.0)
    assert verdict(few) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


def test_significant_neurons_that_are_not_certain_are_a_doubt():
    decision = decided(NOTHING, neurons=UNCERTAIN)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert decision.log10_p_not_accepted == -80.0
    assert decided(NOTHING, neurons=UNCERTAIN, alpha=1e-80).verdict is Verdict.NO_EVIDENCE


@pytest.mark.parametrize(
    ("verdict", "log10_p", "headline"),
    [
        (Verdict.HOMOLOGOUS, -60.0, -60.0),
        (Verdict.HOMOLOGOUS, -10.0, math.nextafter(-10.0, -math.inf)),  # rounded up on the way
        (Verdict.HOMOLOGOUS, None, None),
        (Verdict.NO_EVIDENCE, -11.0, -10.0),
        (Verdict.NO_EVIDENCE, -3.0, -3.0),
        (Verdict.INCONCLUSIVE, 0.5, 0.0),
    ],
)
def test_rounding_does_not_raise_p_above_alpha(verdict, log10_p, headline):
    assert Decision(verdict, None, None, log10_p, ()).headline(ALPHA) == headline


def test_a_layer_map_that_is_not_significant_is_no_evidence():
    assert verdict(NOTHING, layers=changed(LAYERS, log10_p=0.0)) == (Verdict.NO_EVIDENCE, None)


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
    assert verdict(NOTHING, layers=layers) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)


# Every stated p is a valid p.

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
    neurons=st.sampled_from([None, WITNESS, SEARCHED, GATE_AND_UP_ALONE, UNCERTAIN]),
    alpha=st.sampled_from([1e-10, 1e-300, 0.05, math.exp(-100.0)]),
    level=st.sampled_from(Level),
    unreadable=st.booleans(),
    invariant=st.booleans(),
    noise=st.floats(0.0, 10.0),
)
@settings(max_examples=300, deadline=None)
def test_p_is_below_alpha_or_none_only_for_homologous(
    matrices, layers, neurons, alpha, level, unreadable, invariant, noise
):
    evidence = {
        "layers": layers,
        "neurons": neurons,
        "layers_are_unreadable": unreadable,
        "layers_noise": noise,
        "are_layers_invariant": invariant,
    }
    decision = decided(*matrices, alpha=alpha, level=level, **evidence)
    log10_p = decision.headline(alpha)

    is_homologous = decision.verdict is Verdict.HOMOLOGOUS
    assert (log10_p is None or log10_p < math.log10(alpha)) is is_homologous
    assert is_homologous is (neurons in (WITNESS, SEARCHED))
    assert log10_p is None or log10_p <= 0.0
    measured = (*matrices, *([] if layers is None else [layers]))
    measured += (neurons,) if neurons in (GATE_AND_UP_ALONE, UNCERTAIN) else ()
    significant = [each.log10_p for each in measured if each.log10_p < math.log10(alpha)]
    if not is_homologous:
        assert decision.log10_p_not_accepted == min(significant, default=None)  # the smallest refused p stays visible


def test_a_refused_match_stays_visible():
    sparse = changed(FOUND, log10_p=-358.0, settled_by=None)
    layers = changed(LAYERS, log10_p=-60.0, log10_p_fisher=-20.0)
    decision = decided(sparse, layers=layers)
    assert decision.reason is Reason.LAYERS_UNCONFIRMED
    assert (decision.log10_p, decision.log10_p_not_accepted) == (0.0, -358.0)


def test_all_layers_together_give_the_p_and_decide_nothing():
    strong, weak = (changed(LAYERS, log10_p=log10_p, log10_p_fisher=-500.0) for log10_p in (-60.0, -5.0))
    decision = decided(NOTHING, layers=strong, neurons=SEARCHED, are_layers_invariant=True)
    assert (decision.verdict, decision.log10_p) == (Verdict.HOMOLOGOUS, -500.0 + BOUNDS)
    assert verdict(NOTHING, layers=weak) == (Verdict.NO_EVIDENCE, None)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (1.0, (Verdict.NO_EVIDENCE, None)),
        (0.99, (Verdict.INCONCLUSIVE, Reason.FEW_SHARED_AXES)),
    ],
)
def test_few_shared_axes_are_a_caveat_if_layers_do_not_match(noise, expected):
    shared = changed(FOUND, log10_p=-1800.0, settled_by=None)
    layers = changed(LAYERS, log10_p=0.0)
    decision = decided(shared, layers=layers, layers_noise=noise)

    assert (decision.verdict, decision.reason) == expected
    assert (decision.log10_p, decision.log10_p_not_accepted) == (0.0, -1800.0)
    if decision.verdict is Verdict.NO_EVIDENCE:
        assert any("Only a few channels" in caveat for caveat in decision.caveats)


# Literal values instead of the constants' names: a change of a constant has to change these tests too.
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
        # An entry of 0.5 is significant by itself in at least 119 channels: 0.5^2 n / 2 > ln(2 n^2 / 0.01).
        ({"off_match_share": 0.0, "widths": (119, 119)}, True),
        ({"off_match_share": 0.0, "widths": (118, 118)}, False),
    ],
)
def test_each_number_of_the_rule_for_privileged_axes_counts(fields, trusted):
    assert is_trusted(changed(BOTH, **fields)) is trusted


@pytest.mark.parametrize("off_match_share", [0.1, 0.101])
def test_a_tenth_of_the_pairs_off_the_map_may_be_significant(off_match_share):
    accepted = decided(NOTHING, layers=changed(LAYERS, off_match_share=off_match_share)).accepts_layers
    assert accepted is (off_match_share == 0.1)


@pytest.mark.parametrize("test", ["subspaces", "frequencies", "neurons", "blocks", "planes", "permutation"])
def test_each_layer_needs_a_significant_test_after_a_rotation(test):
    def module(name, log_p):
        return ModuleEvidence("v", name, 1.0, 0.5, log_p, 1.0, None, "")

    level = math.log(ALPHA) - math.log(3)
    others = [(0, 0, module("neurons", level - 1.0)), (1, 1, module("permutation", -900.0))]
    decisive = layers_support([*others, (1, 1, module(test, level - 0.01))], "rotation", math.log(ALPHA))

    assert decisive is (test in ("subspaces", "frequencies", "neurons"))
    assert not layers_support([*others, (1, 1, module(test, level + 0.01))], "rotation", math.log(ALPHA))
    assert layers_support(others, "permutation", math.log(ALPHA))
    assert not layers_support([], "rotation", math.log(ALPHA))
