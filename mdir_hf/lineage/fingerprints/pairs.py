"""Compare two fingerprints: the screen of a comparison, then neurons by number."""

from __future__ import annotations

from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.run import GivenNeurons, compare_models
from mdir_hf.comparison.settings import Listeners, Settings
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint, SampledModel
from mdir_hf.model.hub import IoLedger
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
