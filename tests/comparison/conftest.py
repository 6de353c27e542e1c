"""Fixtures of whole comparisons: a small base model, and a function that saves models."""

import pytest

from tests.comparison.relatives import SIZES
from tests.method.obfuscation import new_model
from tests.specimens import save_pretrained


@pytest.fixture
def save(tmp_path):
    return lambda model, name, **options: save_pretrained(tmp_path / name, model, **options)


@pytest.fixture
def base():
    pytest.importorskip("transformers")
    return new_model(seed=0, **SIZES)


@pytest.fixture(params=[False, True], ids=["one by one", "stacked"])
def save_mixture(request, tmp_path):
    """Save a model with its experts in separate tensors, as Mixtral does, or stacked in one."""
    return lambda model, name: save_pretrained(tmp_path / name, model, save_original_format=not request.param)
