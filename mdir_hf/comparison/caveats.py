"""The caveats of a report: sentences that go with a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mdir_hf.model.comparable import Comparable, have_one_vocabulary
from mdir_hf.model.roles import Role
from mdir_hf.report import Assumption, LayersResult, Level, MatrixResult, NeuronNumbers, ResidualMap

SAME_FILES = (
    "The weight files of both are one file on this disk, or have one SHA-256; p is the chance that digests agree."
)
NO_LAYERS = "One of the models has no layers, so the verdict rests on copied rows of its embeddings alone."
COPIED_COSINE = 0.7
"""Mean cosine of paired rows, from which they are copies. Strangers that were turned to match reach 0.48, and the
tuned, continued and distilled relatives whose rows are still copies have 0.74 and more
(``benchmarks/real/framing``)."""
STOPPED_BEFORE_LAYERS = "The layers were not compared: the comparison was stopped first."
STOPPED_BEFORE_NEURONS = "The neurons of only some layers were compared: the comparison was stopped first."
STOPPED_BEFORE_UNEMBEDDINGS = "The unembeddings (lm_head) were not compared: the comparison was stopped first."
NO_COMMON_MATRIX = (
    "No embeddings or unembeddings (lm_head) were compared: one of the models has none of its own. Its layers were, "
    "where the level asks for them (auto, layers)."
)
UNRELATED_STREAMS = "The layers were not compared: nothing relates the two residual streams."

VOCABULARY_AS_ASKED = "The vocabulary of {model} was read from {place}, as asked."
ROWS_PAIRED_BY_NUMBER = (
    "No tokenizer files in {models}: rows were paired by their number, whatever their tokens. Any pairing keeps the "
    "p-value valid, but relatives are missed where the ids differ. Name a repository or folder that has the tokenizer "
    "(--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
)

SHUFFLED_LAYERS_AGREE = (
    "Layers are significant even with the residual channels of one model shuffled, as happens where rows of both have "
    "few large entries (sparse or heavily pruned weights): the map's p-value does not count."
)
RE_PAIRED_AGREE = "The placebo with re-paired tokens is significant, and it should not be."

_OF_RESIDUAL_MAP = {
    ResidualMap.IDENTITY: (
        "The embeddings do not agree and the layers do, in the same residual basis: as after a change of tokenizer or "
        "a retraining of the embeddings."
    ),
    ResidualMap.ROTATION: (
        "The layers agree once the residual stream of one model is rotated into that of the other. The rotation was "
        "fitted on the {fitted_on} and is no evidence by itself."
    ),
}
_NEW_EMBEDDINGS = (
    "The embeddings do not agree and the layers do, in a residual basis that was found on their own keys: as after a "
    "change of tokenizer in a model whose channels were permuted, cut or turned."
)


def of_weights(*models: Comparable) -> tuple[str, ...]:
    """What is known about the weights of models, each as a sentence that names its model."""
    sentences = []
    for model in models:
        for note in model.tensors.description.notes:
            sentence = note if note.startswith(model.label) else f"{model.label}: {note}"
            sentences.append(sentence if sentence.endswith(".") else f"{sentence}.")
    return tuple(sentences)


def of_equal_files(n_same: int) -> str:
    """Some weight files are equal, and not all."""
    return f"{n_same} weight files are the same bytes in both; this did not enter the p-value."


def of_channel_numbers(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Which test was left out because an architecture gives the number of a channel a meaning."""
    anatomies = (reference.anatomy, candidate.anatomy)
    if anatomies[0].embedding_size != anatomies[1].embedding_size:
        return ()  # there is no such test
    meanings = {each.architecture: each.channel_numbers for each in anatomies if each.channel_numbers is not None}
    return tuple(
        f"The channels were not tested in their own order, in which strangers may agree here: in {architecture} "
        f"{meaning}."
        for architecture, meaning in meanings.items()
    )


def of_contradicting_tokenizers(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Where the tokenizer files of a model contradict each other, as sentences that name the model."""
    if have_one_vocabulary(reference, candidate):
        return ()  # whichever file is right, rows of the same number are rows of the same token
    return tuple(
        f"The tokenizer files of {model.label} contradict each other: {doubt}. If they are not those of its weights, "
        "name the right ones (--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
        for model in (reference, candidate)
        for doubt in model.vocabulary_doubts()
    )


def of_matrix(matrix: MatrixResult, assumption: Assumption) -> tuple[str, ...]:
    """Explain a finding to which a pair of matrices contributes."""
    sentences = []
    if matrix.rows_are_equal:
        sentences.append("All rows that were looked at first are equal in both models, number by number.")
    if assumption is Assumption.CALIBRATION:
        sentences.append(
            "No probability is printed: neither the channels nor the neurons kept their numbers, and the bound on the "
            "trace asks for a model without privileged axes, which no test can establish. The verdict rests on how "
            f"strong and clean the match is (trace over rank {matrix.strength:.2f}, {matrix.off_match_share:.2f} "
            "off-match hits per matched channel) and on neurons that agree. No pair of unrelated models that was "
            "simulated or measured for this method matched like this."
        )
    if matrix.log10_p_signs is not None:
        sentences.append(
            "The channels agree in their own order, all of them together; hardly any is significant by itself. "
            "Possible causes: common weights after long training or noise; a new tokenizer whose embeddings were "
            "computed from the old ones; two models that share only the numbers they were initialised with (same "
            "code, same seed, for example the default seed 42)."
        )
    return tuple(sentences)


def weak_match_on_axes(matrix: MatrixResult) -> str:
    """A match that shared axes can make."""
    what = (
        f"Axes stand out in both models (z = {_z(matrix)})"
        if matrix.both_privileged
        else "The architectures of both models give the numbers of their channels a meaning"
    )
    return (
        f"{what}, and the match is neither strong (trace over rank {matrix.strength:.2f}) nor clean "
        f"({matrix.off_match_share:.2f} off-match hits per matched channel). Unrelated models whose axes carry some "
        "of the same features look like this, too."
    )


def _z(matrix: MatrixResult) -> str:
    return f"{matrix.basis_z[0]:.0f} and {matrix.basis_z[1]:.0f}"


def few_axes(matrix_name: str) -> str:
    """A few channels of a matrix agree, and the layers do not."""
    return (
        f"The {matrix_name}s agree on a few channels only, and not without them: models that were trained "
        "independently on like data share some axes. The layers were compared, and show nothing."
    )


def of_layers(layers: LayersResult) -> tuple[str, ...]:
    """What to know of a verdict that rests on the layers."""
    sentence = _OF_RESIDUAL_MAP.get(layers.residual_map)
    said = () if sentence is None else (sentence.format(fitted_on=layers.fitted_on),)
    shows_embeddings = layers.residual_map is ResidualMap.IDENTITY or layers.fitted_on == "embeddings"
    return said if shows_embeddings else (*said, _NEW_EMBEDDINGS)


def of_neurons(neurons: NeuronNumbers, *, settles: bool) -> tuple[str, ...]:
    """Describe the second witness of a finding.

    Args:
        neurons: The witness.
        settles: Whether the verdict rests on neurons alone.
    """
    n, n_candidate = len(neurons.reference_layers), len(neurons.candidate_layers)
    which = f"{n} of the reference, {n_candidate} of the candidate"
    search = "Their partners were looked for among all neurons of the layer first. " if neurons.is_searched else ""
    alone = " Only neurons decide this verdict." if settles else ""
    return (
        f"{neurons.tested} neurons of each layer that was looked at ({which}) were compared by gate and up, and "
        f"separately by down, behind rotations that were fitted on {neurons.fitted} other neurons. {search}The sample "
        f"was drawn after both models were open.{alone}",
    )


def of_uncertain_neurons(neurons: NeuronNumbers) -> str:
    """More neurons have their own number than chance allows, and no pair of layers passes the whole test."""
    most = max(map(max, neurons.own_number))
    by_down = 0 if neurons.own_number_by_down is None else max(map(max, neurons.own_number_by_down))
    down = f", and at most {by_down} by down" if neurons.own_number_by_down is not None else ""
    return (
        "Neurons have their own number more often than in independently trained models "
        f"(log10 p {neurons.log10_p:.0f}, at most {most} of {neurons.tested} in a pair of layers by gate and up{down})"
        ", but in no pair do three quarters agree by both. A part of the neurons may be common, or the numbers were "
        "arranged."
    )


def of_idle_neurons(neurons: NeuronNumbers) -> str:
    """Copied rows that do nothing."""
    layers = ", ".join(str(pair.candidate) for pair in neurons.idle)
    return (
        f"One model contains copied rows that do nothing: in layers {layers} of the candidate, neurons agree by gate "
        "and up and write next to nothing. Such rows do not change what a model computes, so they are no evidence of "
        "ancestry."
    )


def of_embeddings_only(
    matrices: Mapping[str, MatrixResult], level: Level, neurons: NeuronNumbers | None, *, layers_agree: bool
) -> tuple[str, ...]:
    """Explain why agreeing embeddings are not enough, and what would settle the question."""
    sentences = []
    for name, matrix in matrices.items():
        if matrix.settled_by is None or matrix.cosine is None:
            continue
        if matrix.cosine >= COPIED_COSINE:
            if layers_agree:
                layers = "some projections of the layers agree, too"
            else:
                layers = "no neurons of the layers were compared" if neurons is None else "no layer that was read is"
            sentences.append(
                f"The {name}s are shared (mean cosine of paired rows {matrix.cosine:.2f}); {layers}. A model whose "
                f"{name} was copied and whose layers were trained anew looks like this."
            )
        else:
            sentences.append(
                f"The {name}s agree and are no copies (mean cosine of paired rows {matrix.cosine:.2f}; unrelated "
                "models that were turned to match reach 0.48). Possible causes: common weights after long training or "
                "strong noise, training towards the hidden states of the other model, or a rotation on purpose."
            )
    if neurons is None:
        sentences.append(
            "Neurons of the two models could not be compared with each other, so no second witness exists."
        )
    elif not level.may_read_layers:
        sentences.append(
            f"Level {level} compares neurons by number only; level auto also searches neurons that were reordered."
        )
    else:
        sentences.append(
            "Neurons of the layers do not agree. An earlier checkpoint, the common base or the training data of both "
            "models would settle the question."
        )
    return tuple(sentences)


def of_layers_unconfirmed(layers: LayersResult, neurons: NeuronNumbers | None) -> tuple[str, ...]:
    """Explain why an agreeing layer map is not enough."""
    why = (
        "neurons of the two models could not be compared"
        if neurons is None
        else "the neurons of those layers do not agree"
    )
    return (
        *of_layers(layers),
        f"The layers agree by their {layers.role.words}, and {why}. Attention and its bases can be turned freely "
        "without changing what a model computes, so they are no second witness. A model whose attention was kept and "
        "whose MLPs were replaced looks like this.",
    )


def of_neuron_numbers(*models: Comparable) -> tuple[str, ...]:
    """Why the numbers of neurons were left out."""
    return tuple(
        f"The numbers of neurons were not compared: in {model.anatomy.architecture} {model.anatomy.neuron_numbers}."
        for model in models
        if model.anatomy.neuron_numbers is not None
    )


def of_other_experts(*models: Comparable, are_sets_compared: bool) -> tuple[str, ...]:
    """A "no" on mixtures of experts compared few experts, or few neurons of each."""
    what = (
        "a few neurons of every expert of two layers of {0} were compared, by their numbers. A model that shares only "
        "experts of other layers, or experts whose neurons were reordered, would not have been found."
        if are_sets_compared
        else "at most the first expert of each layer of {0} was compared. A model that shares only other experts would "
        "not have been found."
    )
    return tuple(
        what[0].upper() + what[1:].format(model.label)
        for model in models
        if any(len(layer.experts) + len(layer.shared_experts) > 1 for layer in model.anatomy.layers)
    )


def off_match_layers(layers: LayersResult) -> str:
    """Too many pairs of layers off the map are significant."""
    return (
        f"{layers.off_match_share:.0%} of the layer pairs off the map are significant, too. Neighbouring layers of one "
        "model resemble each other, and so do layers of two models that descend from different layers of a common "
        "ancestor. So no layer is said to match another, and the map's p-value does not count."
    )


def rotation_not_supported(layers: LayersResult) -> str:
    """Layers agree after a fitted rotation only, in tests that shared features reach."""
    return (
        f"Layers agree only after a rotation fitted on the {layers.fitted_on}. Not every analysed layer is significant "
        "in a test that small unrelated models did not reach (head subspaces, frequencies, neurons)."
    )


def of_no_evidence(matrices: Mapping[str, MatrixResult], level: Level, layers: LayersResult | None) -> tuple[str, ...]:
    """What a "no" did not look at."""
    said = []
    read = next(iter(matrices.values()), None)
    if read is not None and level.is_screen_only and read.rows_used < read.common_tokens:
        said.append(
            f"Only {read.rows_used} of {read.common_tokens} common tokens were looked at (level screen); heavily "
            "trained relatives need the full test."
        )
    if read is not None and read.common_tokens < min(read.widths):
        said.append(
            f"The models share {read.common_tokens} tokens, fewer than they have channels, which makes the test weak."
        )
    if layers is None:
        said.append(
            f"The layers were not compared (level {level}). A model whose embeddings were retrained, or whose residual "
            "stream was rotated, is found at level auto or layers."
        )
    return tuple(said)


def of_failed_layers(error: Exception) -> str:
    """The layers cannot be told apart, or not be read."""
    return f"The layers were not compared: {error}."


def of_layers_not_analysed(n_left: int) -> str:
    """Stopped while matched layers were analysed."""
    return f"{n_left} matched pairs of layers were not analysed: the comparison was stopped first."


def of_empty_layers(role: Role, n_empty: int, n_layers: int, model: str) -> str:
    """What stands for a layer is all zeros in most of them."""
    return (
        f"The layers were not compared: {role.value}, which stands for a layer, is all zeros in {n_empty} of "
        f"{n_layers} layers of {model}."
    )


def of_left_out_layers(n_compared: Sequence[int], n_layers: Sequence[int]) -> tuple[str, ...]:
    """Of how many layers of a model only some were compared.

    Args:
        n_compared: Of the reference, and of the candidate.
        n_layers: Likewise, all that could be compared.
    """
    return tuple(
        f"Of the {n_all} layers of the {which} model {n} were compared, with all of the other's. A model that shares "
        "only the others would not have been found: level layers compares all."
        for which, n, n_all in zip(("reference", "candidate"), n_compared, n_layers, strict=True)
        if n < n_all
    )


def of_long_rows(matrix_name: str, which: str, n_long: int, n_rows: int) -> str:
    """Rows that were left out for their length."""
    return (
        f"{matrix_name}: of the {n_rows:,} rows looked at {n_long:,} of the {which} model are over 1,000 times as long "
        "as most, and were left out."
    )
