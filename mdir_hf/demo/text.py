"""Text from Python's standard library, and tokenizers trained on it.

The demo needs something to learn from without downloading anything: the sources of the standard library as *code*, the
docstrings in it as *prose*. Which bytes that gives depends on the Python that runs; for one Python it is
always the same, in the same order.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections import deque
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
# Held out are beginnings of so many modules at most, of so many characters each: no one table or licence is all of it.
_HELD_OUT_N_MODULES = 16
_HELD_OUT_N_CHARS = 6_000
# What a Python without its sources (a frozen or zipped one) would give is too little to train on.
_MIN_N_CHARS = 500_000
_MAY_HOLD_DOCSTRINGS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Body:
    """Text of one kind.

    Attributes:
        learnt: Shards of 100,000 characters.
        held_out: The beginnings of modules that are not in ``learnt``, spread over all.
    """

    learnt: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Two bodies of text.

    Attributes:
        code: Python modules.
        prose: Docstrings of *other* modules; nothing in it stands in ``code``.
    """

    code: Body
    prose: Body


def read_corpus(*, code_n_chars: int = 2_000_000, prose_n_chars: int = 600_000) -> Corpus:
    """So many characters of code and of prose of the standard library to learn from, and some of each held out.

    Every second module, in the order of its path, goes to code and the other to prose.

    Args:
        code_n_chars: Characters of code to learn from, in whole shards of 100,000.
        prose_n_chars: The same for prose.

    Returns:
        The corpus: the same for the same Python installation, whatever the file system's order.

    Raises:
        InputError: The standard library's sources are not on disk.
    """
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(_modules(library), key=lambda path: path.relative_to(library).as_posix())
    code = _body((_read(path) for path in modules[::2]), code_n_chars)
    prose = _body(("\n\n".join(_docstrings(_read(path))) for path in modules[1::2]), prose_n_chars)
    n_chars = sum(map(len, code.learnt)) + sum(map(len, prose.learnt))
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


def _modules(library: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(library):
        inner[:] = set(inner) - _LEFT_OUT  # installed packages are many times as many
        yield from (Path(folder) / file for file in files if file.endswith(".py"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _body(modules: Iterator[str], n_chars: int) -> Body:
    learnt, n_read = [], 0
    for module in modules:
        learnt.append(module)
        n_read += len(module)
        if n_read >= n_chars:
            break
    text = "\n".join(learnt)
    shards = [text[start : start + _SHARD_N_CHARS] for start in range(0, len(text), _SHARD_N_CHARS)]
    # What comes after them was never learnt from; where nothing does, the last of them gives way.
    unseen = [module[:_HELD_OUT_N_CHARS] for module in modules if len(module) >= _HELD_OUT_N_CHARS]
    stride = -(-len(unseen) // _HELD_OUT_N_MODULES)
    return Body(tuple(shards[:-1]), tuple(unseen[::stride]) if unseen else tuple(shards[-1:]))


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a few modules of a standard library are written for another Python, on purpose
        return
    # In the order of ast.walk, without the expressions: most of a tree, and nothing in them has a docstring.
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(inner for inner in ast.iter_child_nodes(node) if isinstance(inner, _MAY_HOLD_DOCSTRINGS))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
