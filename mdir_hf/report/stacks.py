"""Pairs of stacks in a report, such as towers and talkers, compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf.report.parts import ExpertOrigin, LayerPair, Log10P, Part
from mdir_hf.report.terms import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPair(Part):
    """A stack of the reference compared with one of the candidate.

    Attributes:
        reference: Name of the part of the reference, as in ``mdir-hf inspect``.
        candidate: Name of the part of the candidate.
        verdict: ``homologous`` if neurons of a layer agree by their numbers (``inconclusive`` if a given seed chose the
            sample), else ``no_evidence``.
        log10_p: log10 p, corrected for all pairs of layers, tests and looks.
        layers: Pairs of layers that match.
        experts: The pairs of experts that match, if the experts of two layers were compared; None for other parts.
    """

    reference: str
    candidate: str
    verdict: Verdict
    log10_p: Log10P
    layers: tuple[LayerPair, ...]
    experts: tuple[ExpertOrigin, ...] | None = None

    @property
    def is_language(self) -> bool:
        """Whether both parts belong to language models: their layers, experts in them, a talker, a draft model."""
        return _is_language(self.reference) and _is_language(self.candidate)


LANGUAGE_STACKS = ("language model", "talker", "draft model", "multi-token prediction")
"""Stacks that are evidence on a language model. Towers are not: half of all vision-language models share one."""


def _is_language(part: str) -> bool:
    return part in LANGUAGE_STACKS or part.startswith("experts of layer ")
