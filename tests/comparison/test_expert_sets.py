"""Experts of two mixtures are compared as sets, in any order, and with dense MLPs."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file

from mdir_hf import HomologyReport, Verdict, compare
from mdir_hf.comparison.neurons import STEPS
from mdir_hf.comparison.stacks import EXPERT_LAYERS, EXPERTS_PLACE, FIRST_PLACE
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.report import Treatment
from tests.comparison.upcycled import LAYERS, expert, give_experts, mixture, new_model, upcycle_to_mixtral


def matched(report):
    return {
        tuple(pair.layers[0]): {origin.candidate: origin.reference for origin in pair.experts}
        for pair in report.parts or ()
        if pair.experts
    }


def test_two_mixtures_that_share_two_of_three_experts_are_found(save_mixture):
    base = mixture(0)
    candidate = give_experts(mixture(1), base, {1: 2, 2: 0})
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and report.p_is_bound
    assert matched(report) == {(i, i): {1: 2, 2: 0} for i in range(LAYERS)}
    assert (
        "experts 1 and 2 of layer 0 of" in report.warning.lower()
        and "with experts 0 and 2 of layer 0" in report.warning.lower()
    )
    ledger = [entry for entry in report.coverage.candidate if entry.part == "experts of the language model"]
    assert ledger[0].treatment is Treatment.SAMPLED and "each expert in 2 of 2 layers" in ledger[0].reason
    sizes = {entry.is_match: entry.bytes for entry in ledger}
    # Two of three experts match, by gate and up, two thirds of their weights. Sizes are rounded to bytes.
    assert sizes[True] == pytest.approx(2 * sizes[False], abs=2)
    assert sizes[None] == pytest.approx(sum(sizes.values()) / 3, abs=2)
    attention = next(entry for entry in report.coverage.candidate if entry.part == "language model")
    assert attention.treatment is Treatment.NOT_COMPARED  # only neurons of experts were compared
    assert HomologyReport.from_json(report.to_json()).parts == report.parts


def test_experts_that_are_all_tunes_of_one_mlp_are_found(save_mixture):
    """Most pairs of experts are alike, so that a typical pair tells nothing of strangers."""
    base = mixture(0)
    base = give_experts(base, copy.deepcopy(base), {1: 0, 2: 0})
    candidate = give_experts(mixture(1), base, {1: 1, 2: 2})
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert matched(report)[0, 0].keys() == {1, 2}
    # Only one of three equal experts is named as their origin, so that nothing is said of the other two.
    experts = [entry.is_match for entry in report.coverage.reference if entry.part.startswith("experts")]
    assert experts == [True, None]


def test_many_experts_made_from_one_mlp_are_not_said_to_match_nothing(save_mixture):
    dense, candidate = new_model("llama", 4), mixture(1, 12)
    with torch.no_grad():
        for layer, origin in zip(candidate.model.layers, dense.model.layers, strict=True):
            for number in range(1, 12):
                gate_up, down = expert(layer, number)
                gate_up.copy_(torch.cat([origin.mlp.gate_proj.weight, origin.mlp.up_proj.weight]))
                down.copy_(origin.mlp.down_proj.weight)
    report = compare(save_mixture(dense, "dense"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    experts = {entry.is_match for entry in report.coverage.candidate if entry.part.startswith("experts")}
    assert experts == {True, None}  # 8 pairs are tested


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_reordered_experts_that_match_are_not_said_to_match_nothing(save_mixture, level):
    dense = new_model("llama", 0)
    report = compare(
        save_mixture(dense, "dense"), save_mixture(upcycle_to_mixtral(dense), "candidate"), level=level, progress=False
    )
    assert report.verdict is Verdict.HOMOLOGOUS and report.log10_p is None  # a search found the neurons
    experts = {entry.is_match: entry.bytes for entry in report.coverage.candidate if entry.part.startswith("experts")}
    assert experts.keys() == {True, None}
    if level == "auto":  # gate and up of one expert of each searched layer
        n_experts = LAYERS * len(Model(open_repository(report.candidate.repo)).anatomy.layers[0].experts)
        share = len(report.neurons.matches) / n_experts * 2 / 3
        assert experts[True] == pytest.approx(share * sum(experts.values()), abs=1)  # whole bytes
    assert report.warning is None


@pytest.mark.parametrize("replaced", ["shared_expert", "experts"])
def test_shared_experts_are_part_of_their_stack(save_mixture, replaced):
    sizes = {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 160, "num_experts": 3}
    base, candidate, stranger = (
        new_model("qwen2_moe", seed, **sizes, num_experts_per_tok=2, decoder_sparse_step=1) for seed in (0, 0, 1)
    )
    for layer, other in zip(candidate.model.layers, stranger.model.layers, strict=True):
        getattr(layer.mlp, replaced).load_state_dict(getattr(other.mlp, replaced).state_dict())
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), level="layers", progress=False)
    sizes = {(entry.part, entry.is_match): entry.bytes for entry in report.coverage.candidate}
    tensors = load_file(report.candidate.repo + "/model.safetensors")
    n_shared = sum(t.nbytes for name, t in tensors.items() if "shared_expert." in name)
    n_routed = sum(t.nbytes for name, t in tensors.items() if ".experts." in name)
    experts = "experts of the language model"
    if replaced == "experts":
        assert sizes[experts, False] == n_routed and ("language model", False) not in sizes
    else:
        assert (experts, False) not in sizes and sizes[experts, True] == n_routed
        assert sizes["language model", False] == pytest.approx(n_shared, rel=0.02)  # norms count with their layers


def test_experts_are_compared_with_experts_of_the_same_size(save_mixture):
    """A shared expert is often larger than the routed ones, and is compared with experts of its own size."""
    sizes = {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 160, "num_experts": 3}

    def qwen(seed):
        return new_model("qwen2_moe", seed, **sizes, num_experts_per_tok=2, decoder_sparse_step=1)

    base = qwen(0)
    candidate = give_experts(qwen(1), base, {1: 2})
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert matched(report) == {(i, i): {1: 2} for i in range(LAYERS)}


def test_p_of_an_expert_is_corrected_for_all_pairs_and_for_its_look(save_mixture):
    base = mixture(0)
    candidate = give_experts(mixture(1, n_experts=4), base, {3: 0})
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    pairs = {tuple(pair.layers[0]): pair for pair in report.parts if pair.layers}
    (origin,) = pairs[0, 0].experts
    # 32 of the 128 neurons are tested; every copy has its own number (1 / 32!); 3 x 4 pairs of experts; look s of the
    # comparison may use 1 / (s (s + 1)) of alpha.
    look = EXPERTS_PLACE
    log_p = -math.lgamma(33) + math.log(3 * 4) + math.log(look * (look + 1))
    assert origin.log10_p == pytest.approx(log_p / math.log(10), rel=1e-9)


def test_experts_and_stacks_spend_no_share_of_alpha_twice():
    assert FIRST_PLACE >= EXPERTS_PLACE + 2 * EXPERT_LAYERS**2  # by number, and behind fitted maps
    assert len(STEPS) < EXPERTS_PLACE


def test_strangers_share_no_expert(save_mixture):
    report = compare(save_mixture(mixture(0), "base"), save_mixture(mixture(1, 4), "candidate"), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE and matched(report) == {}
    assert any("In at most two layers of" in caveat for caveat in report.caveats)


def test_a_given_sample_reports_no_expert(save_mixture):
    base = mixture(0)
    candidate = give_experts(mixture(1), base, {1: 2})
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), sample_seed=3, progress=False)
    assert (report.verdict, report.reason.value) == (Verdict.INCONCLUSIVE, "sample_chosen")


def test_an_expert_made_from_a_dense_mlp_is_found(save_mixture):
    dense, candidate = new_model("llama", 4), mixture(1)
    with torch.no_grad():
        for layer, origin in zip(candidate.model.layers, dense.model.layers, strict=True):
            gate_up, down = expert(layer, 1)
            gate_up.copy_(torch.cat([origin.mlp.gate_proj.weight, origin.mlp.up_proj.weight]))
            down.copy_(origin.mlp.down_proj.weight)
    report = compare(save_mixture(dense, "dense"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and matched(report)[0, 0] == {1: None}
    assert (
        "expert 1 of layer 0 of" in report.warning.lower()
        and "with the dense mlp of layer 0 of" in report.warning.lower()
    )
    of_dense = {entry.is_match: entry.bytes for entry in report.coverage.reference if entry.part == "language model"}
    assert of_dense.keys() == {True, None}
    # Gate and up have 2 x 64 x 128 weights, down has 64 x 128, and attention 2 x 64 x 64 + 2 x 32 x 64.
    assert 5 * of_dense[True] == 4 * of_dense[None]


def test_copied_experts_with_tiny_outputs_are_copies_too(save_mixture):
    base = mixture(0)
    candidate = give_experts(mixture(1), base, {1: 2}, gain=1e-4)
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and matched(report)[0, 0] == {1: 2}


@torch.no_grad()
def test_a_copied_expert_that_is_never_chosen_is_still_a_copy(save_mixture):
    base = mixture(0)
    candidate = give_experts(mixture(1), base, {1: 2})
    for layer in candidate.model.layers:
        layer.mlp.gate.weight[1] = 0.0
    report = compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS and matched(report)[0, 0] == {1: 2}
    assert "expert 1 of layer 0 of" in report.warning.lower()
