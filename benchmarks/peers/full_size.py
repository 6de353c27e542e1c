"""Compute the bytes that each peer reads from one large model, and the checker from two.

The bytes are derived from the tensors that the methods use, for Llama-like models with 16-bit weights. A test compares
these numbers with counts on a small model.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers import gradient, huref
from mdir_hf.comparison.keys import FEWEST_HEADS, FEWEST_LAYERS, MOST_HEADS, MOST_LAYERS
from mdir_hf.comparison.neuron_sample import (
    FEW_LAYERS,
    FITTED_ROWS,
    LARGE_LAYER_VALUES,
    NEAR_FITTED_ROWS,
    NEAR_LAYERS,
    NOMINATING_FITTED,
    NOMINATING_TESTED,
    sample_sizes,
)
from mdir_hf.comparison.tokens import ROWS

N_BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: rows and channels of the embeddings, layers, rows and heads of keys, neurons of an MLP."""

    rows: int
    width: int
    layers: int
    kv: int
    neurons: int
    kv_heads: int = 8

    @property
    def attention(self) -> int:
        """Number of weights in q, k, v and o of a layer."""
        return 2 * self.width * (self.width + self.kv)

    @property
    def layer(self) -> int:
        """Number of weights in all seven matrices of a layer."""
        return self.attention + 3 * self.width * self.neurons

    @property
    def gains(self) -> int:
        """Number of weights in all norms."""
        return self.width * (2 * self.layers + 1)

    @property
    def all(self) -> int:
        """Number of all weights, with separate embedding and unembedding."""
        return 2 * self.rows * self.width + self.layers * self.layer + self.gains


LLAMA_8B = Shape(rows=128_256, width=4096, layers=32, kv=1024, neurons=14_336)
"""Sizes of Llama-3.1-8B."""


def weights_read(shape: Shape) -> dict[str, tuple[int, str]]:
    """Return the number of weights that each peer reads from a model, and a description, in the order of ``PEERS``."""
    embedding = shape.rows * shape.width
    signals = (embedding + shape.layers * shape.layer + shape.gains, "all but the unembedding")
    everything = (shape.all, "all")
    n_sampled, n_last = min(gradient.N_SAMPLED_LAYERS, shape.layers), huref.N_LAYERS
    return {
        "MDIR, as printed": (
            embedding + shape.layers * shape.width * (shape.width + 2 * shape.kv + shape.neurons),
            "the embedding, q, k, v and up of every layer",
        ),
        "HuRef": (
            huref.N_TOKENS * shape.width + n_last * shape.layer,
            f"{huref.N_TOKENS} rows of the embedding, every matrix of the last {n_last} layers",
        ),
        "REEF": (shape.all, "all; the authors load the model, although layers up to 18/32 of the depth suffice"),
        "PDF": (shape.layers * shape.attention, "q, k, v and o of every layer"),
        "Gradient (LeaFBench)": everything,
        "TensorGuard": (n_sampled * shape.layer, f"every matrix of {n_sampled} layers"),
        "SeedPrints": everything,
        "AWM": (
            embedding + shape.layers * shape.width * (shape.width + shape.kv),
            "the embedding, q and k of every layer",
        ),
        "model-tracing CSU": (shape.layers * shape.width * shape.neurons, "up_proj of every layer"),
        "model-tracing MATCH": everything,
        "Provenance Kit": signals,
        "Provenance Kit, signals": signals,
        "Provenance Kit (package)": everything,
        "weightscope (package)": (shape.all, "all safetensors and JSON files of the repository"),
    }


def first_sample(shape: Shape) -> int:
    """Return the weights that the checker reads first from two models: gate and up of neurons of one or two layers."""
    n_layers = 1 if shape.neurons * shape.width > LARGE_LAYER_VALUES else min(NEAR_LAYERS, shape.layers)
    return 2 * n_layers * 2 * sum(sample_sizes(shape.neurons, NEAR_FITTED_ROWS, n_matrices=2)) * shape.width


def weights_of_strangers(shape: Shape) -> int:
    """Return the weights that the checker reads from two models of equal shape if no step settles the question.

    It reads gate and up of neurons of one or two layers, then of four layers; all keys of a few layers of one model,
    and a few heads of all layers of the other; up of fewer neurons of all layers; and rows of the embeddings.
    """
    number = 2 * min(FEW_LAYERS, shape.layers) * 2 * sum(sample_sizes(shape.neurons, FITTED_ROWS, n_matrices=2))
    n_layers = max(FEWEST_LAYERS, min(MOST_HEADS // shape.kv_heads, max(MOST_LAYERS, FEWEST_HEADS // shape.kv_heads)))
    n_heads = min(shape.kv_heads, -(-FEWEST_HEADS // shape.layers))
    keys = min(n_layers, shape.layers) * shape.kv + shape.layers * n_heads * (shape.kv // shape.kv_heads)
    n_tested, _ = sample_sizes(shape.neurons, FITTED_ROWS, n_matrices=1)
    n_tested = min(n_tested, NOMINATING_TESTED)
    every = 2 * shape.layers * (n_tested + min(NOMINATING_FITTED, shape.neurons - n_tested))
    rows = number + keys + every + 2 * min(ROWS, shape.rows)
    return first_sample(shape) + rows * shape.width
