"""Compute the bytes that each peer reads from one large model, and the checker from two.

The bytes are derived from the tensors that the methods use, for Llama-like models with 16-bit weights. A test compares
these numbers with counts on a small model.
"""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf.comparison.neuron_reading import FEW_LAYERS
from mdir_hf.comparison.residual_maps import FITTED_LAYERS
from mdir_hf.comparison.row_screen import SPREAD_LAYERS, is_wide
from mdir_hf.method.layer_map import FULL_CHANNELS
from mdir_hf.method.screening import SCREEN_CHANNELS, sample_sizes

from benchmarks.peers import gradient, huref
from mdir_hf.comparison import neuron_reading
from mdir_hf.comparison.neuron_sample import FITTED_ROWS, NOMINATING_FITTED_ROWS
from mdir_hf.comparison.plan import LAST_LOOK_ROWS, WIDEST_WHOLE
from mdir_hf.model.roles import Role

N_BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: rows and channels of the embeddings, layers, channels of all keys, neurons of an MLP."""

    rows: int
    width: int
    layers: int
    kv: int
    neurons: int

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


def weights_of_strangers(shape: Shape) -> int:
    """Return the weights that the checker reads from two models of equal shape if no test is conclusive, without norms.

    It reads rows of the embeddings and unembeddings for the last look; a few neurons of some layers of both models, and
    then of all layers whose neurons the screen has not read; keys and values of some layers of one model, and the
    screened rows of all layers of the other; some rows of the up projections of both; and the keys of a few layers,
    which may stand for tokens, unless they have been read whole.
    """
    n_few = min(SPREAD_LAYERS, shape.layers)

    def of_role(role: Role, n_rows: int) -> int:
        few, many = n_rows, n_rows if n_rows <= FULL_CHANNELS else SCREEN_CHANNELS
        if is_wide(role, n_rows):
            few, many = sample_sizes(n_rows)
        return n_few * few + shape.layers * many

    # The keys of one model have been read whole, and also the other's if there was no screen.
    n_fitted = len(range(0, n_few, -(-n_few // FITTED_LAYERS))) if shape.kv > FULL_CHANNELS else 0
    looks = min(shape.rows, LAST_LOOK_ROWS if shape.width > WIDEST_WHOLE else max(LAST_LOOK_ROWS, shape.width))

    # Gate and up, of both models.
    of_layer = sum(neuron_reading.sample_sizes(shape.neurons, FITTED_ROWS, n_matrices=2))
    neurons = 4 * min(FEW_LAYERS, shape.layers) * of_layer
    if shape.layers > FEW_LAYERS:  # up alone
        of_layer = sum(neuron_reading.sample_sizes(shape.neurons, NOMINATING_FITTED_ROWS, n_matrices=1))
        few, many = sample_sizes(shape.neurons) if is_wide(Role.UP, shape.neurons) else (0, 0)
        neurons += n_few * max(0, of_layer - few) + (shape.layers - n_few) * of_layer
        neurons += shape.layers * max(0, of_layer - many)
    rows = 4 * looks + neurons + 2 * of_role(Role.V, shape.kv) + of_role(Role.UP, shape.neurons) + n_fitted * shape.kv
    return shape.width * rows
