"""Train a small family of language models: a base, five increasingly disguised descendants, and two strangers.

The first stranger differs from the base only in its seed.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mdir_hf.errors import InputError
from mdir_hf.installing import require_extra

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

Relation = Literal["reference", "related", "stranger"]
StageProgress = Callable[[str, float], None]
_Split = tuple["torch.Tensor", "torch.Tensor"]  # token ids to train on, and held-out ones

# Increase this with every change to the models; folders with another recipe are rebuilt.
RECIPE = 6
_RECORD = "demo/lineage.json"

_HIDDEN_SIZE = 192
_N_PRUNED_CHANNELS = 48
_VOCABULARY_SIZE = 4096
_SCALE = 4.0  # a power of two, exact in BF16
# Just enough for each model to learn more than token frequencies: training takes most of the demo's time.
_CODE_N_CHARS, _PROSE_N_CHARS = 1_200_000, 400_000
_BATCH_SIZE, _SEQUENCE_LENGTH = 6, 32
_BASE_STEPS, _FINE_TUNE_STEPS, _RETOKENIZED_STEPS, _PRUNED_STEPS, _NARROW_STEPS = 110, 35, 45, 60, 80
_TOTAL_STEPS = 2 * _BASE_STEPS + _FINE_TUNE_STEPS + _RETOKENIZED_STEPS + _PRUNED_STEPS + _NARROW_STEPS


# Name -> relation to the base, description, and the reason for the relation; in the order of the report.
_MEMBERS: dict[str, tuple[Relation, str, str]] = {
    "base": ("reference", "a small Llama trained on Python code", "it is the base"),
    "fine-tune": ("related", "the base trained further, on prose", "its weights began as the base's"),
    "permuted": (
        "related",
        "the fine-tune with its channels in another order and its embedding four times as large; it computes the same",
        "its weights are the fine-tune's, which began as the base's",
    ),
    "rotated": (
        "related",
        "the fine-tune with its residual stream turned by a random rotation; it computes the same",
        "its weights are the fine-tune's, which began as the base's",
    ),
    "pruned": (
        "related",
        f"the base with {_N_PRUNED_CHANNELS} of its {_HIDDEN_SIZE} channels cut out, trained a little further",
        "the channels it has are the base's",
    ),
    "other-tokenizer": (
        "related",
        "the base's layers under a Unigram tokenizer in place of its BPE, trained further on prose",
        "its layers, and the rows of the tokens that both have, began as the base's",
    ),
    "other-seed": (
        "stranger",
        "the base's configuration, tokenizer and batches in the same order, from another initialisation",
        "no weight of it was ever the base's",
    ),
    "other-width": (
        "stranger",
        "a narrower Llama with tied embeddings and the base's tokenizer",
        "no weight of it was ever the base's",
    ),
}


@dataclass(frozen=True)
class Member:
    """One model of the family.

    Attributes:
        repo: Repo id, ``demo/<name>``.
        folder: Folder with its files, laid out like a snapshot of the repo.
        description: How it was made, in one sentence.
        relation: ``reference``, ``related`` or ``stranger``.
        held_out_loss: Mean loss on held-out text, in nats per token.
        channels: For each of its channels, the matching reference channel, if channels were moved or removed.
        scale: Factor by which its embedding was scaled.
    """

    repo: str
    folder: Path
    description: str
    relation: Relation
    reason: str
    held_out_loss: float
    channels: tuple[int, ...] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Lineage:
    """The models in ``folder/demo``: the base, then the others, closest relative first."""

    folder: Path
    reference: Member
    candidates: tuple[Member, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All models, with the reference first."""
        return (self.reference, *self.candidates)


def build_lineage(
    folder: str | Path,
    *,
    seed: int = 0,
    progress: StageProgress | None = None,
    on_member: Callable[[Member], None] | None = None,
) -> Lineage:
    """Build the family, or reuse a finished one in the same folder.

    The base is an untied Llama with 6 layers and grouped queries. Building takes two to four minutes of CPU time, 1 GB
    of memory and 50 MB of disk space. The models appear in ``folder`` once the whole family is done. ``progress``
    receives the current step and the completed fraction, in [0, 1]. ``on_member`` receives each member once its files
    are written, the reference first.

    Raises:
        InputError: If transformers is not installed, or the folder contains an unrelated ``demo`` folder.
    """
    folder = Path(folder)
    lineage = _read(folder, seed)
    if lineage is not None:
        if on_member is not None:
            for member in lineage.members:
                on_member(member)
        return lineage
    if (folder / "demo").exists() and not (folder / _RECORD).exists():
        raise InputError(
            f"{folder / 'demo'} exists, but without {Path(_RECORD).name}, so it is not a demo; choose another folder"
        )
    require_extra("demo", "tokenizers", "transformers", purpose="the demo needs transformers")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as building:
        workshop = _Workshop(
            Path(building), seed, progress or (lambda doing, share: None), on_member or (lambda member: None)
        )
        members = workshop.build()
        _write(Path(building), seed, members)
        if (folder / "demo").exists():
            shutil.rmtree(folder / "demo")
        (Path(building) / "demo").rename(folder / "demo")
    lineage = _read(folder, seed)
    assert lineage is not None, "the lineage was just written"
    return lineage


class _Workshop:
    """Trains or derives the members, and saves each under ``folder/demo``."""

    def __init__(self, folder: Path, seed: int, progress: StageProgress, on_member: Callable[[Member], None]) -> None:
        self._folder, self._seed, self._progress, self._on_member = folder, seed, progress, on_member
        self._doing, self._steps_done = "", 0
        self._members: list[Member] = []

    def build(self) -> list[Member]:
        import torch

        from mdir_hf.demo.training import encode, read_corpus, seeded_single_thread, train_byte_level_bpe, train_unigram
        from mdir_hf.demo.transformations import (
            keep_channels,
            permute_channels,
            replace_tokenizer,
            rotate_channels,
        )

        self._say("reading the standard library, learning a tokenizer")
        corpus = read_corpus(code_n_chars=_CODE_N_CHARS, prose_n_chars=_PROSE_N_CHARS)
        bpe = train_byte_level_bpe([*corpus.code.learnt, *corpus.prose.learnt], vocabulary_size=_VOCABULARY_SIZE)
        code = encode(bpe, corpus.code.learnt), encode(bpe, corpus.code.held_out)
        prose = encode(bpe, corpus.prose.learnt), encode(bpe, corpus.prose.held_out)

        with seeded_single_thread(self._seed), _no_progress_bars():
            base = self._new_model(_HIDDEN_SIZE)
            self._train("base", base, code, _BASE_STEPS, learning_rate=4e-3)
            self._save("base", base, bpe, code)

            fine_tune = copy.deepcopy(base)
            self._train("fine-tune", fine_tune, prose, _FINE_TUNE_STEPS)
            # Saved in several shards, as large models are.
            self._save("fine-tune", fine_tune, bpe, prose, max_shard_size="5MB")

            permuted, permutation = copy.deepcopy(fine_tune), torch.randperm(_HIDDEN_SIZE)
            permute_channels(permuted, permutation, scale=_SCALE)
            self._save("permuted", permuted, bpe, prose, channels=permutation, scale=_SCALE)

            rotated = copy.deepcopy(fine_tune)
            rotate_channels(rotated, torch.linalg.qr(torch.randn(_HIDDEN_SIZE, _HIDDEN_SIZE)).Q)
            self._save("rotated", rotated, bpe, prose)

            channels = torch.randperm(_HIDDEN_SIZE)[_N_PRUNED_CHANNELS:].sort().values
            pruned = keep_channels(base, channels)
            self._train("pruned", pruned, code, _PRUNED_STEPS)
            self._save("pruned", pruned, bpe, code, channels=channels)

            # Done late, because it takes a third as long as the base, and the first verdicts should come early.
            self._say("learning another tokenizer")
            unigram = train_unigram(corpus.prose.learnt, vocabulary_size=_VOCABULARY_SIZE)
            prose_in_unigram = encode(unigram, corpus.prose.learnt), encode(unigram, corpus.prose.held_out)
            retokenized = replace_tokenizer(base, bpe, unigram)
            self._train("other-tokenizer", retokenized, prose_in_unigram, _RETOKENIZED_STEPS)
            self._save("other-tokenizer", retokenized, unigram, prose_in_unigram)

            other_seed = self._new_model(_HIDDEN_SIZE)
            self._train("other-seed", other_seed, code, _BASE_STEPS, learning_rate=4e-3)
            self._save("other-seed", other_seed, bpe, code)

            narrow = self._new_model(128, tied=True)
            self._train("other-width", narrow, code, _NARROW_STEPS, learning_rate=4e-3)
            self._save("other-width", narrow, bpe, code)
        return self._members

    def _new_model(self, hidden_size: int, *, tied: bool = False) -> PreTrainedModel:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=_VOCABULARY_SIZE,
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 8 // 3,
            num_hidden_layers=6,
            num_attention_heads=hidden_size // 32,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=tied,
            # With the usual 0.02, for widths in the thousands, a model this narrow learns nothing in a hundred steps.
            initializer_range=0.06,
            bos_token_id=0,
            eos_token_id=1,
        )
        return LlamaForCausalLM(config)

    def _train(
        self, name: str, model: PreTrainedModel, tokens: _Split, steps: int, *, learning_rate: float = 1e-3
    ) -> None:
        from mdir_hf.demo.training import train

        self._say(f"training demo/{name}")
        train(
            model,
            tokens[0],
            steps=steps,
            learning_rate=learning_rate,
            batch=(_BATCH_SIZE, _SEQUENCE_LENGTH),
            order_seed=self._seed,
            on_step=self._step,
        )

    def _save(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        tokens: _Split,
        *,
        channels: torch.Tensor | None = None,
        scale: float = 1.0,
        max_shard_size: str = "1GB",
    ) -> None:
        import torch
        from transformers import PreTrainedTokenizerFast

        from mdir_hf.demo.training import BEGIN, END, mean_loss

        folder = self._folder / "demo" / name
        loss = mean_loss(model, tokens[1], sequence_length=_SEQUENCE_LENGTH)
        rounded = copy.deepcopy(model).to(torch.bfloat16)  # descendants start from the model before rounding
        rounded.save_pretrained(folder, max_shard_size=max_shard_size)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(folder)
        relation, description, reason = _MEMBERS[name]
        declared = "---\nbase_model: demo/base\n---\n" if relation == "related" else ""
        (folder / "README.md").write_text(f"{declared}# demo/{name}\n\n{description}.\n", encoding="utf-8")
        origin = None if channels is None else tuple(channels.tolist())
        member = Member(f"demo/{name}", folder, description, relation, reason, round(loss, 4), origin, scale)
        self._members.append(member)
        with torch.random.fork_rng(devices=[]):  # random draws by a listener must not change later members
            self._on_member(member)

    def _say(self, doing: str) -> None:
        self._doing = doing
        self._progress(doing, self._steps_done / _TOTAL_STEPS)

    def _step(self) -> None:
        self._steps_done += 1
        self._say(self._doing)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    # transformers draws a bar for every file that it writes.
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _write(folder: Path, seed: int, members: list[Member]) -> None:
    entries = [{**asdict(member), "folder": member.folder.relative_to(folder).as_posix()} for member in members]
    text = json.dumps({"recipe": RECIPE, "seed": seed, "members": entries}, indent=1)
    (folder / _RECORD).write_text(text + "\n", encoding="utf-8")


def _read(folder: Path, seed: int) -> Lineage | None:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if (record["recipe"], record["seed"]) != (RECIPE, seed):
            return None
        members = [_member(folder, entry) for entry in record["members"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if len(members) != len(_MEMBERS) or not all(any(member.folder.glob("*.safetensors")) for member in members):
        return None
    return Lineage(folder, members[0], tuple(members[1:]))


def _member(folder: Path, entry: dict[str, Any]) -> Member:
    channels = entry["channels"]
    return Member(
        **{**entry, "folder": folder / entry["folder"], "channels": None if channels is None else tuple(channels)}
    )
