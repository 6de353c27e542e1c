"""List the models made from each base and their folders, ``models/<base>/<member>`` in the cache.

Every folder has ``made.json`` with the edit, its duration in seconds, whether the model still generates text, and how
far its weights moved.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.folders import build_once
from benchmarks.real.bases import ANSWER, PROMPT, base_folder, continued, load, save
from benchmarks.real.relatives import EDITS, edited, upcycled, with_embeddings_of
from benchmarks.real.sliced import sliced
from benchmarks.real.sources import cache_root
from benchmarks.real.trained import TRAINED, new_tokenizer, tokens_of, trained
from benchmarks.zoo import formats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL, MIDDLE, LARGE = "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"
SENTENCES = ("minilm-a", "minilm-b")

THIRD_PARTY = ("minilm-a", "ms-marco-minilm-l12", "paraphrase-minilm-l3", "bge-small-en", "colbert")
"""Sentence encoders, a reranker and a ColBERT that third parties trained from one model of 12 layers, or parts of it.
"""

OF_MIDDLE = (
    *("permuted", "signed", "heads-neurons", "values-turned", "rotated", "hidden", "noise-1"),
    *(
        "noise-3",
        "half-depth",
        "half-width",
        "new-embeddings",
        "new-embeddings-permuted",
        "new-embeddings-rotated",
        "rescaled",
    ),
    *("split-neurons", "outliers", "noisy-axes", "rotated-noise-1", "random", "gguf-q4_k", "gptq-4"),
    *("awq", "nf4-nested", "fp8-block", "lora"),
)
"""Derivatives that are also made from the half-billion model, with biases in attention and other widths. 25 GB."""

SWAPPED = "swapped-embeddings"

SLICED, SHARE_CUT = "sliced", 0.25


@dataclass(frozen=True, order=True)
class Model:
    """A model: a base and an edit, or ``base`` without edit."""

    base: str
    member: str = "base"

    @property
    def name(self) -> str:
        """``base/member``."""
        return self.base if self.member == "base" else f"{self.base}/{self.member}"


@dataclass(frozen=True)
class Member:
    """An edit of a base.

    Attributes:
        name: Name of the edit.
        kind: ``edit``, ``attack``, ``training``, ``format`` or ``stranger``.
        done: Effect, as a phrase without full stop.
        is_related: Whether it contains weights of its base.
    """

    name: str
    kind: str
    done: str
    is_related: bool = True


def members() -> dict[str, Member]:
    """Return all edits of a base, by name."""
    edits = [Member(how.name, "attack" if how.is_attack else "edit", how.done) for how in EDITS.values()]
    more = [
        Member("upcycled", "edit", "a mixture of four experts, each a copy of the MLP with a tenth of noise"),
        Member(SLICED, "edit", "a quarter of the channels cut as SliceGPT does, every layer in its own basis"),
        Member(SWAPPED, "attack", "the embeddings of Qwen2.5-Coder-0.5B-Instruct for the tokens that both have"),
    ]
    trainings = [
        Member(
            how.name,
            "stranger" if not how.is_related else "attack" if how.is_attack else "training",
            how.done,
            how.is_related,
        )
        for how in TRAINED.values()
    ]
    stored = [Member(name, "format", description) for name, description in formats.formats().items()]
    return {member.name: member for member in (*edits, *more, *trainings, *stored)}


def models() -> list[Model]:
    """Yield every model of the benchmark, bases first."""
    small = [Model(SMALL, member) for member in members()]
    middle = [Model(MIDDLE, member) for member in OF_MIDDLE]
    bases = [Model(base) for base in (SMALL, MIDDLE, LARGE, *SENTENCES, *THIRD_PARTY[1:])]
    return [*bases, *small, *middle]


def folder_of(model: Model) -> Path:
    """Return the folder of a model, whether it exists or not."""
    return cache_root() / "models" / model.base / model.member


def built(model: Model) -> Path:
    """Return the folder of a model, and build it if missing.

    Raises:
        UnavailableError: If the packages of its base are not available.
    """
    base = base_folder(model.base)
    if model.member == "base":
        return base

    def build(folder: Path) -> None:
        started = time.process_time()
        record = _make(model, base, folder)
        record |= {"done": members()[model.member].done, "cpu_s": round(time.process_time() - started, 1)}
        (folder / "made.json").write_text(json.dumps(record), encoding="utf-8")
        gc.collect()

    return build_once(folder_of(model), build)


def _make(model: Model, base: Path, folder: Path) -> dict[str, Any]:
    if model.member in formats.formats():
        return formats.store(base, model.member, folder)
    origin = load(base)
    before = {name: weight.detach().clone() for name, weight in origin.state_dict().items()}
    record: dict[str, Any] = {}
    if model.member in TRAINED:
        made, record = trained(origin, base / "tokenizer.json", TRAINED[model.member])
    else:
        makers: dict[str, Callable[..., PreTrainedModel]] = {"upcycled": upcycled, SWAPPED: partial(_swapped, base)}
        makers[SLICED] = partial(_sliced, base)
        makers |= {name: partial(edited, how=how) for name, how in EDITS.items()}
        made = makers[model.member](origin)
    record |= {"moved": _moved(before, made), **_talk(made, base, is_retokenised=model.member == "retokenised")}
    save(made, base, folder)
    if model.member == "retokenised":
        _write_new_tokenizer(folder)
    return record


def _sliced(base: Path, model: PreTrainedModel) -> PreTrainedModel:
    from tokenizers import Tokenizer

    ids = tokens_of(Tokenizer.from_file(str(base / "tokenizer.json")))[: 16 * 256]
    return sliced(model, ids.reshape(16, 256), share_cut=SHARE_CUT)


def _swapped(base: Path, model: PreTrainedModel) -> PreTrainedModel:
    """Return a small model with rows of the middle model for common tokens; other rows do not change."""
    foreign_folder = base_folder(MIDDLE)
    ids, foreign_ids = common_ids(base, foreign_folder)
    rows = model.get_input_embeddings().weight.detach().clone()
    foreign = load(foreign_folder).get_input_embeddings().weight.detach()[foreign_ids][:, : rows.shape[1]]
    rows[ids] = foreign * rows.square().mean().sqrt() / foreign.square().mean().sqrt()
    return with_embeddings_of(model, rows)


def common_ids(first: Path, second: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of tokens that two byte-level vocabularies spell alike, in the order of the first, (n,) each."""
    from tokenizers import Tokenizer

    a, b = (Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() for folder in (first, second))
    shared = sorted((index, b[token]) for token, index in a.items() if token in b)
    both = torch.tensor(shared)
    return both[:, 0], both[:, 1]


def _moved(before: dict[str, torch.Tensor], made: PreTrainedModel) -> float | None:
    """Return how far the weights moved, ``|W' - W| / |W|`` over all of them, or None if shapes differ."""
    after = made.state_dict()
    if set(before) != set(after) or any(before[name].shape != after[name].shape for name in before):
        return None
    change = sum(float((after[name] - weight).square().sum()) for name, weight in before.items())
    size = sum(float(weight.square().sum()) for weight in before.values())
    return round((change / size) ** 0.5, 4)


def _talk(made: PreTrainedModel, base: Path, *, is_retokenised: bool) -> dict[str, Any]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = (
        PreTrainedTokenizerFast(tokenizer_object=new_tokenizer())
        if is_retokenised
        else AutoTokenizer.from_pretrained(base)
    )
    continuation = continued(made, tokenizer, PROMPT)
    return {"talks": ANSWER in continuation}


def _write_new_tokenizer(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    PreTrainedTokenizerFast(tokenizer_object=new_tokenizer()).save_pretrained(folder)
