"""What each step of a comparison found, as frozen objects that the next step is handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.comparison.body import BodyEvidence
from mdir_hf.comparison.decision import Decision
from mdir_hf.comparison.matrices import MatrixOutcome


@dataclass(frozen=True, slots=True)
class MatricesFound:
    """What was found on the embeddings, and on the unembeddings (``lm_head``) where they were read.

    Attributes:
        outcomes: By matrix, in the order tested.
        n_tests: How many tests they are corrected for.
        n_looks: How many looks at one matrix there may have been.
    """

    outcomes: Mapping[str, MatrixOutcome]
    n_tests: int = 0
    n_looks: int = 0

    @property
    def settle(self) -> bool:
        """Whether a pair of matrices settles the question."""
        return any(outcome.evidence.is_trusted for outcome in self.outcomes.values())


@dataclass(frozen=True, slots=True)
class LayersFound:
    """What was found on the layers.

    Attributes:
        body: The evidence, None where the layers were not compared.
        n_tests: How many tests it is corrected for.
        caveats: Why they, or most of them, were not compared.
        are_unreadable: Whether they are there and could not be compared, all or most of them.
        were_stopped: Whether they were to be compared, and are not yet.
        noise: The strongest noise, in units of the weights' RMS, under which a copy would have been found by its
            layers; 0 where they were not compared.
    """

    body: BodyEvidence | None = None
    n_tests: int = 0
    caveats: tuple[str, ...] = ()
    are_unreadable: bool = False
    were_stopped: bool = False
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a comparison found.

    Attributes:
        matrices: On the embeddings.
        layers: On the layers.
        decision: The verdict with its reason, its p and its caveats.
        caveats: Sentences about this comparison, those of the decision not among them.
    """

    matrices: MatricesFound
    layers: LayersFound
    decision: Decision
    caveats: tuple[str, ...]
