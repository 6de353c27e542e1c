"""Strangers that were changed to look like relatives are not called homologous, unless they hold copied rows."""

import copy

import pytest
import torch

from mdir_hf import Reason, Verdict, compare
from mdir_hf.report import Outcome
from tests.comparison.relatives import SIZES, drift, edited, renumbered, turned
from tests.method.obfuscation import new_model

pytest.importorskip("transformers")


@torch.no_grad()
def polar_factor_onto(victim, stranger):
    """The rotation that maps the stranger's embeddings closest to the victim's."""
    left, _, right = torch.linalg.svd(stranger.model.embed_tokens.weight.T @ victim.model.embed_tokens.weight)
    return left @ right


@pytest.mark.parametrize("level", ["auto", "layers"])
def test_a_rotated_stranger_is_not_homologous(base, save, level):
    stranger = new_model(seed=9, **SIZES)
    framed = edited(stranger, turned(stranger, turn=polar_factor_onto(base, stranger)))
    report = compare(save(base, "victim"), save(framed, "framed"), level=level, progress=False)
    assert report.embedding.is_significant and report.embedding.log10_p < -100  # which alone would accuse it
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0)
    assert any("alike but not copies" in caveat for caveat in report.caveats)
    assert report.projections is None or reports_no_copies(report.projections)
    assert report.layers is None or report.layers.matches == ()


def reports_no_copies(table):
    outcomes = set(table.counts()) - {Outcome.NOT_COMPARED}
    return not table.is_confirmed and outcomes <= {Outcome.ROWS_AGREE, Outcome.NO_AGREEMENT}


def test_neurons_renumbered_to_match_are_not_homologous(base, save):
    """Each neuron of the stranger takes the number of the victim's neuron that it resembles most, for a known seed."""
    stranger = new_model(seed=9, **SIZES)
    framed = edited(stranger, turned(stranger, turn=polar_factor_onto(base, stranger)), noise=0.0)
    with torch.no_grad():
        for own, other in zip(framed.model.layers, base.model.layers, strict=True):
            likeness = own.mlp.up_proj.weight @ other.mlp.up_proj.weight.T
            from scipy.optimize import linear_sum_assignment

            order = torch.from_numpy(linear_sum_assignment(likeness.T.numpy(), maximize=True)[1])
            for part in (own.mlp.gate_proj, own.mlp.up_proj):
                part.weight.copy_(part.weight[order].clone())
            own.mlp.down_proj.weight.copy_(own.mlp.down_proj.weight[:, order].clone())
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.neurons.most_certain <= 14  # the most that any framed model reached without copied rows


@torch.no_grad()
def with_copied_mlps(victim, stranger, *, share, scale):
    """Replace the stranger's first neurons with the victim's, with up and down multiplied by ``scale``."""
    for own, copied in zip(stranger.model.layers, victim.model.layers, strict=True):
        n_copied = int(share * len(own.mlp.up_proj.weight))
        own.post_attention_layernorm.weight.copy_(copied.post_attention_layernorm.weight)
        own.mlp.gate_proj.weight[:n_copied] = copied.mlp.gate_proj.weight[:n_copied]
        own.mlp.up_proj.weight[:n_copied] = scale * copied.mlp.up_proj.weight[:n_copied]
        own.mlp.down_proj.weight[:, :n_copied] = scale * copied.mlp.down_proj.weight[:, :n_copied]
    return stranger


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_a_copied_row_is_a_copied_row_whatever_it_does(base, save, scale):
    shared = with_copied_mlps(base, new_model(seed=9, **SIZES), share=0.92, scale=scale)
    report = compare(save(base, "victim"), save(shared, "shared"), progress=False)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert any("not how much they do" in sentence for sentence in report.does_not_mean)


def test_rows_of_zeros_are_no_copies(base, save):
    framed = with_copied_mlps(base, new_model(seed=9, **SIZES), share=0.92, scale=0.0)
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE


def test_copied_embeddings_alone_are_inconclusive(base, save):
    framed = new_model(seed=9, **SIZES)
    framed.model.embed_tokens.load_state_dict(drift(copy.deepcopy(base), 0.2).model.embed_tokens.state_dict())
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.EMBEDDINGS_ONLY)
    assert report.embedding.is_copied


def test_copied_attention_alone_is_inconclusive(base, save):
    framed = new_model(seed=9, **SIZES)
    for own, other in zip(framed.model.layers, base.model.layers, strict=True):
        own.self_attn.load_state_dict(other.self_attn.state_dict())
        own.input_layernorm.load_state_dict(other.input_layernorm.state_dict())
    framed = edited(framed, turned(framed), noise=0.0)
    report = compare(save(base, "victim"), save(framed, "framed"), progress=False)
    assert (report.verdict, report.reason) == (Verdict.INCONCLUSIVE, Reason.ATTENTION_ONLY)


@torch.no_grad()
def pruned_rows(model, share):
    """Keep only the largest entries of every row in every layer's matrices."""
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            n_kept = max(1, round(share * weight.shape[1]))
            least = weight.abs().topk(n_kept, dim=1).values[:, -1:]
            weight *= weight.abs() >= least
    return model


@torch.no_grad()
def cubed(model):
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            weight.copy_(weight**3 / weight.std() ** 2)
    return model


@torch.no_grad()
def heavy_rows(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.model.layers.parameters():
        if weight.ndim == 2:
            weight *= (1.5 * torch.randn(len(weight), 1, generator=generator, dtype=weight.dtype)).exp()
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda model, seed: pruned_rows(model, 0.05),
        lambda model, seed: pruned_rows(model, 0.15),
        lambda model, seed: cubed(model),
        heavy_rows,
        lambda model, seed: renumbered(model, seed),
    ],
    ids=["5 % of the entries", "15 % of the entries", "cubed", "heavy rows", "renumbered"],
)
def test_strangers_with_odd_weights_are_not_homologous(save, change):
    folders = [save(change(new_model(seed=seed, **SIZES), seed), f"model-{seed}") for seed in (0, 9)]
    report = compare(*folders, progress=False)
    assert report.verdict is Verdict.NO_EVIDENCE
