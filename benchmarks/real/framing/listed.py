"""List of framed models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.real.bases import load
from benchmarks.real.framing import cases as made
from benchmarks.real.framing import copies, students
from benchmarks.real.framing.arranging import EVERYTHING, LAYERS_ONLY, READS_ONLY
from benchmarks.real.framing.cases import GPT2, GPT2_OTHER, LLAMA, MIDDLE, OTHER_SEED, QWEN3, SLIM, SMALL, Case
from benchmarks.real.framing.copies import Planted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOTHING = "nothing"
READS, ALL_ROWS = "gate and up", "gate, up and down"


def listed() -> Iterator[Case]:
    """Yield every case, tiny models first."""
    for victim, stranger in ((LLAMA, OTHER_SEED), (LLAMA, QWEN3), (GPT2, GPT2_OTHER)):
        yield from _arranged(victim, stranger)
    yield from _students()
    yield from _planted(LLAMA, SLIM, OTHER_SEED)
    yield _turned(SMALL, MIDDLE)
    yield _of_two_layers(SMALL, MIDDLE)


def _case(
    kind: str, victim: str, stranger: str, done: str, make: Callable[[], PreTrainedModel], *, copied: str = NOTHING
) -> Case:
    return Case(f"{kind}--{stranger}--as--{victim}", victim, stranger, done, copied, copied != NOTHING, make)


def _turned(victim: str, stranger: str) -> Case:
    return _case("turned", victim, stranger, "rotated by all common tokens", partial(made.turned, victim, stranger))


def _of_two_layers(victim: str, stranger: str) -> Case:
    make = partial(made.arranged, victim, stranger, READS_ONLY, n_layers=2)
    return _case(
        "arranged-two", victim, stranger, "rotation and order of neurons fitted to gate and up of two layers", make
    )


def _arranged(victim: str, stranger: str) -> Iterator[Case]:
    arrange = partial(made.arranged, victim, stranger)
    yield _turned(victim, stranger)
    yield _case(
        "renumbered",
        victim,
        stranger,
        "channels, their signs and neurons renumbered by assignment",
        partial(made.renumbered, victim, stranger),
    )
    for kind, weighing, weights in (
        ("reads", READS_ONLY, "gate and up"),
        ("layers", LAYERS_ONLY, "gate, up and down"),
        ("everything", EVERYTHING, "embedding, unembedding, gate, up and down"),
    ):
        done = f"rotation and order of neurons fitted to {weights} of all layers; heads, V and O mapped"
        yield _case(f"arranged-{kind}", victim, stranger, done, partial(arrange, weighing))
    yield _case(
        "arranged-known",
        victim,
        stranger,
        "rotation and order fitted to the neurons of one known sample (seed 0)",
        partial(arrange, LAYERS_ONLY, known_seed=0),
    )
    yield _of_two_layers(victim, stranger)


def _planted(victim: str, slim: str, equal: str) -> Iterator[Case]:
    def plant(kind: str, how: Planted, copied: str, *, stranger: str = slim) -> Case:
        return _case(kind, victim, stranger, how.done, partial(made.planted, victim, stranger, how), copied=copied)

    full = (512 - 96) / 512
    yield plant("dead", Planted("copies whose down is zero", copies.without_output, full), READS)
    yield plant(
        "small", Planted("copies with up and down 0.01 times as large", copies.small(0.01, 0.01), full), ALL_ROWS
    )
    yield plant("cancelling", Planted("copies in pairs of opposite down", copies.cancelling), ALL_ROWS)
    how = Planted("own neurons split so that up and down can be copied", copies.up_and_down)
    yield plant("split", how, "up and down", stranger=equal)
    yield _case(
        "quiet-layers",
        victim,
        equal,
        "whole layers copied, behind norms with 0.03 of their gain",
        partial(made.quiet_layers, victim, equal, gain=0.03),
        copied="whole layers",
    )
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        how = Planted(f"{share:.0%} of the neurons replaced by copies that work", copies.in_place, share)
        make = partial(made.planted, victim, equal, how)
        name = f"replaced-{share}--{equal}--as--{victim}"
        yield Case(name, victim, equal, how.done, ALL_ROWS, True, make, keeps_function=False)


def _students() -> Iterator[Case]:
    loss = students.Loss

    def student(
        name: str, done: str, make: Callable[[], PreTrainedModel], *, victim: str = LLAMA, related: bool = False
    ) -> Case:
        copied = "shared weights" if related else NOTHING
        return Case(name, victim, None, done, copied, related, make, keeps_function=False)

    for kind, learnt_from, what in (
        ("logits", "logits", loss(logits=1.0)),
        ("states", "logits and all hidden states", loss(logits=1.0, states=1.0)),
        ("embeddings", "logits and embeddings", loss(logits=1.0, embeddings=1.0)),
    ):
        yield student(f"student-{kind}", f"student of {learnt_from}, 150 steps", partial(made.taught, what))
    yield student(
        "student-states-600",
        "student of logits and all hidden states, 600 steps",
        partial(made.taught, loss(logits=1.0, states=1.0), steps=600),
    )
    yield student(
        "first-embeddings",
        "stranger whose embedding began as the victim's, on other text",
        lambda: students.with_first_embeddings_of(0, 303),
    )
    yield student("waves-1", "stranger whose matrices began as cosine transforms", lambda: students.deterministic(1))
    yield student(
        "waves-2",
        "stranger whose matrices began as the same cosine transforms, in another order of text",
        lambda: students.deterministic(2),
        victim="waves-1",
        related=True,
    )
    for share_kept in (0.1, 0.3):
        first = f"masked-{share_kept}-61"
        done = f"trained under a random mask that keeps {share_kept:.0%}"
        yield student(first, done, partial(students.masked, 61, share_kept=share_kept))
        make = partial(students.masked, 62, share_kept=share_kept)
        yield student(f"masked-{share_kept}-62", f"{done}, as its victim", make, victim=first)
    for share in (0.5, 0.33, 0.25, 0.17, 0.12, 0.08):
        make = partial(_soup, share)
        yield student(f"soup-{share}", f"soup of {share:.0%} of the victim and a stranger", make, related=True)


def _soup(share: float) -> PreTrainedModel:
    return students.soup(*(load(made.folder_of(name)) for name in (LLAMA, OTHER_SEED)), share)
