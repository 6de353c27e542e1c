"""Texts about a verdict, shared by all outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from mdir_hf.report.parts import NeuronNumbers, PartCoverage, PrintedAlgorithm1
from mdir_hf.report.terms import Reason, Verdict

ICON = {Verdict.HOMOLOGOUS: "●", Verdict.NO_EVIDENCE: "○", Verdict.INCONCLUSIVE: "◐"}
"""Filled, empty and half-filled circles, which can be told apart without colour."""

REASON_TEXT = {
    Reason.SAMPLE_CHOSEN: (
        "the models agree on a sample of neurons that was chosen by a given seed; this is not independent evidence"
    ),
    Reason.EMBEDDINGS_ONLY: "only the embeddings were found to be copies",
    Reason.ATTENTION_ONLY: "only attention heads were found to resemble each other as copies do",
    Reason.LOADING_UNKNOWN: "copies were found only in a part that may not be loaded",
    Reason.WEIGHTS_UNREADABLE: "too few weights of the two models could be compared with each other",
    Reason.UNFINISHED: "no evidence was found in the parts read so far, and the comparison is not finished",
}

KEYWORD = {
    Verdict.HOMOLOGOUS: "HOMOLOGOUS",
    Verdict.NO_EVIDENCE: "NO EVIDENCE",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
}
"""First word of the terminal output, for scripts."""

MEANS = {
    Verdict.HOMOLOGOUS: (
        "The weights of the two models have a common origin: one was made from the other, or both from a third, or "
        "both began from the same random initialisation. Neurons of one model are copies of neurons of the other. The "
        "probability that independently trained models agree this well is at most p, and p is below the level alpha "
        "that was fixed in advance."
    ),
    Verdict.NO_EVIDENCE: (
        "In the parts that this comparison read, the two models agree as little as independently trained models."
    ),
    Verdict.INCONCLUSIVE: "For this pair the question could not be answered either way, for the reason given.",
}

MEANS_SEARCHED = (
    "The weights of the two models have a common origin: one was made from the other, or both from a third, or both "
    "began from the same random initialisation. Neurons of one model are copies of neurons of the other; no unrelated "
    "models that were measured come close."
)

PARTS_MATCH = "experts or other parts of the language models match"

MEANS_SAME_FILES = "The weight files of the two models are the same, byte for byte."

P_IS_NO_MEASURE = "p does not measure how much is shared: log10 p of -300 and of -7000 are both overwhelming."

COPIED_ROWS = (
    "It says that one model holds copied rows of the other, not how much they do or how much of the model is copied; "
    "level layers shows the latter."
)

DISTILLATION = (
    "Distillation is not weight ancestry. A student of another model's outputs looks like a stranger; one that was "
    "trained towards its hidden states may have embeddings that agree, but its neurons do not."
)

DOES_NOT_MEAN = {
    Verdict.HOMOLOGOUS: (
        "A comparison has no direction. Weights do not show which model came first; a report lists values that are "
        "equal, and both ways in which that can come about.",
        "It does not judge whether the common origin was allowed.",
        COPIED_ROWS,
        P_IS_NO_MEASURE,
        "A shared random seed is enough for a common origin; 42, the default of a popular trainer, is shared by many.",
    ),
    Verdict.NO_EVIDENCE: (
        "It does not prove that the models are independent: long training, or a change that this version does not test "
        "for, can hide a common origin.",
        DISTILLATION,
    ),
    Verdict.INCONCLUSIVE: (
        "It is evidence neither for nor against shared ancestry.",
        "It is not a weak form of another verdict: the evidence that would settle it is missing.",
    ),
}

OF_MEMORY = "of memory (--max-memory)."
"""End of a caveat that names a comparison that did not fit in memory."""

_NO_DIRECTION = "A comparison has no direction, and a shared random seed counts as shared ancestry."

MEANING = (
    "Neurons of independently trained models agree in their numbers with at most this probability, unless the numbers "
    f"were arranged on purpose. {_NO_DIRECTION}"
)

MEANING_SEARCHED = f"No probability is printed, because the partners of the neurons were searched for. {_NO_DIRECTION}"

MEANING_NOTHING = "Nothing was found that is significant at the level alpha."

MEANING_PARTS_ONLY = "Between the language models, no match was significant at the level alpha."

MEANING_INCONCLUSIVE = "No p is printed, because the question could not be answered."

THE_SAME_FILES = "the same files"

SAME_FILES = "Equal files need no p-value. A comparison has no direction."

UNLESS_ROTATED = "unless their channels were rotated"
"""Exception to the claim that the embeddings exclude a copy; they are compared channel by channel."""

UNLESS_RENUMBERED = "in any basis, unless layers or neurons were reordered or left out"
"""Exception to the claim that the neurons exclude a copy."""

IN_ANY_ORDER_AND_BASIS = "with layers, heads and neurons in any order, and the stream in any basis"
"""Extent of the claim that the keys exclude a copy."""


def printed_text(printed: PrintedAlgorithm1) -> str:
    """Describe the result of Algorithm 1 as printed in the paper, and say whether its assumption holds."""
    trace = f"trace {printed.trace:.2f}, rank {printed.rank} of {printed.width}"
    if printed.log10_p is None:
        return f"{trace}; the paper has no p for embeddings of different width"
    p = "p not below 1" if printed.log10_p == 0.0 else f"p = 10^{printed.log10_p:,.0f}"
    assumption = {
        None: "whether its assumption holds was not measured",
        True: "its assumption holds as far as it was measured",
        False: "its assumption does not hold here: "
        + ("axes stand out in both embeddings" if printed.axes_stand_out else "the product has no full rank"),
    }[printed.holds]
    return f"{trace}, {p} by the paper's formula; {assumption}"


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def probability_text(log10_p: float) -> str:
    """Format a bound on a probability as a power of ten, rounded up, such as ``p ≤ 10⁻³⁴⁹``."""
    exponent = math.ceil(log10_p)
    return f"p ≤ 10{str(exponent).translate(_SUPERSCRIPTS)}" if exponent else "p ≤ 1"


def matched_neurons_text(neurons: NeuronNumbers) -> str:
    """Say how many neurons match, such as ``all 128 tested neurons match``."""
    n_matching, n_tested = neurons.certain_in_matches, neurons.tested * len(neurons.matches)
    share = f"all {n_tested:,}" if n_matching == n_tested else f"{n_matching:,} of {n_tested:,}"
    return f"{share} tested neurons match"


def neurons_text(neurons: NeuronNumbers) -> str:
    """Say how many tested neurons match, and in how many layers."""
    n_layers = len(neurons.matches)
    return f"{matched_neurons_text(neurons)}, in {counted(n_layers, 'layer')}"


def counted(n: int, what: str) -> str:
    """Format a count with its noun, singular or plural."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def range_text(least: str, most: str) -> str:
    """Format a range, such as ``1.2 MB to 9.4 MB``, or one value if both ends are equal."""
    return least if least == most else f"{least} to {most}"


def n_bytes_text(n_bytes: float) -> str:
    """Format a size, such as ``512 B`` or ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 1000.0 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000.0
    raise AssertionError("unreachable")


FOLLOWERS = ("norms, biases and buffers", "storage of")
"""Prefixes of parts that a ledger counts with the parts they belong to."""

LEAST_SHARE = 0.001
"""Minimum share of the bytes for parts that a ledger names."""

LARGE_SHARE = 0.1
"""Smallest share of the bytes of a part that matches nothing, by its sample, that the warning names."""


def ledger_text(parts: Iterable[PartCoverage]) -> str:
    """Say which parts of a model match, were compared and match nothing, and were not compared.

    Returns:
        Text such as ``matches: decoder (23 %); no match: encoder (74 %); not compared: positions (3 %)``, with shares
        of the model's bytes if they are known.
    """
    ledger = tuple(parts)
    groups = (("matches", True), ("no match", False), ("not compared", None))
    texts = [f"{title}: {named}" for title, group in groups if (named := _named_parts(ledger, is_match=group))]
    return "; ".join(texts)


def not_compared_text(parts: Iterable[PartCoverage]) -> str | None:
    """Name the parts of a model that were not compared, with their shares of the bytes; None if there are none."""
    return _named_parts(tuple(parts), is_match=None) or None


def unmatched_share(parts: Iterable[PartCoverage]) -> float | None:
    """Return the share of a model's bytes that were compared and match nothing; None if sizes are unknown."""
    ledger = tuple(parts)
    total = sum(entry.bytes or 0 for entry in ledger)
    if not total or any(entry.bytes is None for entry in ledger):
        return None
    return sum(entry.bytes or 0 for entry in ledger if entry.is_match is False) / total


def unmatched_text(parts: Iterable[PartCoverage]) -> str:
    """Name the large parts of a model that were compared and match nothing; empty if there are none."""
    return _named_parts(tuple(parts), is_match=False, least_share=LARGE_SHARE)


def _named_parts(ledger: tuple[PartCoverage, ...], *, is_match: bool | None, least_share: float = LEAST_SHARE) -> str:
    sizes = [entry.bytes for entry in ledger]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    n_entries = Counter(entry.part for entry in ledger)
    groups: dict[str, list[PartCoverage]] = {}
    for entry in ledger:
        owner = entry.part.partition(" of the ")[2] if entry.part.startswith(FOLLOWERS) else entry.part
        if entry.is_match is is_match:
            key = f"part of the {owner}" if n_entries[owner] > 1 else owner
            groups.setdefault(_reason_of(entry) or key, []).append(entry)
    texts: list[str] = []
    for name, entries in groups.items():
        if all(entry.part.startswith(FOLLOWERS) for entry in entries):
            continue  # its part is treated in another way
        share = sum(entry.bytes or 0 for entry in entries) / total if total else None
        if share is not None and share * _part_per_compared(entries, ledger) < least_share:
            continue
        details = [] if share is None else [percent_text(share)]
        details += ["not loaded by this model"] if entries[0].is_loaded is False else []
        n_tensors = sum(entry.tensors for entry in entries)
        called = f"{counted(n_tensors, 'tensor')} {name}" if _reason_of(entries[0]) else name
        texts.append(f"{called} ({', '.join(details)})" if details else called)
    return ", ".join(texts)


def _part_per_compared(entries: Iterable[PartCoverage], ledger: Iterable[PartCoverage]) -> float:
    """Return the size of the parts in ``entries``, divided by the compared size: a part is large as a whole."""
    names = {entry.part for entry in entries}
    sizes = [(entry.bytes or 0, entry.is_match is not None) for entry in ledger if entry.part in names]
    n_compared = sum(n_bytes for n_bytes, is_compared in sizes if is_compared)
    return sum(n_bytes for n_bytes, _ in sizes) / n_compared if n_compared else 1.0


def _reason_of(entry: PartCoverage) -> str | None:
    """Say why tensors have no place; None for a part with a name."""
    if not entry.part.startswith("unplaced"):
        return None
    return "without a known role" if "known role" in entry.part else f"({entry.reason})"


def percent_text(share: float) -> str:
    """Format a share of the bytes, such as ``77 %`` or ``3.2 %``."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
