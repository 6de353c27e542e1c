"""The tasks of a survey: plain functions of plain arguments, so that any executor can run them anywhere.

They return failures as results. If a task raises, its worker died or we have made a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import compare_models
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import MdirError, one_line
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, take_fingerprint
from mdir_hf.lineage.fingerprints.opening import Pin, open_model, pin_of
from mdir_hf.lineage.fingerprints.pairs import compare_fingerprints
from mdir_hf.lineage.survey.results import Pair, PairResult
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading, open_both
from mdir_hf.processor import available_device


@dataclass(frozen=True)
class Taken:
    """The outcome of reading one model.

    Attributes:
        name: As it was asked for.
        fingerprint: Its rows; None where it could not be read.
        error: Why it could not be read.
        bytes_read: Bytes read of it.
        pin: The commits that it was read at.
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
    """Open a model, at the commits that it is pinned to, and read its rows and neurons of the sample.

    Args:
        name: The model.
        tokens: The sample.
        reading: How repositories are opened.
        pin: The commits; None: the model as it is now.
        neuron_seed: Seed of its neurons; None: the public choice of an index.
        ledger: Counts the bytes.
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
        fingerprints: By name.
        pairs: Names, reference first.
        alpha: Level of one pair.
        seed: Seed of every random choice; that of a pair does not depend on the others.
        device: torch device of the matrix products, of the machine that this runs on.
        neuron_seed: Seed of the neurons in the fingerprints, drawn after all models were opened.

    Raises:
        InputError: If it has no such device.
    """
    device = available_device(device)
    results = []
    for reference, candidate in pairs:
        try:
            mine, other = fingerprints[reference], fingerprints[candidate]
            report = compare_fingerprints(mine, other, alpha=alpha, seed=seed, device=device, neuron_seed=neuron_seed)
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
    """Compare two models in full: their layers, too, where embeddings and neurons do not settle the question.

    Args:
        known: What the sample showed of them.
        pins: At which commits models are opened, by name; without one a model is opened as it is now.
        settings: Of the comparison; alpha is that of one look at one pair.
        reading: How repositories are opened.
        ledger: Counts what is read.
        watch: Of the ledger; it is listening.

    Returns:
        The result; where it fails, what was known, with the reason.
    """
    pair = known.reference, known.candidate
    first, second = (NamedModel(pins[name].reference if name in pins else name) for name in pair)
    try:
        models = open_both(first, second, reading, ledger, settings.level)
        return PairResult.of(*pair, compare_models(*models, settings, watch), layers_compared=True)
    except (MdirError, OSError, ArithmeticError, RuntimeError, ValueError, MemoryError) as exc:
        return replace(known, layers_error=one_line(exc))
