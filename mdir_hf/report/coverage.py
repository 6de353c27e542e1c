"""The coverage ledger of a report: how each part of either model was treated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mdir_hf.report.parts import Count, Part
from mdir_hf.report.terms import Term


class Treatment(Term):
    """How a comparison treated a part of a model."""

    COMPARED = "compared"
    """All of its weights that the method can test were read."""
    SAMPLED = "sampled"
    """A sample of its rows, neurons or layers was read."""
    REPRESENTED = "represented"
    """Another part that was read represents it."""
    NOT_COMPARED = "not_compared"
    """None of it was read for a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCoverage(Part):
    """How one part of a model was treated.

    Attributes:
        part: Name of the part, as in ``mdir-hf inspect``.
        layers: Number of its layers; 0 for a part without layers.
        tensors: Number of its tensors in the files.
        bytes: Their stored size; None if the header of a file was not read.
        treatment: How it was treated.
        reason: How much was sampled, the part that represents it, or why it was not compared; None if all was compared.
    """

    part: str
    layers: Count
    tensors: Count
    bytes: Count | None
    treatment: Treatment
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Part):
    """How every part of both models was treated. The parts of a model hold every tensor of its files.

    Attributes:
        reference: The parts of the reference.
        candidate: The parts of the candidate.
    """

    reference: tuple[PartCoverage, ...]
    candidate: tuple[PartCoverage, ...]


FOLLOWERS = ("norms, biases and buffers", "storage")
"""Prefixes of parts that are read with another part or not at all; the line names the other part."""

LEAST_SHARE = 0.001
"""Parts with a smaller share of the bytes are omitted from the line."""


def not_compared_text(parts: Iterable[PartCoverage]) -> str | None:
    """Name the parts of a model that were not compared, with their shares of the bytes.

    Args:
        parts: The ledger of one model.

    Returns:
        ``vision tower (24 layers, 12 % of the bytes), connector (3 %)``; None if every part with weights was compared.
    """
    ledger = tuple(parts)
    sizes = [entry.bytes for entry in ledger]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    named: list[str] = []
    for entry in ledger:
        if entry.treatment is not Treatment.NOT_COMPARED or entry.part.startswith(FOLLOWERS):
            continue
        share = entry.bytes / total if total and entry.bytes is not None else None
        if share is not None and share < LEAST_SHARE:
            continue
        details = []
        if entry.layers:
            details.append(f"{entry.layers} layer{'' if entry.layers == 1 else 's'}")
        if share is not None:
            details.append(f"{_percent(share)} of the bytes" if not named else _percent(share))
        named.append(f"{_name(entry)} ({', '.join(details)})" if details else _name(entry))
    return ", ".join(named) or None


def _name(entry: PartCoverage) -> str:
    if not entry.part.startswith("unplaced"):
        return entry.part
    tensors = f"{entry.tensors} tensor{'' if entry.tensors == 1 else 's'}"
    return f"{tensors} without a known role" if "known role" in entry.part else f"{tensors} ({entry.reason})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
