"""Write the caveats that qualify a report's verdict."""

from __future__ import annotations

from collections.abc import Mapping

from mdir_hf.model.comparable import Comparable, have_one_vocabulary
from mdir_hf.report import MatrixResult, NeuronNumbers, n_bytes_text
from mdir_hf.report.words import OF_MEMORY

SAME_FILES = "Both models have the same weight files (one file on this disk, or equal SHA-256 digests)."
NOT_YET = {
    "near": "No neurons have been compared yet: the comparison is not finished.",
    "number": "Neurons of only one or two layers have been compared so far: the comparison is not finished.",
    "parts": "Experts and other stacks have not been compared yet: the comparison is not finished.",
    "keys": "Attention heads have not been compared yet: the comparison is not finished.",
    "every": "The neurons of only some layers have been compared so far: the comparison is not finished.",
    "embeddings": "The embeddings have not been compared yet: the comparison is not finished.",
    "noise": "Neurons have not been compared under noise yet: the comparison is not finished.",
    "search": "Reordered neurons have not been searched behind the embeddings yet: the comparison is not finished.",
    "layers": "The layers have not been described yet: the comparison is not finished.",
    "paper": "The paper's algorithms have not been run yet: the comparison is not finished.",
}
"""Sentences for interim reports, of a comparison that is running or was stopped, keyed by the step that comes next."""

NEURONS_OF_OTHER_SIZES = "Neurons were not compared by number, because the layers of the models have different shapes."
NO_COMMON_MATRIX = (
    "No embeddings or unembeddings (lm_head) were compared, because one of the models has none of its own."
)
NO_LAYERS_DESCRIBED = "The layers were not described: no map between the two residual streams was found."
NO_ROWS_FOR_PAPER = "The paper's algorithms were not run: the models have no common tokens or no embeddings."
NO_LAYERS_FOR_PAPER = (
    "The paper's Algorithms 2 and 3 were not run: a model has no value projections, or an embedding is not as wide as "
    "the residual stream."
)
NOT_COVERED = (
    "A copy would not have been found if it is hidden in several ways at once, such as new inner bases of all heads "
    "and reordered neurons behind new embeddings, or if it was trained for long, mixed or rounded until few neurons "
    "resemble the original."
)

VOCABULARY_AS_ASKED = "The vocabulary of {model} was read from {place}, as requested."
ROWS_PAIRED_BY_NUMBER = (
    "No tokenizer files in {models}: rows were paired by number, regardless of their tokens. The p-value is valid for "
    "any pairing, but relatives whose token ids differ are missed. Name a repository or folder that has the tokenizer "
    "(--tokenizer, --candidate-tokenizer; tokenizer= in Python)."
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


def of_neurons(neurons: NeuronNumbers) -> str:
    """Describe the comparison of neurons that a verdict rests on."""
    if len(neurons.reference_layers) == len(neurons.candidate_layers) == 1:
        layers = "one layer of each model"
    else:
        n_layers = (len(neurons.reference_layers), len(neurons.candidate_layers))
        layers = f"{n_layers[0]} layers of the reference and {n_layers[1]} of the candidate"
    order = "Their partners were first searched for among all neurons of the other layer. " * neurons.is_searched
    return (
        f"{neurons.tested} neurons of {layers} were compared by gate and up (by up, if there is no gate), after a "
        f"rotation fitted on {neurons.fitted} other neurons. {order}The sample was drawn after both models were open."
    )


def of_matrix(name: str, matrix: MatrixResult) -> str:
    """Describe how far a pair of embeddings or unembeddings agrees."""
    if not matrix.rank:
        return f"The {name}s were not compared: the vocabularies have no usable tokens in common."
    if not matrix.is_significant or matrix.cosine is None:
        n_rows = f"{matrix.rows_used:,} of {matrix.common_tokens:,} common tokens"
        return f"The {name}s do not agree in the rows of {n_rows}."
    if matrix.is_copied:
        return f"The {name}s are copies (mean cosine of paired rows {matrix.cosine:.2f})."
    return (
        f"The {name}s are alike but not copies (mean cosine of paired rows {matrix.cosine:.2f}; unrelated models that "
        "were rotated to match reach 0.48). Possible causes: shared weights that were then trained for long, training "
        "towards the hidden states of the other model, or a deliberate rotation."
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


def of_failed_layers(error: Exception) -> str:
    """Explain that some weights cannot be read or identified."""
    return f"Not all layers were compared: {str(error).rstrip('.')}."


def of_spent_budget(error: Exception) -> str:
    """Explain that a settled comparison was not described further."""
    return f"The models were not described further: {str(error).rstrip('.')}."


def of_unsearched_copies(left_out: Mapping[str, int]) -> tuple[str, ...]:
    """Explain which copies were not searched. ``left_out`` has the memory of the steps that did not fit, by name."""
    kinds = {"noise": "under noise", "keys": "with reordered neurons"}
    n_bytes = {kind: left_out[name] for name, kind in kinds.items() if name in left_out}
    if not n_bytes:
        return ()
    which = f" {next(iter(n_bytes))}" if len(n_bytes) == 1 else f" {', or '.join(n_bytes)},"
    return (f"Copies{which} were not searched: that takes {n_bytes_text(max(n_bytes.values()))} {OF_MEMORY}",)


def of_large_embeddings(n_bytes: int) -> str:
    """Explain that the embeddings do not fit in memory."""
    return f"The embeddings were not compared: that takes {n_bytes_text(n_bytes)} {OF_MEMORY}"


def of_unusable_tokenizer(error: Exception) -> str:
    """Explain that rows of embeddings could not be paired by token."""
    return f"The embeddings were not compared: {str(error).rstrip('.')}."


def of_rows_not_finite(matrix_name: str, which: str, n_rows: int) -> str:
    """Explain that rows with NaN or infinity were excluded."""
    return (
        f"{matrix_name}: rows of the {which} model with NaN or infinity were left out, {n_rows:,} of those that were "
        "read."
    )


def of_long_rows(matrix_name: str, which: str, n_long: int, n_rows: int) -> str:
    """Explain that overlong rows were excluded."""
    return (
        f"{matrix_name}: {n_long:,} of the {n_rows:,} rows read from the {which} model are more than 1,000 times as "
        "long as most rows and were left out."
    )
