"""Models and tokenizers of transformers that are in memory, read where they are, as if they were folders.

transformers and PEFT are imported here only once somebody passes a model of theirs.
"""

from mdir_hf.model.memory.model import load_model
from mdir_hf.model.memory.repository import LoadedRepository
from mdir_hf.model.memory.tokenizer import load_tokenizer

__all__ = ["LoadedRepository", "load_model", "load_tokenizer"]
