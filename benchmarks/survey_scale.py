"""Measure the price of surveys: processor seconds and full comparisons for more and more tiny models.

Models are Llamas of random weights (width 64, 4 layers, 256 neurons, a vocabulary of 400 words; 0.8 MB). A fifth are
bases; the others derive from them by noise, by a permuted or rotated stream, or by a mixture of two fine-tunes.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.runner import Benchmark, Case, Row
from mdir_hf import compare, survey
from tests.specimens import tokenizer_json, tokens

WIDTH, LAYERS, NEURONS, HEADS, HEAD_DIM, WORDS = 64, 4, 256, 4, 32, 400
N_COPIES = 10
"""Copies of each disguise."""

Weights = dict[str, torch.Tensor]

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": NEURONS,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
    "vocab_size": WORDS, "tie_word_embeddings": True,
}  # fmt: skip


def new_weights(generator: torch.Generator) -> Weights:
    """Draw the weights of a base model."""
    shapes = {"self_attn.q_proj": (HEADS * HEAD_DIM, WIDTH), "self_attn.k_proj": (HEADS * HEAD_DIM, WIDTH),
              "self_attn.v_proj": (HEADS * HEAD_DIM, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * HEAD_DIM),
              "mlp.gate_proj": (NEURONS, WIDTH), "mlp.up_proj": (NEURONS, WIDTH),
              "mlp.down_proj": (WIDTH, NEURONS)}  # fmt: skip
    weights = {"model.embed_tokens.weight": torch.randn(WORDS, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape, generator=generator) / 8
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(WIDTH)
    return weights | {"model.norm.weight": torch.ones(WIDTH)}


def with_noise(weights: Weights, share: float, generator: torch.Generator) -> Weights:
    """Add noise to every matrix, in units of its standard deviation."""
    return {
        name: w if w.ndim == 1 else w + share * w.std() * torch.randn(w.shape, generator=generator)
        for name, w in weights.items()
    }


def turned(weights: Weights, turn: torch.Tensor) -> Weights:
    """Turn the residual stream; gains are 1."""
    reads = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens")
    return {
        name: w if w.ndim == 1 else w @ turn if any(part in name for part in reads) else turn.T @ w
        for name, w in weights.items()
    }


def rotated(weights: Weights, generator: torch.Generator) -> Weights:
    """Rotate the residual stream."""
    return turned(weights, torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q)


def permuted(weights: Weights, generator: torch.Generator) -> Weights:
    """Permute the channels of the residual stream."""
    return turned(weights, torch.eye(WIDTH)[torch.randperm(WIDTH, generator=generator)])


def renumbered(weights: Weights, generator: torch.Generator) -> Weights:
    """Renumber heads and neurons of every layer."""
    changed = dict(weights)
    for layer in range(LAYERS):
        heads = torch.randperm(HEADS, generator=generator)
        rows = (heads[:, None] * HEAD_DIM + torch.arange(HEAD_DIM)).flatten()
        neurons = torch.randperm(NEURONS, generator=generator)
        for name, order, axis in (
            *((f"self_attn.{part}_proj", rows, 0) for part in "qkv"), ("self_attn.o_proj", rows, 1),
            ("mlp.gate_proj", neurons, 0), ("mlp.up_proj", neurons, 0), ("mlp.down_proj", neurons, 1),
        ):  # fmt: skip
            key = f"model.layers.{layer}.{name}.weight"
            changed[key] = changed[key].index_select(axis, order)
    return changed


def with_layers_shuffled(weights: Weights, generator: torch.Generator) -> Weights:
    """Put the layers into another order."""
    order = torch.randperm(LAYERS, generator=generator).tolist()
    return {_of_layer(name, order): w for name, w in weights.items()}


def _of_layer(name: str, order: list[int]) -> str:
    parts = name.split(".")
    return ".".join([*parts[:2], str(order[int(parts[2])]), *parts[3:]]) if parts[1] == "layers" else name


def new_keys(weights: Weights, generator: torch.Generator) -> Weights:
    """Draw new keys."""
    return {
        name: torch.randn(w.shape, generator=generator) / 8 if "k_proj" in name else w for name, w in weights.items()
    }


def one_layer_kept(weights: Weights, generator: torch.Generator) -> Weights:
    """Keep the first layer, and draw the others anew."""
    return {**new_weights(generator), **{name: w for name, w in weights.items() if ".layers.0." in name}}


def new_embedding(weights: Weights, generator: torch.Generator) -> Weights:
    """Draw a new embedding."""
    return {**weights, "model.embed_tokens.weight": torch.randn(WORDS, WIDTH, generator=generator)}


Edit = Callable[[Weights, torch.Generator], Weights]

DISGUISES: dict[str, tuple[Edit, ...]] = {
    "noise of 0.3": (lambda w, g: with_noise(w, 0.3, g),),
    "noise of 1": (lambda w, g: with_noise(w, 1.0, g),),
    "noise of 2": (lambda w, g: with_noise(w, 2.0, g),),
    "noise of 3": (lambda w, g: with_noise(w, 3.0, g),),
    "rotated, new embedding": (rotated, new_embedding),
    "layers shuffled": (with_layers_shuffled,),
    "one of four layers kept": (one_layer_kept,),
    "heads and neurons renumbered": (renumbered,),
    "renumbered, rotated": (renumbered, rotated),
    "renumbered, rotated, layers shuffled": (renumbered, rotated, with_layers_shuffled),
    "renumbered, rotated, new embedding": (renumbered, rotated, new_embedding),
    "renumbered, noise of 0.3": (renumbered, lambda w, g: with_noise(w, 0.3, g)),
    "renumbered, noise of 0.6": (renumbered, lambda w, g: with_noise(w, 0.6, g)),
    "renumbered, noise of 1": (renumbered, lambda w, g: with_noise(w, 1.0, g)),
    "renumbered, one of four layers kept": (one_layer_kept, renumbered),
    "renumbered, new keys": (renumbered, new_keys),
}


def write(folder: Path, weights: Weights) -> str:
    """Write a model."""
    folder.mkdir()
    save_file({name: w.half().contiguous() for name, w in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens(WORDS))))
    return str(folder)


def population(place: Path, n: int) -> Iterator[tuple[str, int]]:
    """Write n models, and yield their folders and the numbers of their families."""
    generator = torch.Generator().manual_seed(n)
    edits: tuple[Edit, ...] = (lambda w, g: w, permuted, rotated)
    bases = [new_weights(generator) for _ in range(max(2, n // 5))]
    for number in range(n):
        family = number % len(bases)
        weights = bases[family]
        if number >= len(bases):
            weights = edits[number // len(bases) % len(edits)](with_noise(weights, 0.2, generator), generator)
        yield write(place / f"m{number}", weights), family


def price(n: int) -> Row:
    """Survey n models, and return a line with the price."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = dict(population(place, n))
        before, clock = time.process_time(), time.perf_counter()
        report = survey(list(made), folder=place / "out", progress=False)
        seconds, wall = time.process_time() - before, time.perf_counter() - clock
    found = sorted(sorted(group) for group in report.groups())
    families = [sorted(name for name in made if made[name] == family) for family in set(made.values())]
    return {
        "models": n,
        "pairs": math.comb(n, 2),
        "by_number": len(report.pairs),
        "in_full": sum(pair.layers_compared for pair in report.pairs.values()),
        "groups_as_made": found == sorted(families),
        "cpu_s": round(seconds, 1),
        "wall_s": round(wall, 1),
    }


def disguised(name: str) -> Row:
    """Return how many disguised copies a survey finds among strangers, and how many ``compare`` finds."""
    generator = torch.Generator().manual_seed(list(DISGUISES).index(name))
    with tempfile.TemporaryDirectory() as folder:
        place, pairs = Path(folder), []
        for at in range(N_COPIES):
            base = copy = new_weights(generator)
            for edit in DISGUISES[name]:
                copy = edit(copy, generator)
            pairs.append((write(place / f"base{at}", base), write(place / f"copy{at}", copy)))
        counts = []
        for all_pairs in (False, True):
            report = survey([name for pair in pairs for name in pair], all_pairs=all_pairs, progress=False)
            counts.append(sum(report.is_related(*pair) for pair in pairs))
            wrong = sum(result.verdict == "homologous" for result in report.pairs.values()) - counts[-1]
            assert not wrong, f"{wrong} pairs of strangers are called homologous"
        verdicts = Counter(compare(*pair, progress=False).verdict.value for pair in pairs)
    found = {"survey": counts[0], "all_pairs": counts[1], "compare": verdicts["homologous"]}
    return {"disguise": name, "copies": N_COPIES, **found}


SURVEY_SCALE = Benchmark(
    "survey-scale",
    "processor time of surveys of 40 to 2,000 models",
    ("models",),
    lambda: (Case((n,), partial(price, n)) for n in (40, 120, 500, 2000)),
)
SURVEY_DISGUISES = Benchmark(
    "survey-disguises",
    "disguised copies that a survey and a comparison find",
    ("disguise",),
    lambda: (Case((name,), partial(disguised, name)) for name in DISGUISES),
)
