"""Texts about a verdict, shared by all outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mdir_hf.report.optional_parts import PartCoverage, Treatment
from mdir_hf.report.parts import NeuronNumbers, NumberingResult, PrintedAlgorithm1
from mdir_hf.report.terms import Reason, Verdict

ICON = {Verdict.HOMOLOGOUS: "●", Verdict.NO_EVIDENCE: "○", Verdict.INCONCLUSIVE: "◐"}
"""Filled, empty and half-filled circles, which can be told apart without colour."""

REASON_TEXT = {
    Reason.TOO_FEW_COMMON_TOKENS: "the two vocabularies share too few tokens for even a plain copy to be significant",
    Reason.FEW_SHARED_AXES: "only a few channels agree, as they can in unrelated models with outlier channels",
    Reason.NULL_NOT_VALIDATED: "the models agree, but the assumptions of this p-value could not be validated",
    Reason.WEIGHTS_UNREADABLE: "no evidence was found in the readable parts, and the layers could not be compared",
    Reason.TOKENS_UNKNOWN: "no evidence was found, and the assignment of rows to tokens is uncertain",
    Reason.STOPPED: "no evidence was found in the parts that were read, and the comparison was stopped before the rest",
    Reason.EMBEDDINGS_ONLY: (
        "the embeddings agree but no layer confirms it; they may be shared, trained to match, or rotated to match on "
        "purpose"
    ),
    Reason.LAYERS_UNCONFIRMED: (
        "some parts of the models agree, but they can be rotated to match without copying, and no neurons of the "
        "layers confirm it"
    ),
    Reason.SAMPLE_CHOSEN: (
        "the models agree on a sample of neurons that was chosen by a given seed; this reproduces a report but is "
        "not independent evidence"
    ),
}

HEADLINE = {
    Verdict.HOMOLOGOUS: "HOMOLOGOUS: the two models share weight ancestry",
    Verdict.NO_EVIDENCE: "NO EVIDENCE of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
}
"""First line of the terminal output, with a keyword for scripts."""

SENTENCE = {
    Verdict.HOMOLOGOUS: "The two models share weight ancestry",
    Verdict.NO_EVIDENCE: "No evidence of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "The comparison is inconclusive",
}

MEANS = {
    Verdict.HOMOLOGOUS: (
        "The weights of the two models have a common origin: one was made from the other, or both from a third, or "
        "both began from the same random initialisation. The probability that independently trained models agree this "
        "well is at most p, and p is below the level alpha that was fixed in advance."
    ),
    Verdict.NO_EVIDENCE: (
        "In the parts that this comparison read, the two models agree as little as independently trained models."
    ),
    Verdict.INCONCLUSIVE: "For this pair the question could not be answered either way, for the reason given.",
}

MEANS_STANDING_AXES = (
    "The weights of the two models have a common origin: one was made from the other, or both from a third, or both "
    "began from the same random initialisation. They agree more strongly or more cleanly than any unrelated models "
    "that were simulated or measured, and so do neurons of their layers."
)

MEANS_SAME_FILES = "The weight files of the two models are the same, byte for byte."

P_IS_NO_MEASURE = "p does not measure how much is shared: log10 p of -300 and of -7000 are both overwhelming."

DISTILLATION = (
    "Distillation is not weight ancestry. A student of another model's outputs looks like a stranger; one that was "
    "trained towards its hidden states may have embeddings that agree, but its neurons do not."
)

DOES_NOT_MEAN = {
    Verdict.HOMOLOGOUS: (
        "A comparison has no direction. Rounding, doubled layers and new tokens are facts that show one; a report "
        "lists those that it has.",
        "It does not judge whether the common origin was allowed.",
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

NO_DIRECTION = "A comparison has no direction"
ONLY_FACTS = "p has no direction; the facts under direction show one"
"""Text that replaces :data:`NO_DIRECTION` in reports with facts about weights."""

_NO_DIRECTION = f"{NO_DIRECTION}, and a shared random seed counts as shared ancestry."

MEANING = f"p bounds the probability of such agreement between independently trained models. {_NO_DIRECTION}"

MEANING_NUMBERING = (
    "Channels and neurons of independently trained models agree in their numbers with at most this probability, unless "
    f"the numbers were arranged on purpose. {_NO_DIRECTION}"
)

MEANING_STANDING_AXES = f"No probability is printed, because none of the bounds holds for this pair. {_NO_DIRECTION}"

MEANING_NOTHING = "Nothing was found that is significant at the level alpha."

MEANING_PARTS_ONLY = "Between the language models, no match was significant at the level alpha."

MEANING_INCONCLUSIVE = "No p is printed, because the question could not be answered."

THE_SAME_FILES = "the same files"

SAME_FILES = "Equal files need no p-value. A comparison has no direction."

UNLESS_ROTATED = "unless its channels were rotated"
"""Exception to the claim that the embeddings exclude a copy; they are compared channel by channel."""

UNLESS_RENUMBERED = "whatever its embeddings, unless its neurons were reordered or left out"
"""Exception to the claim that the neurons exclude a copy."""

UNLESS_IN_ANOTHER_BASIS = "unless its channels were rotated, or reordered under new embeddings"
"""Exception to the claim that embeddings and layers exclude a copy. Layers are compared in unchanged residual bases or
with a map found from the embeddings."""


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


def agreement_text(channels: tuple[int, int] | None) -> str:
    """Say how many channels match one by one, given the counts of matching and of all channels."""
    if channels is None:
        return "how many channels match is not known"
    if 2 * channels[0] < channels[1]:
        return "the channels match as a whole"
    return f"{channels[0]:,} of {channels[1]:,} channels match"


def correlation_text(noise: float) -> str:
    """Format the smallest detectable correlation between weights, given the excluded noise."""
    return f"{max(0.01, 1.0 / math.sqrt(1.0 + noise * noise)):.2f}"


def probability_text(log10_p: float) -> str:
    """Format a probability as a rounded-up power of ten, such as ``10^-1,340``."""
    return f"10^{math.ceil(log10_p):,.0f}"


def numbers_text(numbering: NumberingResult) -> str:
    """Say how many channels kept their number or order."""
    if numbering.own_number >= numbering.in_order:
        counts = f"{numbering.own_number:,} of {numbering.pairs:,} paired channels kept their number"
    else:
        counts = f"{numbering.in_order:,} of {numbering.pairs:,} paired channels are in the order of their numbers"
    return counts if numbering.log10_p <= -1.0 else f"{counts}, which independent training can produce, too"


def chance_text(log10_p: float) -> str:
    """State the bound on the probability that independent models agree this well."""
    return f"for independently trained models the probability of this is at most {probability_text(log10_p)}"


def numbering_text(numbering: NumberingResult) -> str:
    """Say how many channels kept their number or order, and how likely this is by chance."""
    text = numbers_text(numbering)
    return text if numbering.log10_p > -1.0 else f"{text}; {chance_text(numbering.log10_p)}"


def matched_neurons_text(neurons: NeuronNumbers) -> str:
    """Say how many neurons agree, such as ``all 128 neurons that were tested in 2 layers kept their number``."""
    n_layers = len(neurons.matches)
    n_own, n_tested = neurons.own_in_matches, neurons.tested * n_layers
    share = f"all {n_tested:,}" if n_own == n_tested else f"{n_own:,} of {n_tested:,}"
    n_compared = len(neurons.candidate_layers)
    places = f"{n_layers} layers" if n_layers == n_compared else f"{n_layers} of the {n_compared} layers compared"
    if n_layers == 1:
        (i, j), *_ = neurons.matches
        places = f"layer {i}" if i == j else f"layer {i} of the reference and layer {j} of the candidate"
        places += f", one of {n_compared} compared," if n_compared > 1 else ""
    if neurons.is_searched:
        return f"{share} neurons that were tested in {places} match, in another order"
    return f"{share} neurons that were tested in {places} kept their number"


def neurons_text(neurons: NeuronNumbers) -> str:
    """Say how many tested neurons agree, and how likely this is by chance."""
    if neurons.is_searched:
        return matched_neurons_text(neurons)
    return f"{matched_neurons_text(neurons)}; {chance_text(neurons.log10_p)}"


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


FOLLOWERS = ("norms, biases and buffers", "storage")
"""Prefixes of parts that :func:`not_compared_text` omits, because they are treated like the parts they belong to."""

LEAST_SHARE = 0.001
"""Minimum share of the bytes for parts that :func:`not_compared_text` names."""


def not_compared_text(parts: Iterable[PartCoverage]) -> str | None:
    """Name the parts of a model that were not compared, with their shares of the bytes.

    Returns:
        Text such as ``vision tower (24 layers, 12 % of the bytes), connector (3 %)``, or None if there are none.
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
