"""Read text from Python's standard library, and train tokenizers and causal language models.

The demo uses the sources of the standard library as *code*, and their docstrings as *prose*.
"""

from __future__ import annotations

import ast
import math
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mdir_hf.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel


BEGIN = "<s>"
END = "</s>"

# Folders with poor training text: installed packages, generated tables, and test fixtures.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data", "lib2to3", "__pycache__"}
)
_SHARD_N_CHARS = 100_000
# Held-out text consists of the beginnings of several modules, so that no single table or licence dominates it.
_HELD_OUT_N_MODULES = 16
_HELD_OUT_N_CHARS = 6_000
# A Python without its sources (frozen or zipped) has less text, which is too little to train on.
_MIN_N_CHARS = 500_000
_MAY_HOLD_DOCSTRINGS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Body:
    """Text of one kind: shards for training, and held-out beginnings of other modules."""

    learnt: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Code (Python modules) and prose (docstrings of other modules)."""

    code: Body
    prose: Body


def read_corpus(*, code_n_chars: int = 2_000_000, prose_n_chars: int = 600_000) -> Corpus:
    """Read code and prose from the standard library, with held-out parts.

    The text depends on the Python version, but not on the file system. Sizes are in characters; training text is split
    into shards of 100,000.

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
    """Train a tokenizer like GPT-2's: byte-level BPE with ``Ġ`` for a leading space.

    ``vocabulary_size`` includes the two special tokens and the 256 bytes.
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
    """Train a tokenizer like SentencePiece's: Unigram with ``▁`` for a space and ``<unk>`` for unknown characters.

    ``vocabulary_size`` is a maximum and includes the three special tokens.
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
    # In the order of ast.walk, but skipping expressions, which make up most of a tree and have no docstrings.
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(inner for inner in ast.iter_child_nodes(node) if isinstance(inner, _MAY_HOLD_DOCSTRINGS))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Return the concatenated token ids of all texts, ``(n_tokens,)`` int64."""
    return torch.tensor(
        [token for encoding in tokenizer.encode_batch(texts) for token in encoding.ids], dtype=torch.int64
    )


def train(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    *,
    steps: int,
    learning_rate: float = 3e-3,
    batch: tuple[int, int] = (8, 128),
    order_seed: int = 0,
    on_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train a float32 causal LM in place, on random excerpts of a text, without dropout.

    ``tokens`` is an ``(n_tokens,)`` int64 tensor; ``batch`` contains the number of sequences and their length. torch's
    global generator is not used, so the same ``order_seed`` and tokens give the same batches in the same order. Return
    the loss of each step before its update, in nats per token.
    """
    order = torch.Generator().manual_seed(order_seed)

    def loss_of_next_batch() -> torch.Tensor:
        n_sequences, length = batch
        starts = torch.randint(tokens.numel() - length, (n_sequences,), generator=order)
        ids = tokens[starts[:, None] + torch.arange(length)]  # (n_sequences, length)
        loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    return optimize(model, loss_of_next_batch, steps=steps, learning_rate=learning_rate, on_step=on_step)


def optimize(
    model: torch.nn.Module,
    next_loss: Callable[[], torch.Tensor],
    *,
    steps: int,
    learning_rate: float,
    on_step: Callable[[], None] | None = None,
) -> list[float]:
    """Minimise a loss with AdamW, a linear warm-up over the first 5%, and a cosine decay to a tenth of the peak.

    ``next_loss`` returns a scalar tensor with a graph. Return the loss of each step before its update.
    """
    optimizer = torch.optim.AdamW(_decay_groups(model), lr=learning_rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share_of_peak(step, steps))
    losses = []
    model.train()
    for _ in range(steps):
        loss = next_loss()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if on_step is not None:
            on_step()
    model.eval()
    return losses


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel, tokens: torch.Tensor, *, sequence_length: int = 128, n_sequences: int = 64
) -> float:
    """Return the mean loss in nats per token over evenly spaced sequences of ``tokens``, int64 ``(n_tokens,)``."""
    starts = torch.linspace(0, tokens.numel() - sequence_length, n_sequences).long()
    batch = tokens[starts[:, None] + torch.arange(sequence_length)]  # (n_sequences, sequence_length)
    model.eval()
    return float(model(input_ids=batch, labels=batch, use_cache=False).loss)


@contextmanager
def seeded_single_thread(seed: int) -> Iterator[None]:
    """Seed torch's global generator and compute on one thread inside the block.

    Results then do not depend on the number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _decay_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    # No weight decay on gains and biases: it would shrink the residual stream.
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 0.1}]
    return [*groups, {"params": vectors, "weight_decay": 0.0}] if vectors else groups


def _share_of_peak(step: int, steps: int) -> float:
    warm_up = max(1, steps // 20)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
