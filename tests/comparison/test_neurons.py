"""Neurons by number in whole comparisons: a few rows find neurons that kept their numbers, whatever else changed."""

import copy
import json
import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
import torch

from mdir_hf import Assumption, HomologyReport, Reason, SettledBy, Verdict, compare
from mdir_hf.comparison.decide import N_BOUNDS
from mdir_hf.comparison.neuron_sample import FITTED_ROWS, NOMINATING_FITTED_ROWS, TESTED, NeuronSample
from mdir_hf.comparison.neurons import PLACE, _log_p_together, compare_neurons
from mdir_hf.comparison.row_screen import RUN_NEURONS
from mdir_hf.method.neuron_numbers import log_p_own_numbers
from mdir_hf.method.screening import sample_sizes
from mdir_hf.model.files.ranged import RangedTensors
from mdir_hf.model.opened import Model
from mdir_hf.render.reproduce import command_line
from mdir_hf.render.text import markdown_text
from tests.comparison.test_body import drift, new_embeddings, with_layers
from tests.comparison.test_residual_maps import edited, turned
from tests.method.obfuscation import new_model
from tests.specimens import tokenizer_json, tokens

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip


@pytest.fixture
def save(tmp_path):
    def save_model(model, name, *, with_tokenizer=True):
        copy.deepcopy(model).float().save_pretrained(tmp_path / name)
        if with_tokenizer:
            vocabulary = tokens(model.config.vocab_size)
            (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
        return tmp_path / name

    return save_model


@pytest.fixture
def base():
    return new_model(seed=0, **SIZES)


def judged(reference, candidate, **options) -> HomologyReport:
    return compare(reference, candidate, progress=False, **options)


@torch.no_grad()
def renumbered(model, seed=2):
    """The same function with reordered neurons."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        order = torch.randperm(len(layer.mlp.up_proj.weight), generator=generator)
        for name in ("gate_proj", "up_proj"):
            weight = getattr(layer.mlp, name).weight
            weight.copy_(weight[order].clone())
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order].clone())
    return model


def plain_qr(n):
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).Q


def test_new_embeddings_are_found_by_the_numbers_of_neurons(base, save):
    report = judged(save(base, "base"), save(new_embeddings(drift(copy.deepcopy(base), 0.3)), "new"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, "neurons")
    assert report.assumption is Assumption.NUMBERING and report.p_is_bound
    assert report.neurons.log10_p < -30.0
    assert report.log10_p == pytest.approx(report.neurons.log10_p + math.log10(N_BOUNDS))
    assert [tuple(match) for match in report.neurons.matches] == [(i, i) for i in range(4)]
    assert report.layers is None and report.excludes is None
    assert "neurons that were tested in 4 layers kept their number" in report.sentence
    assert HomologyReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(("noise", "n_looks"), [(0.1, {1}), (4.0, {1, 2}), (5.0, {2}), (7.0, {3})])
def test_more_rows_are_read_until_p_from_channel_numbers_hardly_depends_on_the_seed(save, noise, n_looks):
    sizes = {**SIZES, "hidden_size": 128, "vocab_size": 5000}
    base = new_model(seed=0, **sizes)
    candidate = drift(copy.deepcopy(base), 0.1)
    with torch.no_grad():
        rows = candidate.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(4)
        rows += noise * rows.std() * torch.randn(rows.shape, generator=generator)
    folders = save(base, "base"), save(candidate, "noisy")
    reports = [judged(*folders, seed=seed) for seed in range(4)]
    assert {report.assumption for report in reports} == {Assumption.NUMBERING}
    log10_p = [report.log10_p for report in reports]
    # Neurons alone give -173.7. From 95 to 100% of 128 channels, log10 of p changes by 6%.
    assert max(log10_p) < -195.0 and max(log10_p) / min(log10_p) > 0.94
    assert {len(report.embedding.looks) for report in reports} <= n_looks


def test_foreign_layers_are_counted_in_the_sentence(base, save):
    candidate = new_model(seed=9, **SIZES)
    for kept in (0, 3):
        candidate.model.layers[kept].load_state_dict(base.model.layers[kept].state_dict())
    report = judged(save(base, "base"), save(edited(candidate, turned(candidate, turn=plain_qr(96))), "half"))
    assert "all 128 neurons that were tested in 2 of the 4 layers compared kept their number" in report.sentence


def test_a_rotated_stream_with_new_embeddings_is_found(base, save):
    candidate = new_embeddings(edited(base, turned(base, turn=plain_qr(96))))
    report = judged(save(base, "base"), save(candidate, "turned"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, "neurons")


def test_layers_that_were_left_out_are_matched_with_their_own(base, save):
    candidate = new_embeddings(drift(with_layers(base, [0, 3]), 0.1))
    report = judged(save(base, "base"), save(candidate, "pruned"))
    assert report.settled_by == "neurons"
    assert [tuple(match) for match in report.neurons.matches] == [(0, 0), (3, 1)]


def test_neurons_are_compared_without_a_tokenizer(base, save):
    candidate = new_embeddings(drift(copy.deepcopy(base), 0.1))
    folders = save(base, "base", with_tokenizer=False), save(candidate, "other", with_tokenizer=False)
    assert judged(*folders).settled_by == "neurons"
    strangers = judged(folders[0], save(new_model(seed=9, **SIZES), "stranger", with_tokenizer=False))
    assert strangers.reason is Reason.TOKENS_UNKNOWN


def test_strangers_have_few_numbers_in_common(base, save):
    report = judged(save(base, "base"), save(new_model(seed=9, **SIZES), "stranger"))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.neurons.matches == () and max(map(max, report.neurons.own_number)) <= 6
    assert report.neurons.log10_p > -10.0


def test_renumbered_neurons_are_searched(base, save):
    candidate = renumbered(new_embeddings(drift(copy.deepcopy(base), 0.2)))
    report = judged(save(base, "base"), save(candidate, "renumbered"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, "layers")
    assert report.neurons.is_searched and report.neurons.matches
    assert report.neurons.log10_p == 0.0  # a search gives an arrangement, which has no p
    assert "match, in another order" in report.agreement


def test_level_layers_reports_layers_and_neurons(base, save):
    candidate = new_embeddings(drift(copy.deepcopy(base), 0.2))
    report = judged(save(base, "base"), save(candidate, "new"), level="layers")
    assert report.settled_by == "neurons" and len(report.neurons.matches) == 4
    assert [match[:2] for match in report.layers.matches] == [(i, i) for i in range(4)]
    # One layer and all layers together are two readings, in a look whose share of alpha is 1 / (PLACE (PLACE + 1)).
    log_p = _log_p_together(np.array(report.neurons.own_number)) + math.log(2 * PLACE * (PLACE + 1))
    assert report.neurons.log10_p == pytest.approx(log_p / math.log(10))


@pytest.mark.parametrize("change", [{"intermediate_size": 232}, {"intermediate_size": 40}])
def test_other_or_too_few_neurons_are_not_compared_by_number(base, save, change):
    sizes = SIZES | change
    reference = base if change["intermediate_size"] > 200 else new_model(seed=0, **sizes)
    report = judged(save(reference, "base"), save(new_model(seed=9, **sizes), "other"))
    assert report.neurons is None and report.verdict is Verdict.NO_EVIDENCE


def test_families_whose_neurons_have_an_order_are_left_out(base, save, monkeypatch):
    monkeypatch.setattr("mdir_hf.model.roles.numbered_channels.NUMBERED_NEURONS", {"llama": "they are sorted"})
    report = judged(save(base, "base"), save(new_model(seed=9, **SIZES), "other"))
    assert report.neurons is None
    assert any("in llama, they are sorted" in caveat for caveat in report.caveats)


@pytest.mark.parametrize(("n_few", "n_many", "n"), [(1, 2, 4), (1, 3, 3), (2, 3, 3)])
def test_p_is_corrected_for_the_best_way_to_pair_layers(n_few, n_many, n):
    """Over all numberings of all layers, the probability of a p this small is at most p."""
    orders = list(permutations(range(n)))
    log_p = []
    for few in product(orders, repeat=n_few - 1):  # one layer may keep its numbering
        for many in product(orders, repeat=n_many):
            layers = (orders[0], *few)
            log_p.append(_log_p_together(np.array([[sum(map(int.__eq__, a, b)) for b in many] for a in layers])))
    for level in set(log_p):
        assert np.mean(np.array(log_p) <= level) <= math.exp(level) * (1 + 1e-12)  # lgamma rounds


def test_layers_are_paired_in_place_or_in_the_best_way():
    assert _log_p_together(np.array([[9, 30], [30, 9]])) == log_p_own_numbers(18, 2)
    assert _log_p_together(np.array([[2, 30, 9]])) == pytest.approx(log_p_own_numbers(30) + math.log(3))
    assert _log_p_together(np.array([[2, 1]])) == 0.0


def test_every_comparison_draws_neurons_of_its_own(base, save):
    folders = save(base, "base"), save(new_embeddings(copy.deepcopy(base)), "new")
    reports = [judged(*folders) for _ in range(2)]
    assert all(report.verdict is Verdict.HOMOLOGOUS for report in reports)
    assert reports[0].sample_seed != reports[1].sample_seed


def test_a_given_sample_is_reproducible_but_inconclusive(base, save):
    folders = save(base, "base"), save(new_embeddings(copy.deepcopy(base)), "new")
    report = judged(*folders)
    again = judged(*folders, sample_seed=report.sample_seed)
    assert again.neurons == report.neurons and again.sample_seed == report.sample_seed
    assert (again.unembedding, again.layers, again.coverage) == (report.unembedding, report.layers, report.coverage)
    assert (again.verdict, again.reason) == (Verdict.INCONCLUSIVE, Reason.SAMPLE_CHOSEN)
    assert f"--sample-seed {report.sample_seed}" in command_line(report)


def test_the_seed_is_drawn_after_both_models_are_open(base, save, monkeypatch):
    folders = save(base, "base"), save(new_embeddings(copy.deepcopy(base)), "new")
    opened = []
    open_model = Model.__init__
    monkeypatch.setattr(
        Model, "__init__", lambda self, *args, **more: opened.append(1) or open_model(self, *args, **more)
    )
    monkeypatch.setattr("mdir_hf.comparison.run.draw_sample_seed", lambda: len(opened))
    assert judged(*folders).sample_seed == 2


def test_noise_within_the_stated_bound_is_found(base, save):
    report = judged(save(base, "base"), save(new_model(seed=9, **SIZES), "stranger"))
    noise = report.excludes.neurons_noise
    assert 0.3 < noise < 5.0
    strict = judged(save(base, "strict"), save(new_model(seed=9, **SIZES), "other"), alpha=1e-89)
    # 64 own numbers have p = 10^-89.1, before the correction for 16 pairs of layers and for the looks.
    assert strict.excludes.neurons_noise == 0.0
    copied = new_embeddings(edited(base, turned(base)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in copied.model.layers:
            for matrix in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
                matrix += noise * matrix.square().mean().sqrt() * torch.randn(matrix.shape, generator=generator)
    assert judged(save(base, "again"), save(copied, "noisy")).settled_by == "neurons"


def test_one_copied_layer_of_many_is_found_in_another_basis(save):
    deep = {**SIZES, "num_hidden_layers": 12}
    reference, candidate = new_model(seed=0, **deep), new_model(seed=7, **deep)
    stranger = save(candidate, "stranger")
    candidate.model.layers[6].load_state_dict(reference.model.layers[2].state_dict())
    rotated = edited(candidate, turned(candidate, turn=plain_qr(96)), num_hidden_layers=12)
    place = save(reference, "reference")
    found = judged(place, save(rotated, "candidate"))
    assert (found.verdict, found.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEURONS)
    assert found.neurons.fitted == FITTED_ROWS // 2
    assert [tuple(match) for match in found.neurons.matches] == [(2, 6)]
    assert [tuple(pair) for pair in found.neurons.nominated] == [(2, 6)]
    assert HomologyReport.from_json(found.to_json()) == found
    assert "some neurons of 12 of 12 layers, 11 of them by up alone" in found.coverage.reference[0].reason
    (of_neurons,) = (caveat for caveat in found.caveats if "were compared by up alone" in caveat)
    assert "The pair of layers that stood out was compared again by 64 other neurons of each layer" in of_neurons
    assert "tested in layer 2 of the reference and layer 6 of the candidate, one of 12 compared, kept" in found.sentence
    assert found.sentence.endswith("no other match was found.")
    silent = judged(place, stranger)
    assert silent.verdict is Verdict.NO_EVIDENCE and len(silent.neurons.candidate_layers) == 12
    assert silent.neurons.nominated == ()
    assert "some neurons of 12 of 12 layers, 12 of them by up alone" in silent.coverage.reference[0].reason
    assert "64 of each layer were compared by up alone" in markdown_text(silent, {})


def test_neurons_of_every_layer_are_rows_that_the_layer_map_has_read(save, monkeypatch):
    deep = {**SIZES, "num_hidden_layers": 12, "intermediate_size": 2048}
    folders = [save(new_model(seed=seed, **deep), f"deep-{seed}") for seed in (0, 7)]
    read, some = Counter(), RangedTensors.read_rows

    def read_rows(self, name, rows, **options):
        read.update((self.label, name, int(row)) for row in rows if "up_proj" in name)
        return some(self, name, rows, **options)

    monkeypatch.setattr(RangedTensors, "read_rows", read_rows)
    report = judged(*folders)
    assert report.verdict is Verdict.NO_EVIDENCE and len(report.neurons.reference_layers) == 12
    with_first_look = (0, 4, 7, 11)
    later = {row: times for row, times in read.items() if int(row[1].split(".")[2]) not in with_first_look}
    assert set(later.values()) == {1}
    by_layer = Counter((label, name) for label, name, _ in later)
    n_of_map = sample_sizes(2048)[0] // RUN_NEURONS * RUN_NEURONS
    assert set(by_layer.values()) == {n_of_map, NOMINATING_FITTED_ROWS + TESTED}


def test_every_nominated_layer_is_compared_again(save):
    deep = {**SIZES, "num_hidden_layers": 14}
    reference, candidate = new_model(seed=0, **deep), new_model(seed=7, **deep)
    copied = [layer for layer in range(14) if layer not in (0, 4, 9, 13)]  # the layers of the first look
    for layer in copied:
        for part in ("mlp", "post_attention_layernorm"):
            getattr(candidate.model.layers[layer], part).load_state_dict(
                getattr(reference.model.layers[layer], part).state_dict()
            )
    candidate = edited(candidate, turned(candidate, turn=plain_qr(96)), num_hidden_layers=14)
    neurons = judged(save(reference, "reference"), save(candidate, "candidate")).neurons
    assert [tuple(match) for match in neurons.matches] == [(layer, layer) for layer in copied]


def test_nominated_layers_pay_for_all_that_could_have_been():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 2, 128, 96, generator=generator)
    sample = NeuronSample((3,), 500, 64, torch.nn.functional.normalize(rows, dim=-1))
    alone, nominated = (compare_neurons(sample, sample, alpha=1e-10, n_nominated_of=n) for n in (None, 900))
    assert alone.own_number == nominated.own_number == ((64,),)
    assert nominated.log10_p - alone.log10_p == pytest.approx(math.log10(900))


def mixture(seed, n_experts=4, dense=None):
    """A Mixtral; with ``dense``, one built from its attention and copies of its MLPs."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    sizes = SIZES | {"vocab_size": 160, "num_local_experts": n_experts, "num_experts_per_tok": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes)).double()
    for layer, old in zip(model.model.layers, dense.model.layers if dense else (), strict=False):
        for part in ("self_attn", "input_layernorm", "post_attention_layernorm"):
            getattr(layer, part).load_state_dict(getattr(old, part).state_dict())
        both = torch.cat([old.mlp.gate_proj.weight, old.mlp.up_proj.weight])
        layer.mlp.experts.gate_up_proj.data = both.detach().expand(n_experts, -1, -1).clone()
        layer.mlp.experts.down_proj.data = old.mlp.down_proj.weight.detach().expand(n_experts, -1, -1).clone()
    return model


def test_the_first_experts_of_a_mixture_are_compared(base, save):
    reference = save(mixture(0), "mixture")
    found = judged(reference, save(new_embeddings(mixture(0)), "relative"))
    assert (found.verdict, found.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEURONS)
    assert len(found.neurons.matches) == 4
    silent = judged(reference, save(mixture(1), "stranger"))
    assert silent.verdict is Verdict.NO_EVIDENCE
    assert sum("expert" in caveat and "would not have been found" in caveat for caveat in silent.caveats) == 2
    upcycled = judged(save(base, "dense"), save(mixture(2, dense=base), "upcycled"))
    assert (upcycled.verdict, upcycled.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEURONS)


def test_layers_with_other_numbers_of_neurons_are_left_out(base, save):
    """As after pruning more neurons in some layers, or with a dense layer before a mixture."""
    reference = save(base, "base")
    candidate = new_embeddings(copy.deepcopy(base))
    mlp = candidate.model.layers[0].mlp
    for name in ("gate_proj", "up_proj"):
        getattr(mlp, name).weight.data = getattr(mlp, name).weight.data[:150]
    mlp.down_proj.weight.data = mlp.down_proj.weight.data[:, :150]
    found = judged(reference, save(candidate, "pruned"))
    assert [tuple(match) for match in found.neurons.matches] == [(1, 1), (2, 2), (3, 3)]


def test_partly_shared_neurons_are_inconclusive(base, save):
    """Half of the neurons are new and the rest are rotated: too few are certain, but more than chance explains."""
    other = new_model(seed=9, **SIZES)
    for mine, theirs in zip(base.model.layers, other.model.layers, strict=True):
        for name in ("gate_proj", "up_proj"):
            getattr(theirs.mlp, name).weight.data[::2] = getattr(mine.mlp, name).weight.data[::2]
    found = judged(save(base, "base"), save(edited(other, turned(other, turn=plain_qr(96))), "part"))
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, Reason.NULL_NOT_VALIDATED)
    assert found.log10_p_not_accepted == found.neurons.log10_p < -10.0 and not found.neurons.matches
    assert any("Some of the neurons may be shared" in caveat for caveat in found.caveats)
