"""The edits of the real models, applied to tiny ones: which keep the function, and which keep the weights."""

import pytest
import torch
import transformers

from benchmarks.real.relatives import EDITS, edited, rebuilt, upcycled, with_embeddings_of
from benchmarks.zoo.stack import take_apart
from tests.benchmarks.evidence import WITH_THE_SCRIPTS

pytestmark = [pytest.mark.slow, WITH_THE_SCRIPTS]

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "bos_token_id": 0,
    "eos_token_id": 1,
}
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
}
IN_THE_LAYERS = ("heads-neurons", "values-turned", "half-depth", "upscaled", "rescaled", "split-neurons", "split-ups")
"""Edits that do not change the embeddings."""


def model_of(architecture):
    """A tiny tied model whose gains are not 1 and whose biases are not 0, as after training."""
    torch.manual_seed(0)
    config, model = MODELS[architecture]
    made = model(config(**SIZES)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 1:
                weight += 0.3 * torch.rand_like(weight)
    return made


@torch.no_grad()
def logits(model):
    return model(torch.arange(40).reshape(2, 20)).logits


def rows_of(model):
    return model.get_input_embeddings().weight.detach()


def numbers_of(model):
    """Every matrix's values, rounded so that copies compare equal."""
    return [set(matrix.flatten().mul(1e4).round().tolist()) for matrix in take_apart(model).matrices()]


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("name", [name for name, how in EDITS.items() if how.keeps_function])
def test_an_edit_of_numbers_alone_keeps_the_logits(name, architecture):
    model = model_of(architecture)
    made = edited(model, EDITS[name])
    # Computed in float32, partly with factors up to e^3.
    torch.testing.assert_close(logits(made), logits(model), rtol=0, atol=2e-3)
    changed = "self_attn.v_proj" if name == "values-turned" else "mlp.down_proj"
    before, after = (x.state_dict()[f"model.layers.1.{changed}.weight"] for x in (model, made))
    assert before.shape != after.shape or not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("name", EDITS)
def test_every_edit_gives_a_model_that_runs_and_is_another(name, architecture):
    model = model_of(architecture)
    made = edited(model, EDITS[name])
    assert logits(made).isfinite().all()
    if name not in IN_THE_LAYERS:
        assert not torch.equal(rows_of(made), rows_of(model))


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_deterministic_and_does_not_change_its_origin(name):
    model = model_of("llama")
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    one, other = edited(model, EDITS[name]).state_dict(), edited(model, EDITS[name]).state_dict()
    assert all(torch.equal(weight, other[key]) for key, weight in one.items())
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())


@pytest.mark.parametrize(("name", "size"), [("noise-1", 1.0), ("noise-3", 3.0)])
def test_noise_has_the_stated_size(name, size):
    model = model_of("llama")
    for before, after in zip(
        take_apart(model).matrices(), take_apart(edited(model, EDITS[name])).matrices(), strict=True
    ):
        # The smallest matrix has 2,048 entries: three standard errors of its mean square are 9 %.
        assert float((after - before).square().mean() / before.square().mean()) == pytest.approx(size**2, rel=0.1)


def test_a_model_of_30_layers_is_upscaled_to_44():
    stack = take_apart(model_of("llama"))
    stack.blocks = [stack.blocks[0]] * 30
    assert len(EDITS["upscaled"].edit(stack, torch.Generator()).blocks) == 44


def test_narrower_and_shallower_models_keep_the_rest():
    model = model_of("llama")
    for name in ("half-width", "half-depth"):
        made = edited(model, EDITS[name])
        assert numbers_of(model)[0].issuperset(numbers_of(made)[0]), name
    assert edited(model, EDITS["half-width"]).config.hidden_size == 32
    assert edited(model, EDITS["half-depth"]).config.num_hidden_layers == 2


def test_new_embeddings_keep_the_size_and_none_of_the_numbers():
    model = model_of("llama")
    before, after = (rows_of(x) for x in (model, edited(model, EDITS["new-embeddings"])))
    assert float(after.square().mean().sqrt()) == pytest.approx(float(before.square().mean().sqrt()), rel=1e-4)
    assert abs(float(torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1])) < 0.05


def test_the_leading_directions_are_gone():
    model = model_of("llama")
    stack = take_apart(edited(model, EDITS["without-top-16"]))
    for before, after in zip(take_apart(model).matrices(), stack.matrices(), strict=True):
        singular, left = torch.linalg.svdvals(before), torch.linalg.svdvals(after)
        # Subspace iteration is inexact if singular values are close together.
        assert float(left[0]) == pytest.approx(float(singular[16]), rel=0.05)


def test_experts_are_copies_of_the_mlp_with_a_tenth_of_noise():
    model = model_of("llama")
    mixture = upcycled(model)
    experts = mixture.state_dict()["model.layers.2.mlp.experts.down_proj"]
    mlp = model.state_dict()["model.layers.2.mlp.down_proj.weight"]
    assert len(experts) == 4
    for expert in experts:
        assert float((expert - mlp).norm() / mlp.norm()) == pytest.approx(0.1, rel=0.1)
    assert mixture.config.rope_parameters["rope_theta"] == 100_000.0


def test_swapped_embeddings_have_the_scale_of_its_own():
    model = model_of("llama")
    foreign = 30 * torch.randn(100, 80, generator=torch.Generator().manual_seed(1))
    rows = rows_of(with_embeddings_of(model, foreign))
    assert float(torch.nn.functional.cosine_similarity(rows, foreign[:, :64]).min()) == pytest.approx(1.0, abs=1e-5)
    before = rows_of(model)
    assert float(rows.square().mean()) == pytest.approx(float(before.square().mean()), rel=1e-4)


def test_a_rebuilt_model_keeps_its_configuration():
    model = model_of("qwen2")
    made = rebuilt(model, take_apart(model))
    assert made.config.rope_parameters == model.config.rope_parameters
    torch.testing.assert_close(logits(made), logits(model), rtol=0, atol=0)
