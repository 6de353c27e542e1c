"""Quantised checkpoints: decodes codes and scales to numbers, under the names in the unquantised checkpoint.

One module per scheme; :class:`DequantizedSource` gives them the interface of any checkpoint.
"""

from mdir_hf.model.files.quantization.dequantized_source import DequantizedSource

__all__ = ["DequantizedSource"]
