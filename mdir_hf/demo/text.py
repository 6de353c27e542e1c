"""Text that every machine with Python has, and tokenizers learnt from it.

The demo needs something to learn from without downloading anything: the sources of the standard library as *code*, the
docstrings and licences in it as *prose*. Which bytes that gives depends on the Python that runs; for one Python it is
always the same, in the same order.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mdir_hf.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BEGIN = "<s>"
END = "</s>"

# Not text one learns a language from: installed packages, generated tables, fixtures of the interpreter's own tests.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data", "lib2to3", "__pycache__"}
)
_SHARD_N_CHARS = 100_000
# What a Python without its sources (a frozen or zipped one) would give is too little to train on.
_MIN_N_CHARS = 500_000


@dataclass(frozen=True)
class Corpus:
    """Two bodies of text in shards of about 100,000 characters.

    Attributes:
        code: Python modules, whole.
        prose: Docstrings of *other* modules, and licences; nothing in it stands in ``code``.
    """

    code: tuple[str, ...]
    prose: tuple[str, ...]


def read_corpus(*, code_n_chars: int = 2_000_000, prose_n_chars: int = 600_000) -> Corpus:
    """The first so many characters of code and of prose in the standard library.

    Every second module, in the order of its path, goes to code and the other to prose.

    Args:
        code_n_chars: Where to stop with code; the last module is taken whole.
        prose_n_chars: The same for prose.

    Returns:
        The corpus: the same for the same Python installation, whatever the file system's order.

    Raises:
        InputError: The standard library's sources are not on disk.
    """
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(
        (path for path in library.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(library).parts)),
        key=lambda path: path.relative_to(library).as_posix(),
    )
    code = _shards(_take((_read(path) for path in modules[::2]), code_n_chars))
    licences = (_read(path) for path in (library / "LICENSE.txt", library / "LICENSE") if path.is_file())
    docstrings = ("\n\n".join(_docstrings(_read(path))) for path in modules[1::2])
    prose = _shards(_take(_chain(docstrings, licences), prose_n_chars))
    n_chars = sum(map(len, code)) + sum(map(len, prose))
    if n_chars < _MIN_N_CHARS:
        raise InputError(
            f"the standard library at {library} holds {n_chars:,} characters of source, and the demo learns from at "
            f"least {_MIN_N_CHARS:,}; run it with a Python that is installed with its .py files",
        )
    return Corpus(code, prose)


def train_byte_level_bpe(texts: Sequence[str], *, vocabulary_size: int) -> Tokenizer:
    """A GPT-2 style tokenizer: byte-level BPE, ``Ġ`` for a leading space.

    Args:
        texts: What to learn from.
        vocabulary_size: Number of tokens, the two special ones and the 256 bytes among them.

    Returns:
        The trained tokenizer. Cost: about a second per million characters.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BEGIN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_unigram(texts: Sequence[str], *, vocabulary_size: int) -> Tokenizer:
    """A SentencePiece style tokenizer: Unigram, ``▁`` for a space, ``<unk>`` for what it never saw.

    Args:
        texts: What to learn from.
        vocabulary_size: Number of tokens at most, the three special ones among them.

    Returns:
        The trained tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<unk>", BEGIN, END],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _chain(*parts: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield from part


def _take(texts: Iterator[str], n_chars: int) -> Iterator[str]:
    taken = 0
    for text in texts:
        if taken >= n_chars:
            return
        taken += len(text)
        yield text


def _shards(texts: Iterator[str]) -> tuple[str, ...]:
    text = "\n".join(texts)
    return tuple(text[start : start + _SHARD_N_CHARS] for start in range(0, len(text), _SHARD_N_CHARS))


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a few modules of a standard library are written for another Python, on purpose
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
