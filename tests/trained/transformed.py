"""Transformations of a trained model: hidden, pruned, deepened, retokenised; built once and cached.

Each of ``TRANSFORMATIONS`` is applied to the Llama of ``tests.trained.models`` and, for a stranger, to the model of
another seed. Changes that damage a model are followed by further training, as in practice.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import mdir_hf.demo.training
import mdir_hf.demo.transformations
import tests.method.obfuscation
import tests.trained.models
from mdir_hf.demo.training import BEGIN, END, encode, read_corpus, seeded_single_thread, train, train_unigram
from mdir_hf.demo.transformations import keep_channels, permute_channels, replace_tokenizer
from tests.method.obfuscation import haar, obfuscate
from tests.trained.cache import build_once, cache_folder
from tests.trained.models import SEQUENCE_LENGTH, VOCABULARY_SIZE, texts, trained_model

FOLDER = cache_folder(
    __file__,
    tests.trained.models.__file__,
    tests.method.obfuscation.__file__,
    mdir_hf.demo.training.__file__,
    mdir_hf.demo.transformations.__file__,
)


@dataclass(frozen=True)
class Transformed:
    """A folder like a Hub snapshot, and the applied change: the origin of each place, under the edits' names."""

    folder: Path
    secrets: dict
    losses: tuple[float, ...]


@dataclass(frozen=True)
class ModelChange:
    """An edit of a float64 Llama, ``edit(model, generator) -> (model, secrets)``, and further training.

    Attributes:
        edit: The edit.
        steps: Steps of further training on prose at a peak rate of 1e-3, none if the function is kept.
        retokenised: Whether the edited model reads Unigram tokens.
        keeps_function: Whether the edit leaves the logits unchanged.
        origin: The trained model that a relative is made from.
    """

    edit: Callable
    steps: int = 0
    retokenised: bool = False
    keeps_function: bool = False
    origin: str = "base"


# --- edits that keep the function


def hide(model, generator):
    """Apply everything at once: rotation, folded gains, heads, planes, values, neurons, residual scale."""
    hidden, secrets = obfuscate(model, int(torch.randint(1000, (), generator=generator)), residual_scale=3.0)
    hidden.config.rms_norm_eps = hidden.model.norm.variance_epsilon
    named = {"kv": secrets.kv_heads, "q": secrets.q_heads, "neurons": secrets.neurons, "signs": secrets.signs}
    return hidden, {name: [each.long().tolist() for each in layers] for name, layers in named.items()}


@torch.no_grad()
def permute_heads(model, generator):
    """Reorder the KV groups, and the queries inside each group."""
    config = model.config
    d, n_kv = config.head_dim, config.num_key_value_heads
    group = config.num_attention_heads // n_kv
    secrets = {"kv": [], "q": []}
    for layer in model.model.layers:
        # With two groups, half of all draws would not move them.
        kv = torch.arange(n_kv).roll(1)
        queries = torch.cat([group * g + torch.randperm(group, generator=generator) for g in kv])
        rows, query_rows = ((d * heads[:, None] + torch.arange(d)).flatten() for heads in (kv, queries))
        attention = layer.self_attn
        for projection, chosen in ((attention.q_proj, query_rows), (attention.k_proj, rows), (attention.v_proj, rows)):
            projection.weight.copy_(projection.weight[chosen])
        attention.o_proj.weight.copy_(attention.o_proj.weight[:, query_rows])
        secrets["kv"].append(kv.tolist())
        secrets["q"].append(queries.tolist())
    return model, secrets


@torch.no_grad()
def permute_neurons(model, generator):
    secrets = []
    for layer in model.model.layers:
        order = torch.randperm(model.config.intermediate_size, generator=generator)
        for projection in (layer.mlp.gate_proj, layer.mlp.up_proj):
            projection.weight.copy_(projection.weight[order])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])
        secrets.append(order.tolist())
    return model, {"neurons": secrets}


@torch.no_grad()
def mix_values(model, generator, *, skewed):
    """Mix V and O of each KV head by a rotation, or by an invertible map with distinct singular values."""
    config = model.config
    d, n, n_kv = config.head_dim, config.hidden_size, config.num_key_value_heads
    for layer in model.model.layers:
        mixing = torch.stack([haar(d, generator) for _ in range(n_kv)])
        if skewed:
            stretch = torch.exp(torch.randn(n_kv, d, dtype=torch.float64, generator=generator))
            mixing = mixing * stretch[:, None, :] @ torch.stack([haar(d, generator) for _ in range(n_kv)])
        v, o = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
        undo = torch.linalg.inv(mixing).mT.repeat_interleave(config.num_attention_heads // n_kv, dim=0)
        v.copy_((mixing @ v.reshape(n_kv, d, n)).reshape(-1, n))
        o.copy_((undo @ o.T.reshape(-1, d, n)).reshape(-1, n).T)
    return model, {}


def permute_residual(model, generator):
    order = torch.randperm(model.config.hidden_size, generator=generator)
    permute_channels(model, order, scale=2.0)
    return model, {"channels": order.tolist()}


# --- edits that change the function


def cut_channels(model, generator, *, n_kept=96):
    kept = torch.randperm(model.config.hidden_size, generator=generator)[:n_kept].sort().values
    return keep_channels(model, kept), {"channels": kept.tolist()}


@torch.no_grad()
def take_layers(model, generator, *, layers):
    """A model whose layers are copies of the given layers of another model."""
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": len(layers)})
    made = type(model)(config).to(model.dtype)
    weights = {name: weight for name, weight in model.state_dict().items() if ".layers." not in name}
    for here, there in enumerate(layers):
        for name, weight in model.model.layers[there].state_dict().items():
            weights[f"model.layers.{here}.{name}"] = weight
    made.load_state_dict(weights)
    return made, {"layers": list(layers)}


def carry_vocabulary(model, generator):
    """Use Unigram tokens; keep the rows of text that is a token in both tokenizers."""
    return replace_tokenizer(model, byte_pairs(), unigram()[0]), {}


def new_vocabulary(model, generator):
    """Use Unigram tokens, with new rows in embedding and head."""
    made, _ = carry_vocabulary(model, generator)
    return draw_embeddings(made, generator)


@torch.no_grad()
def draw_embeddings(model, generator):
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.copy_(model.config.initializer_range * torch.randn(weight.shape, generator=generator).to(weight))
    return model, {}


@torch.no_grad()
def disturb_embeddings(model, generator, *, size):
    """Add noise to every entry of embedding and head, this many times their root mean square."""
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        rms = weight.square().mean().sqrt()
        weight += size * rms * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model, {}


def one_after_the_other(*edits):
    def edit(model, generator):
        secrets = {}
        for each in edits:
            model, found = each(model, generator)
            secrets |= found
        return model, secrets

    return edit


def layers(*chosen):
    return lambda model, generator: take_layers(model, generator, layers=chosen)


TRANSFORMATIONS = {
    "hidden": ModelChange(hide, keeps_function=True),
    "heads": ModelChange(permute_heads, keeps_function=True, origin="fine-tune"),
    "neurons": ModelChange(permute_neurons, keeps_function=True, origin="fine-tune"),
    "values-rotated": ModelChange(
        lambda model, generator: mix_values(model, generator, skewed=False), keeps_function=True, origin="fine-tune"
    ),
    "values-skewed": ModelChange(
        lambda model, generator: mix_values(model, generator, skewed=True), keeps_function=True, origin="fine-tune"
    ),
    "narrower": ModelChange(cut_channels, steps=40),
    "new-embeddings": ModelChange(new_vocabulary, steps=80, retokenised=True),
    "shallower-permuted-retokenised": ModelChange(
        one_after_the_other(layers(0, 2, 3), permute_residual, carry_vocabulary), steps=40, retokenised=True
    ),
    "deeper-and-hidden": ModelChange(one_after_the_other(layers(0, 1, 2, 1, 2, 3), hide), steps=40),
    "narrower-and-hidden": ModelChange(one_after_the_other(cut_channels, hide), steps=40),
    "noise-1": ModelChange(lambda model, generator: disturb_embeddings(model, generator, size=1.0), origin="fine-tune"),
    "noise-3": ModelChange(lambda model, generator: disturb_embeddings(model, generator, size=3.0), origin="fine-tune"),
}


def transformed(name, *, stranger=False) -> Transformed:
    """Apply one of ``TRANSFORMATIONS`` to the base, its fine-tune or the other seed; takes seconds if not cached."""
    folder = FOLDER / ("stranger" if stranger else "relative") / name
    build_once(folder, lambda: _build(TRANSFORMATIONS[name], name, folder, stranger=stranger))
    record = json.loads((folder / "transformation.json").read_text())
    return Transformed(folder, record["secrets"], tuple(record["losses"]))


def edited(name, *, stranger=False):
    """The model before and right after an edit, both float64, and the applied change."""
    origin = "other-seed" if stranger else TRANSFORMATIONS[name].origin
    before, model = (
        LlamaForCausalLM.from_pretrained(trained_model("llama", origin).folder, dtype=torch.float64).eval()
        for _ in range(2)
    )
    return before, *TRANSFORMATIONS[name].edit(model, torch.Generator().manual_seed(7))


def byte_pairs():
    """The tokenizer of the trained models."""
    return Tokenizer.from_file(str(trained_model("llama", "base").folder / "tokenizer.json"))


@lru_cache(maxsize=1)
def unigram():
    """A different kind of tokenizer, and prose in its tokens, ``(n_tokens,)``."""
    corpus = read_corpus()
    tokenizer = train_unigram(corpus.prose.learnt, vocabulary_size=VOCABULARY_SIZE)
    return tokenizer, encode(tokenizer, corpus.prose.learnt)


def _build(transformation, name, folder, *, stranger):
    logging.disable_progress_bar()
    tokenizer, tokens = unigram() if transformation.retokenised else (byte_pairs(), texts()["prose"].learnt)
    with seeded_single_thread(11):
        _, model, secrets = edited(name, stranger=stranger)
        model = model.float()
        losses = []
        if transformation.steps:
            losses = train(
                model,
                tokens,
                steps=transformation.steps,
                learning_rate=1e-3,
                batch=(8, SEQUENCE_LENGTH),
                order_seed=3,
            )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / name
        model.to(torch.bfloat16).save_pretrained(made)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(made)
        (made / "transformation.json").write_text(json.dumps({"secrets": secrets, "losses": losses}))
        made.rename(folder)
