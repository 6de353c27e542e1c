"""Row numbers of SentencePiece pieces, for tokenizer classes that do not number them by position.

fairseq models put four tokens of their own in front and drop the first three pieces; Pegasus puts 105 in front; the
first ChatGLM puts its image tokens there. Only the name of the tokenizer class shows this.
Source: the slow tokenizers of transformers and their converters (``convert_slow_tokenizer.py``); ``SPTokenizer`` in the
repository of ChatGLM-6B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mdir_hf.budgets import MAX_TOKENS
from mdir_hf.errors import VocabularyError
from mdir_hf.model.tokens.json_file import shown
from mdir_hf.model.tokens.tokens import Token, TokenType


@dataclass(frozen=True, slots=True)
class Numbering:
    """How pieces of a model file map to rows.

    Attributes:
        offset: Added to a piece's position in the file.
        n_dropped: First pieces without a row; the class has its own tokens in their place.
        setting: Key in ``tokenizer_config.json`` that overrides the offset.
        literals: Pieces that stand for other text: special spellings of white space.
    """

    offset: int = 0
    n_dropped: int = 0
    setting: str | None = None
    literals: Mapping[bytes, bytes] | None = None

    def apply(self, tokens: Iterable[Token]) -> Iterator[Token]:
        """Number pieces given in the order of the file; rows before the first one are special."""
        for row in range(self.offset + self.n_dropped if self.offset else 0):
            yield row, b"", TokenType.SPECIAL
        literals = self.literals or {}
        for place, text, token_type in tokens:
            if place >= self.n_dropped:
                yield place + self.offset, literals.get(text, text), token_type


PLACES = Numbering()
"""The row of a piece is its position; valid for nearly every class."""

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
    # Has its own <unk> in front, and the file's <unk> after it, so one piece less is dropped.
    "Camembert": Numbering(offset=4, n_dropped=1),
    "Pegasus": _PEGASUS,
}
"""Tokenizer classes by name, without "Tokenizer" and "TokenizerFast"."""

_OF_FAMILY: dict[str, Numbering] = {
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "xmod", "xglm", "mbart", "plbart", "nllb-moe"), _FAIRSEQ),
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2", "m2m_100", "trocr", "metaclip_2"), _FAIRSEQ),
    "camembert": Numbering(offset=4, n_dropped=1),
    **dict.fromkeys(("pegasus", "pegasus_x", "bigbird_pegasus"), _PEGASUS),
}
"""``model_type`` in ``config.json``, for repositories whose tokenizer declares no class of its own."""

_ANY_CLASS = frozenset({"", "PreTrained", "Tokenizers", "TokenizersBackend"})
CHATGLM_FILE = "ice_text.model"
NUMBERED_BY_CLASS = ("sentencepiece.bpe.model", "spiece.model")
"""Files whose numbering may depend on the model's config, if the tokenizer's config does not declare it."""


def numbering_of(file: str, tokenizer_config: Mapping[str, Any], config: Mapping[str, Any]) -> Numbering:
    """Return how the pieces of a file are numbered.

    Raises:
        VocabularyError: If the declared offset is invalid.
    """
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
