"""The tasks of a survey: plain functions of plain arguments, so that any executor can run them anywhere.

They return failures as results. An exception means that a worker died or that there is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import GivenNeurons, compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.errors import MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel, take_fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.survey.results import Pair, PairResult
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.processor import available_device
from mdir_hf.report import HomologyReport, Level


def compare_fingerprints(
    reference: Fingerprint,
    candidate: Fingerprint,
    *,
    alpha: float = 1e-10,
    seed: int = 0,
    device: str = "cpu",
    neuron_seed: int | None = None,
) -> HomologyReport:
    """Run the screen of a comparison on stored rows, then the second witness on stored neurons, without reading files.

    Args:
        reference: One model.
        candidate: The other model.
        alpha: Significance level, fixed in advance.
        seed: Random seed.
        device: torch device for matrix products.
        neuron_seed: Seed of the neurons, drawn after both models were opened. None: the public choice, which never
            gives the verdict homologous.

    Returns:
        The report of a comparison at level ``screen``, with the same looks and rules. It counts only common tokens of
        the sample. Cost O(r n min(r, n)) for r common tokens.
    """
    settings = Settings(Level.SCREEN, alpha=alpha, seed=seed, device=device)
    watch = Watch(IoLedger(), Listeners(progress=False))
    neurons = GivenNeurons(reference.neurons, candidate.neurons, neuron_seed or 0, is_fresh=neuron_seed is not None)
    return compare_models(SampledModel(reference), SampledModel(candidate), settings, watch, neurons=neurons)


@dataclass(frozen=True)
class Taken:
    """The outcome of reading one model.

    Attributes:
        name: Name of the model, as given.
        fingerprint: Its rows, or None if it could not be read.
        error: Why it could not be read, or None.
        bytes_read: Bytes read from it.
        pin: Commits at which it was read.
    """

    name: str
    fingerprint: Fingerprint | None
    error: str | None
    bytes_read: int
    pin: Pin | None = None


def take(
    name: str,
    tokens: Sequence[bytes],
    reading: Reading,
    pin: Pin | None = None,
    neuron_seed: int | None = None,
    *,
    ledger: IoLedger | None = None,
) -> Taken:
    """Open a model at its pinned commits, and read its rows and neurons of the sample.

    Args:
        name: The model.
        tokens: The sample.
        reading: How repositories are opened.
        pin: The commits. None: the current ones.
        neuron_seed: Seed of its neurons. None: the public choice of an index.
        ledger: Counts bytes.
    """
    ledger = ledger or IoLedger()
    n_before = ledger.bytes_read
    try:
        model = open_model(name, reading, ledger, pin)
        fingerprint = take_fingerprint(model, tokens, neuron_seed=neuron_seed, needs_tokens=False)
        return Taken(name, fingerprint, None, ledger.bytes_read - n_before, pin_of(name, model) if pin is None else pin)
    except (MdirError, OSError, MemoryError) as exc:
        return Taken(name, None, one_line(exc), ledger.bytes_read - n_before)


def compare_tile(
    fingerprints: Mapping[str, Fingerprint],
    pairs: Sequence[Pair],
    alpha: float,
    seed: int,
    device: str = "cpu",
    neuron_seed: int | None = None,
) -> list[PairResult]:
    """Compare some pairs of a few models.

    Args:
        fingerprints: Fingerprints by name.
        pairs: Pairs of names, reference first.
        alpha: Significance level for one pair.
        seed: Random seed; each pair uses it independently.
        device: torch device for matrix products, on the machine that runs this task.
        neuron_seed: Seed of the neurons in the fingerprints, drawn after all models were opened.

    Raises:
        InputError: If the device is not available.
    """
    device = available_device(device)
    results = []
    for reference, candidate in pairs:
        try:
            first, second = fingerprints[reference], fingerprints[candidate]
            report = compare_fingerprints(first, second, alpha=alpha, seed=seed, device=device, neuron_seed=neuron_seed)
            results.append(PairResult.of(reference, candidate, report))
        except (MdirError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
            results.append(PairResult(reference, candidate, None, error=one_line(exc)))
    return results


def compare_with_layers(
    known: PairResult,
    pins: Mapping[str, Pin],
    settings: Settings,
    reading: Reading,
    ledger: IoLedger,
    watch: Watch,
) -> PairResult:
    """Compare two models in full: their layers, too, if embeddings and neurons are not conclusive.

    Args:
        known: Result of the sample.
        pins: Commits of models by name; other models are opened at their current commits.
        settings: Settings of the comparison; alpha is for one look at one pair.
        reading: How repositories are opened.
        ledger: Counts bytes.
        watch: Watch of the ledger; must be listening.

    Returns:
        The result. If the comparison fails: ``known`` with the reason.
    """
    pair = known.reference, known.candidate
    first, second = (NamedModel(pins[name].reference if name in pins else name) for name in pair)
    try:
        models = open_both(first, second, reading, ledger, settings.level)
        return PairResult.of(*pair, compare_models(*models, settings, watch), layers_compared=True)
    except (MdirError, OSError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
        return replace(known, layers_error=one_line(exc))
