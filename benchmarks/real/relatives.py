"""Edits of a real model without training (hidden, cut, disturbed), and the list of all edits.

Each edit is a function of a :class:`~benchmarks.zoo.stack.Stack` and a generator, and a row of ``EDITS``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.real import attacks
from benchmarks.zoo import edits
from benchmarks.zoo.stack import Stack, shape_of, state_dict, take_apart

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Edit = Callable[[Stack, torch.Generator], Stack]


@dataclass(frozen=True)
class Edited:
    """A kind of relative made by an edit.

    Attributes:
        name: Name of the edit and its folder.
        done: Effect, as a phrase without full stop.
        edit: The edit; it may change the given stack.
        keeps_function: Whether the model still computes the same function.
        is_attack: Whether its purpose is to evade detection.
    """

    name: str
    done: str
    edit: Edit
    keeps_function: bool = False
    is_attack: bool = False


def edited(model: PreTrainedModel, how: Edited, seed: int = 7) -> PreTrainedModel:
    """Return a new model in float32 with this edit."""
    generator = torch.Generator().manual_seed(seed)
    return rebuilt(model, how.edit(take_apart(model), generator))


@torch.no_grad()
def rebuilt(model: PreTrainedModel, stack: Stack) -> PreTrainedModel:
    """Return a float32 model with these weights and the configuration of ``model`` except for sizes."""
    made: PreTrainedModel = type(model)(type(model.config)(**config_of(model, stack)))
    made.load_state_dict({name: weight.float() for name, weight in state_dict(stack).items()})
    return made.eval()


def config_of(model: PreTrainedModel, stack: Stack) -> dict[str, Any]:
    """Return the configuration of ``model`` with the sizes of a stack."""
    shape = shape_of(stack)
    sizes = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.n_neurons,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied,
    }
    config = model.config.to_dict() | sizes
    if "layer_types" in config:
        config["layer_types"] = ["full_attention"] * shape.n_layers
    return config


# --- edits that keep the function


def permuted(stack: Stack, generator: torch.Generator) -> Stack:
    """Reorder the channels of the residual stream."""
    return _on_stream(stack, torch.randperm(stack.embedding.shape[1], generator=generator))


def signed(stack: Stack, generator: torch.Generator) -> Stack:
    """Reorder the channels and change the sign of half of them."""
    n = stack.embedding.shape[1]
    signs = torch.randint(2, (n,), generator=generator) * 2.0 - 1.0
    return _on_stream(stack, torch.randperm(n, generator=generator), signs)


def heads_and_neurons(stack: Stack, generator: torch.Generator) -> Stack:
    """Reorder the heads and neurons of every layer."""
    for block in stack.blocks:
        edits.shuffle_heads(stack, block, generator)
        edits.shuffle_neurons(block, generator, signed=False)
    return stack


def values(stack: Stack, generator: torch.Generator) -> Stack:
    """Rotate V and O inside each head."""
    for block in stack.blocks:
        edits.turn_values(stack, block, generator)
    return stack


# --- edits that change the function


def noise(size: float) -> Edit:
    """Add Gaussian noise to every matrix, relative to its root mean square."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for matrix in stack.matrices():
            rms = matrix.square().mean().sqrt()
            matrix += size * rms * torch.randn(matrix.shape, generator=generator)
        return stack

    return edit


def half_depth(stack: Stack, generator: torch.Generator) -> Stack:
    """Keep every other layer."""
    return edits.take_layers(stack, range(0, len(stack.blocks), 2))


def half_width(stack: Stack, generator: torch.Generator) -> Stack:
    """Keep the largest half of the channels, by columns of the embedding, and three quarters of the neurons."""
    n_neurons = stack.blocks[0].up.weight.shape[0]
    return edits.cut_width(
        stack, n_channels=stack.embedding.shape[1] // 2, n_heads=stack.n_heads, n_neurons=n_neurons * 3 // 4
    )


def upscaled(stack: Stack, generator: torch.Generator) -> Stack:
    """Stack the first three quarters of the layers and the last three quarters: 30 layers become 44."""
    n = len(stack.blocks)
    cut = round(n * 11 / 15)
    return edits.take_layers(stack, [*range(cut), *range(n - cut, n)])


@torch.no_grad()
def new_embeddings(stack: Stack, generator: torch.Generator) -> Stack:
    """Draw embedding and head anew, at the scale of the old ones."""
    rms = stack.embedding.square().mean().sqrt()
    made = edits.draw_embeddings(stack, stack.embedding.shape[0], generator)
    for matrix in (made.embedding, made.head):
        if matrix is not None:
            matrix *= rms / matrix.square().mean().sqrt()
    return made


def turned_by(matrix: Callable[[int, torch.Generator], torch.Tensor]) -> Edit:
    """Transform the residual stream by an orthogonal matrix of its width."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        return edits.turn_stream_by(stack, matrix(stack.embedding.shape[1], generator))

    return edit


def plain_qr(n: int, generator: torch.Generator) -> torch.Tensor:
    """Return the Q of a plain QR decomposition: not Haar, with a trace of about -1.6 sqrt(n)."""
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q


def half_turned(n: int, generator: torch.Generator) -> torch.Tensor:
    """Return a rotation of every second channel among themselves; the others do not change."""
    matrix = torch.eye(n, dtype=torch.float64)
    chosen = torch.arange(0, n, 2)
    matrix[chosen[:, None], chosen] = edits.rotation(len(chosen), generator)
    return matrix


def small_angles(n: int, generator: torch.Generator) -> torch.Tensor:
    """Return a rotation by about a third of a radian in every plane."""
    drawn = torch.randn(n, n, dtype=torch.float64, generator=generator) / n**0.5
    return torch.linalg.matrix_exp(0.25 * (drawn - drawn.T))


def one_after_the_other(*steps: Edit) -> Edit:
    """Several edits."""

    def edit(stack: Stack, generator: torch.Generator) -> Stack:
        for step in steps:
            stack = step(stack, generator)
        return stack

    return edit


EDITS = {
    how.name: how
    for how in (
        Edited("permuted", "channels of the residual stream reordered", permuted, keeps_function=True),
        Edited("signed", "channels reordered, half of them negated", signed, keeps_function=True),
        Edited("heads-neurons", "heads and neurons reordered", heads_and_neurons, keeps_function=True),
        Edited("values-turned", "V and O rotated inside each head", values, keeps_function=True),
        Edited("rotated", "residual stream rotated, gains folded", edits.turn_stream, True, is_attack=True),
        Edited("hidden", "all of these at once, with signs and rotary planes", edits.obfuscate, True, is_attack=True),
        Edited("noise-1", "noise of 1 RMS on every matrix", noise(1.0)),
        Edited("noise-3", "noise of 3 RMS on every matrix", noise(3.0)),
        Edited("noise-6", "noise of 6 RMS on every matrix", noise(6.0)),
        Edited("noise-10", "noise of 10 RMS on every matrix", noise(10.0)),
        Edited("noise-20", "noise of 20 RMS on every matrix", noise(20.0)),
        Edited("half-depth", "every other layer left out", half_depth),
        Edited("half-width", "half of the channels and a quarter of the neurons cut", half_width),
        Edited("upscaled", "first and last three quarters of the layers stacked", upscaled),
        Edited("new-embeddings", "embeddings drawn anew", new_embeddings),
        Edited(
            "new-embeddings-permuted",
            "embeddings drawn anew, channels reordered",
            one_after_the_other(new_embeddings, permuted),
        ),
        Edited(
            "new-embeddings-rotated",
            "embeddings drawn anew, residual stream rotated",
            one_after_the_other(new_embeddings, edits.turn_stream),
            is_attack=True,
        ),
        *(
            Edited(
                f"new-embeddings-{name}",
                f"embeddings drawn anew, residual stream carried by {what}",
                one_after_the_other(new_embeddings, turned_by(matrix)),
                is_attack=True,
            )
            for name, what, matrix in (
                ("plain-qr", "the Q of a plain QR decomposition", plain_qr),
                ("half-turned", "a rotation of every second channel", half_turned),
                ("small-angles", "a rotation by small angles", small_angles),
            )
        ),
        Edited("rescaled", "every scale that cancels drawn anew, exp(N(0, 1))", attacks.rescaled, True, is_attack=True),
        Edited(
            "split-neurons", "half of the neurons split in two, shuffled", attacks.split_neurons, True, is_attack=True
        ),
        Edited(
            "split-ups",
            "40 % of the neurons split in two by ups that differ at random, shuffled",
            attacks.split_ups,
            True,
            is_attack=True,
        ),
        Edited(
            "decoy",
            "a layer that cancels itself in front, residual stream rotated, heads and neurons reordered",
            one_after_the_other(attacks.with_decoy, heads_and_neurons, edits.turn_stream),
            True,
            is_attack=True,
        ),
        Edited(
            "outliers", "one entry in a thousand an outlier, four channels times 30", attacks.outliers, is_attack=True
        ),
        Edited("noisy-axes", "noise of 5 RMS on half of the channels", attacks.noisy_axes, is_attack=True),
        Edited(
            "without-top-16",
            "16 leading singular directions of each matrix removed",
            attacks.without_top(16),
            is_attack=True,
        ),
        Edited(
            "with-rank-16",
            "a random matrix of rank 16 added to each, as large",
            attacks.with_low_rank(16),
            is_attack=True,
        ),
        Edited(
            "permuted-noise-3",
            "channels reordered, then noise of 3 RMS",
            one_after_the_other(permuted, noise(3.0)),
            is_attack=True,
        ),
        Edited(
            "rotated-noise-1",
            "residual stream rotated, then noise of 1 RMS",
            one_after_the_other(edits.turn_stream, noise(1.0)),
            is_attack=True,
        ),
    )
}


@torch.no_grad()
def upcycled(model: PreTrainedModel, seed: int = 7) -> PreTrainedModel:
    """Return a Mixtral of four experts under a new router, each a copy of the MLP with noise of a tenth of its size."""
    torch.manual_seed(seed)
    mixture = edits.upcycle(take_apart(model), "mixtral")
    for name in ("rope_parameters", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id"):
        setattr(mixture.config, name, getattr(model.config, name))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in mixture.named_parameters():
        if "experts" in name:
            weight += 0.1 * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator)
    return mixture


@torch.no_grad()
def with_embeddings_of(model: PreTrainedModel, rows: torch.Tensor) -> PreTrainedModel:
    """Return the model with these token rows, (vocabulary, n), cut to its width and scaled."""
    stack = take_apart(model)
    width = stack.embedding.shape[1]
    cut = rows[:, :width]
    stack.embedding[:, : cut.shape[1]] = cut * stack.embedding.square().mean().sqrt() / cut.square().mean().sqrt()
    return rebuilt(model, stack)


def _on_stream(stack: Stack, order: torch.Tensor, signs: torch.Tensor | None = None) -> Stack:
    """Make new channel i the old channel ``order[i]``, times ``signs[i]``."""
    made = copy.deepcopy(stack)
    factor = torch.ones(len(order)) if signs is None else signs
    made.embedding = made.embedding[:, order] * factor
    made.head = None if made.head is None else made.head[:, order] * factor
    made.norm.weight = made.norm.weight[order]
    for block in made.blocks:
        for norm, readers in block.readers:
            norm.weight = norm.weight[order]
            for reader in readers:
                reader.weight = reader.weight[:, order] * factor
        for writer in (block.o, block.down):
            writer.weight = writer.weight[order] * factor[:, None]
    return made
