"""GGUF: the checkpoints of llama.cpp, usually quantised, with config and vocabulary in the header."""

from mdir_hf.model.files.gguf.gguf_source import GgufSource, open_gguf, open_named_gguf

__all__ = ["GgufSource", "open_gguf", "open_named_gguf"]
