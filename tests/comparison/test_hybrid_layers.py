"""Hybrids and mixers: neurons are compared in MLPs or mixers, and layers keep the checkpoint's numbers."""

import copy
import math
import warnings

import pytest
import torch

from mdir_hf import HomologyChecker, SettledBy, Verdict
from mdir_hf.comparison.projections.analysis import analyse_layers
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.render.projection_words import projection_table
from mdir_hf.report import Outcome

transformers = pytest.importorskip("transformers")

V, WIDTH = 160, 96
COMMON = {"vocab_size": V, "hidden_size": WIDTH, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160}
FAMILIES = {
    "mamba": COMMON | {"num_hidden_layers": 4, "state_size": 8, "intermediate_size": 192},
    "mamba2": COMMON
    | {"num_hidden_layers": 4, "state_size": 8, "num_heads": 8, "head_dim": 24, "n_groups": 1, "expand": 2},
    "jamba": COMMON
    | HEADS
    | {"num_hidden_layers": 6, "mamba_d_state": 8, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 1},
    "qwen3_next": COMMON
    | HEADS
    | {
        "num_hidden_layers": 4,
        "head_dim": 24,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 24,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 96,
        "num_experts": 3,
        "num_experts_per_tok": 2,
    },
    "rwkv": COMMON | {"num_hidden_layers": 4, "attention_hidden_size": 96, "intermediate_size": 160},
}
ATTENTION_LAYERS = {"jamba": {1, 4}, "qwen3_next": {3}}


def new_model(family, seed, **more):
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing kernels
        config = transformers.CONFIG_MAPPING[family](**(FAMILIES[family] | more))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and ("rwkv" in name or "head" in name):
                weight.normal_(std=0.1)  # transformers does not initialise this family
    return model


@torch.no_grad()
def retrained(base, seed=5):
    """Replace every embedding and add noise of 20 % to every other matrix."""
    model = copy.deepcopy(base)
    gen = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "embed" in name or "head" in name:
            weight.copy_(0.02 * torch.randn(weight.shape, generator=gen))
        elif weight.ndim > 1 and weight.numel() > WIDTH * 8:
            weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=gen)
    return model


def compare(reference, candidate, **options):
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False, **options)


def opened(folder):
    return Model(open_repository(str(folder)))


@pytest.mark.parametrize("family", FAMILIES)
def test_relatives_are_found_by_the_neurons_of_their_mlps_or_mixers(family, save):
    base = new_model(family, 0)
    report = compare(save(base, "base"), save(retrained(base), "retrained"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.NEAR)
    assert all(source == place for source, place in report.neurons.matches)


@pytest.mark.parametrize("family", ATTENTION_LAYERS)
def test_every_layer_of_a_relative_descends_from_its_own(family, save):
    base = new_model(family, 0)
    report = compare(save(base, "base"), save(retrained(base), "retrained"), level="layers")
    n_layers = FAMILIES[family]["num_hidden_layers"]
    assert [[*match[:2]] for match in report.layers.matches] == [[i, i] for i in range(n_layers)]
    attention = {
        result.layer.candidate
        for result in report.projections.results
        if result.role == "k" and result.outcome is Outcome.KEPT
    }
    assert attention >= ATTENTION_LAYERS[family]
    # No layer matches a layer of the other kind.
    special, level = ATTENTION_LAYERS[family], math.log10(report.alpha)
    for i, row in enumerate(report.layers.matrix):
        assert all(log10_p > level for j, log10_p in enumerate(row) if (i in special) != (j in special))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stranger_does_not_match(family, save):
    report = compare(save(new_model(family, 0), "base"), save(new_model(family, 1), "stranger"), level="layers")
    assert (report.verdict, report.log10_p) == (Verdict.NO_EVIDENCE, 0.0)
    assert report.neurons is not None and report.neurons.matches == ()
    assert report.layers is None or report.layers.matches == ()


def test_a_hybrid_that_lost_layers_keeps_its_numbers(save):
    base = new_model("jamba", 0)
    shorter = new_model("jamba", 1, num_hidden_layers=3)  # mamba, attention, mamba
    for here, there in enumerate((3, 4, 5)):
        shorter.model.layers[here].load_state_dict(base.model.layers[there].state_dict(), strict=True)
    report = compare(save(base, "base"), save(shorter, "shorter"), level="layers")
    # Four layers of the base are sampled: 0, 2, 3 and 5.
    assert [tuple(match) for match in report.neurons.matches] == [(3, 0), (5, 2)]
    assert [[*match[:2]] for match in report.layers.matches] == [[3, 0], [4, 1], [5, 2]]


@torch.no_grad()
def test_reordered_channels_of_mixers_are_found_behind_the_embeddings(save):
    base = new_model("mamba", 0)
    edited = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(7)
    for layer in edited.backbone.layers:
        order = torch.randperm(192, generator=generator)
        in_proj, out_proj = layer.mixer.in_proj.weight, layer.mixer.out_proj.weight
        in_proj.copy_(in_proj[torch.cat([order, order + 192])].clone())  # the input and the gate
        out_proj.copy_(out_proj[:, order].clone())
    report = compare(save(base, "base"), save(edited, "edited"))
    assert (report.verdict, report.settled_by) == (Verdict.HOMOLOGOUS, SettledBy.EMBEDDINGS)


@torch.no_grad()
def test_mixers_have_rows_in_the_table_of_projections(save):
    base, other = new_model("mamba", 0), new_model("mamba", 1)
    edited = retrained(base)
    order = torch.randperm(192, generator=torch.Generator().manual_seed(7))
    shuffled, replaced = (edited.backbone.layers[at].mixer for at in (1, 3))
    for half in (slice(0, 192), slice(192, 384)):  # the input and the gate
        shuffled.in_proj.weight[half] = shuffled.in_proj.weight[half][order]
    shuffled.out_proj.weight.copy_(shuffled.out_proj.weight[:, order])
    replaced.out_proj.weight.copy_(other.backbone.layers[3].mixer.out_proj.weight)
    models = opened(save(base, "base")), opened(save(edited, "edited"))
    table = analyse_layers(*models, (ResidualBasisMap.identity(WIDTH),)).table
    found = {(result.layer.candidate, result.role.value): result for result in table.results}
    roles = ("mixer_gate", "ssm_in", "ssm_out")
    assert found.keys() == {(at, role) for at in range(4) for role in roles}
    assert {found[0, role].outcome for role in roles} == {found[2, role].outcome for role in roles} == {Outcome.KEPT}
    assert {(found[1, role].outcome, found[1, role].moved) for role in roles} == {(Outcome.PERMUTED, "channels")}
    assert [found[3, role].outcome for role in roles] == [Outcome.KEPT, Outcome.KEPT, Outcome.REPLACED]
    assert projection_table(table).columns[2:] == ("mixer gate", "mixer input", "mixer output")
