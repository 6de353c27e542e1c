"""The paper's matrix of 25 models: p of Algorithm 1 as printed for every pair, drawn as log(-log p).

Twelve models are real or made from real ones, ten are from the zoo in four architectures, and three are small RWKV
models that this script trains. Only embeddings are compared, over all common tokens. The models are under
MDIR_HF_REAL_CACHE and MDIR_HF_TEST_CACHE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.models import save
from benchmarks.paper.output import experiment
from benchmarks.peers.interface import CannotSayError
from benchmarks.peers.plain_mdir import Weights, embedding_analysis
from benchmarks.peers.reads import Reads
from benchmarks.peers.weights import open_model, read_embedding
from benchmarks.real.plain import real_folder
from benchmarks.runner import Row
from benchmarks.zoo import build as zoo
from benchmarks.zoo.members import Model as Member
from mdir_hf.demo.training import seeded_single_thread, train
from mdir_hf.render.figures.sheet import HEAD, add_axes, drawing, new_sheet
from mdir_hf.render.figures.theme import colour_map, theme_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

LOG10_ALPHA = -10.0
SMOLLM2, MINILM = "SmolLM2", "MiniLM"

REAL = {
    "smollm2-135m-instruct": SMOLLM2,
    "smollm2-135m-instruct/permuted": SMOLLM2,
    "smollm2-135m-instruct/noise-3": SMOLLM2,
    "smollm2-135m-instruct/half-width": SMOLLM2,
    "smollm2-135m-instruct/upscaled": SMOLLM2,
    "smollm2-135m-instruct/rotated": SMOLLM2,
    "qwen2.5-coder-0.5b-instruct": "Qwen2.5",
    "minilm-a": MINILM,
    "paraphrase-minilm-l3": MINILM,
    "ms-marco-minilm-l12": MINILM,
    "bge-small-en": MINILM,
    "colbert": MINILM,
}
ZOO = (
    *(("llama", member) for member in ("base", "sft", "width-pruned", "moe-upcycled")),
    *(("gpt2", member) for member in ("base", "continued")),
    *(("qwen3", member) for member in ("base", "retokenised")),
    *(("neox", member) for member in ("base", "lora")),
)
RWKV = {"base": "rwkv", "continued": "rwkv", "other-seed": "rwkv, other seed"}
RWKV_RECIPE = 1
"""Version of the RWKV models; increase it with every change."""

RWKV_STEPS, CONTINUED_STEPS = 60, 20


def folders() -> dict[str, tuple[str, Path]]:
    """Return the lineage and the folder of each of the 25 models, by name."""
    found = {name: (lineage, real_folder(name)) for name, lineage in REAL.items()}
    found |= {f"{family}/{member}": (family, zoo.built(Member(family, member), zoo.FULL)) for family, member in ZOO}
    found |= {f"rwkv/{name}": (lineage, rwkv(name)) for name, lineage in RWKV.items()}
    return found


def rwkv(name: str) -> Path:
    """Return the folder of a small RWKV model, trained if necessary on the zoo's text."""
    from transformers import AutoModelForCausalLM, RwkvConfig, RwkvForCausalLM

    folder = zoo.cache_root() / f"paper-rwkv-{RWKV_RECIPE}" / name
    if folder.exists():
        return folder
    text = zoo.text_of("bpe", zoo.FULL.shape.vocabulary)
    kind = "prose" if name == "continued" else "code"
    with seeded_single_thread(2 if name == "other-seed" else 1):
        if name == "continued":
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(rwkv("base"), dtype="float32")
        else:
            config = RwkvConfig(
                vocab_size=zoo.FULL.shape.vocabulary,
                context_length=64,
                hidden_size=192,
                num_hidden_layers=3,
                intermediate_size=384,
                rescale_every=0,
            )
            model = RwkvForCausalLM(config)
        steps = CONTINUED_STEPS if name == "continued" else RWKV_STEPS
        losses = train(model, text.learnt[kind], steps=steps, batch=(8, 64), learning_rate=2e-3)
    save(model, text, folder, losses, kind)
    return folder


def embedding_of(folder: Path) -> Weights:
    """Read the embedding of a model without its layers."""
    model = open_model(folder, Reads())
    return Weights(model, read_embedding(model), ())


def judged(first: Weights, second: Weights) -> dict[str, Any]:
    """Return trace and log10 p of one pair; p is None without common tokens."""
    try:
        match, _ = embedding_analysis(first, second)
    except CannotSayError:
        return {"trace": None, "log10_p": None}
    return {"trace": round(match.trace, 2), "log10_p": round(min(0.0, match.log_p) / math.log(10), 1)}


def matrix(models: Mapping[str, tuple[str, Path]]) -> dict[str, Any]:
    """Compare every unordered pair, because the trace does not depend on the order."""
    opened = {name: embedding_of(folder) for name, (_, folder) in models.items()}
    pairs = []
    for first, second in combinations_with_replacement(models, 2):
        pairs.append({"a": first, "b": second, **judged(opened[first], opened[second])})
    return {"lineage": {name: lineage for name, (lineage, _) in models.items()}, "pairs": pairs}


def section_of(data: Mapping[str, Any]) -> str:
    """Format the results as a section of Markdown."""
    lineage = data["lineage"]
    pairs = [pair for pair in data["pairs"] if pair["a"] != pair["b"]]
    related = [pair for pair in pairs if lineage[pair["a"]] == lineage[pair["b"]]]
    strangers = [pair for pair in pairs if lineage[pair["a"]] != lineage[pair["b"]]]
    missed = [pair for pair in related if not is_significant(pair)]
    accused = [pair for pair in strangers if is_significant(pair)]
    unanswered = sum(pair["log10_p"] is None for pair in pairs)
    return "\n\n".join(
        [
            "## 25 models by Algorithm 1 as printed (the paper's figure 1)",
            f"There are {len(lineage)} models and {len(pairs)} pairs. Each pair is compared on all common tokens of "
            "the embeddings, with p by the paper's formula (`python -m benchmarks paper-printed-matrix`). "
            f"{len(related) - len(missed)} of {len(related)} related pairs and {len(accused)} of {len(strangers)} "
            f"pairs of strangers are below 1e-10; {unanswered} pairs have no common token. The paper's 25 models are "
            "from the Hub, with up to a trillion parameters.",
            f"Related and not found: {_names(missed)}. Strangers below 1e-10: {_names(accused)}.",
            "![Matrix of 25 models: dark squares within each lineage]"
            "(../benchmarks/results/paper-printed-matrix-matrix.png)",
        ]
    )


def is_significant(pair: Mapping[str, Any]) -> bool:
    """Return whether p is below alpha, 1e-10."""
    return pair["log10_p"] is not None and pair["log10_p"] < LOG10_ALPHA


def _names(pairs: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{pair['a']} and {pair['b']} ({pair['log10_p']:,.0f})" for pair in pairs) or "none"


def shades(data: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Return ln(-ln p) of every pair as a symmetric matrix; 0 if p is 1/e or more."""
    names = list(data["lineage"])
    shown = np.zeros((len(names), len(names)))
    for pair in data["pairs"]:
        i, j = names.index(pair["a"]), names.index(pair["b"])
        minus_ln_p = -(pair["log10_p"] or 0.0) * math.log(10)
        shown[i, j] = shown[j, i] = math.log(max(1.0, minus_ln_p))
    return shown


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the matrix."""
    theme, names, shown = theme_of(dark=False), list(data["lineage"]), shades(data)
    side, left, below = 4.6, 2.2, 2.3
    title = "p of Algorithm 1 as printed, every pair of 25 models"
    subtitle = f"ln(-ln p): pale 0, dark {shown.max():.1f}; p of 1e-10 is {math.log(10 * math.log(10)):.1f}"
    with drawing():
        figure = new_sheet(theme, HEAD + side + below, title, subtitle, width=left + side + 0.3)
        axes = add_axes(figure, theme, left, below, side, side)
        axes.imshow(shown, cmap=colour_map(theme), vmin=0, vmax=float(shown.max()), interpolation="none")
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(names)), names, fontsize=6)
        figure.set_label(f"{title}. {subtitle}")
    return figure


def measure() -> tuple[Row, dict[str, Figure]]:
    """Compare every pair."""
    data = matrix(folders())
    return data, {"matrix": draw(data)}


PRINTED_MATRIX = experiment("printed-matrix", "figure 1 of the paper: 25 models by Algorithm 1 as printed", measure)
