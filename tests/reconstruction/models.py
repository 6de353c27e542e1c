"""Hidden models on disk, and the alignment of one folder with another."""

import torch
from transformers import AutoModelForCausalLM

from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.reconstruction.reconstruct import fit_reconstruction
from mdir_hf.reconstruction.write import write_model
from tests.method.obfuscation import VOCABULARY


def saved(model, folder, *, epsilon=None):
    """Save a model, with the epsilon of its norms in its config."""
    if epsilon is not None:
        model.config.rms_norm_eps = epsilon
    model.save_pretrained(folder)
    return folder


def opened(folder):
    return NamedModel(str(folder)).open(Reading())


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@torch.no_grad()
def logits(model):
    tokens = torch.randint(
        min(VOCABULARY, model.config.vocab_size), (2, 24), generator=torch.Generator().manual_seed(3)
    )
    return model(tokens).logits


def aligned(base, candidate, folder):
    """Align one folder with another; return the reconstruction and the written model."""
    reference, other = opened(base), opened(candidate)
    found = fit_reconstruction(reference, other)
    return found, write_model(other, found, folder, reference=reference)


def largest_difference(folder, other):
    """Return the largest relative difference of any tensor of two models."""
    mine, theirs = loaded(folder).state_dict(), loaded(other).state_dict()
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs)
