"""PyTorch's own files, read by ranges. Their pickles are parsed as data and never executed."""

from mdir_hf.model.files.pytorch.files import PYTORCH_SUFFIXES, open_only_pytorch_file
from mdir_hf.model.files.pytorch.source import PytorchSource

__all__ = ["PYTORCH_SUFFIXES", "PytorchSource", "open_only_pytorch_file"]
