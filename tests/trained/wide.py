"""Two unrelated small trained models of 256 channels, for block types that pack 256 numbers of a row."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import mdir_hf.demo.training
from mdir_hf.demo.training import BEGIN, END, mean_loss, seeded_single_thread, train
from tests.trained import models
from tests.trained.cache import build_once, cache_folder
from tests.trained.models import SEQUENCE_LENGTH, VOCABULARY_SIZE, TrainedModel

FOLDER = cache_folder(__file__, models.__file__, mdir_hf.demo.training.__file__)
SEEDS = {"base": 0, "other-seed": 1}


def wide_model(name: str) -> TrainedModel:
    """One of :data:`SEEDS`; takes a minute if not cached."""
    folder = FOLDER / name
    build_once(folder, lambda: _build(name, folder))
    record = json.loads((folder / "training.json").read_text())
    return TrainedModel(folder, tuple(record["losses"]), record["held_out_loss"])


def _build(name: str, folder: Path) -> None:
    tokenizer, split = models._tokenizer_and_texts()
    logging.disable_progress_bar()
    with seeded_single_thread(SEEDS[name]):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY_SIZE,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                tie_word_embeddings=False,
                initializer_range=0.06,
                bos_token_id=0,
                eos_token_id=1,
            )
        )
        code = split["code"]
        losses = train(model, code.learnt, steps=150, learning_rate=3e-3, batch=(8, SEQUENCE_LENGTH), order_seed=0)
        held_out = mean_loss(model, code.held_out, sequence_length=SEQUENCE_LENGTH)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as building:
        made = Path(building) / name
        model.to(torch.bfloat16).save_pretrained(made)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(made)
        (made / "training.json").write_text(json.dumps({"losses": losses, "held_out_loss": held_out}))
        made.rename(folder)
