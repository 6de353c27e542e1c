"""The verdict rules on draws that were not used to choose them.

The rules (n/2 trimming, placebos, what is a caveat and what decides) were chosen on one generative family at one width.
Here are others: widths of 64, 160 and 320, vocabularies of 2000 to 6000, and shared semantics, frequencies, column
scales, outliers and loadings drawn anew, with hyperparameters of their own, for every pair. Each pair is written as two
model folders and compared by ``HomologyChecker`` at ``level="auto"``, so that files, looks, placebos and rules are what
a user gets.

A stranger that comes out homologous is a false positive, unless the family is marked with a star: there both models
carry the same features on the same axes, which no test on weights can tell from ancestry, and which is listed to be
seen. Families with layers go through the whole body path: three representatives, behind the fitted rotation and behind
the identity.

    python benchmarks/verdict_validation.py [--draws 20] [--seed 1] [--only embeddings|layers] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from mdir_hf import HomologyChecker, HomologyReport

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
Weights = dict[str, Array]
Pair = tuple[Weights, Weights]

WIDTHS = (64, 160, 320)
LAYER_WIDTH, HEADS, KV_HEADS, HEAD_DIM, NEURONS = 64, 8, 4, 8, 160
EMBEDDING = "model.embed_tokens.weight"
PLACES = {
    "q": ("self_attn.q_proj", (HEADS * HEAD_DIM, LAYER_WIDTH)),
    "k": ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, LAYER_WIDTH)),
    "v": ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, LAYER_WIDTH)),
    "o": ("self_attn.o_proj", (LAYER_WIDTH, HEADS * HEAD_DIM)),
    "gate": ("mlp.gate_proj", (NEURONS, LAYER_WIDTH)),
    "up": ("mlp.up_proj", (NEURONS, LAYER_WIDTH)),
    "down": ("mlp.down_proj", (LAYER_WIDTH, NEURONS)),
}
READERS = ("q", "k", "v", "gate", "up")


@dataclass(frozen=True)
class Family:
    """Pairs of one kind: what they are called, how one is drawn, and what the right answer is.

    Attributes:
        name: A few words.
        draw: Draws a pair.
        kind: ``stranger``, ``shared axes`` (strangers that no test can tell from relatives) or ``relative``.
    """

    name: str
    draw: Callable[[Rng], Pair]
    kind: str = "stranger"


# --- embeddings


class Language:
    """Tokens with meanings and frequencies that all models of a language share; each reads them in its own way."""

    def __init__(self, rng: Rng, *, n_tokens: int | None = None, width: int | None = None) -> None:
        self.rng = rng
        self.n = int(rng.choice(WIDTHS)) if width is None else width
        self.n_tokens = int(rng.integers(2000, 6001)) if n_tokens is None else n_tokens
        n_latents = int(rng.integers(self.n, 4 * self.n))
        spectrum = (1.0 + np.arange(n_latents)) ** -rng.uniform(0.3, 0.9)
        kind = rng.choice(["normal", "laplace", "student", "clusters"])
        shape = (self.n_tokens, n_latents)
        if kind == "laplace":
            latents = rng.laplace(size=shape)
        elif kind == "student":
            latents = rng.standard_t(4, shape)
        else:
            latents = rng.standard_normal(shape)
        if kind == "clusters":
            centres = rng.standard_normal((int(rng.integers(10, 200)), n_latents))
            latents = 0.5 * latents + centres[rng.integers(len(centres), size=self.n_tokens)]
        self.latents: Array = latents * spectrum
        rank = rng.permutation(self.n_tokens) + 1.0
        self.frequency: Array = np.log(rank)
        # Rare tokens are shorter, or longer, as models have it; both of a pair the same way.
        self.lengths: Array = rank[:, None] ** rng.uniform(-0.3, 0.3)
        self.noise = rng.uniform(0.1, 0.8)

    def model(self, n: int | None = None, *, loadings: Array | None = None) -> Array:
        """Draw a model's embedding, ``(V, n)``: the shared meanings, read through loadings of its own."""
        n = self.n if n is None else n
        if loadings is None:
            loadings = self.rng.standard_normal((self.latents.shape[1], n))
        read = self.latents @ loadings
        read = self.lengths * (read / read.std() + self.noise * self.rng.standard_normal(read.shape))
        embedding: Array = 0.02 * read / read.std()
        return embedding

    def features(self, count: int) -> Array:
        """Return ``count`` shared features with mean 0 and variance 1, ``(V, count)``."""
        chosen = self.latents[:, self.rng.permutation(self.latents.shape[1])[:count]]
        features: Array = (chosen - chosen.mean(axis=0)) / chosen.std(axis=0)
        return features


def embeddings(x: Array, y: Array) -> Pair:
    """Two models that are nothing but a tied embedding."""
    return {EMBEDDING: x}, {EMBEDDING: y}


def on_both(change: Callable[[Language, Array], Array], *, models: int = 2) -> Callable[[Rng], Pair]:
    """Strangers of one language, the first ``models`` of which are changed, each by a draw of its own."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng)
        pair = [language.model(), language.model()]
        return embeddings(*(change(language, e) if k < models else e for k, e in enumerate(pair)))

    return draw


def own_outliers(count: int) -> Callable[[Language, Array], Array]:
    """Give a model outlier channels with content of its own."""

    def change(language: Language, e: Array) -> Array:
        e[:, :count] = language.rng.uniform(10, 50) * e.std() * language.rng.standard_normal((len(e), count))
        return e

    return change


def same_outliers(count: int, *, of_frequency: bool = False) -> Callable[[Rng], Pair]:
    """Draw strangers with outlier channels that carry the same features, or the frequency of tokens."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng)
        content = language.features(count)
        if of_frequency:
            centred = language.frequency - language.frequency.mean()
            content = (centred / centred.std())[:, None] + 0.3 * content
        pair = [language.model(), language.model()]
        for e in pair:
            e[:, :count] = rng.uniform(10, 50) * e.std() * content
        return embeddings(*pair)

    return draw


def column_scales(draw: Callable[[Rng, int], Array]) -> Callable[[Language, Array], Array]:
    """Multiply the channels of a model by scales of its own."""
    return lambda language, e: e * draw(language.rng, e.shape[1])


def lognormal(rng: Rng, n: int) -> Array:
    """Draw column scales of moderately heavy tail."""
    scales: Array = np.exp(rng.uniform(0.8, 1.5) * rng.standard_normal(n))
    return scales


def pareto(rng: Rng, n: int) -> Array:
    """Draw column scales of which a few are far larger than the rest."""
    scales: Array = 1.0 + rng.pareto(rng.uniform(1.2, 2.0), n)
    return scales


def same_scales(rng: Rng) -> Pair:
    """Draw strangers whose channels have the same scales."""
    language = Language(rng)
    scales = lognormal(rng, language.n)
    return embeddings(language.model() * scales, language.model() * scales)


def sparse_loadings(share: float, models: int) -> Callable[[Rng], Pair]:
    """Draw strangers whose channels read a small share of the latents each, in one model or in both."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng)
        pair = []
        for k in range(2):
            loadings = rng.standard_normal((language.latents.shape[1], language.n))
            if k < models:
                loadings *= rng.uniform(size=loadings.shape) < share * rng.uniform(0.8, 1.25)
            pair.append(language.model(loadings=loadings))
        return embeddings(*pair)

    return draw


def quantised(levels: int) -> Callable[[Language, Array], Array]:
    """Round every column to so many levels on either side of 0, as weight-only quantisation does by groups."""

    def change(_: Language, e: Array) -> Array:
        step = np.abs(e).max(axis=0) / levels if levels > 1 else 1.5 * np.abs(e).mean(axis=0)
        rounded: Array = step * np.clip(np.round(e / step), -levels, levels)
        return rounded

    return change


def common_mean(language: Language, e: Array) -> Array:
    """Move all rows of a model along all-ones."""
    return e + language.rng.uniform(2, 10) * e.std()


def bent(language: Language, e: Array) -> Array:
    """Bend every entry by itself, as an optimiser that scales entry by entry may: axes stand out, and say nothing."""
    power = language.rng.uniform(1.3, 2.0)
    return np.sign(e) * np.abs(e / e.std()) ** power * e.std()


def duplicated(rng: Rng) -> Pair:
    """Draw strangers with the same rows twice and the same rows never used."""
    language = Language(rng)
    pair = [language.model(), language.model()]
    source = rng.integers(len(pair[0]), size=len(pair[0]))
    twice = rng.uniform(size=len(source)) < rng.uniform(0.2, 0.6)
    for e in pair:
        e[twice] = e[source[twice]]
        e[rng.uniform(size=len(e)) < 0.1] = 1e-3 * rng.standard_normal(e.shape[1]) * e.std()  # never used, never moved
    return embeddings(*pair)


def other_width(rng: Rng) -> Pair:
    """Draw strangers of two widths."""
    language = Language(rng)
    widths = rng.choice(WIDTHS, 2, replace=False)
    return embeddings(language.model(int(widths[0])), language.model(int(widths[1])))


def few_tokens(rng: Rng) -> Pair:
    """Draw strangers with few common tokens."""
    language = Language(rng, n_tokens=int(rng.integers(30, 200)))
    return embeddings(language.model(), language.model())


def shared_axes(share: float, correlation: float) -> Callable[[Rng], Pair]:
    """Let a share of the channels carry one feature each, the same feature on the same channel in both models."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng)
        pair = [language.model(), language.model()]
        count = min(round(share * language.n), language.latents.shape[1])
        features = language.lengths * language.features(count)
        for e in pair:
            size = e[:, :count].std()
            mixed = correlation * features / features.std() + math.sqrt(1 - correlation**2) * e[:, :count] / size
            e[:, :count] = size * mixed
        return embeddings(*pair)

    return draw


def relatives(sizes: tuple[float, float], *, structured: bool = False, edit: str = "") -> Callable[[Rng], Pair]:
    """A model and what became of it: drift of so many standard deviations, alike in all directions or in its own."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng)
        x = language.model()
        drift = language.model() if structured else rng.standard_normal(x.shape)
        y = x + rng.uniform(*sizes) * x.std() * drift / drift.std()
        n = language.n
        if edit == "permuted":
            y = rng.uniform(0.2, 5) * y[:, rng.permutation(n)]
        elif edit == "signed":
            y = y[:, rng.permutation(n)] * rng.choice([-1.0, 1.0], n)
        elif edit == "pruned":
            y = y[:, np.sort(rng.permutation(n)[: round(rng.uniform(0.6, 0.9) * n)])]
        elif edit in ("int4", "ternary"):
            y = quantised(7 if edit == "int4" else 1)(language, y)
        return embeddings(x, y)

    return draw


EMBEDDING_FAMILIES = (
    Family("shared meanings, frequencies, lengths", on_both(lambda _, e: e)),
    Family("other width", other_width),
    Family("30 to 200 common tokens", few_tokens),
    Family("rows twice, unused rows alike", duplicated),
    Family("mean along all-ones in both", on_both(common_mean)),
    Family("entries bent one by one in both", on_both(bent)),
    Family("1 outlier channel, own content, both", on_both(own_outliers(1))),
    Family("4 outlier channels, own content, one", on_both(own_outliers(4), models=1)),
    Family("4 outlier channels, own content, both", on_both(own_outliers(4))),
    Family("16 outlier channels, own content, both", on_both(own_outliers(16))),
    Family("1 outlier channel, same content", same_outliers(1)),
    Family("4 outlier channels, same content", same_outliers(4)),
    Family("16 outlier channels, same content", same_outliers(16)),
    Family("4 outlier channels of frequency", same_outliers(4, of_frequency=True)),
    Family("lognormal column scales in one", on_both(column_scales(lognormal), models=1)),
    Family("lognormal column scales in both", on_both(column_scales(lognormal))),
    Family("Pareto column scales in one", on_both(column_scales(pareto), models=1)),
    Family("Pareto column scales in both", on_both(column_scales(pareto))),
    Family("the same lognormal column scales", same_scales),
    Family("int4 by columns in both", on_both(quantised(7))),
    Family("ternary by columns in one", on_both(quantised(1), models=1)),
    Family("ternary by columns in both", on_both(quantised(1))),
    Family("sparse loadings 1 % in one", sparse_loadings(0.01, 1)),
    Family("sparse loadings 10 % in both", sparse_loadings(0.1, 2)),
    Family("sparse loadings 3 % in both", sparse_loadings(0.03, 2)),
    Family("sparse loadings 1 % in both", sparse_loadings(0.01, 2)),
    Family("5 % of channels, same feature .9", shared_axes(0.05, 0.9)),
    Family("25 % of channels, same feature .9", shared_axes(0.25, 0.9)),
    Family("* all channels, same feature .3", shared_axes(1.0, 0.3), "shared axes"),
    Family("* all channels, same feature .6", shared_axes(1.0, 0.6), "shared axes"),
    Family("drift 0.5 to 1", relatives((0.5, 1)), "relative"),
    Family("drift 1 to 2", relatives((1, 2)), "relative"),
    Family("drift 2 to 4", relatives((2, 4)), "relative"),
    Family("drift in its own directions 0.5 to 1", relatives((0.5, 1), structured=True), "relative"),
    Family("drift in its own directions 1 to 2", relatives((1, 2), structured=True), "relative"),
    Family("drift in its own directions 2 to 4", relatives((2, 4), structured=True), "relative"),
    Family("permuted, rescaled, drift 0.5 to 2", relatives((0.5, 2), edit="permuted"), "relative"),
    Family("permuted with signs, drift 0.5 to 2", relatives((0.5, 2), edit="signed"), "relative"),
    Family("10 to 40 % of channels cut, drift 0.5 to 2", relatives((0.5, 2), edit="pruned"), "relative"),
    Family("int4, drift 0.5 to 2", relatives((0.5, 2), edit="int4"), "relative"),
    Family("ternary, drift 0.5 to 2", relatives((0.5, 2), edit="ternary"), "relative"),
)


# --- layers


def layer_model(rng: Rng, depth: int, embedding: Array) -> Weights:
    """A model at initialisation with gains that are not 1."""
    weights: Weights = {EMBEDDING: embedding}
    for i in range(depth):
        for place, shape in PLACES.values():
            weights[f"model.layers.{i}.{place}.weight"] = 0.1 * rng.standard_normal(shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{norm}.weight"] = rng.uniform(0.3, 2.0, LAYER_WIDTH)
    return weights


def of_role(weights: Weights, *roles: str) -> Iterator[tuple[str, Array]]:
    """Yield name and matrix of these roles, layer by layer."""
    for role in roles:
        for name in [n for n in weights if PLACES[role][0] in n]:
            yield name, weights[name]


def layered_strangers(
    change: Callable[[Rng, Weights, Array], None] | None = None, *, depths: tuple[int, int] = (3, 6)
) -> Callable[[Rng], Pair]:
    """Strangers of one language and of any depths; ``change`` alters each by itself, given what both share."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng, width=LAYER_WIDTH, n_tokens=1500)
        directions = np.random.default_rng(rng.integers(2**32)).standard_normal((2 * LAYER_WIDTH, LAYER_WIDTH))
        pair = [layer_model(rng, int(rng.integers(depths[0], depths[1] + 1)), language.model()) for _ in range(2)]
        for weights in pair:
            if change is not None:
                change(rng, weights, directions)
        return pair[0], pair[1]

    return draw


def heavy_rows(rng: Rng, weights: Weights, _: Array) -> None:
    """Give rows widely different lengths."""
    for _name, w in of_role(weights, *READERS):
        w *= np.exp(rng.uniform(1, 2) * rng.standard_normal((len(w), 1)))


def heavy_heads(rng: Rng, weights: Weights, _: Array) -> None:
    """Give heads widely different lengths."""
    for _name, w in of_role(weights, "q", "k", "v"):
        w *= np.exp(1.5 * rng.standard_normal((len(w) // HEAD_DIM, 1))).repeat(HEAD_DIM, axis=0)


def same_residual_scales(rng: Rng, weights: Weights, directions: Array) -> None:
    """Both read the same few channels of the residual stream most, outliers among them."""
    scales = np.exp(directions[0])
    scales[:4] *= 20.0
    for _name, w in of_role(weights, *READERS):
        w *= scales


def low_rank(rng: Rng, weights: Weights, directions: Array) -> None:
    """Both read mostly one space of 16 directions, each in its own way."""
    for name, w in of_role(weights, *READERS):
        weights[name] = 0.1 * w + 0.03 * rng.standard_normal((len(w), 16)) @ directions[:16]


def alike_layers(rng: Rng, weights: Weights, _: Array) -> None:
    """The layers of a model share most of what they are: cells of a map are far from independent."""
    for role in PLACES:
        found = list(of_role(weights, role))
        common = rng.standard_normal(found[0][1].shape)
        for _name, w in found:
            w += 0.3 * common


def sparse_readers(share: float) -> Callable[[Rng, Weights, Array], None]:
    """Every neuron and head row reads a share of the channels, its own, as after unstructured pruning."""

    def change(rng: Rng, weights: Weights, _: Array) -> None:
        for _name, w in of_role(weights, *READERS):
            w *= rng.uniform(size=w.shape) < share

    return change


def heavy_entries(power: float) -> Callable[[Rng, Weights, Array], None]:
    """Every entry is a power of a normal number: few entries of a row carry most of it."""

    def change(_rng: Rng, weights: Weights, _: Array) -> None:
        for _name, w in of_role(weights, *READERS):
            w[:] = np.sign(w) * np.abs(w) ** power

    return change


def meaning_readers(rng: Rng, weights: Weights, _: Array) -> None:
    """Rows mix the directions in which this model's embedding varies most: what language teaches all models."""
    e = weights[EMBEDDING]
    _left, scale, axes = np.linalg.svd(e - e.mean(axis=0), full_matrices=False)
    for name, w in of_role(weights, *READERS):
        weights[name] = w @ (np.diag(scale / scale.max()) @ axes)


def same_features(share: float) -> Callable[[Rng, Weights, Array], None]:
    """Some rows read one of a set of directions that both models know, in the same basis and in any order."""

    def change(rng: Rng, weights: Weights, directions: Array) -> None:
        for _name, w in of_role(weights, *READERS):
            count = round(share * len(w))
            rows = rng.permutation(len(w))[:count]
            known = directions[rng.permutation(len(directions))[:count] % len(directions)] if count else directions[:0]
            w[rows[: len(known)]] = 0.1 * known

    return change


def layered_relatives(size: float, how: str) -> Callable[[Rng], Pair]:
    """A model and its descendant under new embeddings, or turned as a whole; neurons of both in another order."""

    def draw(rng: Rng) -> Pair:
        language = Language(rng, width=LAYER_WIDTH, n_tokens=1500)
        depth = int(rng.integers(4, 7))
        x = layer_model(rng, depth, language.model())
        y = {name: w.copy() for name, w in x.items()}
        for _name, w in of_role(y, *PLACES):
            w += size * w.std() * rng.standard_normal(w.shape)
        if how == "pruned":
            kept = np.sort(rng.permutation(depth)[: depth - 2])
            y = {n: w for n, w in y.items() if ".layers." not in n} | {
                f"model.layers.{here}.{n.split('.', 3)[3]}": w
                for here, there in enumerate(kept)
                for n, w in y.items()
                if n.startswith(f"model.layers.{there}.")
            }
        if how == "rotated":
            _rotate(rng, y)
        else:
            y[EMBEDDING] = language.model()
        return x, y

    return draw


def _rotate(rng: Rng, weights: Weights) -> None:
    """Fold gains, turn the residual stream, permute neurons with signs."""
    u = np.linalg.qr(rng.standard_normal((LAYER_WIDTH, LAYER_WIDTH)))[0]
    weights[EMBEDDING] = weights[EMBEDDING] @ u
    for name in [n for n in weights if "layernorm" in n]:
        layer = name.rsplit(".", 2)[0]
        readers = ("q", "k", "v") if "input" in name else ("gate", "up")
        for role in readers:
            place = f"{layer}.{PLACES[role][0]}.weight"
            weights[place] = (weights[place] * weights[name]) @ u
        weights[name] = np.ones(LAYER_WIDTH)
        if "input" in name:
            place = f"{layer}.{PLACES['o'][0]}.weight"
            weights[place] = u.T @ weights[place]
            continue
        order, signs = rng.permutation(NEURONS), rng.choice([-1.0, 1.0], NEURONS)
        gate, up, down = (f"{layer}.{PLACES[role][0]}.weight" for role in ("gate", "up", "down"))
        weights[gate], weights[up] = weights[gate][order], weights[up][order] * signs[:, None]
        weights[down] = (u.T @ weights[down])[:, order] * signs


LAYER_FAMILIES = (
    Family("layers at random", layered_strangers()),
    Family("row lengths lognormal 1 to 2", layered_strangers(heavy_rows)),
    Family("head lengths lognormal 1.5", layered_strangers(heavy_heads)),
    Family("the same residual scales, 4 outliers", layered_strangers(same_residual_scales)),
    Family("the same space of 16 directions", layered_strangers(low_rank)),
    Family("layers of a model alike", layered_strangers(alike_layers)),
    Family("rows that read 50 % of the channels", layered_strangers(sparse_readers(0.5))),
    Family("rows that read 15 % of the channels", layered_strangers(sparse_readers(0.15))),
    Family("rows that read 5 % of the channels", layered_strangers(sparse_readers(0.05))),
    Family("the same in models of one layer", layered_strangers(sparse_readers(0.05), depths=(1, 1))),
    Family("entries to the power of 2", layered_strangers(heavy_entries(2))),
    Family("entries to the power of 3", layered_strangers(heavy_entries(3))),
    Family("the same in models of one layer", layered_strangers(heavy_entries(3), depths=(1, 1))),
    Family("rows that read the main meanings", layered_strangers(meaning_readers)),
    Family("5 % of rows read known directions", layered_strangers(same_features(0.05))),
    Family("* half of the rows read known directions", layered_strangers(same_features(0.5)), "shared axes"),
    Family("new embeddings, drift 0.5", layered_relatives(0.5, "new"), "relative"),
    Family("new embeddings, drift 1", layered_relatives(1.0, "new"), "relative"),
    Family("new embeddings, 2 layers cut, drift 0.5", layered_relatives(0.5, "pruned"), "relative"),
    Family("rotated, neurons permuted, drift 0.2", layered_relatives(0.2, "rotated"), "relative"),
    Family("rotated, neurons permuted, drift 0.5", layered_relatives(0.5, "rotated"), "relative"),
)


# --- the comparison


def write_model(folder: Path, weights: Weights) -> Path:
    """Write a folder as on the Hub, in BF16 and without a tokenizer: rows are paired by number."""
    folder.mkdir(exist_ok=True)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(w)).to(torch.bfloat16) for name, w in weights.items()}
    save_file(tensors, folder / "model.safetensors")
    n_tokens, n = weights[EMBEDDING].shape
    config = {"model_type": "llama", "hidden_size": n, "vocab_size": n_tokens, "tie_word_embeddings": True}
    depth = len([name for name in weights if "q_proj" in name])
    if depth:
        config |= {"num_hidden_layers": depth, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
        config |= {"head_dim": HEAD_DIM, "intermediate_size": NEURONS}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def compare(pair: Pair, folder: Path) -> HomologyReport:
    """Compare a pair as a user would."""
    reference, candidate = (write_model(folder / name, w) for name, w in zip(("a", "b"), pair, strict=True))
    return HomologyChecker.from_pretrained(reference).compare(candidate, progress=False)


def validate(families: tuple[Family, ...], n_draws: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """Print the table of one group of families, and return the verdicts by kind of family."""
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in ("stranger", "shared axes", "relative")}
    print(
        f"{'family':>42} {'draws':>5} | {'homologous':>10} {'inconclusive':>12} {'none':>5} | smallest log10 p  reasons"
    )
    for number, family in enumerate(families):
        verdicts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        smallest = 0.0
        for draw in range(n_draws):
            report = compare(family.draw(np.random.default_rng([seed, number, draw])), folder)
            verdicts[report.verdict.value] += 1
            if report.reason is not None:
                reasons[report.reason.value] += 1
            smallest = min(smallest, report.log10_p)
        totals[family.kind] += verdicts
        said = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        print(
            f"{family.name:>42} {n_draws:>5} | {verdicts['homologous']:>10} {verdicts['inconclusive']:>12} "
            f"{verdicts['no_evidence']:>5} | {smallest:16.1f}  {said}",
            flush=True,
        )
    return totals


def main() -> None:
    """Read the options, print both tables and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("embeddings", "layers"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, families in (("embeddings", EMBEDDING_FAMILIES), ("layers", LAYER_FAMILIES)):
            if args.only in (None, name):
                print(f"{name}: seed {args.seed}, level auto, alpha 1e-10")
                totals = validate(families, args.draws, args.seed, Path(folder))
                for kind, verdicts in totals.items():
                    n = verdicts.total()
                    print(f"{kind:>42} {n:>5} | homologous {verdicts['homologous']} ({verdicts['homologous'] / n:.1%})")
                n, hits = totals["stranger"].total(), totals["stranger"]["homologous"]
                if not hits:
                    print(
                        f"no stranger of {n} was called homologous: the rate is below {1 - 0.05 ** (1 / n):.2%} at 95 %"
                    )
                print()
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
