"""Checkpoints in memory for the tests of quantised formats."""

import json

import torch

from mdir_hf.model.files import SafetensorsSource
from mdir_hf.model.files.quantization import DequantizedSource
from tests.conformance_tensors import MemoryTree, safetensors_bytes

FILE = "model.safetensors"
MODULE = "model.layers.0.mlp.up_proj"
WEIGHT = f"{MODULE}.weight"


def tree_of(tensors, config=None, **further_files):
    """Files of a checkpoint with one weight file and a config."""
    own = {name: tensor.clone() for name, tensor in tensors.items()}  # no two tensors in a file share memory
    files = {FILE: safetensors_bytes(own), **further_files}
    if config is not None:
        files["config.json"] = json.dumps(config).encode()
    return MemoryTree(files)


def source_of(tensors, config=None, *, tree=None, **options):
    """Open the checkpoint through the reader."""
    tree = tree_of(tensors, config) if tree is None else tree
    return DequantizedSource(SafetensorsSource(tree, paths=[FILE], **options), tree)


def weight_for(scheme, *, seed=0):
    """Gaussian weights, with sizes as uneven as the scheme allows."""
    out, width = (-(-size // divisor) * divisor for size, divisor in zip((71, 147), scheme.divides, strict=True))
    return 0.05 * torch.randn(out, width, generator=torch.Generator().manual_seed(seed))


def bytes_read(tree, start=0, stop=None):
    """Number of bytes read from a part of the file."""
    reads = tree.opened[FILE].reads
    stop = len(tree.contents[FILE]) if stop is None else stop
    return sum(max(0, min(stop, b) - max(start, a)) for a, b in reads)
