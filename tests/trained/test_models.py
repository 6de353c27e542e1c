"""Check that the models of the other tests here are really trained."""

import pytest
import torch
from safetensors.torch import load_file

from tests.trained.models import ARCHITECTURES, NAMES, RECIPES, trained_model, unigram_loss

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", NAMES)
def test_a_trained_model_beats_any_guess_without_context(architecture, name):
    # Half a nat is far more than the 0.01 by which the mean over 4096 held-out tokens varies between identical runs.
    assert trained_model(architecture, name).held_out_loss < unigram_loss(RECIPES[name][1]) - 0.5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_another_seed_shares_all_but_the_weights(architecture):
    base, other = trained_model(architecture, "base").folder, trained_model(architecture, "other-seed").folder

    for file in ("config.json", "tokenizer.json"):
        assert (base / file).read_bytes() == (other / file).read_bytes()
    left, right = load_file(base / "model.safetensors"), load_file(other / "model.safetensors")
    matrices = [name for name in left if left[name].ndim == 2]
    # Common data gives frequent tokens a common mean; apart from it, the entries of two seeds are uncorrelated.
    for name in matrices:
        rows = torch.stack([(m - m.mean(0)).flatten() for m in (left[name].double(), right[name].double())])
        assert abs(torch.corrcoef(rows)[0, 1]) < 0.1
