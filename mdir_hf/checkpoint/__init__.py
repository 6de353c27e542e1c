"""File formats: header to tensor specs, bytes to float rows; local or remote alike.

Whatever gives files and byte ranges (:class:`~mdir_hf.checkpoint.sources.FileTree`) becomes a
:class:`~mdir_hf.checkpoint.sources.TensorSource` through :func:`open_checkpoint`.
"""

from .adapters import AdapterConfig, has_adapter
from .blocks import iter_row_blocks
from .formats import first_files, open_checkpoint
from .memory import MemorySource
from .safetensors import SafetensorsSource
from .sources import ByteSource, FileEntry, FileTree, TensorSource, TensorSpec

__all__ = [
    "AdapterConfig",
    "ByteSource",
    "FileEntry",
    "FileTree",
    "MemorySource",
    "SafetensorsSource",
    "TensorSource",
    "TensorSpec",
    "first_files",
    "has_adapter",
    "iter_row_blocks",
    "open_checkpoint",
]
