"""Neurons by number in whole comparisons: a few rows find neurons that kept their numbers, whatever else changed."""

import copy
import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
import torch

from mdir_hf import Assumption, HomologyReport, Reason, SettledBy, Verdict, compare
from mdir_hf.comparison.neurons import _log_p_of_step
from mdir_hf.method.neuron_numbers import log_p_own_numbers
from mdir_hf.model.files.ranged import RangedTensors
from mdir_hf.model.opened import Model
from mdir_hf.report.words import probability_text
from tests.comparison.relatives import SIZES, drift, edited, new_embeddings, turned, with_layers
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")


def judged(reference, candidate, **options) -> HomologyReport:
    return compare(reference, candidate, progress=False, **options)


def plain_qr(n):
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).Q


def test_near_copies_need_two_layers_and_neither_tokens_nor_embeddings(base, save):
    report = judged(save(base, "base"), save(new_embeddings(drift(copy.deepcopy(base), 0.3)), "new"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert report.assumption is Assumption.NUMBERING and report.p_is_bound
    assert len(report.neurons.matches) == 2 and report.neurons.tested == 64
    # Two layers chosen in advance, in the first step: 2^k / k!, times 2.
    expected = log_p_own_numbers(sum(map(sum, report.neurons.own_number)), 2) + math.log(2)
    assert report.log10_p == report.neurons.log10_p == pytest.approx(expected / math.log(10))
    assert report.embedding is None and report.layers is None and report.excludes is None
    assert not [name for name in report.io.files if "tokenizer" in name]
    assert HomologyReport.from_json(report.to_json()) == report


def test_the_embeddings_are_described_on_request(base, save):
    report = judged(save(base, "base"), save(drift(copy.deepcopy(base), 0.3), "new"), describes=True)
    assert report.settled_by is SettledBy.NEAR
    assert report.embedding.transformation == "identity" and report.embedding.is_copied


def test_a_rotated_stream_with_new_embeddings_is_found(base, save):
    candidate = new_embeddings(edited(base, turned(base, turn=plain_qr(96))))
    report = judged(save(base, "base"), save(candidate, "turned"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)


def test_layers_that_were_left_out_are_matched_with_their_own(base, save):
    candidate = new_embeddings(drift(with_layers(base, [0, 3]), 0.1))
    report = judged(save(base, "base"), save(candidate, "pruned"))
    assert report.settled_by is SettledBy.NUMBER  # the depths differ, so no layers are at the same place
    assert [tuple(match) for match in report.neurons.matches] == [(0, 0), (3, 1)]


def test_neurons_are_compared_without_a_tokenizer(base, save):
    candidate = new_embeddings(drift(copy.deepcopy(base), 0.1))
    folders = save(base, "base", words=[]), save(candidate, "other", words=[])
    assert judged(*folders).settled_by is SettledBy.NEAR
    strangers = judged(folders[0], save(new_model(seed=9, **SIZES), "stranger", words=[]))
    assert strangers.verdict is Verdict.NO_EVIDENCE
    assert any("paired by number" in caveat for caveat in strangers.caveats)


def test_strangers_have_few_numbers_in_common(base, save):
    report = judged(save(base, "base"), save(new_model(seed=9, **SIZES), "stranger"))
    assert (report.verdict, report.settled_by, report.log10_p) == (Verdict.NO_EVIDENCE, None, 0.0)
    # P(7 or more of 64 numbers are equal) is 8e-5 for a pair of layers, and at most 36 pairs are compared.
    assert report.neurons.matches == () and max(map(max, report.neurons.own_number)) <= 7
    assert report.neurons.most_certain <= 2


def test_noise_of_one_and_a_half_times_the_weights_is_found_behind_many_rows(save):
    sizes = SIZES | {"intermediate_size": 1024}
    base = new_model(seed=0, **sizes)
    noisy = edited(base, turned(base, turn=plain_qr(96)), noise=1.5, intermediate_size=1024)
    report = judged(save(base, "base"), save(noisy, "noisy"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NOISE)
    assert report.neurons.fitted > 64  # five rows for each of 96 channels, of gate and up


def test_one_copied_layer_of_many_is_found_in_another_basis(save):
    deep = {**SIZES, "num_hidden_layers": 12}
    reference, candidate = new_model(seed=0, **deep), new_model(seed=7, **deep)
    for part in ("mlp", "post_attention_layernorm"):
        getattr(candidate.model.layers[6], part).load_state_dict(getattr(reference.model.layers[2], part).state_dict())
    rotated = edited(candidate, turned(candidate, turn=plain_qr(96)), num_hidden_layers=12)
    report = judged(save(reference, "reference"), save(rotated, "candidate"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.EVERY)
    assert [tuple(match) for match in report.neurons.matches] == [(2, 6)]
    assert HomologyReport.from_json(report.to_json()) == report


def test_no_row_is_read_twice(save, monkeypatch):
    deep = {**SIZES, "num_hidden_layers": 6}
    folders = [save(new_model(seed=seed, **deep), f"deep-{seed}") for seed in (0, 7)]
    n_reads: Counter[tuple[str, str, int]] = Counter()

    def read(self, name, original=RangedTensors.read):
        n_reads.update((self.label, name, row) for row in range(self.spec(name).shape[0]))
        return original(self, name)

    def read_rows(self, name, rows, original=RangedTensors.read_rows, **options):
        n_reads.update((self.label, name, int(row)) for row in rows)
        return original(self, name, rows, **options)

    monkeypatch.setattr(RangedTensors, "read", read)
    monkeypatch.setattr(RangedTensors, "read_rows", read_rows)
    assert judged(*folders).verdict is Verdict.NO_EVIDENCE
    assert n_reads and not {name for (_, name, _), n in n_reads.items() if n > 1}


@pytest.mark.parametrize(("n_neurons", "n_tested"), [(39, None), (40, 20), (63, 20), (64, 32), (191, 32), (192, 64)])
def test_layers_from_40_neurons_are_compared(save, n_neurons, n_tested):
    sizes = SIZES | {"intermediate_size": n_neurons, "num_hidden_layers": 2}
    base = new_model(seed=0, **sizes)
    report = judged(save(base, "base"), save(drift(copy.deepcopy(base), 0.1), "copy"))
    if n_tested is None:
        assert report.neurons is None and report.verdict is not Verdict.HOMOLOGOUS
    else:
        assert report.verdict is Verdict.HOMOLOGOUS and report.neurons.tested == n_tested


def test_families_whose_neurons_have_an_order_are_left_out(base, save, monkeypatch):
    monkeypatch.setattr("mdir_hf.model.roles.numbered_channels.NUMBERED_NEURONS", {"llama": "they are sorted"})
    report = judged(save(base, "base"), save(new_model(seed=9, **SIZES), "other"))
    assert report.neurons is None
    assert any("in llama, they are sorted" in caveat for caveat in report.caveats)


@pytest.mark.parametrize(("n_few", "n_many", "n"), [(1, 2, 4), (1, 3, 3), (2, 2, 3), (2, 3, 3)])
def test_p_is_corrected_for_the_best_way_to_pair_layers(n_few, n_many, n):
    """Over all numberings of all layers, the probability of a p this small is at most p."""
    orders = list(permutations(range(n)))
    log_p = []
    for few in product(orders, repeat=n_few - 1):  # one layer may keep its numbering
        for many in product(orders, repeat=n_many):
            layers = (orders[0], *few)
            own = np.array([[sum(map(int.__eq__, a, b)) for b in many] for a in layers])
            log_p.append(_log_p_of_step(own, None, None))
    for level in set(log_p):
        assert np.mean(np.array(log_p) <= level) <= math.exp(level) * (1 + 1e-12)  # lgamma rounds


def test_pairs_that_were_chosen_in_advance_cost_nothing():
    own = np.array([[30, 9], [2, 31]])
    assert _log_p_of_step(own, [(0, 0), (1, 1)], None) == log_p_own_numbers(61, 2)
    assert _log_p_of_step(own, None, None) == pytest.approx(log_p_own_numbers(61, 2) + math.log(2))
    assert _log_p_of_step(np.array([[2, 1]]), None, None) == 0.0


def test_every_comparison_draws_neurons_of_its_own(base, save):
    folders = save(base, "base"), save(new_embeddings(copy.deepcopy(base)), "new")
    reports = [judged(*folders) for _ in range(2)]
    assert all(report.verdict is Verdict.HOMOLOGOUS for report in reports)
    assert reports[0].sample_seed != reports[1].sample_seed


def test_p_is_that_of_the_neurons_at_every_level(base, save):
    folders = save(base, "base"), save(drift(copy.deepcopy(base), 0.3), "new")
    report = judged(*folders, level="layers")
    assert min(match.log10_p for match in report.layers.matches) != report.log10_p
    assert report.log10_p == report.neurons.log10_p and report.settled_by is report.neurons.step
    assert f"({probability_text(report.log10_p)})" in report.sentence


def test_a_chosen_sample_is_inconclusive(base, save):
    folders = save(base, "base"), save(new_embeddings(copy.deepcopy(base)), "new")
    report = judged(*folders)
    again = judged(*folders, sample_seed=report.sample_seed)
    assert again.neurons == report.neurons and again.sample_seed == report.sample_seed
    assert (again.verdict, again.reason) == (Verdict.INCONCLUSIVE, Reason.SAMPLE_CHOSEN)


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
    correlation = report.excludes.neurons
    noise = math.sqrt(1.0 / correlation**2 - 1.0)
    assert 0.3 < noise < 5.0
    # 64 own numbers have p = 10^-89.1, before the correction for 16 pairs of layers and for the steps.
    strict = judged(save(base, "strict"), save(new_model(seed=9, **SIZES), "other"), alpha=1e-89)
    assert strict.excludes.neurons is None
    copied = new_embeddings(edited(base, turned(base), noise=0.0))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in copied.model.layers:
            for matrix in (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
                matrix += noise * matrix.square().mean().sqrt() * torch.randn(matrix.shape, generator=generator)
    assert judged(save(base, "again"), save(copied, "noisy")).verdict is Verdict.HOMOLOGOUS


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
    report = judged(reference, save(new_embeddings(mixture(0)), "relative"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    silent = judged(reference, save(mixture(1), "stranger"))
    assert silent.verdict is Verdict.NO_EVIDENCE
    assert sum("expert" in caveat and "would not have been found" in caveat for caveat in silent.caveats) == 2
    upcycled = judged(save(base, "dense"), save(mixture(2, dense=base), "upcycled"))
    assert (upcycled.verdict, upcycled.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)


def test_layers_with_other_numbers_of_neurons_are_left_out(base, save):
    """As after pruning more neurons in some layers, or with a dense layer before a mixture."""
    candidate = new_embeddings(copy.deepcopy(base))
    mlp = candidate.model.layers[0].mlp
    for name in ("gate_proj", "up_proj"):
        getattr(mlp, name).weight.data = getattr(mlp, name).weight.data[:150]
    mlp.down_proj.weight.data = mlp.down_proj.weight.data[:, :150]
    report = judged(save(base, "base"), save(candidate, "pruned"))
    assert report.verdict is Verdict.HOMOLOGOUS
    assert {tuple(match) for match in report.neurons.matches} <= {(1, 1), (2, 2), (3, 3)}


def test_half_of_the_neurons_is_enough(base, save):
    """Every second run of neurons is new, and the rest are rotated."""
    other = new_model(seed=9, **SIZES)
    kept = torch.arange(200) % 10 < 7
    for mine, theirs in zip(base.model.layers, other.model.layers, strict=True):
        for name in ("gate_proj", "up_proj"):
            getattr(theirs.mlp, name).weight.data[kept] = getattr(mine.mlp, name).weight.data[kept]
        theirs.post_attention_layernorm.load_state_dict(mine.post_attention_layernorm.state_dict())
    report = judged(save(base, "base"), save(edited(other, turned(other, turn=plain_qr(96)), noise=0.0), "part"))
    assert report.verdict is Verdict.HOMOLOGOUS
    counts = [report.neurons.certain[at][at] for at in range(2)]
    # About 45 of 64 in each layer. They are sampled in runs of 8, so a single layer may have fewer than half.
    assert max(counts) >= 32 and max(counts) < 64


def test_models_whose_layers_cannot_be_read_are_inconclusive(tmp_path):
    from tests.specimens import gaussian, write_model

    further = {f"model.layers.{at}.odd.weight": gaussian(7, 5, at) for at in range(2)}
    config = {"model_type": "llama", "hidden_size": 96, "num_hidden_layers": 2}
    folders = [
        write_model(tmp_path / name, gaussian(900, 96, seed), config=config, further=further)
        for name, seed in (("a", 0), ("b", 1))
    ]
    report = judged(*folders)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.WEIGHTS_UNREADABLE)
