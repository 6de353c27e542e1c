"""GGUF: the checkpoints of llama.cpp, usually quantised, with config and vocabulary in the header."""

from mdir_hf.model.files.gguf.files import open_gguf, open_named_gguf
from mdir_hf.model.files.gguf.source import GgufSource

__all__ = ["GgufSource", "open_gguf", "open_named_gguf"]
