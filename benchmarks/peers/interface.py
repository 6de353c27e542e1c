"""What a peer is: a method of others that says how related two models are.

Each is written from its description, in code of our own, at the sizes that its description gives unless the docstring
says otherwise. Where a description leaves something open, the choice that helps the peer is taken. What each would
fetch of a model of real size is in ``full_size.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.reads import Reads
from mdir_hf.errors import MdirError


class CannotSayError(Exception):
    """A peer has no answer for these models; its text says why."""


@dataclass(frozen=True)
class PeerScore:
    """What a peer says about a pair.

    Attributes:
        score: The higher the more related; None where the peer cannot say.
        log10_p: Base-10 logarithm of its p-value, None for peers that have none. As the peer defines it, valid or not.
        reason: Why there is no score.
        n_bytes_of_weights: What it read of weights for this score, as :class:`Reads` counts; 0 where fingerprints hold
            all that it needs.
    """

    score: float | None
    log10_p: float | None = None
    reason: str | None = None
    n_bytes_of_weights: int = 0


@dataclass(frozen=True)
class Unusable:
    """The fingerprint of a model that a peer cannot read.

    Attributes:
        reason: Why.
    """

    reason: str


class Peer(ABC):
    """A method of others.

    Attributes:
        name: As its authors call it.
        source: Where it is described.
        threshold: The score from which on its authors call two models related; None where they publish no number that
            is not fitted to the scores being judged.
        elsewhere_cpu_s: Processor seconds that another process has taken for it so far.
    """

    name: str
    source: str
    threshold: float | None = None
    elsewhere_cpu_s: float = 0.0

    def warm_up(self, folder: Path) -> None:
        """Pay what is paid once for all models, such as imports, on a model; nothing of it is kept."""
        self.fingerprint(folder)

    def fingerprint(self, folder: Path, reads: Reads | None = None) -> Any:
        """Compute what can be computed from one model.

        Args:
            folder: A model in the layout of the Hub, with its tokenizer.
            reads: Where to count what it reads of the model.

        Returns:
            For :meth:`score` only; :class:`Unusable` where the peer cannot read this model.
        """
        try:
            return self.read(folder, Reads() if reads is None else reads)
        except (CannotSayError, MdirError) as exc:
            return Unusable(f"{folder.name}: {' '.join(str(exc).split())}")

    def score(self, a: Any, b: Any) -> PeerScore:
        """Say how related two models are, given their fingerprints; symmetric unless the peer says otherwise."""
        for side in (a, b):
            if isinstance(side, Unusable):
                return PeerScore(None, reason=side.reason)
        try:
            return self.compare(a, b)
        except CannotSayError as exc:
            return PeerScore(None, reason=str(exc))

    @abstractmethod
    def read(self, folder: Path, reads: Reads) -> Any:
        """Compute the fingerprint of a model, and count what is read of it.

        Raises:
            CannotSayError: If this peer cannot read such a model.
            MdirError: If nobody could.
        """

    @abstractmethod
    def compare(self, a: Any, b: Any) -> PeerScore:
        """Compare two fingerprints.

        Raises:
            CannotSayError: If this peer cannot compare such models.
        """
