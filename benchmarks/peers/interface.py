"""Interface of a peer: another method that scores how related two models are.

Each peer is implemented from its description, in our own code, with the sizes in its description unless the docstring
states otherwise. If a description leaves a choice open, the choice that favours the peer is used. ``full_size.py``
lists the bytes that each would fetch from a model of real size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.reads import Reads
from mdir_hf.errors import MdirError


class CannotSayError(Exception):
    """A peer has no answer for these models; the message contains the reason."""


@dataclass(frozen=True)
class PeerScore:
    """Result of a peer for a pair.

    Attributes:
        score: Higher means more related; None if the peer has no answer.
        log10_p: Base-10 logarithm of its p-value as defined by the peer, valid or not; None for peers without one.
        reason: Reason for a missing score.
        n_bytes_of_weights: Bytes of weights read for this score, as counted by :class:`Reads`; 0 if the fingerprints
            suffice.
    """

    score: float | None
    log10_p: float | None = None
    reason: str | None = None
    n_bytes_of_weights: int = 0


@dataclass(frozen=True)
class Unusable:
    """The fingerprint of a model that a peer cannot read.

    Attributes:
        reason: The reason.
    """

    reason: str


class Peer(ABC):
    """A method by other authors.

    Attributes:
        name: Name used by its authors.
        source: Its publication.
        threshold: Smallest score of models that its authors call related. None if they publish no number, or only one
            that is fitted to the scores being judged.
        elsewhere_cpu_s: Processor seconds used so far by another process.
    """

    name: str
    source: str
    threshold: float | None = None
    elsewhere_cpu_s: float = 0.0

    def warm_up(self, folder: Path) -> None:
        """Run one-time work such as imports on a model, and discard the result."""
        self.fingerprint(folder)

    def fingerprint(self, folder: Path, reads: Reads | None = None) -> Any:
        """Compute the fingerprint of one model.

        Args:
            folder: A model in the layout of the Hub, with its tokenizer.
            reads: Counts the bytes read.

        Returns:
            Input for :meth:`score`, or :class:`Unusable` if the peer cannot read this model.
        """
        try:
            return self.read(folder, Reads() if reads is None else reads)
        except (CannotSayError, MdirError) as exc:
            return Unusable(f"{folder.name}: {' '.join(str(exc).split())}")

    def score(self, a: Any, b: Any) -> PeerScore:
        """Score how related two models are, given their fingerprints; symmetric unless the peer states otherwise."""
        for side in (a, b):
            if isinstance(side, Unusable):
                return PeerScore(None, reason=side.reason)
        try:
            return self.compare(a, b)
        except CannotSayError as exc:
            return PeerScore(None, reason=str(exc))

    @abstractmethod
    def read(self, folder: Path, reads: Reads) -> Any:
        """Compute the fingerprint of a model, and count the bytes read.

        Raises:
            CannotSayError: If this peer cannot read such a model.
            MdirError: If the model is unreadable.
        """

    @abstractmethod
    def compare(self, a: Any, b: Any) -> PeerScore:
        """Compare two fingerprints.

        Raises:
            CannotSayError: If this peer cannot compare such models.
        """
