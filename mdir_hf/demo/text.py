"""Text from Python's standard library, and tokenizers trained on it.

The demo must not download its training text, so it uses the sources of the standard library as *code*, and their
docstrings as *prose*. The text depends on the Python that runs, but is always the same for one Python.
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

# Poor training text: installed packages, generated tables, fixtures of the interpreter's tests.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data", "lib2to3", "__pycache__"}
)
_SHARD_N_CHARS = 100_000
# Held-out text is the beginnings of several modules, so that no single table or licence dominates it.
_HELD_OUT_N_MODULES = 16
_HELD_OUT_N_CHARS = 6_000
# Less than this means a Python without its sources (frozen or zipped), too little to train on.
_MIN_N_CHARS = 500_000
_MAY_HOLD_DOCSTRINGS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Body:
    """Text of one kind.

    Attributes:
        learnt: Training text, in shards of 100,000 characters.
        held_out: Beginnings of other modules, evenly spread.
    """

    learnt: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Code and prose, from different modules.

    Attributes:
        code: Python modules.
        prose: Docstrings.
    """

    code: Body
    prose: Body


def read_corpus(*, code_n_chars: int = 2_000_000, prose_n_chars: int = 600_000) -> Corpus:
    """Read code and prose from the standard library, for training and held out.

    Modules, sorted by path, go alternately to code and prose.

    Args:
        code_n_chars: Characters of code to train on, in whole shards of 100,000.
        prose_n_chars: The same for prose.

    Returns:
        The corpus, the same for one Python installation on any file system.

    Raises:
        InputError: If the sources of the standard library are not on disk.
    """
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(_modules(library), key=lambda path: path.relative_to(library).as_posix())
    code = _body((_read(path) for path in modules[::2]), code_n_chars)
    prose = _body(("\n\n".join(_docstrings(_read(path))) for path in modules[1::2]), prose_n_chars)
    n_chars = sum(map(len, code.learnt)) + sum(map(len, prose.learnt))
    if n_chars < _MIN_N_CHARS:
        raise InputError(
            f"the standard library at {library} has {n_chars:,} characters of source, but the demo needs at least "
            f"{_MIN_N_CHARS:,}; use a Python that is installed with its .py files",
        )
    return Corpus(code, prose)


def train_byte_level_bpe(texts: Sequence[str], *, vocabulary_size: int) -> Tokenizer:
    """Train a tokenizer like GPT-2's: byte-level BPE, ``Ġ`` for a leading space.

    Args:
        texts: Training text.
        vocabulary_size: Number of tokens, including the two special ones and the 256 bytes.

    Returns:
        The tokenizer. Takes about a second per million characters.
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
    """Train a tokenizer like SentencePiece's: Unigram, ``▁`` for a space, ``<unk>`` for unknown characters.

    Args:
        texts: Training text.
        vocabulary_size: Maximum number of tokens, including the three special ones.

    Returns:
        The tokenizer.
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
        inner[:] = set(inner) - _LEFT_OUT  # do not even list installed packages
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
    # Later modules are unseen. If there are none, the last shard is held out.
    unseen = [module[:_HELD_OUT_N_CHARS] for module in modules if len(module) >= _HELD_OUT_N_CHARS]
    stride = -(-len(unseen) // _HELD_OUT_N_MODULES)
    return Body(tuple(shards[:-1]), tuple(unseen[::stride]) if unseen else tuple(shards[-1:]))


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a few modules of the standard library are invalid on purpose
        return
    # In the order of ast.walk, but without expressions: they are most of a tree, and have no docstrings.
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(inner for inner in ast.iter_child_nodes(node) if isinstance(inner, _MAY_HOLD_DOCSTRINGS))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
