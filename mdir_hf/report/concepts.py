"""The concepts that a reader needs for the short answer, at most nine. docs/glossary.md explains each, too."""

from __future__ import annotations

import re
from typing import NamedTuple


class Concept(NamedTuple):
    """A concept, the words of an answer that stand for it, and its meaning in one sentence."""

    name: str
    words: frozenset[str]
    meaning: str

    def is_in(self, text: str) -> bool:
        """Whether a text has one of the words, in upper or lower case."""
        return not self.words.isdisjoint(words_of(text))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without numbers and signs."""
    return re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower())


def _concept(name: str, words: str, meaning: str) -> Concept:
    return Concept(name, frozenset(words.split()), meaning)


CONCEPTS = (
    _concept(
        "Verdict",
        "homologous evidence inconclusive",
        "One of homologous, no evidence and inconclusive; no evidence does not mean unrelated.",
    ),
    _concept(
        "Share weights",
        "share shares shared",
        "Weights of both models come from the same numbers; it does not say which model came first.",
    ),
    _concept("p", "p", "The probability that independently trained models agree at least this well is at most p."),
    _concept(
        "Neuron",
        "neurons",
        "A unit of a layer's MLP; a sample of them is compared between the two models.",
    ),
    _concept(
        "Match",
        "match matches copies",
        "A part matches if enough of its sampled neurons or rows are copies of neurons or rows of the other model.",
    ),
    _concept(
        "Part",
        "part parts language embedding embeddings unembedding unembeddings layer layers heads experts expert",
        "A part of a model's files: the language model (its layers), the embeddings, a vision tower, experts.",
    ),
    _concept(
        "Compared",
        "compared samples comparison",
        "A sample counts for weights of its kind: neurons count for gate and up, and not for attention.",
    ),
    _concept("Warning", "warning", "The most important limit of the answer."),
    _concept("Read", "read mb gb kb", "The bytes that were read, and the size of both models."),
)


def concepts_in(text: str) -> list[Concept]:
    """Return the concepts whose words a text has, in the order of :data:`CONCEPTS`."""
    return [concept for concept in CONCEPTS if concept.is_in(text)]
