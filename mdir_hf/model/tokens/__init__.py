"""Read tokenizer files as data: each token's bytes and row, and the tokens that two models share."""

from mdir_hf.model.tokens.common import CommonVocabulary, common_vocabulary
from mdir_hf.model.tokens.gguf_tokens import gguf_vocabulary
from mdir_hf.model.tokens.tokens import Vocabulary, VocabularyKind
from mdir_hf.model.tokens.vocabulary_files import doubts_of_vocabulary, read_vocabulary, vocabulary_files

__all__ = [
    "CommonVocabulary",
    "Vocabulary",
    "VocabularyKind",
    "common_vocabulary",
    "doubts_of_vocabulary",
    "gguf_vocabulary",
    "read_vocabulary",
    "vocabulary_files",
]
