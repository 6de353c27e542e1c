"""Reads models and tokenizers of transformers that are in memory, as if they were folders.

transformers and PEFT are imported only when one of their models is passed.
"""

from mdir_hf.model.memory.model import load_model, load_tokenizer
from mdir_hf.model.memory.repository import LoadedRepository

__all__ = ["LoadedRepository", "load_model", "load_tokenizer"]
