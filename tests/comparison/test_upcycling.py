"""Dense models upcycled to mixtures of experts: every expert is traced to its origin, and new experts to none."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mdir_hf import HomologyChecker, Verdict
from mdir_hf.comparison.mixtures import ExpertOrigins
from mdir_hf.comparison.results import experts_result
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neurons import MlpWeights, match_experts
from tests.specimens import tokenizer_json, tokens

pytestmark = pytest.mark.usefixtures("without_neuron_numbers")

transformers = pytest.importorskip("transformers")

V, WIDTH, NEURONS, LAYERS = 120, 64, 128, 2
SIZES = {
    "vocab_size": V,
    "hidden_size": WIDTH,
    "intermediate_size": NEURONS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@torch.no_grad()
def new_model(family, seed, **sizes):
    """A model at initialisation, except that its gains are not 1, as after training."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[family](**SIZES, **sizes))
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.copy_(0.5 + torch.rand(weight.shape))
        elif weight.ndim == 3:
            weight.normal_(std=0.1)
    return model


@pytest.fixture
def save(tmp_path):
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()

    def save_model(model, name, *, stacked=False):
        model.save_pretrained(tmp_path / name, save_original_format=not stacked)
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(V))))
        return tmp_path / name

    return save_model


@torch.no_grad()
def put(mlp, dense, neurons, generator, *, noise=0.3):
    """Fill an expert, (gate | up) and down, with some neurons of a dense MLP, plus noise."""
    gate_up, down = mlp

    def noisy(weight):
        return weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)

    gate_up.copy_(torch.cat([noisy(dense.gate_proj.weight[neurons]), noisy(dense.up_proj.weight[neurons])]))
    down.copy_(noisy(dense.down_proj.weight[:, neurons]))


def expert(layer, number):
    return layer.mlp.experts.gate_up_proj[number], layer.mlp.experts.down_proj[number]


@torch.no_grad()
def copy_all_but_mlps(mixture, dense):
    mine = mixture.state_dict()
    mixture.load_state_dict(
        {k: v for k, v in dense.state_dict().items() if k in mine and ".mlp." not in k}, strict=False
    )
    return mixture


def upcycle_to_mixtral(dense, *, n_experts=4, seed=1):
    """Each expert is the dense MLP with reordered neurons and noise; the last expert is new."""
    generator = torch.Generator().manual_seed(seed)
    mixture = copy_all_but_mlps(new_model("mixtral", seed, num_local_experts=n_experts), dense)
    for layer, origin in zip(mixture.model.layers, dense.model.layers, strict=True):
        for number in range(n_experts - 1):
            put(expert(layer, number), origin.mlp, torch.randperm(NEURONS, generator=generator), generator)
    return mixture


@torch.no_grad()
def new_embeddings(model, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def compare(reference, candidate, *, level="layers"):
    return HomologyChecker.from_pretrained(reference).compare(candidate, level=level, progress=False)


def mixtures(report):
    """Layer, expert map and experts without an origin, for every layer with experts."""
    return {
        tuple(module.layer): ({a: b for a, b, _ in module.found.experts}, list(module.found.without_origin))
        for module in report.modules
        if module.role == "experts"
    }


@pytest.mark.parametrize("stacked", [False, True])
def test_every_upcycled_expert_is_traced_and_a_new_one_not(save, stacked):
    dense = new_model("llama", 0)
    candidate = save(upcycle_to_mixtral(dense), "mixture", stacked=stacked)
    report = compare(save(dense, "dense"), candidate)
    assert report.verdict is Verdict.HOMOLOGOUS
    assert [[*match[:2]] for match in report.layers.matches] == [[0, 0], [1, 1]]
    assert mixtures(report) == {(i, i): ({0: None, 1: None, 2: None}, [3]) for i in range(LAYERS)}
    for module in report.modules:
        if module.role == "experts":
            assert module.log10_p == min(expert.log10_p for expert in module.found.experts) < -10


@pytest.mark.parametrize("seed", [11])
@pytest.mark.parametrize("reference", ["llama", "mixtral"])
def test_an_unrelated_mixture_does_not_match(save, reference, seed):
    mixture = upcycle_to_mixtral(new_model("llama", seed), seed=seed + 50)
    report = compare(save(new_model(reference, 0), "reference"), save(mixture, "mixture"))
    assert report.verdict is Verdict.NO_EVIDENCE
    assert report.layers.matches == ()
    assert report.modules is None


def test_experts_are_traced_in_the_layer_that_was_matched(save):
    dense = new_model("llama", 0)
    mixture = upcycle_to_mixtral(dense)
    mixture.model.layers = mixture.model.layers[1:]
    mixture.config.num_hidden_layers = 1
    report = compare(save(dense, "dense"), save(mixture, "last-layer"))
    assert mixtures(report) == {(1, 0): ({0: None, 1: None, 2: None}, [3])}


def test_wide_models_are_traced_in_single_precision(save, monkeypatch):
    monkeypatch.setattr("mdir_hf.comparison.mixtures.FLOAT64_CHANNELS", WIDTH - 1)
    dense = new_model("llama", 0)
    report = compare(save(dense, "dense"), save(upcycle_to_mixtral(dense), "mixture"))
    assert mixtures(report) == {(i, i): ({0: None, 1: None, 2: None}, [3]) for i in range(LAYERS)}


def test_p_of_an_expert_is_corrected_for_the_other_tests_of_its_report():
    generator = torch.Generator().manual_seed(0)
    mlp = MlpWeights(torch.randn(40, 16, generator=generator), torch.randn(16, 40, generator=generator))
    found = match_experts([mlp], [mlp, mlp], ResidualBasisMap.identity(16), log_alpha=-23.0)
    origins = ExpertOrigins((3, 5), (None,), (0, "shared"), found)
    module = experts_result(origins, log_n_tests=math.log(7))
    expected = [(found.matrix[0, j] + math.log(2) + math.log(7)) / math.log(10) for j in range(2)]
    assert module.layer == (3, 5)
    assert module.found.experts == (
        (0, None, pytest.approx(expected[0], rel=1e-12)),
        ("shared", None, pytest.approx(expected[1], rel=1e-12)),
    )
    assert module.log10_p == pytest.approx(min(expected), rel=1e-12)
