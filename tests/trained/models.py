"""Small trained models in two architectures, built once and cached.

For each architecture: ``base``; ``fine-tune`` (the base, with a third more steps on prose); ``other-seed`` (the base's
data in the same order, from another initialisation). They are saved in BF16, and training continues from the saved
weights, as on the Hub.
"""

import json
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import mdir_hf.demo.lineage
import mdir_hf.demo.training
import mdir_hf.demo.transformations
from mdir_hf.demo.lineage import Lineage, build_lineage
from mdir_hf.demo.training import (
    BEGIN,
    END,
    encode,
    mean_loss,
    read_corpus,
    seeded_single_thread,
    train,
    train_byte_level_bpe,
)
from tests.trained.cache import build_once, cache_folder

ARCHITECTURES = ("llama", "gpt-neox")
NAMES = ("base", "fine-tune", "other-seed")

VOCABULARY_SIZE = 2048
SEQUENCE_LENGTH = 64
# name -> (model or initialisation seed to start from; text; steps; peak learning rate; seed of the order of batches)
RECIPES = {
    "base": (0, "code", 200, 3e-3, 0),
    "other-seed": (1, "code", 200, 3e-3, 0),
    "fine-tune": ("base", "prose", 70, 1e-3, 1),
}


@dataclass(frozen=True)
class TrainedModel:
    """A folder like a Hub snapshot, and the losses of the training in nats per token, step by step and held out."""

    folder: Path
    losses: tuple[float, ...]
    held_out_loss: float


@dataclass(frozen=True)
class Text:
    """Token ids for training and held-out ids, int64 tensors of shape (n_tokens,)."""

    learnt: torch.Tensor
    held_out: torch.Tensor


# Read once: an edit while models are being built must not change the folder.
_TRAINING_FILES = (mdir_hf.demo.training.__file__,)
MODELS_FOLDER = cache_folder(__file__, *_TRAINING_FILES)
LINEAGE_FOLDER = cache_folder(mdir_hf.demo.lineage.__file__, mdir_hf.demo.transformations.__file__, *_TRAINING_FILES)


def demo_lineage() -> Lineage:
    """The lineage of ``mdir-hf demo``; takes less than a minute if not cached."""
    LINEAGE_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(LINEAGE_FOLDER.with_suffix(".lock")):
        return build_lineage(LINEAGE_FOLDER)


def one_step_lineage() -> Lineage:
    """The demo lineage after one step of each training: weights have hardly moved. Takes seconds."""
    folder = LINEAGE_FOLDER.with_name(f"{LINEAGE_FOLDER.name}-one-step")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        return build_in_one_step(folder)


def build_in_one_step(folder, progress=None) -> Lineage:
    """Build the lineage of ``mdir-hf demo`` from less text, with one step of each training instead of hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_BASE_STEPS", "_FINE_TUNE_STEPS", "_RETOKENIZED_STEPS", "_PRUNED_STEPS", "_NARROW_STEPS"):
            patch.setattr(mdir_hf.demo.lineage, name, 1)
        patch.setattr(mdir_hf.demo.lineage, "_TOTAL_STEPS", 6)
        patch.setattr(mdir_hf.demo.lineage, "_CODE_N_CHARS", 500_000)
        patch.setattr(mdir_hf.demo.lineage, "_PROSE_N_CHARS", 100_000)  # the Unigram tokenizer takes most of the time
        return build_lineage(folder, **({} if progress is None else {"progress": progress}))


def trained_model(architecture, name) -> TrainedModel:
    """One of ``NAMES`` in one of ``ARCHITECTURES``; takes ten seconds if not cached, and as much again for its base."""
    folder = MODELS_FOLDER / architecture / name
    build_once(folder, lambda: _build(architecture, name, folder))
    record = json.loads((folder / "training.json").read_text())
    return TrainedModel(folder, tuple(record["losses"]), record["held_out_loss"])


def unigram_loss(kind) -> float:
    """Loss on held-out text of the best guess without context, in nats per token, as a baseline."""
    text = texts()[kind]
    counts = torch.bincount(text.learnt, minlength=VOCABULARY_SIZE).double() + 1
    return -(counts / counts.sum()).log()[text.held_out].mean().item()


def texts():
    return _tokenizer_and_texts()[1]


@lru_cache(maxsize=1)
def _tokenizer_and_texts():
    folder = MODELS_FOLDER / "texts"
    build_once(folder, lambda: _write_tokenizer_and_texts(folder))
    tokens = load_file(folder / "tokens.safetensors")
    split = {kind: Text(tokens[f"{kind}.learnt"], tokens[f"{kind}.held_out"]) for kind in ("code", "prose")}
    return Tokenizer.from_file(str(folder / "tokenizer.json")), split


def _write_tokenizer_and_texts(folder):
    corpus = read_corpus()
    tokenizer = train_byte_level_bpe([*corpus.code.learnt, *corpus.prose.learnt], vocabulary_size=VOCABULARY_SIZE)
    tokens = {
        f"{kind}.{share}": encode(tokenizer, getattr(getattr(corpus, kind), share))
        for kind in ("code", "prose")
        for share in ("learnt", "held_out")
    }
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / folder.name
        made.mkdir()
        tokenizer.save(str(made / "tokenizer.json"))
        save_file(tokens, made / "tokens.safetensors")
        made.rename(folder)


def _build(architecture, name, folder):
    origin, kind, steps, learning_rate, order_seed = RECIPES[name]
    tokenizer, split = _tokenizer_and_texts()
    logging.disable_progress_bar()
    if isinstance(origin, str):
        model_class = GPTNeoXForCausalLM if architecture == "gpt-neox" else LlamaForCausalLM
        model = model_class.from_pretrained(trained_model(architecture, origin).folder, dtype=torch.float32)
        init_seed = 0
    else:
        init_seed = origin
    with seeded_single_thread(init_seed):
        if not isinstance(origin, str):
            model = _new_model(architecture)
        losses = train(
            model,
            split[kind].learnt,
            steps=steps,
            learning_rate=learning_rate,
            batch=(8, SEQUENCE_LENGTH),
            order_seed=order_seed,
        )
        record = {
            "losses": losses,
            "held_out_loss": mean_loss(model, split[kind].held_out, sequence_length=SEQUENCE_LENGTH),
        }
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / name
        model.to(torch.bfloat16).save_pretrained(made)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(made)
        (made / "training.json").write_text(json.dumps(record))
        made.rename(folder)


def _new_model(architecture):
    common = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.06,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if architecture == "gpt-neox":
        return GPTNeoXForCausalLM(GPTNeoXConfig(**common, intermediate_size=512))
    return LlamaForCausalLM(LlamaConfig(**common, intermediate_size=344, num_key_value_heads=2))
