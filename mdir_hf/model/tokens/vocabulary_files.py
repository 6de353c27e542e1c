"""Find and read a repository's tokenizer files, and assign rows to SentencePiece pieces.

Some tokenizer classes prepend tokens or drop pieces. Source: transformers' slow tokenizers and their converters
(``convert_slow_tokenizer.py``); ``SPTokenizer`` in the repository of ChatGLM-6B.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from mdir_hf.budgets import MAX_TOKENS
from mdir_hf.errors import VocabularyError, naming
from mdir_hf.model.tokens.json_file import glimpse, is_web_page, load_object, shown
from mdir_hf.model.tokens.raw_bytes import (
    LITERAL_LINE,
    RWKV_LINE,
    TIKTOKEN_LINE,
    lines_of,
    literal_tokens,
    rwkv_tokens,
    tekken_tokens,
    tiktoken_tokens,
    word_list_tokens,
)
from mdir_hf.model.tokens.sentencepiece_model import sentencepiece_tokens
from mdir_hf.model.tokens.tokenizer_json import (
    added_json_tokens,
    declared_tokens,
    tokenizer_json_tokens,
    vocab_json_tokens,
)
from mdir_hf.model.tokens.tokens import Token, TokenType, Vocabulary, VocabularyKind, assemble


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the pieces in a SentencePiece file map to rows.

    Attributes:
        offset: Number added to a piece's position in the file.
        n_dropped: Number of leading pieces that have no row.
        setting: Key in ``tokenizer_config.json`` that overrides the offset.
        literals: White space that some pieces stand for, keyed by piece.
    """

    offset: int = 0
    n_dropped: int = 0
    setting: str | None = None
    literals: Mapping[bytes, bytes] | None = None

    def apply(self, tokens: Iterable[Token]) -> Iterator[Token]:
        """Number pieces in file order; rows before the first piece are special."""
        for row in range(self.offset + self.n_dropped if self.offset else 0):
            yield row, b"", TokenType.SPECIAL
        literals = self.literals or {}
        for place, text, token_type in tokens:
            if place >= self.n_dropped:
                yield place + self.offset, literals.get(text, text), token_type


PLACES = Numbering()
"""Row numbers are positions in the file, as in nearly every tokenizer class."""

_FAIRSEQ = Numbering(offset=1, n_dropped=3)
_PEGASUS = Numbering(offset=103, n_dropped=2, setting="offset")
_CHATGLM = Numbering(
    # Its first revisions do not declare the number, and use this one.
    offset=20_000,
    setting="num_image_tokens",
    literals={b"<n>": b"\n", b"<|tab|>": b"\t"} | {b"<|blank_%d|>" % n: b" " * n for n in range(2, 81)},
)

_OF_CLASS: dict[str, Numbering] = {
    **dict.fromkeys(("XLMRoberta", "XGLM", "MBart", "MBart50", "Nllb", "PLBart", "SeamlessM4T"), _FAIRSEQ),
    **dict.fromkeys(("LayoutXLM", "MLuke"), _FAIRSEQ),
    # Has its own <unk> in front, and the file's <unk> after it, so one piece fewer is dropped.
    "Camembert": Numbering(offset=4, n_dropped=1),
    "Pegasus": _PEGASUS,
}
"""Numbering, keyed by tokenizer class without "Tokenizer" or "TokenizerFast"."""

_OF_FAMILY: dict[str, Numbering] = {
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "xmod", "xglm", "mbart", "plbart", "nllb-moe"), _FAIRSEQ),
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2", "m2m_100", "trocr", "metaclip_2"), _FAIRSEQ),
    "camembert": Numbering(offset=4, n_dropped=1),
    **dict.fromkeys(("pegasus", "pegasus_x", "bigbird_pegasus"), _PEGASUS),
}
"""Numbering, keyed by ``model_type`` in ``config.json``, for tokenizers that declare no class of their own."""

_ANY_CLASS = frozenset({"", "PreTrained", "Tokenizers", "TokenizersBackend"})
CHATGLM_FILE = "ice_text.model"
NUMBERED_BY_CLASS = ("sentencepiece.bpe.model", "spiece.model")
"""Files whose numbering is taken from the model's config unless the tokenizer's config declares it."""


def numbering_of(file: str, tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> Numbering:
    """Return how the pieces of a file are numbered."""
    name = tokenizer_config.get("tokenizer_class")
    name = (name if isinstance(name, str) else "").removesuffix("Fast").removesuffix("Tokenizer")
    if file == CHATGLM_FILE:
        numbering = _CHATGLM
    elif name in _ANY_CLASS and file in NUMBERED_BY_CLASS:
        family = config.get("model_type")
        numbering = _OF_FAMILY.get(family, PLACES) if isinstance(family, str) else PLACES
    else:
        numbering = _OF_CLASS.get(name, PLACES)
    if numbering.setting is None or numbering.setting not in tokenizer_config:
        return numbering
    offset = tokenizer_config[numbering.setting]
    if type(offset) is not int or not 0 <= offset < MAX_TOKENS:
        raise VocabularyError(
            f'expected "{numbering.setting}" to be a number of rows below {MAX_TOKENS:,}, found {shown(offset)}'
        )
    return replace(numbering, offset=offset, n_dropped=numbering.n_dropped if offset else 0)


ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CONFIG = "config.json"

MAX_MOVED_SHARE = 0.01
"""Two files may give different rows to at most this share of their common tokens, because tokens may be added later."""

_FOLDERS = ("", "tokenizer/", "original/")
"""Folders with tokenizer files; the first folder that contains any is used."""


def _named(*names: str) -> Callable[[str], bool]:
    return frozenset(names).__contains__


def _is_model(name: str) -> bool:
    stem, _, version = name.rpartition(".v")
    return name.endswith(".model") or (version.isdigit() and stem.endswith(".model"))


def _between(start: str, end: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(start) and name.endswith(end)


# In order of preference. tokenizer.json comes first because only it is complete: pieces, added tokens and flags. A
# .model with another name may be anything, so it comes after the names that are used only for vocabularies.
_PRIMARY: tuple[Callable[[str], bool], ...] = (
    _named("tokenizer.json"),
    _named("vocab.json"),
    _named("tokenizer.model"),
    *map(_named, ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "spm.model", CHATGLM_FILE)),
    lambda name: name.startswith("tokenizer.model.v") and _is_model(name),
    _between("", ".tiktoken"),
    _between("tekken", ".json"),
    _named("vocab.txt"),
    _between("rwkv_vocab_", ".txt"),
    _is_model,
    _between("", "tokenizer.json"),  # 20B_tokenizer.json
    _named("encoder.json"),
)


def _has_companions(name: str) -> bool:
    return name in ("vocab.json", "encoder.json") or _is_model(name)


# Without a tokenizer.json, added tokens and settings are in separate files.
_COMPANIONS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (ADDED_TOKENS, _has_companions),
    (TOKENIZER_CONFIG, lambda name: _has_companions(name) or name.endswith(".tiktoken") or name == "vocab.txt"),
    (CONFIG, _named(*NUMBERED_BY_CLASS)),
)


def vocabulary_files(names: Collection[str]) -> tuple[str, ...]:
    """Return the files that :func:`read_vocabulary` reads: the primary file and its companions.

    Searches the root, then ``tokenizer`` and ``original``. Returns an empty tuple if no tokenizer file is recognised.
    """
    return next(_sources(names), ())


def _sources(names: Collection[str]) -> Iterator[tuple[str, ...]]:
    for folder in _FOLDERS:
        inside = (name.removeprefix(folder) for name in names if name.startswith(folder))
        files = sorted(name for name in inside if "/" not in name)
        primary = dict.fromkeys(name for fits in _PRIMARY for name in files if fits(name))
        for name in primary:
            companions = (file for file, belongs_to in _COMPANIONS if file in files and belongs_to(name))
            yield tuple(folder + file for file in (name, *companions))
        if primary:
            return


def read_vocabulary(names: Collection[str], read: Callable[[str], bytes]) -> Vocabulary:
    """Read a repository's vocabulary as data, without running its code or any tokenizer library.

    Only the most complete file and its companions are read.

    Raises:
        VocabularyError: If no file contains a vocabulary, or the file is invalid.
    """
    files = vocabulary_files(names)
    if not files:
        raise VocabularyError(
            "expected tokenizer.json, vocab.json, a SentencePiece .model, .tiktoken, tekken.json, vocab.txt or "
            f"rwkv_vocab_*.txt, found none among {len(names)} files; name a repository or subfolder that has one"
        )
    return _read(files, read)


def doubts_of_vocabulary(
    names: Collection[str], read: Callable[[str], bytes], vocabulary: Vocabulary
) -> tuple[str, ...]:
    """Describe contradictions between a repository's tokenizer files.

    If two files give a token different rows, one of them does not belong to the weights.
    """
    files, *further = _sources(names)
    if files != vocabulary.files or not files[0].endswith("tokenizer.json") or not further:
        return vocabulary.doubts
    try:
        second_vocabulary = _read(further[0], read)
    except VocabularyError:
        return vocabulary.doubts
    rows = ((row, second_vocabulary.row_of.get(text)) for text, row in vocabulary.row_of.items())
    common = [(row, second) for row, second in rows if second is not None]
    n_moved = sum(row != second for row, second in common)
    if n_moved <= MAX_MOVED_SHARE * len(common):
        return vocabulary.doubts
    return (
        *vocabulary.doubts,
        f"{files[0]} and {further[0][0]} give different rows to {n_moved:,} of {len(common):,} tokens that both have; "
        f"{files[0]} was read",
    )


def _read(files: tuple[str, ...], read: Callable[[str], bytes]) -> Vocabulary:
    with naming(files[0]):
        try:
            companions = {name.rpartition("/")[2]: name for name in files[1:]}
            config = (
                load_object(read(companions[TOKENIZER_CONFIG]), companions[TOKENIZER_CONFIG])
                if TOKENIZER_CONFIG in companions
                else {}
            )
            kind, tokens = _tokens(files, companions, config, read)
            doubts: tuple[str, ...] = ()
            if config:
                declared = list(_of_file(companions[TOKENIZER_CONFIG], declared_tokens(config)))
                listed_tokens = list(tokens)
                doubts = _contradictions(listed_tokens, declared, files[0], companions[TOKENIZER_CONFIG])
                tokens = _with_flags(listed_tokens, declared)
            return replace(assemble(tokens, kind=kind, files=files), doubts=doubts)
        except UnicodeEncodeError as exc:
            raise VocabularyError(f"expected text, found a token with half of a surrogate pair: {exc}") from exc


def _of_file(file: str, tokens: Iterable[Token]) -> Iterator[Token]:
    with naming(file):
        yield from tokens


def _contradictions(tokens: list[Token], declared: list[Token], file: str, config: str) -> tuple[str, ...]:
    row_of = {text: row for row, text, _ in declared if text}
    rows_of: dict[bytes, set[int]] = {}
    for row, text, _ in tokens:
        if text in row_of:
            rows_of.setdefault(text, set()).add(row)
    for text, rows in rows_of.items():
        if row_of[text] not in rows:
            return (f"{config} puts the token {text.decode()[:40]!r} in row {row_of[text]}, {file} in row {min(rows)}",)
    return ()


def _with_flags(tokens: list[Token], declared: Iterable[Token]) -> Iterable[Token]:
    rows = {row for row, _, _ in tokens}
    return chain(tokens, (token for token in declared if token[2] is not TokenType.TEXT or token[0] not in rows))


def _tokens(
    files: tuple[str, ...], companions: Mapping[str, str], config: Mapping[str, Any], read: Callable[[str], bytes]
) -> tuple[VocabularyKind, Iterable[Token]]:
    file, data = files[0].rpartition("/")[2], read(files[0])
    head = data[:4096].removeprefix(b"\xef\xbb\xbf")
    is_json = file.endswith(".json")
    if head.startswith(b"version https://git-lfs") or (not is_json and (not data or is_web_page(data))):
        raise VocabularyError(f"expected a vocabulary, found {glimpse(data)}")
    added = load_object(read(companions[ADDED_TOKENS]), companions[ADDED_TOKENS]) if ADDED_TOKENS in companions else {}
    is_text = file.endswith(".txt")
    if is_json or (head.lstrip().startswith(b"{") and not is_text):
        return _json_tokens(load_object(data, file), file, added)
    line = next((line for _, line in lines_of(head)), b"")
    if RWKV_LINE.fullmatch(line) or file.startswith("rwkv_vocab"):
        return VocabularyKind.RWKV, rwkv_tokens(data)
    if is_text:
        if LITERAL_LINE.fullmatch(line):
            return VocabularyKind.RWKV, literal_tokens(data)
        return word_list_tokens(data)
    if TIKTOKEN_LINE.fullmatch(line) or file.endswith(".tiktoken"):
        tokens, kind = tiktoken_tokens(data), VocabularyKind.TIKTOKEN
    else:
        family = load_object(read(companions[CONFIG]), companions[CONFIG]) if CONFIG in companions else {}
        tokens = numbering_of(file, config, family).apply(sentencepiece_tokens(data))
        kind = VocabularyKind.SENTENCEPIECE
    return kind, chain(tokens, _of_file(companions.get(ADDED_TOKENS, ""), added_json_tokens(added)))


def _json_tokens(content: dict[str, Any], file: str, added: dict[str, Any]) -> tuple[VocabularyKind, Iterable[Token]]:
    if isinstance(content.get("vocab"), list) or file.startswith("tekken"):
        return VocabularyKind.TEKKEN, tekken_tokens(content)
    # In a plain vocab.json "model" may be a token, whose value is a number.
    if isinstance(content.get("model"), dict) or file.endswith("tokenizer.json"):
        return tokenizer_json_tokens(content)
    kind, tokens = vocab_json_tokens(content)
    further = added_json_tokens({string: row for string, row in added.items() if string not in content})
    return kind, chain(tokens, _of_file(ADDED_TOKENS, further))
