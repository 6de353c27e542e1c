"""Write the caveats that qualify a report's verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mdir_hf.model.comparable import Comparable, have_one_vocabulary
from mdir_hf.model.roles import Role
from mdir_hf.report import Assumption, LayersResult, Level, MatrixResult, NeuronNumbers, ResidualMap

SAME_FILES = "Both models have the same weight files (one file on this disk, or equal SHA-256 digests)."
NO_LAYERS = "One of the models has no layers, so the verdict rests on copied rows of its embeddings alone."
STOPPED_BEFORE_LAYERS = "The layers were not compared: the comparison was stopped before that."
STOPPED_BEFORE_NEURONS = "The neurons of only some layers were compared: the comparison was stopped before that."
STOPPED_BEFORE_UNEMBEDDINGS = "The unembeddings (lm_head) were not compared: the comparison was stopped before that."
NO_COMMON_MATRIX = (
    "No embeddings or unembeddings (lm_head) were compared, because one of the models has none of its own. The layers "
    "were compared if the level includes them (auto, layers)."
)
UNRELATED_STREAMS = "The layers were not compared: no map between the two residual streams was found."

VOCABULARY_AS_ASKED = "The vocabulary of {model} was read from {place}, as requested."
ROWS_PAIRED_BY_NUMBER = (
    "No tokenizer files in {models}: rows were paired by number, regardless of their tokens. The p-value is valid for "
    "any pairing, but relatives whose token ids differ are missed. Name a repository or folder that has the tokenizer "
    "(--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
)

SHUFFLED_LAYERS_AGREE = (
    "Layers are significant even after the residual channels of one model are shuffled. This happens if rows of both "
    "models have few large entries (sparse or heavily pruned weights). The map's p-value is disregarded."
)
RE_PAIRED_AGREE = "The placebo with re-paired tokens is significant. It should not be."

_OF_RESIDUAL_MAP = {
    ResidualMap.IDENTITY: (
        "The layers agree in the same residual basis, but the embeddings do not. A new tokenizer or retrained "
        "embeddings can cause this."
    ),
    ResidualMap.ROTATION: (
        "The layers agree once the residual stream of one model is rotated into the stream of the other. The rotation "
        "was fitted on the {fitted_on} and is not evidence in itself."
    ),
}
_NEW_EMBEDDINGS = (
    "The layers agree in a residual basis fitted on their own keys, but the embeddings do not agree. A new "
    "tokenizer in a model whose channels were permuted, removed or rotated can cause this."
)


def of_weights(*models: Comparable) -> tuple[str, ...]:
    """Return the notes about each model's weights, as sentences that name the model."""
    sentences = []
    for model in models:
        for note in model.tensors.description.notes:
            sentence = note if note.startswith(model.label) else f"{model.label}: {note}"
            sentences.append(sentence if sentence.endswith(".") else f"{sentence}.")
    return tuple(sentences)


def of_equal_files(n_same: int) -> str:
    """Explain that some, but not all, weight files are equal."""
    files = "1 weight file is" if n_same == 1 else f"{n_same} weight files are"
    return f"{files} byte-for-byte identical in both models; the p-value ignores this."


def of_channel_numbers(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Explain that channels were not tested by number, because unrelated models may number them alike."""
    anatomies = (reference.anatomy, candidate.anatomy)
    if anatomies[0].embedding_size != anatomies[1].embedding_size:
        return ()  # the test does not apply
    meanings = {
        anatomy.architecture: anatomy.channel_numbers for anatomy in anatomies if anatomy.channel_numbers is not None
    }
    return tuple(
        "The channels were not tested in their own order, because even unrelated models may agree in it: in "
        f"{architecture}, {meaning}."
        for architecture, meaning in meanings.items()
    )


def of_contradicting_tokenizers(reference: Comparable, candidate: Comparable) -> tuple[str, ...]:
    """Describe contradictions between the tokenizer files of each model."""
    if have_one_vocabulary(reference, candidate):
        return ()  # whichever file is right, rows with the same number are rows of the same token
    return tuple(
        f"The tokenizer files of {model.label} contradict each other: {doubt}. If they do not belong to its weights, "
        "name the right ones (--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
        for model in (reference, candidate)
        for doubt in model.vocabulary_doubts()
    )


def of_matrix(matrix: MatrixResult, assumption: Assumption) -> tuple[str, ...]:
    """Explain a verdict that rests on a pair of matrices."""
    sentences = []
    if matrix.rows_are_equal:
        sentences.append("All rows of the first look are identical in both models, value for value.")
    if assumption is Assumption.CALIBRATION:
        sentences.append(
            "No probability is printed: neither the channels nor the neurons kept their numbers, and the bound on the "
            "trace assumes a model without privileged axes, which no test can establish. The verdict rests on how "
            f"strong and clean the match is (trace over rank {matrix.strength:.2f}, {matrix.off_match_share:.2f} "
            "off-match hits per matched channel) and on neurons that agree. No pair of unrelated models that was "
            "simulated or measured for this method matched like this."
        )
    if matrix.log10_p_signs is not None:
        sentences.append(
            "All channels together agree in their own order, but hardly any is significant by itself. Possible causes: "
            "shared weights that were then trained for long or perturbed by noise; a new tokenizer whose embeddings "
            "were computed from the old ones; two models that share only their random initialisation (same code, same "
            "seed, for example the default seed 42)."
        )
    return tuple(sentences)


def weak_match_on_axes(matrix: MatrixResult) -> str:
    """Describe a matrix match that shared axes alone could explain."""
    reason = (
        f"Axes stand out in both models (z = {_z(matrix)})"
        if matrix.both_privileged
        else "In both architectures, a channel's number has a meaning"
    )
    return (
        f"{reason}, and the match is neither strong (trace over rank {matrix.strength:.2f}) nor clean "
        f"({matrix.off_match_share:.2f} off-match hits per matched channel). Unrelated models whose axes carry some "
        "of the same features look like this, too."
    )


def _z(matrix: MatrixResult) -> str:
    return f"{matrix.basis_z[0]:.0f} and {matrix.basis_z[1]:.0f}"


def few_axes(matrix_name: str) -> str:
    """Explain that a few channels of a matrix agree, but the layers do not."""
    return (
        f"Only a few channels of the {matrix_name}s agree; without them there is no agreement. Models that were "
        "trained independently on similar data share some axes. The layers were compared and show no agreement."
    )


def of_layers(layers: LayersResult) -> tuple[str, ...]:
    """Describe a verdict that rests on the layers."""
    sentence = _OF_RESIDUAL_MAP.get(layers.residual_map)
    sentences = () if sentence is None else (sentence.format(fitted_on=layers.fitted_on),)
    shows_embeddings = layers.residual_map is ResidualMap.IDENTITY or layers.fitted_on == "embeddings"
    return sentences if shows_embeddings else (*sentences, _NEW_EMBEDDINGS)


def of_neurons(neurons: NeuronNumbers, *, settles: bool) -> tuple[str, ...]:
    """Describe the agreement of neurons; ``settles`` is true if the verdict rests on it alone."""
    n, n_candidate = len(neurons.reference_layers), len(neurons.candidate_layers)
    which = f"{n} of the reference, {n_candidate} of the candidate"
    search = "Their partners were first searched for among all neurons of the layer. " if neurons.is_searched else ""
    alone = " This verdict rests on the neurons alone." if settles else ""
    looked = f"{neurons.tested} neurons of each sampled layer ({which}) were compared by"
    if neurons.nominated is not None:
        n_pairs = len(neurons.nominated)
        stood_out = (
            "The pair of layers that stood out was"
            if n_pairs == 1
            else (f"The {n_pairs} pairs of layers that stood out were")
        )
        looked += f" up alone. {stood_out} compared again by {neurons.tested} other neurons of each layer, by"
    return (
        f"{looked} gate and up, and separately by down, after rotations fitted on {neurons.fitted} other "
        f"neurons. {search}The sample was drawn after both models were open.{alone}",
    )


def of_uncertain_neurons(neurons: NeuronNumbers) -> str:
    """Explain that more neurons kept their numbers than expected, but no pair of layers passed the full test."""
    most = max(map(max, neurons.own_number))
    by_down = 0 if neurons.own_number_by_down is None else max(map(max, neurons.own_number_by_down))
    down = f", and at most {by_down} by down" if neurons.own_number_by_down is not None else ""
    rows = "gate and up" if neurons.nominated is None else "up" if not neurons.nominated else "up, or gate and up"
    return (
        "Neurons match the neuron with the same number more often than in independently trained models "
        f"(log10 p {neurons.log10_p:.0f}, at most {most} of {neurons.tested} in a pair of layers by {rows}{down})"
        ", but in no pair do three quarters agree by both. Some of the neurons may be shared, or the numbers may "
        "have been arranged."
    )


def of_idle_neurons(neurons: NeuronNumbers) -> str:
    """Explain that copied rows may have no effect on a model's output."""
    layers = ", ".join(str(pair.candidate) for pair in neurons.idle)
    return (
        f"One model contains copied rows that do little or nothing: in layers {layers} of the candidate, neurons agree "
        "in gate and up, but biases or shifted gates can keep them shut, or they write little compared with other "
        "neurons or layers of their model. Such rows need not change what a model computes, so they are not evidence "
        "of ancestry."
    )


def of_embeddings_only(
    matrices: Mapping[str, MatrixResult],
    level: Level,
    neurons: NeuronNumbers | None,
    *,
    copied: Collection[str],
    layers_agree: bool,
) -> tuple[str, ...]:
    """Explain why matching embeddings are not sufficient; ``copied`` names the matrices whose rows are copies."""
    sentences = []
    for name, matrix in matrices.items():
        if matrix.settled_by is None or matrix.cosine is None:
            continue
        if name in copied:
            if layers_agree:
                layers = "some projections of the layers agree, too"
            else:
                layers = (
                    "no neurons of the layers were compared"
                    if neurons is None
                    else "none of the layers that were read are"
                )
            sentences.append(
                f"The {name}s are shared (mean cosine of paired rows {matrix.cosine:.2f}); {layers}. A model with a "
                f"copied {name} and independently trained layers looks like this."
            )
        else:
            sentences.append(
                f"The {name}s agree but are not copies (mean cosine of paired rows {matrix.cosine:.2f}; unrelated "
                "models that were rotated to match reach 0.48). Possible causes: shared weights that were then trained "
                "for long or perturbed by strong noise, training towards the hidden states of the other model, or a "
                "deliberate rotation."
            )
    if neurons is None:
        sentences.append(
            "Neurons of the two models could not be compared with each other, so there is no second witness."
        )
    elif not level.may_read_layers:
        sentences.append(
            f"Level {level} compares neurons by number only; level auto also searches for reordered neurons."
        )
    else:
        sentences.append(
            "Neurons of the layers do not agree. An earlier checkpoint, the common base or the training data of both "
            "models would answer the question."
        )
    return tuple(sentences)


def of_layers_unconfirmed(layers: LayersResult, neurons: NeuronNumbers | None) -> tuple[str, ...]:
    """Explain why a significant layer map is not sufficient."""
    why = (
        "neurons of the two models could not be compared"
        if neurons is None
        else "the neurons of those layers do not agree"
    )
    return (
        *of_layers(layers),
        f"The layers agree by their {layers.role.words}, and {why}. Attention and its bases can be rotated freely "
        "without changing the output of a model, so they cannot serve as a second witness. A model that kept its "
        "attention and was given new MLPs looks like this.",
    )


def of_neuron_numbers(*models: Comparable) -> tuple[str, ...]:
    """Explain why neurons were not compared by number."""
    return tuple(
        f"Neurons were not compared by number: in {model.anatomy.architecture}, {model.anatomy.neuron_numbers}."
        for model in models
        if model.anatomy.neuron_numbers is not None
    )


def of_other_experts(*models: Comparable, are_sets_compared: bool) -> tuple[str, ...]:
    """Explain that a negative verdict on mixtures covers only a few experts, or a few neurons of each."""
    sentence = (
        "In at most two layers of {0}, a few neurons of each expert were compared by number. A model that "
        "shares only experts of other layers or of another size, or experts whose neurons were reordered, would not "
        "have been found."
        if are_sets_compared
        else "At most the first expert of each layer of {0} was compared. A model that shares only other experts would "
        "not have been found."
    )
    return tuple(
        sentence.format(model.label)
        for model in models
        if any(len(layer.experts) + len(layer.shared_experts) > 1 for layer in model.anatomy.layers)
    )


def off_match_layers(layers: LayersResult) -> str:
    """Explain that too many pairs of layers outside the map are significant."""
    return (
        f"{layers.off_match_share:.0%} of the layer pairs off the map are significant, too. Neighbouring layers of one "
        "model resemble each other, and so do layers of two models that descend from different layers of a common "
        "ancestor. Therefore no layers are reported as matched, and the map's p-value is disregarded."
    )


def rotation_not_supported(layers: LayersResult) -> str:
    """Explain that layers agree only after a fitted rotation, as layers of unrelated models may."""
    return (
        f"Layers agree only after a rotation fitted on the {layers.fitted_on}. Not every analysed layer passes a "
        "test that none of the small unrelated models passed (head subspaces, frequencies, neurons)."
    )


def of_no_evidence(matrices: Mapping[str, MatrixResult], level: Level, layers: LayersResult | None) -> tuple[str, ...]:
    """List the data that a negative verdict does not cover."""
    sentences = []
    matrix = next(iter(matrices.values()), None)
    if matrix is not None and level.is_screen_only and matrix.rows_used < matrix.common_tokens:
        sentences.append(
            f"Only {matrix.rows_used} of {matrix.common_tokens} common tokens were compared (level screen); heavily "
            "trained relatives need the full test."
        )
    if matrix is not None and matrix.common_tokens < min(matrix.widths):
        sentences.append(
            f"The models share {matrix.common_tokens} tokens, fewer than they have channels, which makes the test weak."
        )
    if layers is None:
        sentences.append(
            f"The layers were not compared (level {level}). Levels auto and layers find models whose embeddings were "
            "retrained or whose residual stream was rotated."
        )
    return tuple(sentences)


def of_failed_layers(error: Exception) -> str:
    """Explain that the layers cannot be read or identified."""
    return f"The layers were not compared: {error}."


def of_failed_table(error: Exception) -> str:
    """Explain why the projection table of related models is missing."""
    return f"The layers were not described one by one: {error}."


def of_layers_not_analysed(n_left: int) -> str:
    """Explain that the comparison stopped before all matched layers were analysed."""
    return f"{n_left} matched pairs of layers were not analysed: the comparison was stopped before that."


def of_empty_layers(role: Role, n_empty: int, n_layers: int, model: str) -> str:
    """Explain that the matrix that represents a layer is zero in most layers."""
    return (
        f"The layers were not compared: {role.value}, which represents a layer, is all zeros in {n_empty} of "
        f"{n_layers} layers of {model}."
    )


def of_left_out_layers(n_compared: Sequence[int], n_layers: Sequence[int]) -> tuple[str, ...]:
    """Explain that only some layers were compared."""
    return tuple(
        f"Only {n} of the {n_all} layers of the {which} model were compared with all layers of the other. A model that "
        "shares only the others would not have been found; level layers compares all of them."
        for which, n, n_all in zip(("reference", "candidate"), n_compared, n_layers, strict=True)
        if n < n_all
    )


def of_long_rows(matrix_name: str, which: str, n_long: int, n_rows: int) -> str:
    """Explain that overlong rows were excluded."""
    return (
        f"{matrix_name}: {n_long:,} of the {n_rows:,} rows read from the {which} model are more than 1,000 times as "
        "long as most rows and were left out."
    )
