"""Members of the zoo, their recipes, and the true relation of each pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Common properties of a family.

    Attributes:
        name: Name of the family and its folder.
        architecture: transformers' model type.
        tokenizer: ``bpe`` (byte level) or ``unigram``.
        text: Training text of its base: ``code`` or ``prose``.
        tied: Whether embedding and head are one matrix.
        formats: Quantised formats of its base.
    """

    name: str
    architecture: str
    tokenizer: str
    text: str
    tied: bool
    formats: tuple[str, ...]


# Two learn the same batches of the same text with the same tokenizer: unrelated models that differ only in shape.
FAMILIES = {
    family.name: family
    for family in (
        Family("llama", "llama", "bpe", "code", False, ("gguf-q4_0", "gptq-4")),
        Family("gpt2", "gpt2", "bpe", "code", True, ("gguf-q4_0", "gguf-q8_0")),
        Family("qwen3", "qwen3", "unigram", "prose", True, ("fp8-block", "int4")),
        Family("neox", "gpt_neox", "unigram", "prose", False, ("nf4-nested", "gptq-4")),
    )
}
MIXTURES = {"llama": "mixtral", "qwen3": "qwen3_moe"}
"""Architectures for upcycling; transformers has no mixture of experts with the blocks of the others."""


@dataclass(frozen=True)
class Member:
    """A kind of descendant or stranger.

    Attributes:
        name: Name of the member and its folder.
        parents: Models from which it took weights; empty if it was initialised from ``seed``.
        done: How it was made, in words.
        seed: Seed of the initialisation, if weights were drawn.
    """

    name: str
    parents: tuple[str, ...]
    done: str
    seed: int | None = None


_BASE = ("base",)
MEMBERS = {
    member.name: member
    for member in (
        Member("base", (), "trained from a random initialisation", 0),
        Member("sft", _BASE, "fine-tuned on questions and answers, loss on the answers alone"),
        Member("domain", _BASE, "fine-tuned on text of another kind"),
        Member("lora", _BASE, "fine-tuned on text of another kind through LoRA of rank 8, merged"),
        Member("continued", _BASE, "pretraining continued for 2.5 times the steps of the base, at its peak rate"),
        Member("rl", ("sft",), "REINFORCE on sampled text, rewarded for its share of letters"),
        Member("merge", ("sft", "domain"), "the mean of two fine-tunes"),
        Member("gguf-q4_0", _BASE, "stored in GGUF, Q4_0"),
        Member("gguf-q8_0", _BASE, "stored in GGUF, Q8_0"),
        Member("gptq-4", _BASE, "stored in GPTQ's format, 4 bits in groups of 32"),
        Member("fp8-block", _BASE, "stored in FP8, blocks of 128 x 128"),
        Member("int4", _BASE, "stored in compressed-tensors' INT4, groups of 32"),
        Member("nf4-nested", _BASE, "stored in bitsandbytes' NF4, nested"),
        Member("width-pruned", _BASE, "a quarter to a third of channels, heads or neurons removed, then trained"),
        Member("depth-pruned", _BASE, "one layer of four removed, then trained"),
        Member("depth-upscaled", _BASE, "layers 0 1 2 1 2 3 of the base, then trained"),
        Member("moe-upcycled", _BASE, "every MLP copied into four experts under a new router, then trained"),
        Member("retokenised", _BASE, "embedding and head drawn anew for the other tokenizer, then trained"),
        Member("noised", _BASE, "Gaussian noise on every entry, as large as the root mean square of the matrix"),
        Member("obfuscated", ("domain",), "residual stream rotated, heads, values and neurons mixed, then trained"),
        Member("other-seed", (), "the base's data in the base's order, from another initialisation", 1),
        Member("other-data", (), "from the base's own initialisation, on text of another kind", 0),
        Member("distilled", (), "trained towards the base's next-token distributions, from another initialisation", 2),
    )
}


@dataclass(frozen=True, order=True)
class Model:
    """One model of the zoo."""

    family: str
    member: str

    @property
    def name(self) -> str:
        """``family/member``, its folder."""
        return f"{self.family}/{self.member}"


@dataclass(frozen=True)
class Pair:
    """Two models and their true relation.

    Attributes:
        a: The reference.
        b: The candidate.
        related: Whether both contain weights with the same initial values.
        relation: Kind of pair, for tables.
        reason: Why it is related or unrelated.
    """

    a: Model
    b: Model
    related: bool
    relation: str
    reason: str


def models(families: tuple[str, ...] | None = None) -> list[Model]:
    """Return every model of some families, or of all, parents before children."""
    return [
        Model(family.name, member)
        for family in FAMILIES.values()
        if families is None or family.name in families
        for member in MEMBERS
        if _exists(family, member)
    ]


def initialisations(member: str) -> frozenset[int]:
    """Return the seeds of the random weights that a member's weights started as."""
    known = MEMBERS[member]
    if known.seed is not None:
        return frozenset({known.seed})
    return frozenset(itertools.chain.from_iterable(initialisations(parent) for parent in known.parents))


def pair(a: Model, b: Model) -> Pair:
    """Return the true relation of two models."""
    left, right = FAMILIES[a.family], FAMILIES[b.family]
    if a.family != b.family:
        same = tokenizer_of(a) == tokenizer_of(b)
        kind = f"other family, {'same' if same else 'other'} tokenizer"
        text = "the same text" if left.text == right.text else "other text"
        return Pair(a, b, False, kind, f"families were drawn apart; {text}, {'one' if same else 'another'} tokenizer")
    inner = sorted({a.member, b.member} - {"base"}) or ["base"]
    if initialisations(a.member) & initialisations(b.member):
        if "other-data" in inner and len(initialisations(a.member) & initialisations(b.member)) == 1:
            reason = "both began as the same random numbers, and have no training in common: still shared weights"
        else:
            reason = f"both hold weights of initialisation 0 of {a.family}: {_story(a)}; {_story(b)}"
        return Pair(a, b, True, " + ".join(inner), reason)
    strange = "distilled" if "distilled" in inner else "other-seed"
    why = {
        "distilled": "a student sees its teacher's outputs and none of its weights",
        "other-seed": "configuration, tokenizer, data and their order are shared, and no weight is",
    }[strange]
    return Pair(a, b, False, " + ".join(inner), why)


def pairs(families: tuple[str, ...] | None = None) -> Iterator[Pair]:
    """Return every pair within a family, and every base with every model of the other families."""
    everyone = models(families)
    for a, b in itertools.combinations(everyone, 2):
        if a.family == b.family or "base" in (a.member, b.member):
            yield pair(a, b)


def _exists(family: Family, member: str) -> bool:
    if member == "moe-upcycled":
        return family.architecture in MIXTURES
    return member in family.formats or not any(member in each.formats for each in FAMILIES.values())


def tokenizer_of(model: Model) -> str:
    """Return the tokenizer of a model, ``bpe`` or ``unigram``."""
    kind = FAMILIES[model.family].tokenizer
    if model.member != "retokenised":
        return kind
    return "unigram" if kind == "bpe" else "bpe"


def _story(model: Model) -> str:
    return f"{model.member}, {MEMBERS[model.member].done}"
