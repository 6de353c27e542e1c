"""Finds the files of one PyTorch checkpoint, and leaves out pickles that hold no weights."""

from __future__ import annotations

import re

from mdir_hf.errors import UnsupportedFormatError
from mdir_hf.model.files.numbering import slices_among, slices_refused
from mdir_hf.model.files.pytorch.source import PytorchSource
from mdir_hf.model.files.shards import list_some
from mdir_hf.model.files.sources import FileTree

PYTORCH_SUFFIXES = (".bin", ".pth", ".pt")
"""File names that torch.save is used with."""

_NOT_THE_MODEL = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|adapter_model).*"
    r"|.*(optim|lora|tokenizer|vae|\bema\b).*|.*_config\.bin",
    re.DOTALL,  # else a name with a line break in it is tried from each of its words
)
"""State of trainers, and parts of other things, that lie beside weights under the same suffixes."""


def open_only_pytorch_file(tree: FileTree, variant: str | None) -> PytorchSource | None:
    """Open the one ``.pth``, ``.pt`` or ``model*.bin`` in the root of a tree, as RWKV and Meta publish theirs.

    Returns:
        Its tensors; None where there is no such file, or a variant was asked for.

    Raises:
        UnsupportedFormatError: If there are several: slices of one model, or several models.
    """
    if variant is not None:
        return None
    found = [path for path in sorted(tree.files) if _may_be_the_model(path)]
    slices = slices_among(found)
    if slices:
        raise UnsupportedFormatError(slices_refused(slices))
    if len(found) > 1:
        raise UnsupportedFormatError(
            f"there are {len(found)} PyTorch files, and which one is the model cannot be told "
            f"({list_some(found, 5)}); name one file (owner/name/file.pth, or a path)"
        )
    return PytorchSource(tree, paths=found) if found else None


def _may_be_the_model(path: str) -> bool:
    name = path.lower()
    if "/" in name or _NOT_THE_MODEL.fullmatch(name):
        return False
    return name.endswith((".pth", ".pt")) or (name.endswith(".bin") and "model" in name)
