"""Measure the share of the matrices in the layers of every transformers class that have a role.

``python -m benchmarks.class_coverage`` builds each causal, masked, encoder-decoder and multimodal class with a tiny
config, saves it as its users do, and resolves the roles of the files. A matrix counts if it belongs to a layer of the
language model; vision and audio towers have no roles by design. A matrix without a role is known if the inventory names
its purpose, such as cross-attention.

With ``--only-llama-names``, our tables of names keep only the names of a Llama layer. Roles then come from the modules
of the transformers class, from common names or from shapes.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import transformers

from mdir_hf.errors import MdirError
from mdir_hf.model.inventory import PartKind
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import layer_names
from tests.model.roles.tiny_causal import build_module, save_and_open

KINDS = {
    "causal": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "masked": transformers.MODEL_FOR_MASKED_LM_MAPPING,
    "encoder-decoder": transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "image and text": transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
}


@dataclass(frozen=True)
class ClassRow:
    """Result for one class.

    Attributes:
        kind: A key of :data:`KINDS`.
        model_type: The ``model_type`` of its config.
        n_matrices: Number of matrices in the layers of its language model.
        n_with_role: Number of matrices with a role, which tests therefore read.
        n_known: Number of matrices with a known purpose: a role, or a part of the inventory such as cross-attention.
        without: Names with an unknown purpose, without layer numbers.
        problem: Reason why it could not be built or resolved, or an empty string.
    """

    kind: str
    model_type: str
    n_matrices: int = 0
    n_with_role: int = 0
    n_known: int = 0
    without: tuple[str, ...] = ()
    problem: str = ""


def measure(kind: str, model_type: str) -> ClassRow:
    """Build one class and count its matrices."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = build_module(model_type, mapping=KINDS[kind])
            model = save_and_open(module, Path(folder))
        except Exception as exc:  # transformers cannot build or save some classes without other packages
            return ClassRow(kind, model_type, problem=f"not built: {type(exc).__name__}")
        try:
            return _count(kind, model_type, model)
        except MdirError as exc:
            return ClassRow(kind, model_type, problem=str(exc)[:200])


def _count(kind: str, model_type: str, model: Model) -> ClassRow:
    anatomy, tensors = model.anatomy, model.tensors
    placed = {name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors}
    placed = {name for name in placed if len(tensors.spec(name).shape) > 1}
    without = {name for name in anatomy.unplaced if _is_matrix(tensors.spec(name).shape)}
    parts = model.inventory.parts
    without -= {name for part in parts if part.kind is PartKind.VECTORS for name in part.tensors}  # biases of heads
    auxiliary = {name for part in parts if part.kind is PartKind.AUXILIARY for name in part.tensors}
    unknown = without - auxiliary
    n_all, n_known = len(placed) + len(without), len(placed) + len(without & auxiliary)
    return ClassRow(kind, model_type, n_all, len(placed), n_known, tuple(sorted(set(map(_without_numbers, unknown)))))


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and math.prod(shape) > max(shape)


def _without_numbers(name: str) -> str:
    return ".".join("*" if word.isdecimal() else word for word in name.split("."))


LLAMA_NAMES = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"{name}_layernorm.weight" for name in ("input", "post_attention")),
)


@contextmanager
def only_llama_names() -> Iterator[None]:
    """Reduce our tables to the names in a layer of Llama."""
    of_llama = tuple(
        row
        for row in layer_names.LAYER_ROWS
        if not row.model_types and any(re.fullmatch(row.pattern, name) for name in LLAMA_NAMES)
    )
    caches = [function for function in vars(layer_names).values() if hasattr(function, "cache_clear")]
    with patch.object(layer_names, "LAYER_ROWS", of_llama), patch.object(layer_names, "PRODUCT_ROWS", ()):
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


def rows(only: frozenset[str] = frozenset(), kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[ClassRow]:
    """Measure every class, or only some model types and kinds."""
    for kind in kinds:
        for config in KINDS[kind]:
            if not only or config.model_type in only:
                yield measure(kind, config.model_type)


def main() -> int:
    """Print each incomplete class, and totals for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="model types, separated by commas")
    parser.add_argument(
        "--kind", action="append", choices=list(KINDS), help="one kind; may be repeated; all by default"
    )
    parser.add_argument("--only-llama-names", action="store_true", help="leave out all other names of our tables")
    options = parser.parse_args()
    kinds = tuple(options.kind or KINDS)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    n: Counter[tuple[str, str]] = Counter()
    names = only_llama_names() if options.only_llama_names else nullcontext()
    with names:
        measured = list(rows(frozenset(filter(None, options.only.split(","))), kinds))
    for row in measured:
        n[row.kind, "classes"] += 1
        n[row.kind, "not built"] += row.problem.startswith("not built")
        n[row.kind, "not resolved"] += bool(row.problem) and not row.problem.startswith("not built")
        n[row.kind, "whole"] += not row.problem and not row.without
        n[row.kind, "with a role in part"] += bool(row.without) and row.n_with_role > 0
        n[row.kind, "matrices"] += row.n_matrices
        n[row.kind, "with a role"] += row.n_with_role
        n[row.kind, "known"] += row.n_known
        if row.problem or row.without:
            outcome = row.problem or f"{row.n_known} of {row.n_matrices}; {', '.join(row.without)}"
            print(f"{row.kind} | {row.model_type} | {outcome}", flush=True)
    for kind in kinds:
        words = (
            "classes",
            "not built",
            "not resolved",
            "whole",
            "with a role in part",
            "matrices",
            "with a role",
            "known",
        )
        print(f"{kind}: " + ", ".join(f"{n[kind, word]:,} {word}" for word in words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
