"""What a peer is: a method of others that says how related two models are.

Each is written from its description, in code of our own, at the sizes that its description gives unless the docstring
says otherwise. Where a description leaves something open, the choice that helps the peer is taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        elsewhere_cpu_s: Processor seconds that another process took for it.
    """

    score: float | None
    log10_p: float | None = None
    reason: str | None = None
    elsewhere_cpu_s: float = 0.0


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
    """

    name: str
    source: str
    threshold: float | None = None

    def fingerprint(self, folder: Path) -> Any:
        """Compute what can be computed from one model.

        Args:
            folder: A model in the layout of the Hub, with its tokenizer.

        Returns:
            For :meth:`score` only; :class:`Unusable` where the peer cannot read this model.
        """
        try:
            return self.read(folder)
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
    def read(self, folder: Path) -> Any:
        """Compute the fingerprint of a model.

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
