"""The words of a verdict, the same in every output."""

from __future__ import annotations

from mdir_hf.report.parts import NeuronNumbers, NumberingResult
from mdir_hf.report.terms import Reason, Verdict

ICON = {Verdict.HOMOLOGOUS: "●", Verdict.NO_EVIDENCE: "○", Verdict.INCONCLUSIVE: "◐"}
"""Full, empty and half: told apart without colour, and none of them a tick or a cross."""

REASON_TEXT = {
    Reason.TOO_FEW_COMMON_TOKENS: "the two vocabularies share too few tokens for even a plain copy to be significant",
    Reason.FEW_SHARED_AXES: "the models agree on a few channels only, as unrelated models with outlier channels can",
    Reason.NULL_NOT_VALIDATED: "the models agree, but the assumptions of this p-value could not be validated",
    Reason.WEIGHTS_UNREADABLE: "what could be compared shows nothing, and the layers could not be compared",
    Reason.TOKENS_UNKNOWN: "nothing was found, and it is not certain which row belongs to which token",
    Reason.STOPPED: "nothing was found in what was read, and the comparison was stopped before it had read the rest",
}

HEADLINE = {
    Verdict.HOMOLOGOUS: "HOMOLOGOUS: the two models share weight ancestry",
    Verdict.NO_EVIDENCE: "NO EVIDENCE of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
}
"""The first line in a terminal, with a word that scripts can look for."""

SENTENCE = {
    Verdict.HOMOLOGOUS: "The two models share weight ancestry",
    Verdict.NO_EVIDENCE: "No evidence of shared weight ancestry was found",
    Verdict.INCONCLUSIVE: "The comparison is inconclusive",
}

MEANS = {
    Verdict.HOMOLOGOUS: (
        "Models trained independently agree this well with a probability of at most p, and p is below the level alpha "
        "that was fixed before looking. The weights of the two have a common origin: one was made from the other, or "
        "both from a third, or both began from the same random initialisation."
    ),
    Verdict.NO_EVIDENCE: (
        "Where this comparison looked, the two models agree as little as models that were trained independently."
    ),
    Verdict.INCONCLUSIVE: "For this pair the question could not be answered either way, for the reason given.",
}

MEANS_STANDING_AXES = (
    "The two models agree more strongly or more cleanly than any unrelated models that were simulated or measured. The "
    "weights of the two have a common origin: one was made from the other, or both from a third, or both began from "
    "the same random initialisation."
)

MEANS_SAME_FILES = "The weight files of the two models are the same, byte for byte."

P_IS_NO_MEASURE = "p does not measure how much is shared: log10 p of -300 and of -7000 are both overwhelming."

DOES_NOT_MEAN = {
    Verdict.HOMOLOGOUS: (
        "It has no direction: the weights do not say which model came first.",
        "It does not say whether the common origin was declared or allowed: that is not looked at.",
        P_IS_NO_MEASURE,
        "A shared random seed is enough for a common origin.",
    ),
    Verdict.NO_EVIDENCE: (
        "It is not evidence against shared ancestry: a model that was trained until nothing is left, or changed in "
        "a way that is not looked for, is not found.",
        "It says nothing about distillation, shared data or a shared tokenizer, which are not weight ancestry.",
    ),
    Verdict.INCONCLUSIVE: (
        "It speaks neither for nor against shared ancestry.",
        "It is not a weak form of another verdict: what would settle it was not there to be read.",
    ),
}

_NO_DIRECTION = "It has no direction, and a shared random seed counts as shared ancestry."

MEANING = f"p bounds the chance of such agreement between independently trained models. {_NO_DIRECTION}"

MEANING_NUMBERING = (
    "Channels and neurons of independently trained models agree in their numbers with at most this probability, unless "
    f"somebody arranged the numbers. {_NO_DIRECTION}"
)

MEANING_STANDING_AXES = f"p says how much agreed; it bounds no chance for this pair. {_NO_DIRECTION}"

THE_SAME_FILES = "the same files"

SAME_FILES = "Equal files need no p-value. That they are equal has no direction."


UNLESS_ROTATED = "unless its channels were rotated"
"""The condition of what the embeddings exclude: they are compared channel by channel."""

UNLESS_RENUMBERED = "whatever its embeddings, unless its neurons were reordered or left out"
"""The condition of what neurons by number exclude."""

UNLESS_IN_ANOTHER_BASIS = "unless its channels were rotated, or reordered under new embeddings"
"""The condition of what embeddings and layers exclude: layers are compared in a residual basis, that of the other model
or one that the embeddings show."""


def agreement_text(channels: tuple[int, int] | None) -> str:
    """How much of two models agrees, where p bounds nothing.

    Args:
        channels: How many match one by one, out of how many; None: not known.
    """
    if channels is None:
        return "how many channels match is not known"
    if 2 * channels[0] < channels[1]:
        return "the channels match as a whole"
    return f"{channels[0]:,} of {channels[1]:,} channels match"


def numbering_text(found: NumberingResult) -> str:
    """How the numbers of channels agree, and what independently trained models would do."""
    if found.own_number >= found.in_order:
        said = f"{found.own_number:,} of {found.pairs:,} paired channels have their own number"
        chance = f"at most one pair in {found.own_number:,}! would"
    else:
        said = f"{found.in_order:,} of {found.pairs:,} paired channels are in the order of their numbers"
        chance = f"at most one pair in 10^{-found.log10_p:,.0f} would"
    if found.log10_p > -1.0:
        return f"{said}, as those of independently trained models may be"
    return f"{said}; of independently trained models {chance}"


def neurons_text(found: NeuronNumbers) -> str:
    """How the numbers of tested neurons agree, and what independently trained models would do."""
    n_layers = len(found.matches)
    n_own, n_tested = found.own_in_matches, found.tested * n_layers
    share = f"all {n_tested:,}" if n_own == n_tested else f"{n_own:,} of {n_tested:,}"
    n_compared = len(found.candidate_layers)
    places = f"{n_layers} layers" if n_layers == n_compared else f"{n_layers} of the {n_compared} layers compared"
    if n_layers == 1:
        (i, j), *_ = found.matches
        places = f"layer {i}" if i == j else f"layer {i} of the reference and layer {j} of the candidate"
        places += f", one of {n_compared} compared," if n_compared > 1 else ""
    return (
        f"{share} neurons that were tested in {places} have their own number; of independently trained models "
        f"at most one pair in 10^{-found.log10_p:,.0f} would"
    )


def n_bytes_text(n_bytes: float) -> str:
    """A size for people: 512 B, 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 1000.0 or unit == "GB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000.0
    raise AssertionError("unreachable")
