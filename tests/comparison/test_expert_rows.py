"""The table of projections describes the experts of mixtures: each is compared with every expert of the other model."""

import copy

import pytest
import torch

from mdir_hf import HomologyReport, Verdict, compare
from mdir_hf.comparison.projections import expert_rows
from mdir_hf.render.html import html_page
from mdir_hf.report import Outcome
from tests.comparison.test_expert_sets import give_experts, mixture
from tests.comparison.test_expert_sets import save as save  # a fixture: experts one by one, and stacked
from tests.comparison.test_upcycling import LAYERS, NEURONS, new_model, upcycle_to_mixtral
from tests.comparison.test_upcycling import expert as expert_of

MLP = ("gate", "up", "down")


def of_experts(report):
    """The lines of gate, up and down, by layer and projection."""
    return {
        (result.layer.candidate, result.role): result for result in report.projections.results if result.role in MLP
    }


def partners(result):
    return {rows.candidate: rows.reference for rows in result.agreeing_experts}


def copied(model):
    return copy.deepcopy(model)


@torch.no_grad()
def noised(model, share, seed=3):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.add_(share * weight.std() * torch.randn(weight.shape, generator=generator))
    return model


def table_of(save, base, candidate):
    return compare(save(base, "base"), save(candidate, "candidate"), level="layers", progress=False)


def test_kept_experts_show_their_noise(save):
    base = mixture(0)
    report = table_of(save, base, noised(copied(base), 0.3))
    lines = of_experts(report)
    assert report.verdict is Verdict.HOMOLOGOUS and len(lines) == 3 * LAYERS
    for result in lines.values():
        assert (result.outcome, result.share, len(result.experts)) == (Outcome.KEPT, 1.0, 3)
        assert partners(result) == {0: 0, 1: 1, 2: 2}
        # 1 / sqrt(1 + 0.3^2) = 0.958; 48 rows of 64 values know it to 0.01.
        assert result.cosine == pytest.approx(0.958, abs=0.03)
    assert HomologyReport.from_json(report.to_json()).projections == report.projections
    text = str(report)
    assert f"{7 * LAYERS} kept" in text
    assert "In mixtures, up to 3 experts of each layer were compared" in html_page(report, {})


def test_experts_in_another_order_are_permuted(save):
    base = mixture(0)
    report = table_of(save, base, give_experts(copied(base), base, {0: 1, 1: 2, 2: 0}))
    for result in of_experts(report).values():
        assert (result.outcome, result.moved) == (Outcome.PERMUTED, "experts")
        assert partners(result) == {0: 1, 1: 2, 2: 0}
    assert f"{3 * LAYERS} permuted" in str(report)


def test_an_expert_of_a_stranger_does_not_agree(save):
    base = mixture(0)
    report = table_of(save, base, give_experts(copied(base), mixture(1), {1: 1}))
    for result in of_experts(report).values():
        assert (result.outcome, result.share) == (Outcome.KEPT_IN_PART, pytest.approx(2 / 3))
        assert partners(result) == {0: 0, 2: 2}
    assert "2 of 3 experts" in html_page(report, {})


def test_experts_that_were_copied_from_a_dense_mlp_name_it(save):
    dense = new_model("llama", 0)
    upcycled = upcycle_to_mixtral(dense)
    with torch.no_grad():
        for layer, origin in zip(upcycled.model.layers, dense.model.layers, strict=True):
            for number in (0, 1):
                gate_up, down = expert_of(layer, number)
                gate_up.copy_(torch.cat([origin.mlp.gate_proj.weight, origin.mlp.up_proj.weight]))
                down.copy_(origin.mlp.down_proj.weight)
    report = table_of(save, dense, upcycled)
    for result in of_experts(report).values():  # of the four, two have their neurons in another order, or are new
        assert (result.outcome, result.moved) == (Outcome.KEPT_IN_PART, None)
        assert partners(result) == {0: None, 1: None}
    ledgers = [{entry.part: entry for entry in side} for side in (report.coverage.reference, report.coverage.candidate)]
    assert "gate, up, down" in ledgers[0]["language model"].reason.replace("MLP ", "")
    assert "gate" not in ledgers[1]["language model"].reason


def test_renumbered_neurons_of_experts_are_not_called_replaced(save):
    base = mixture(0)
    candidate = copied(base)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for layer in candidate.model.layers:
            for number in range(3):
                gate_up, down = expert_of(layer, number)
                order = torch.randperm(NEURONS, generator=generator)
                gate_up.copy_(gate_up[torch.cat([order, order + NEURONS])])
                down.copy_(down[:, order])
    for result in of_experts(table_of(save, base, candidate)).values():
        assert result.outcome is Outcome.NOT_COMPARED and "renumbered neurons were not searched" in result.reason


def test_strangers_share_no_expert(save):
    for result in of_experts(table_of(save, mixture(0), mixture(1))).values():
        assert result.outcome is Outcome.NOT_COMPARED and not result.agreeing_experts


def test_a_large_mixture_is_compared_by_the_same_experts_of_both(save, monkeypatch):
    monkeypatch.setattr(expert_rows, "MOST_EXPERTS", 4)
    base = mixture(0, n_experts=9)
    for result in of_experts(table_of(save, base, copied(base))).values():
        assert (result.outcome, len(result.experts)) == (Outcome.KEPT, 4)
        assert all(candidate == reference for candidate, reference in partners(result).items())


def test_experts_that_would_be_read_whole_are_left_out(save, monkeypatch):
    """Llama 4 stores the rows of its experts as columns."""
    monkeypatch.setattr(expert_rows, "MOST_WHOLE_VALUES", 0)
    base = new_model("gpt_oss", 0, num_local_experts=3, head_dim=16)
    report = table_of(save, base, copied(base))
    for result in of_experts(report).values():
        assert result.outcome is Outcome.NOT_COMPARED and "read whole" in result.reason
