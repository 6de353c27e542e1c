"""Fixtures of whole comparisons: a small base model, and a function that saves models."""

from __future__ import annotations

import copy
import json

import pytest

from tests.comparison.relatives import SIZES
from tests.method.obfuscation import new_model
from tests.specimens import tokenizer_json, tokens


@pytest.fixture
def save(tmp_path):
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()

    def save_model(model, name, *, words=None, with_tokenizer=True):
        copy.deepcopy(model).float().save_pretrained(tmp_path / name)
        if with_tokenizer:
            vocabulary = words or tokens(model.config.vocab_size)
            (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
        return tmp_path / name

    return save_model


@pytest.fixture
def base():
    pytest.importorskip("transformers")
    return new_model(seed=0, **SIZES)
