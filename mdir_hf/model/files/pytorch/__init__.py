"""PyTorch's own files, read by ranges; their pickles are read as data and never run."""

from mdir_hf.model.files.pytorch.files import PYTORCH_SUFFIXES, open_only_pytorch_file
from mdir_hf.model.files.pytorch.source import PytorchSource

__all__ = ["PYTORCH_SUFFIXES", "PytorchSource", "open_only_pytorch_file"]
