"""A small population of known ancestry: three families, two tokenizers, strangers."""

import torch

from tests.specimens import gaussian, tokens, write_model

V, N = 1200, 64
FAMILIES = {"a": ("a/base", "a/tuned", "a/permuted"), "b": ("b/base", "b/tuned"), "c": ("c/alone",)}


def write_population(place):
    """Write the models; return their folders by name. Family b has another tokenizer that shares half of its words."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    a, b = gaussian(V, N, 0), gaussian(V, N, 10)
    other_words = tokens(V, first=V // 2)
    made = {
        "a/base": (a, None),
        "b/base": (b, other_words),
        "a/tuned": (a + 0.2 * gaussian(V, N, 1), None),
        "c/alone": (gaussian(V, N, 20), None),
        "a/permuted": (a[:, order], None),
        "b/tuned": (b + 0.2 * gaussian(V, N, 11), other_words),
    }
    return {
        name: write_model(place / name.replace("/", "-"), rows, words=words) for name, (rows, words) in made.items()
    }
