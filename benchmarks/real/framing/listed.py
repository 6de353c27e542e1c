"""List of framed models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.real.bases import load
from benchmarks.real.framing import cases as made
from benchmarks.real.framing import copies, students
from benchmarks.real.framing.arranging import BOTH_ENDS, EVERYTHING, LAYERS_ONLY, READS_ONLY, Weighing
from benchmarks.real.framing.cases import (
    CONSTANTS,
    GPT2,
    GPT2_OTHER,
    LLAMA,
    MIDDLE,
    OTHER_SEED,
    QWEN3,
    SLIM,
    SMALL,
    TALL,
    THIN,
    WIDE,
    Case,
)
from benchmarks.real.framing.copies import Planted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOTHING = "nothing"
READS, ALL_ROWS = "gate and up", "gate, up and down"


def listed() -> Iterator[Case]:
    """Yield every case, tiny models first."""
    for victim, stranger in ((LLAMA, OTHER_SEED), (QWEN3, OTHER_SEED), (LLAMA, QWEN3)):
        yield from _turned(victim, stranger)
    for victim, stranger in ((LLAMA, WIDE), (WIDE, LLAMA), (LLAMA, THIN), (LLAMA, TALL), (GPT2, GPT2_OTHER)):
        yield _case("turned", victim, stranger, "rotated by all common tokens", partial(made.turned, victim, stranger))
    yield from _arranged(LLAMA, OTHER_SEED)
    yield from _arranged(LLAMA, QWEN3)
    yield from _arranged(GPT2, GPT2_OTHER)
    yield from _planted(LLAMA, SLIM, OTHER_SEED)
    yield from _students()
    yield from _real()


def _case(
    kind: str,
    victim: str,
    stranger: str,
    done: str,
    make: Callable[[], PreTrainedModel],
    *,
    copied: str = NOTHING,
    keeps_function: bool = True,
) -> Case:
    name = f"{kind}--{stranger}--as--{victim}"
    return Case(name, victim, stranger, done, copied, False, make, keeps_function)


def _turned(victim: str, stranger: str) -> Iterator[Case]:
    turn = partial(made.turned, victim, stranger)
    yield _case("turned", victim, stranger, "rotated by all common tokens", turn)
    yield _case("turned-half", victim, stranger, "rotated by half of the common tokens", partial(turn, share=0.5))
    yield _case("turned-both", victim, stranger, "rotated by embedding and unembedding", partial(turn, BOTH_ENDS))
    yield _case("turned-partly", victim, stranger, "rotated half of the way", partial(turn, part=0.5))


def _arranged(victim: str, stranger: str, *, rounds: int = 5) -> Iterator[Case]:
    arrange = partial(made.arranged, victim, stranger, rounds=rounds)
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
        done = (
            f"rotation fitted on {weights} of all layers, alternating with the order of neurons; heads, V and O mapped"
        )
        yield _case(f"arranged-{kind}", victim, stranger, done, partial(arrange, weighing))
    yield _case(
        "arranged-known",
        victim,
        stranger,
        "rotation fitted on gate, up and down of the neurons of one known sample (seed 0), alternating with the order "
        "of neurons",
        partial(arrange, LAYERS_ONLY, known_seed=0),
    )


def _planted(victim: str, slim: str, equal: str) -> Iterator[Case]:
    def plant(kind: str, how: Planted, copied: str, *, stranger: str = slim) -> Case:
        make = partial(made.planted, victim, stranger, how)
        return _case(kind, victim, stranger, how.done, make, copied=copied)

    full = (512 - 96) / 512
    yield plant("dead", Planted("copies whose down is zero", copies.without_output, full), READS)
    for size in (0.3, 0.1, 0.03, 0.01):
        how = Planted(f"copies with up and down {size} times as large", copies.small(size, size), full)
        yield plant(f"small-{size}", how, ALL_ROWS)
    yield plant("cancelling", Planted("copies in pairs of opposite down", copies.cancelling), ALL_ROWS)
    for angle, size in ((0.03, 1.0), (0.1, 1.0), (0.3, 0.3), (0.5, 0.2)):
        how = Planted(
            f"copies in pairs of opposite down, gates {angle} rad apart, {size} times as large",
            copies.cancelling_nearly(angle, size),
        )
        yield plant(f"cancelling-{angle}", how, ALL_ROWS)
    yield plant("grouped", Planted("copies that two helpers of the same gate cancel", copies.grouped), ALL_ROWS)
    yield plant("crossed", Planted("copies that three helpers of other gates cancel", copies.crossed), ALL_ROWS)
    yield plant(
        "small-whole-0.15", Planted("all copied, up and down 0.15 times as large", copies.small(0.15, 0.15)), ALL_ROWS
    )
    for strength, size in ((60.0, 1.0), (3.9, 10.0), (2.5, 10.0)):
        yield _case(
            f"shut-by-bias-{strength}",
            victim,
            slim,
            f"copies shut by a bias of {strength} lengths of their gates",
            partial(made.shut_by_bias, victim, slim, share=full, strength=strength, size=size),
            copied=ALL_ROWS,
        )
    for kind, trick, copied in (
        ("split-up", copies.up_alone, "up"),
        ("split-down", copies.down_alone, "down"),
        ("split-up-down", copies.up_and_down, "up and down"),
        ("split-gate", copies.gate_alone, "gate"),
    ):
        yield plant(kind, Planted(f"own neurons split so that {copied} can be copied", trick), copied, stranger=equal)
    strengths, up_sizes = (0.7, 0.1, 0.35, 0.15), (1.0, 1.0, 0.3, 0.3)
    for (stranger, large), strength, up_size in zip(CONSTANTS.items(), strengths, up_sizes, strict=True):
        yield _case(
            "shut-by-constant",
            victim,
            stranger,
            f"copies shut by {strength} times a channel that holds {large:.0f} for every token, in a rotated stream",
            partial(made.asleep, victim, stranger, share=full, strength=strength, size=10.0, up_size=up_size),
            copied=ALL_ROWS,
        )
    yield _case(
        "shut-by-constant-unused",
        victim,
        "llama-large-constant",
        "copies shut by 0.1 times a channel that holds 300 for every token, in a rotated stream, beside two unused "
        "tokens with opposite rows for each used one",
        partial(made.asleep, victim, "llama-large-constant", share=full, strength=0.1, size=10.0, unused_size=-0.5),
        copied=ALL_ROWS,
    )
    for kind, change, arguments in (
        ("0.5", "behind norms with half of their gain", {"gain": 0.5}),
        ("0.35", "behind norms with 0.35 of their gain", {"gain": 0.35}),
        ("0.15", "behind norms with 0.15 of their gain", {"gain": 0.15}),
        ("0.03", "behind norms with 0.03 of their gain", {"gain": 0.03}),
        ("last", "behind norms with 0.15 of their gain, only the last layer", {"gain": 0.15, "n_copied": 1}),
        ("output", "o and down 0.03 times as large", {"output": 0.03}),
        (
            "unused",
            "behind norms with 0.003 of their gain, beside two unused tokens for each used one",
            {"gain": 0.003, "unused_size": 1e-4},
        ),
    ):
        yield _case(
            f"quiet-layers-{kind}",
            victim,
            equal,
            f"whole layers copied, {change}",
            partial(made.quiet_layers, victim, equal, **arguments),
            copied="whole layers",
        )
    how = Planted(
        "own neurons arranged by their gates, then split so that up and down can be copied", copies.up_and_down
    )
    yield _case(
        "split-up-down-arranged",
        victim,
        equal,
        how.done,
        partial(made.split_and_arranged, victim, equal, how, Weighing(gates=1.0)),
        copied="up and down",
    )
    for turns in (False, True):
        yield _case(
            "dead-directions" if turns else "dead-channels",
            victim,
            THIN,
            f"rows in unused {'directions' if turns else 'channels'}",
            partial(made.dead_directions, victim, THIN, size=3.0, turns=turns),
            copied="half of each row of gate and up",
        )
    for share in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        how = Planted(f"{share:.0%} of the neurons replaced by copies that work", copies.in_place, share)
        make = partial(made.planted, victim, equal, how)
        yield _case(f"replaced-{share}", victim, equal, how.done, make, copied=ALL_ROWS, keeps_function=False)


def _students() -> Iterator[Case]:
    loss = students.Loss

    def student(name: str, done: str, make: Callable[[], PreTrainedModel], *, related: bool = False) -> Case:
        copied = "shared weights" if related else NOTHING
        return Case(name, LLAMA, None, done, copied, related, make, keeps_function=False)

    for kind, learnt_from, what in (
        ("logits", "logits", loss(logits=1.0)),
        ("states", "logits and all hidden states", loss(logits=1.0, states=1.0)),
        ("states-alone", "all hidden states", loss(states=1.0)),
        ("last", "logits and the last hidden state", loss(logits=1.0, last=1.0)),
        ("embeddings", "logits and embeddings", loss(logits=1.0, embeddings=1.0)),
    ):
        yield student(f"student-{kind}", f"student of {learnt_from}, 150 steps", partial(made.taught, what))
    for steps in (600, 2400):
        yield student(
            f"student-states-{steps}",
            f"student of logits and all hidden states, {steps} steps",
            partial(made.taught, loss(logits=1.0, states=1.0), steps=steps),
        )
    yield student(
        "first-embeddings",
        "stranger whose embedding began as the victim's, on other text",
        lambda: students.with_first_embeddings_of(0, 303),
    )
    for share_kept in (0.1, 0.2, 0.3):
        for seed in (61, 62):
            victim = LLAMA if seed == 61 else f"masked-{share_kept}-61"
            done = f"trained under a random mask that keeps {share_kept:.0%}" + (
                "" if seed == 61 else ", as its victim"
            )
            make = partial(students.masked, seed, share_kept=share_kept)
            yield Case(f"masked-{share_kept}-{seed}", victim, None, done, NOTHING, False, make, keeps_function=False)
    for share in (0.5, 0.33, 0.25, 0.17, 0.12, 0.08, 0.05, 0.03):
        make = partial(_soup, share)
        yield student(f"soup-{share}", f"soup of {share:.0%} of the victim and a stranger", make, related=True)


def _soup(share: float) -> PreTrainedModel:
    return students.soup(*(load(made.folder_of(name)) for name in (LLAMA, OTHER_SEED)), share)


def _real() -> Iterator[Case]:
    victim, stranger = SMALL, MIDDLE
    yield from _turned(victim, stranger)
    turn = partial(made.turned, victim, stranger, seed=1)
    yield _case("turned-other-completion", victim, stranger, "rotated by all common tokens, another completion", turn)
    for case in _arranged(victim, stranger, rounds=2):
        if "everything" in case.name or "layers" in case.name or "known" in case.name:
            yield case
