"""Decode token strings to the bytes that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mdir_hf.model.tokens.tokens import TokenType, VocabularyKind

Speller = Callable[[str], bytes]

META_SPACE = "\u2581"  # a space in SentencePiece
END_OF_WORD = "</w>"
BYTE_SPACE = "\u0120"  # a space in GPT-2's byte-level alphabet

_NO_BYTE = "\uffff"  # not a latin-1 character, so such a token is treated as literal text


def _byte_level_table() -> dict[int, str]:
    # Bytes that are printable in latin-1 map to themselves, the others from U+0100 on, in order (GPT-2). Latin-1
    # characters outside the alphabet map to a character that is not a byte.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table: dict[int, str] = dict.fromkeys(others, _NO_BYTE)
    table.update({0x100 + place: chr(byte) for place, byte in enumerate(others)})
    return table


_BYTE_LEVEL = _byte_level_table()
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token. A token with characters outside the alphabet is taken literally."""
    try:
        return token.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def is_byte_level(token: str) -> bool:
    """Return whether every character is in the byte-level alphabet."""
    try:
        token.translate(_BYTE_LEVEL).encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def meta_space(token: str, *, mark: str = META_SPACE) -> bytes:
    """Return the bytes of a SentencePiece piece, in which U+2581 is a space."""
    return token.replace(mark, " ").encode()


def fallback_byte(token: str) -> bytes | None:
    """Return the byte of a ``<0xNN>`` token, or None."""
    if len(token) == 6 and token.startswith("<0x") and token[5] == ">" and _HEXADECIMAL.issuperset(token[3:5]):
        return bytes.fromhex(token[3:5])
    return None


def wordpiece(token: str, *, prefix: str = "##") -> bytes:
    """Return a WordPiece token's bytes, preceded by a space unless the token starts with the prefix."""
    if len(token) > len(prefix) and token.startswith(prefix):
        return token[len(prefix) :].encode()
    return b" " + token.encode()


def plain(token: str) -> bytes:
    """Return the token as UTF-8."""
    return token.encode()


def with_suffix(speller: Speller, suffix: str) -> Speller:
    """Return a speller that turns an end-of-word suffix, such as ``</w>``, into a space."""

    def spell(token: str) -> bytes:
        if len(token) > len(suffix) and token.endswith(suffix):
            return speller(token[: -len(suffix)]) + b" "
        return speller(token)

    return spell


SPELLERS: dict[VocabularyKind, Speller] = {
    VocabularyKind.BYTE_LEVEL: byte_level,
    VocabularyKind.SENTENCEPIECE: meta_space,
    VocabularyKind.WORDPIECE: wordpiece,
    VocabularyKind.PLAIN: plain,
}


_CONTINUES, _COMMON = "##", 50
"""A vocabulary is WordPiece if at least one token in 50 has this marker (20 to 90% in published ones). In other
vocabularies, few tokens have it. Other markers do not occur in ordinary text."""


def guess_kind(tokens: Iterable[str]) -> VocabularyKind:
    """Guess the kind of a vocabulary from the most common marker in its tokens."""
    markers = {BYTE_SPACE: VocabularyKind.BYTE_LEVEL, META_SPACE: VocabularyKind.SENTENCEPIECE}
    counts = {VocabularyKind.PLAIN: 0, **dict.fromkeys(markers.values(), 0), VocabularyKind.WORDPIECE: 0}
    n_tokens = 0
    for token in tokens:
        n_tokens += 1
        if kind := markers.get(token[:1]):
            counts[kind] += 1
        elif token.startswith(_CONTINUES) and token.removesuffix(END_OF_WORD).strip("#"):
            counts[VocabularyKind.WORDPIECE] += 1
    if counts[VocabularyKind.WORDPIECE] * _COMMON < n_tokens:
        del counts[VocabularyKind.WORDPIECE]
    return max(counts, key=lambda kind: counts[kind])


# Placeholders for later use. Published names: <|reserved_special_token_7|>, <reserved_7>, <unused7>, [unused7],
# <extra_id_7>, <|extra_7|>, <|placeholder7|>, <|dummy_7|>, <SPECIAL_7>, [control_7]; [PAD7] in GGUF files.
_KEPT_PLACES = frozenset({"unused", "extra", "extra_id", "placeholder", "dummy", "special", "control", "pad"})
_KEPT_PREFIX = "reserved"
_DIGITS = "0123456789"
_CONTROL_OPENS, _CONTROL_CLOSES = ("<|", "<\uff5c"), ("|>", "\uff5c>")
_SPECIAL_NAMES = frozenset(
    {"<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<cls>", "<sep>", "<mask>"}
    | {"[BOS]", "[EOS]", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
)


def is_reserved(token: str) -> bool:
    """Return whether a token is a placeholder, such as ``<unused7>``: a known name and a number, in brackets."""
    if token[:1] not in ("<", "[") or token[-1:] not in (">", "]"):
        return False
    inside = token[1:-1].removeprefix("|").removesuffix("|")
    name = inside.rstrip(_DIGITS)
    if name == inside:
        return False
    name = name.lower()
    if name.startswith(_KEPT_PREFIX):
        # Any word may follow: <|reserved_special_token_7|>.
        word = name[len(_KEPT_PREFIX) :]
        word = word[:-1] if word[-1:] in ("-", " ") else word
        return not word or word.replace("_", "x").isalnum()
    return name in _KEPT_PLACES or (name[-1:] in ("_", "-", " ") and name[:-1] in _KEPT_PLACES)


def is_control(token: str) -> bool:
    """Return whether a token looks like ``<|name|>``."""
    return len(token) > 4 and token.startswith(_CONTROL_OPENS) and token.endswith(_CONTROL_CLOSES)


def type_by_name(token: str, *, may_be_markup: bool = False) -> TokenType:
    """Return the type that a token's name suggests. If ``may_be_markup``, ``<s>`` and similar names are text."""
    if is_reserved(token):
        return TokenType.RESERVED
    named = token in _SPECIAL_NAMES and not may_be_markup
    return TokenType.SPECIAL if named or is_control(token) else TokenType.TEXT
