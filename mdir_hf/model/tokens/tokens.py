"""The tokens of a vocabulary, each with its embedding row and the bytes that it stands for.

Readers of file formats yield :data:`Token` triples in any order. :func:`assemble` decides which of them are usable:

* Tokens without text (such as special or unused ones) are left out.
* **A byte fallback is left out if another token stands for the same byte**, because its row is then never trained.
* **Other duplicates are all left out.** If two rows stand for the same bytes (in GPT-NeoX, every run of 2 to 24
  spaces), or one row has two spellings, the files do not show which was used in training.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from mdir_hf.budgets import MAX_TOKEN_N_BYTES, MAX_TOKENS
from mdir_hf.errors import VocabularyError

# The largest published vocabularies have about a million rows; a larger id suggests a damaged file.
MAX_ROWS = 1 << 24


class VocabularyKind(str, enum.Enum):
    """How a vocabulary writes bytes as token strings."""

    BYTE_LEVEL = "byte_level"
    """Each byte is one of 256 printable characters (GPT-2, Llama 3, Qwen)."""
    SENTENCEPIECE = "sentencepiece"
    """U+2581 stands for a space, and ``<0xNN>`` for a byte (Llama 2, Mistral, Gemma, T5)."""
    WORDPIECE = "wordpiece"
    """``##x`` continues a word; other tokens start one (BERT)."""
    TIKTOKEN = "tiktoken"
    """One token per line: raw bytes in base64, and the rank."""
    TEKKEN = "tekken"
    """Raw bytes in base64, with ranks that start after the special tokens (Mistral)."""
    RWKV = "rwkv"
    """Raw bytes as Python literals, one per line."""
    PLAIN = "plain"
    """The token string is the text."""


class TokenType(enum.Enum):
    """The purpose of a token."""

    TEXT = enum.auto()
    """Stands for its bytes."""
    FALLBACK = enum.auto()
    """Stands for one byte, in text that no other token covers."""
    SPECIAL = enum.auto()
    """A control or unknown token, which never encodes text."""
    RESERVED = enum.auto()
    """A placeholder for later use, such as ``<unused7>`` or ``<|reserved_special_token_7|>``."""
    UNUSED = enum.auto()
    """Marked as unused in the file, or without bytes."""


Token = tuple[int, bytes, TokenType]
"""Row of the embedding, bytes of the token, and its type."""


@dataclass(frozen=True)
class Vocabulary:
    """The usable tokens of a tokenizer, as bytes, with their embedding rows.

    ``n_tokens + n_special + n_reserved + n_unused + n_duplicate == n_rows``.

    Attributes:
        row_of: Row number of each usable token, keyed by the token's bytes; no row occurs twice.
        n_rows: One more than the highest row number, including special tokens.
        n_special: Number of control, unknown and other special rows.
        n_unused: Number of rows without a token, without bytes, or marked as unused.
        doubts: Contradictions between files, each described in a sentence.
    """

    kind: VocabularyKind
    row_of: Mapping[bytes, int] = field(repr=False)
    n_rows: int
    n_special: int
    n_reserved: int
    n_unused: int
    n_duplicate: int
    duplicates: Mapping[bytes, tuple[int, ...]] = field(repr=False)
    files: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Number of usable tokens."""
        return len(self.row_of)


def assemble(tokens: Iterable[Token], *, kind: VocabularyKind, files: tuple[str, ...]) -> Vocabulary:
    """Select the usable tokens, following the rules in this module's docstring.

    If a row has several types, and one of them excludes it, the row is left out.

    Raises:
        VocabularyError: If a row number is out of range, or no token is usable.
    """
    text_of: dict[int, bytes] = {}
    fallback: set[int] = set()
    left_out: dict[int, TokenType] = {}
    spellings: dict[int, set[bytes]] = {}  # only for rows with several
    for row, text, token_type in tokens:
        if not 0 <= row < MAX_ROWS:
            _refuse_row(row, text, files[0])
        if len(text_of) + len(left_out) > MAX_TOKENS or len(text) > MAX_TOKEN_N_BYTES:
            _refuse_size(text, files[0])
        if token_type is TokenType.TEXT or token_type is TokenType.FALLBACK:
            if not text:
                left_out.setdefault(row, TokenType.UNUSED)
                continue
            if text_of.setdefault(row, text) != text:
                spellings.setdefault(row, {text_of[row]}).add(text)
            if token_type is TokenType.FALLBACK:
                fallback.add(row)
        else:
            left_out[row] = token_type
    n_rows = 1 + max(max(text_of, default=-1), max(left_out, default=-1))

    row_of: dict[bytes, int] = {}
    doublets: dict[bytes, list[int]] = {}
    fallback_of: dict[bytes, list[int]] = {}
    for row, text in text_of.items():
        if row in left_out:
            continue
        if row in spellings:
            for spelling in spellings[row]:
                doublets.setdefault(spelling, []).append(row)
        elif row in fallback:
            fallback_of.setdefault(text, []).append(row)
        elif row_of.setdefault(text, row) != row:
            doublets.setdefault(text, []).append(row)
    for text, rows in doublets.items():
        if text in row_of:
            rows.append(row_of.pop(text))
    for text, rows in fallback_of.items():
        if text in row_of or text in doublets or len(rows) > 1:
            doublets.setdefault(text, []).extend(rows)
        else:
            row_of[text] = rows[0]

    if not row_of:
        raise VocabularyError(
            f"expected a vocabulary of text, found {n_rows} rows without a usable token; "
            "the file is damaged or does not belong to a language model",
            subject=files[0],
        )
    types = list(left_out.values())
    n_special, n_reserved = types.count(TokenType.SPECIAL), types.count(TokenType.RESERVED)
    n_duplicate = len({row for rows in doublets.values() for row in rows})
    return Vocabulary(
        kind=kind,
        row_of=row_of,
        n_rows=n_rows,
        n_special=n_special,
        n_reserved=n_reserved,
        n_unused=n_rows - len(row_of) - n_special - n_reserved - n_duplicate,
        n_duplicate=n_duplicate,
        duplicates={text: tuple(sorted(rows)) for text, rows in doublets.items()},
        files=files,
    )


def _refuse_size(text: bytes, file: str) -> NoReturn:
    if len(text) > MAX_TOKEN_N_BYTES:
        what = f"token {text[:40]!r}… has {len(text):,} bytes; the limit for a token is {MAX_TOKEN_N_BYTES:,}"
    else:
        what = f"it lists more than {MAX_TOKENS:,} tokens, which is more than any vocabulary has"
    raise VocabularyError(what, subject=file)


def _refuse_row(row: int, text: bytes, file: str) -> NoReturn:
    raise VocabularyError(
        f"token {text[:40]!r} has the id {row}, expected 0 to {MAX_ROWS - 1}; the file is damaged, download it again",
        subject=file,
    )
