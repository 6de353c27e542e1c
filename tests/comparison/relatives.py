"""Small models, and edits that make relatives and disguised copies of them."""

import copy
import json

import torch
from safetensors.torch import load_file, save_file

from mdir_hf.demo.transformations import permute_channels
from tests.method.obfuscation import haar, new_model
from tests.specimens import tokenizer_json, tokens

SIZES = {
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16,
}  # fmt: skip
WIDTH, DEPTH = SIZES["hidden_size"], SIZES["num_hidden_layers"]
IN_PLACE = [(i, i) for i in range(DEPTH)]


def weights_of(model):
    """Every weight by its name, in float32."""
    return {name: tensor.float() for name, tensor in model.state_dict().items()}


def write(folder, model, make=weights_of, config=None, file="model.safetensors"):
    """Write the tensors that ``make`` returns for a model, its config, and a tokenizer of whole words."""
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous().clone() for name, weight in make(model).items()}, folder / file)
    (folder / "config.json").write_text(json.dumps(config or model.config.to_dict()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(model.config.vocab_size))))
    return folder


def changed(folder, change):
    """Change the tensors of a folder in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return folder


@torch.no_grad()
def drift(model, share, seed=1):
    """Add Gaussian noise to every matrix, in proportion to its standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim == 2:
            weight += share * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model


@torch.no_grad()
def new_embeddings(model, seed=5):
    """Draw new embeddings and unembeddings."""
    generator = torch.Generator().manual_seed(seed)
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


@torch.no_grad()
def with_layers(base, layers, seed=1):
    """A model with the base's embedding and these layers of it."""
    model = new_model(seed=seed, **{**SIZES, "num_hidden_layers": len(layers)})
    model.model.embed_tokens.load_state_dict(base.model.embed_tokens.state_dict())
    for here, there in enumerate(layers):
        model.model.layers[here].load_state_dict(base.model.layers[there].state_dict())
    return model


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


@torch.no_grad()
def edited(model, edit, *, noise=0.2, **changes):
    """A model with the edited weights of another, plus a little noise; the edit depends on a weight's name."""
    other = new_model(seed=9, **{**SIZES, **changes})
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, weight in model.state_dict().items():
        moved = edit(name, weight)
        added = noise * moved.std() * torch.randn(moved.shape, generator=generator, dtype=moved.dtype)
        state[name] = moved + added if moved.ndim == 2 else moved
    other.load_state_dict(state)
    return other


def writes(name):
    """Whether a projection writes to the residual stream."""
    return "o_proj" in name or "down_proj" in name


def of_channels(order):
    """An edit that puts the residual channels in this order; channels not listed are dropped."""

    def edit(name, weight):
        if weight.ndim == 1:
            return weight[order] if "norm" in name else weight
        return weight[order] if writes(name) else weight[:, order]

    return edit


@torch.no_grad()
def turned(model, seed=3, turn=None):
    """The same function in another residual basis, with the norms' gains folded into the next matrices."""
    turn = haar(model.config.hidden_size, torch.Generator().manual_seed(seed)) if turn is None else turn
    state = model.state_dict()

    def edit(name, weight):
        if "norm" in name:
            return torch.ones_like(weight)
        if writes(name):
            return turn.T @ weight
        layer = name.rsplit(".", 3)[0]
        norms = {
            "self_attn": f"{layer}.input_layernorm.weight",
            "mlp": f"{layer}.post_attention_layernorm.weight",
            "lm_head": "model.norm.weight",
        }
        gain = next((state[norm] for part, norm in norms.items() if part in name), 1.0)
        return weight * gain @ turn

    return edit


def of_layers(base, origins):
    """Return a copy of the model that consists of some of its layers, in the given order."""
    model = copy.deepcopy(base)
    model.model.layers = torch.nn.ModuleList(copy.deepcopy(base.model.layers[origin]) for origin in origins)
    model.config.num_hidden_layers = len(origins)
    return model


@torch.no_grad()
def with_new_embeddings(model):
    model = copy.deepcopy(model)
    for seed, weight in enumerate((model.model.embed_tokens.weight, model.lm_head.weight)):
        generator = torch.Generator().manual_seed(seed)
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def with_permuted_channels(model):
    model = copy.deepcopy(model)
    permute_channels(model, torch.randperm(WIDTH, generator=torch.Generator().manual_seed(1)))
    return model


def layer_pairs(report):
    return [(match.reference, match.candidate) for match in report.layers.matches]
