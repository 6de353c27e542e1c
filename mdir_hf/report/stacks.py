"""Pairs of stacks in a report: towers, talkers and the like, compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from mdir_hf.report.parts import LayerPair, Log10P, Part
from mdir_hf.report.terms import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPair(Part):
    """A stack of the reference compared with one of the candidate.

    Attributes:
        reference: Name of the part of the reference, as ``mdir-hf inspect`` lists it.
        candidate: Name of the part of the candidate.
        verdict: ``homologous`` if neurons of a layer agree by their numbers (``inconclusive`` if a given seed chose the
            sample), else ``no_evidence``.
        log10_p: log10 of p, corrected for all pairs of layers, tests and looks.
        layers: Pairs of layers that match.
    """

    reference: str
    candidate: str
    verdict: Verdict
    log10_p: Log10P
    layers: tuple[LayerPair, ...]
