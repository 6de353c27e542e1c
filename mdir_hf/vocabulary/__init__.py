"""Tokenizer files read as data: token bytes, embedding rows, and what two vocabularies have in common."""

from mdir_hf.vocabulary.common import CommonVocabulary, common_vocabulary
from mdir_hf.vocabulary.files import doubts_of_vocabulary, read_vocabulary, vocabulary_files
from mdir_hf.vocabulary.gguf_tokens import gguf_vocabulary
from mdir_hf.vocabulary.tokens import Vocabulary, VocabularyKind

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
