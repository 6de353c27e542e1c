"""PyTorch's own files, read by ranges. Their pickles are parsed as data and never executed."""

from mdir_hf.model.files.pytorch.pytorch_source import PYTORCH_SUFFIXES, PytorchSource, open_only_pytorch_file

__all__ = ["PYTORCH_SUFFIXES", "PytorchSource", "open_only_pytorch_file"]
