"""Which file of a repository holds the vocabulary, and what format it truly is."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

from mdir_hf.errors import VocabularyError, naming
from mdir_hf.vocabulary.json_file import glimpse, is_web_page, load_object
from mdir_hf.vocabulary.raw_bytes import RWKV_LINE, TIKTOKEN_LINE, lines_of, rwkv_tokens, tekken_tokens, tiktoken_tokens
from mdir_hf.vocabulary.sentencepiece_model import sentencepiece_tokens
from mdir_hf.vocabulary.tokenizer_json import (
    added_json_tokens,
    declared_tokens,
    tokenizer_json_tokens,
    vocab_json_tokens,
)
from mdir_hf.vocabulary.tokens import Token, TokenType, Vocabulary, VocabularyKind, assemble
from mdir_hf.vocabulary.word_list import word_list_tokens

ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# In order of preference. tokenizer.json comes first because it alone is complete: pieces, added tokens and flags.
_PRIMARY = [
    re.compile(pattern)
    for pattern in (
        r"tokenizer\.json",
        r"vocab\.json",
        r"tokenizer\.model",
        r"spiece\.model",
        r"sentencepiece\.bpe\.model",
        r".*\.model",
        r".*\.model\.v\d+",  # tokenizer.model.v3 of Mistral
        r".*\.tiktoken",
        r"tekken.*\.json",
        r"vocab\.txt",
        r"rwkv_vocab_.*\.txt",
    )
]
# What a tokenizer.json holds besides its pieces stands in files of its own where there is none.
_COMPANIONS = (
    (ADDED_TOKENS, re.compile(r"vocab\.json|.*\.model(\.v\d+)?")),
    (TOKENIZER_CONFIG, re.compile(r"vocab\.json|.*\.model(\.v\d+)?|.*\.tiktoken|vocab\.txt")),
)


def vocabulary_files(names: Collection[str]) -> tuple[str, ...]:
    """Name the files that :func:`read_vocabulary` would read, without reading any.

    Two repositories whose files of these names are identical have identical vocabularies.

    Args:
        names: The file names of one folder of a repository; names with a ``/`` belong to other folders and are ignored.

    Returns:
        The primary file and then its companions, if any; empty where no file is known to hold a vocabulary.
        ``merges.txt`` is never among them: it does not say which row a token has.
    """
    here = sorted(name for name in names if "/" not in name)
    for pattern in _PRIMARY:
        for name in here:
            if pattern.fullmatch(name):
                return (name, *(beside for beside, of in _COMPANIONS if beside in here and of.fullmatch(name)))
    return ()


def read_vocabulary(names: Collection[str], read: Callable[[str], bytes]) -> Vocabulary:
    """Read the vocabulary of a repository as data; no code of the repository and no tokenizer library is run.

    The most complete of the files is read, with its companions, and nothing else; a broken file is an error and no
    reason to try the next. Formats are told by content: a ``tokenizer.model`` may hold SentencePiece or tiktoken ranks.

    Args:
        names: The file names of one folder of a repository; see :func:`vocabulary_files`.
        read: Returns the content of the file of a name.

    Returns:
        The vocabulary. About 0.3 s per 100,000 tokens.

    Raises:
        VocabularyError: No file holds a vocabulary, or the one that should is not what its format demands.
    """
    files = vocabulary_files(names)
    if not files:
        raise VocabularyError(
            "expected tokenizer.json, vocab.json, a SentencePiece .model, .tiktoken, tekken.json, vocab.txt or "
            f"rwkv_vocab_*.txt, found none among {len(names)} files; name a repository or subfolder that has one"
        )
    with naming(files[0]):
        try:
            kind, tokens = _tokens(files, read)
            if TOKENIZER_CONFIG in files:
                config = load_object(read(TOKENIZER_CONFIG), TOKENIZER_CONFIG)
                tokens = _with_flags(list(tokens), _of_file(TOKENIZER_CONFIG, declared_tokens(config)))
            return assemble(tokens, kind=kind, files=files)
        except UnicodeEncodeError as exc:
            raise VocabularyError(f"expected text, found a token with half of a surrogate pair: {exc}") from exc


def _of_file(file: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """The same tokens; an error of theirs is about this file."""
    with naming(file):
        yield from tokens


def _with_flags(tokens: list[Token], declared: Iterable[Token]) -> Iterable[Token]:
    """Add what a config says of rows: which to leave out, and the text of those that the primary file does not have."""
    rows = {row for row, _, _ in tokens}
    return chain(tokens, (token for token in declared if token[2] is not TokenType.TEXT or token[0] not in rows))


def _tokens(files: tuple[str, ...], read: Callable[[str], bytes]) -> tuple[VocabularyKind, Iterable[Token]]:
    """Tell the format from the content, the name deciding only where the content does not, and read the tokens."""
    file, data = files[0], read(files[0])
    head = data[:4096].removeprefix(b"\xef\xbb\xbf")
    is_json = file.endswith(".json")
    if head.startswith(b"version https://git-lfs") or (not is_json and (not data or is_web_page(data))):
        raise VocabularyError(f"expected a vocabulary, found {glimpse(data)}")
    added = load_object(read(ADDED_TOKENS), ADDED_TOKENS) if ADDED_TOKENS in files else {}
    is_text = file.endswith(".txt")
    if is_json or (head.lstrip().startswith(b"{") and not is_text):
        return _json_tokens(load_object(data, file), file, added)
    line = next((line for _, line in lines_of(head)), b"")
    if RWKV_LINE.fullmatch(line) or file.startswith("rwkv_vocab"):
        return VocabularyKind.RWKV, rwkv_tokens(data)
    if is_text:
        return word_list_tokens(data)
    if TIKTOKEN_LINE.fullmatch(line) or file.endswith(".tiktoken"):
        tokens, kind = tiktoken_tokens(data), VocabularyKind.TIKTOKEN
    else:
        tokens, kind = sentencepiece_tokens(data), VocabularyKind.SENTENCEPIECE
    return kind, chain(tokens, _of_file(ADDED_TOKENS, added_json_tokens(added)))


def _json_tokens(found: dict[str, Any], file: str, added: dict[str, Any]) -> tuple[VocabularyKind, Iterable[Token]]:
    if isinstance(found.get("vocab"), list) or file.startswith("tekken"):
        return VocabularyKind.TEKKEN, tekken_tokens(found)
    # In a plain vocab.json "model" may be a token, and then it has a number.
    if isinstance(found.get("model"), dict) or file == "tokenizer.json":
        return tokenizer_json_tokens(found)
    kind, tokens = vocab_json_tokens(found)
    others = added_json_tokens({string: row for string, row in added.items() if string not in found})
    return kind, chain(tokens, _of_file(ADDED_TOKENS, others))
