"""Finds the files of a PyTorch checkpoint, ignoring pickles that hold no weights."""

from __future__ import annotations

import re

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.numbering import slices_among, slices_refused
from mdir_hf.model.files.pytorch.source import PytorchSource
from mdir_hf.model.files.shards import list_some
from mdir_hf.model.files.sources import FileTree

PYTORCH_SUFFIXES = (".bin", ".pth", ".pt")
"""File names that are used with torch.save."""

_NOT_THE_MODEL = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|adapter_model).*"
    r"|.*(optim|lora|tokenizer|vae|\bema\b).*|.*_config\.bin",
    re.DOTALL,  # otherwise a name with a line break is tried from each of its words
)
"""Trainer state and other files that have the same suffixes as weights."""


def open_only_pytorch_file(tree: FileTree, variant: str | None) -> PytorchSource | None:
    """Open the only ``.pth``, ``.pt`` or ``model*.bin`` in the root of a tree; RWKV and Meta publish such files.

    Returns:
        The tensors, or None without such a file, or for a variant.

    Raises:
        UnsupportedFormatError: If there are several: slices of one model, or several models.
    """
    if variant is not None:
        return None
    candidates = [path for path in sorted(tree.files) if _may_be_the_model(path)]
    slices = slices_among(candidates)
    if slices:
        raise UnsupportedFormatError(slices_refused(slices))
    if len(candidates) > 1:
        raise UnsupportedFormatError(
            f"there are {len(candidates)} PyTorch files, and it is unclear which one is the model "
            f"({list_some(candidates, 5)}); name one file (owner/name/file.pth, or a path)"
        )
    return PytorchSource(tree, paths=candidates) if candidates else None


def _may_be_the_model(path: str) -> bool:
    name = path.lower()
    if "/" in name or _NOT_THE_MODEL.fullmatch(name):
        return False
    return name.endswith((".pth", ".pt")) or (name.endswith(".bin") and "model" in name)
