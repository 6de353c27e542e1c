"""Dense models upcycled to mixtures of experts: copies in any order, with noise, and one new expert."""

import pytest
import torch

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


def mixture(seed, n_experts=3):
    return new_model("mixtral", seed, num_local_experts=n_experts)


@torch.no_grad()
def give_experts(model, donor, origins, *, gain=1.0):
    """Copy experts of a donor: ``origins`` maps the number of an expert to the number of its origin."""
    for layer, of_donor in zip(model.model.layers, donor.model.layers, strict=True):
        for number, origin in origins.items():
            for weight, source in zip(expert(layer, number), expert(of_donor, origin), strict=True):
                weight.copy_(source)
            expert(layer, number)[1].mul_(gain)
    return model
