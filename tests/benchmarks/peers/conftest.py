import copy
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks.peers.inference import statements
from mdir_hf.demo.training import BEGIN, END, seeded_single_thread, train_byte_level_bpe, train_unigram
from mdir_hf.demo.transformations import permute_channels, rotate_channels
from tests.model.files.quantization.writers import SCHEMES

WIDTH, LAYERS = 64, 4


def new_model(seed, vocabulary_size, **sizes):
    with seeded_single_thread(seed):
        config = LlamaConfig(
            **{
                "vocab_size": vocabulary_size,
                "hidden_size": WIDTH,
                "intermediate_size": 96,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 128,
                "initializer_range": 0.1,
                "bos_token_id": 0,
                "eos_token_id": 1,
                **sizes,
            }
        )
        return LlamaForCausalLM(config)


@torch.no_grad()
def permute_neurons(model):
    for layer in model.model.layers:
        order = torch.randperm(layer.mlp.up_proj.weight.shape[0])
        for module in (layer.mlp.gate_proj, layer.mlp.up_proj):
            module.weight.copy_(module.weight[order])
        layer.mlp.down_proj.weight.copy_(layer.mlp.down_proj.weight[:, order])


@torch.no_grad()
def add_noise(model, share):
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.add_(share * weight.std() * torch.randn(weight.shape))


def quantise(folder, quantised):
    """Store the layers of a model in compressed-tensors' INT4."""
    scheme = SCHEMES["int4"]
    shutil.copytree(folder, quantised)
    stored = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if ".layers." in name and tensor.ndim == 2:
            stored |= scheme.write(tensor.float(), name.removesuffix(".weight")).tensors
        else:
            stored[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, quantised / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | scheme.model_config))


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """An untrained base with derived models, two strangers, and one model that no peer here can read."""
    root = tmp_path_factory.mktemp("peers")
    logging.disable_progress_bar()
    texts = list(statements()[:3000])
    bpe = train_byte_level_bpe(texts, vocabulary_size=1280)
    unigram = train_unigram(texts, vocabulary_size=1280)
    n = bpe.get_vocab_size()
    base = new_model(0, n)
    with seeded_single_thread(7), warnings.catch_warnings():
        permuted, rotated, neurons, noisy = (copy.deepcopy(base) for _ in range(4))
        permute_channels(permuted, torch.randperm(WIDTH))
        rotate_channels(rotated, torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q)
        permute_neurons(neurons)
        add_noise(noisy, 0.05)
    members = {
        "base": (base, bpe),
        "copy": (base, bpe),
        "permuted": (permuted, bpe),
        "rotated": (rotated, bpe),
        "neurons": (neurons, bpe),
        "noisy": (noisy, bpe),
        "stranger": (new_model(1, n), bpe),
        "narrow": (new_model(2, n, hidden_size=48, num_attention_heads=3, num_key_value_heads=1), bpe),
        "deep": (new_model(3, n, num_hidden_layers=6), bpe),
        "other-tokenizer": (new_model(4, unigram.get_vocab_size()), unigram),
    }
    for name, (model, tokenizer) in members.items():
        model.save_pretrained(root / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(root / name)
    quantise(root / "base", root / "int4")
    (root / "empty").mkdir()
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="session")
def ask(models):
    """Run a peer on the base and another model; fingerprints are computed once."""
    taken = {}

    def asked(peer, name, other="base"):
        for one in (other, name):
            if (peer.name, one) not in taken:
                taken[peer.name, one] = peer.fingerprint(models[one])
        return peer.score(taken[peer.name, other], taken[peer.name, name])

    return asked
