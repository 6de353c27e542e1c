"""Descendants of the trained Llama with a known tree: a two-level tree, a chain, a star, merges; built once and cached.

Every step of a lineage is a short fine-tune on text that no other step uses, so that they share no more than necessary.
"""

import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import mdir_hf.demo.training
import tests.trained.models
from mdir_hf.demo.training import BEGIN, END, seeded_single_thread, train
from tests.trained.cache import build_once, cache_folder
from tests.trained.models import _tokenizer_and_texts, texts, trained_model

FOLDER = cache_folder(__file__, tests.trained.models.__file__, mdir_hf.demo.training.__file__)
ROOT = "root"
STEPS = 30
LEARNING_RATE = 1e-3

TREE = {"left": ROOT, "left-a": "left", "left-b": "left", "right": ROOT, "right-a": "right", "right-b": "right"}
CHAIN = {"chain-1": ROOT, "chain-2": "chain-1"}
STAR = {"star-1": ROOT, "star-2": ROOT}
PARENT_OF = {**TREE, **CHAIN, **STAR}
"""The parent of each of the ten models; ``ROOT`` has none."""

MERGES = {
    # name -> the two parents, and the first parent's share in each of four layers; the embedding's share is last
    "merge": ("left-a", "right-b", (0.6, 0.6, 0.6, 0.6), 0.6),
    "gradient-merge": ("left-b", "star-1", (0.2, 0.4, 0.6, 0.8), 0.5),
}


def lineage_model(name) -> Path:
    """A folder like a Hub snapshot; it takes a second for each model and half a minute for the root."""
    if name == ROOT:
        return trained_model("llama", "base").folder
    folder = FOLDER / name
    build_once(folder, lambda: _save(_merged(name) if name in MERGES else _trained(name), folder))
    return folder


def _trained(name):
    at = list(PARENT_OF).index(name)
    kind = "prose" if at % 2 else "code"
    learnt = texts()[kind].learnt
    share = learnt.numel() // len(PARENT_OF)
    model = _open(PARENT_OF[name])
    with seeded_single_thread(at):
        train(
            model,
            learnt[at * share : (at + 1) * share],
            steps=STEPS,
            learning_rate=LEARNING_RATE,
            batch=(4, 64),
            order_seed=at,
        )
    return model


@torch.no_grad()
def _merged(name):
    first, second, by_layer, of_embedding = MERGES[name]
    model, other = _open(first), _open(second).state_dict()
    weights = model.state_dict()
    for key, weight in weights.items():
        layer = key.removeprefix("model.layers.").split(".")[0]
        share = by_layer[int(layer)] if key.startswith("model.layers.") else of_embedding
        weights[key] = share * weight + (1.0 - share) * other[key]
    model.load_state_dict(weights)
    return model


def _open(name):
    return LlamaForCausalLM.from_pretrained(lineage_model(name), dtype=torch.float32)


def _save(model, folder):
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / folder.name
        model.to(torch.bfloat16).save_pretrained(made)
        _tokenizer().save_pretrained(made)
        made.rename(folder)


@lru_cache(maxsize=1)
def _tokenizer():
    logging.disable_progress_bar()
    return PreTrainedTokenizerFast(tokenizer_object=_tokenizer_and_texts()[0], bos_token=BEGIN, eos_token=END)
