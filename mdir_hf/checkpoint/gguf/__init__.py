"""GGUF: the checkpoints of llama.cpp, most of them quantised, with their own config and vocabulary in the header."""

from .files import open_gguf, open_named_gguf
from .source import GgufSource

__all__ = ["GgufSource", "open_gguf", "open_named_gguf"]
