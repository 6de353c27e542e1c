"""Quantised checkpoints: codes and scales to numbers, under the names of the unquantised checkpoint.

One file per scheme; :class:`DequantizedSource` puts them behind the same seam as every other checkpoint.
"""

from mdir_hf.model.files.quantization.source import DequantizedSource

__all__ = ["DequantizedSource"]
