"""The table of projections covers mixtures: each expert is compared with every expert of the other model."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mdir_hf import HomologyReport, SettledBy, Verdict, compare
from mdir_hf.comparison.projections import expert_rows
from mdir_hf.model.roles import Role
from mdir_hf.render.html import html_page
from mdir_hf.render.projection_words import outcome_words
from mdir_hf.report import Outcome
from tests.comparison.upcycled import LAYERS, NEURONS, V, give_experts, mixture, new_model, upcycle_to_mixtral
from tests.comparison.upcycled import expert as expert_of
from tests.specimens import tokenizer_json, tokens

MLP = ("gate", "up", "down")


def of_experts(report):
    """The entries of gate, up and down, by layer and projection."""
    return {
        (result.layer.candidate, result.role): result for result in report.projections.results if result.role in MLP
    }


def partners(result):
    return {expert.candidate: expert.reference for expert in result.experts if expert.cosine is not None}


def copied(model):
    return copy.deepcopy(model)


def noised_folder(folder):
    """Change the file slightly, so that the two folders are not byte-for-byte identical."""
    weights = load_file(folder / "model.safetensors")
    changed = {key: weight * 1.001 if weight.ndim > 1 else weight for key, weight in weights.items()}
    save_file(changed, folder / "model.safetensors")
    return folder


@torch.no_grad()
def noised(model, share, seed=3):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.add_(share * weight.std() * torch.randn(weight.shape, generator=generator))
    return model


def table_of(save_mixture, base, candidate):
    return compare(save_mixture(base, "base"), save_mixture(candidate, "candidate"), level="layers", progress=False)


def test_kept_experts_show_their_noise(save_mixture):
    base = mixture(0)
    report = table_of(save_mixture, base, noised(copied(base), 0.3))
    lines = of_experts(report)
    assert report.verdict is Verdict.HOMOLOGOUS and len(lines) == 3 * LAYERS
    for result in lines.values():
        assert (result.outcome, result.share, len(result.experts)) == (Outcome.KEPT, 1.0, 3)
        assert partners(result) == {0: 0, 1: 1, 2: 2}
        # 1 / sqrt(1 + 0.3^2) = 0.958; 48 rows of 64 values determine it to 0.01.
        assert result.cosine == pytest.approx(0.958, abs=0.03)
    assert HomologyReport.from_json(report.to_json()).projections == report.projections
    text = report.details
    assert f"{7 * LAYERS} kept" in text
    assert "Experts were compared with each expert of the paired layer only" in html_page(report, {})
    assert "experts of a layer" not in text  # all were compared


def test_experts_in_another_order_are_permuted(save_mixture):
    base = mixture(0)
    report = table_of(save_mixture, base, give_experts(copied(base), base, {1: 2, 2: 1}))
    for result in of_experts(report).values():
        assert (result.outcome, result.moved) == (Outcome.PERMUTED, "experts")
        assert partners(result) == {0: 0, 1: 2, 2: 1}
    assert f"{3 * LAYERS} permuted" in report.details


def test_experts_found_as_sets_do_not_confirm_the_table(save_mixture):
    """The experts are found as sets; the neurons of the first experts, which confirm a table, do not match."""
    base = mixture(0)
    report = table_of(save_mixture, base, give_experts(copied(base), base, {0: 1, 1: 2, 2: 0}))
    assert report.settled_by is SettledBy.PARTS and not report.projections.is_confirmed
    for result in of_experts(report).values():
        assert (result.outcome, result.moved) == (Outcome.ROWS_AGREE, "experts")
        assert partners(result) == {0: 1, 1: 2, 2: 0}


def test_an_expert_of_a_stranger_does_not_agree(save_mixture):
    base = mixture(0)
    report = table_of(save_mixture, base, give_experts(copied(base), mixture(1), {1: 1}))
    for result in of_experts(report).values():
        assert (result.outcome, result.share) == (Outcome.KEPT_IN_PART, pytest.approx(2 / 3))
        assert partners(result) == {0: 0, 2: 2}
    assert "kept in part (at least 2 of 3 experts)" in html_page(report, {})


def test_experts_that_were_copied_from_a_dense_mlp_name_it(save_mixture):
    dense = new_model("llama", 0)
    upcycled = upcycle_to_mixtral(dense)
    with torch.no_grad():
        for layer, origin in zip(upcycled.model.layers, dense.model.layers, strict=True):
            for number in (0, 1):
                gate_up, down = expert_of(layer, number)
                gate_up.copy_(torch.cat([origin.mlp.gate_proj.weight, origin.mlp.up_proj.weight]))
                down.copy_(origin.mlp.down_proj.weight)
    report = table_of(save_mixture, dense, upcycled)
    for result in of_experts(report).values():  # two of the four have reordered or new neurons
        assert (result.outcome, result.moved) == (Outcome.KEPT_IN_PART, None)
        assert partners(result) == {0: None, 1: None}
    sides = (report.coverage.reference, report.coverage.candidate)
    ledgers = [{entry.part: entry for entry in reversed(side)} for side in sides]
    assert "gate, up, down" in ledgers[0]["language model"].reason.replace("MLP ", "")
    assert "gate" not in ledgers[1]["language model"].reason


def test_renumbered_neurons_of_experts_are_not_called_replaced(save_mixture):
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
    for result in of_experts(table_of(save_mixture, base, candidate)).values():
        assert result.outcome is Outcome.NOT_COMPARED and "neurons of experts were not searched" in result.reason


def test_strangers_share_no_expert(save_mixture):
    for result in of_experts(table_of(save_mixture, mixture(0), mixture(1))).values():
        assert result.outcome is Outcome.NOT_COMPARED and not partners(result)


def test_a_large_mixture_says_how_many_experts_were_compared(save_mixture, monkeypatch):
    monkeypatch.setattr(expert_rows, "MOST_EXPERTS", 4)
    base = mixture(0, n_experts=9)
    report = table_of(save_mixture, base, copied(base))
    for result in of_experts(report).values():
        assert (result.outcome, len(result.experts), result.unread_experts) == (Outcome.KEPT, 4, (5, 5))
        assert all(candidate == reference for candidate, reference in partners(result).items())
    for text in (report.details, html_page(report, {})):
        assert "4 of 9 experts" in " ".join(text.split())
    assert "4 of 4 experts; 5 not read" in html_page(report, {})


def test_an_expert_may_have_a_partner_that_was_not_read(save_mixture, monkeypatch):
    monkeypatch.setattr(expert_rows, "MOST_EXPERTS", 4)
    base = mixture(0, n_experts=9)
    shifted = give_experts(copied(base), base, {number: 1 + number % 8 for number in range(1, 9)})
    results = of_experts(table_of(save_mixture, base, shifted)).values()
    in_part = [result for result in results if result.outcome is Outcome.KEPT_IN_PART]
    assert in_part and all(outcome_words(result).startswith("kept in part (at least") for result in in_part)


def test_experts_keep_their_names_if_a_weight_of_one_is_missing(tmp_path):
    """Experts keep their own numbers, even if some of them could not be read."""
    base = mixture(0, n_experts=4)
    for name in ("base", "candidate"):
        base.save_pretrained(tmp_path / name, save_original_format=True)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
        file = tmp_path / name / "model.safetensors"
        weights = load_file(file)
        gates = [key for key in weights if "experts.1.w1" in key]
        assert len(gates) == LAYERS
        save_file({key: weight for key, weight in weights.items() if key not in gates}, file)
    report = compare(tmp_path / "base", noised_folder(tmp_path / "candidate"), level="layers", progress=False)
    for (_, role), result in of_experts(report).items():
        read = {0, 2, 3} if role == "gate" else {0, 1, 2, 3}
        assert partners(result) == {number: number for number in read}
        assert result.unread_experts == (4 - len(read), 4 - len(read))


@pytest.mark.parametrize(("n_own", "partner"), [(3, None), (4, 0)])
def test_a_small_p_alone_names_no_expert(n_own, partner):
    """A slightly wrong map makes tiny cosines significant, but rows of strangers are not each other's best partners."""
    agreement = SimpleNamespace(own_share=np.array([[n_own / 16]]), cosine=np.array([[0.1]]))
    sample = SimpleNamespace(numbers=np.arange(16), places=((0,), (0,)))
    cells = SimpleNamespace(agreement=agreement, sample=sample, log_p=np.array([[-100.0]]))
    experts = expert_rows.ExpertCells(((0,), (0,)), (1, 1), {Role.UP: cells}, {})
    assert experts.partner(Role.UP, 0) == partner


def test_a_dense_mlp_beside_experts_stands_for_its_layer():
    layer = SimpleNamespace(parts={Role.UP: None}, experts=({Role.UP: None},))
    model = SimpleNamespace(anatomy=SimpleNamespace(layers=(layer,)))
    reader = SimpleNamespace(models=(model, model), seed=0)
    assert expert_rows.compare_experts(reader, None, (0, 0), 0.0) is None


def test_experts_that_would_be_read_whole_are_left_out(save_mixture, monkeypatch):
    """Llama 4 stores the rows of its experts as columns."""
    monkeypatch.setattr(expert_rows, "MOST_WHOLE_VALUES", 0)
    base = new_model("gpt_oss", 0, num_local_experts=3, head_dim=16)
    report = table_of(save_mixture, base, copied(base))
    for result in of_experts(report).values():
        assert result.outcome is Outcome.NOT_COMPARED and "read whole" in result.reason
