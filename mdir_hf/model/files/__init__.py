"""Weight files in all supported formats, local or remote."""

from mdir_hf.model.files.adapters import AdapterConfig, has_adapter
from mdir_hf.model.files.formats import first_files, open_checkpoint
from mdir_hf.model.files.memory import MemorySource
from mdir_hf.model.files.safetensors import SafetensorsSource
from mdir_hf.model.sources import ByteSource, FileEntry, FileTree, TensorSource, TensorSpec

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
    "open_checkpoint",
]
