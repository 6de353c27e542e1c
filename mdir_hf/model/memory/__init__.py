"""Treat models and tokenizers in memory as if they were repositories."""

from mdir_hf.model.memory.model import load_model, load_tokenizer
from mdir_hf.model.memory.repository import LoadedRepository

__all__ = ["LoadedRepository", "load_model", "load_tokenizer"]
