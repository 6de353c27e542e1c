"""Methods of others on the same pairs: fingerprints that compare weights, activations, gradients or configs.

>>> from benchmarks.peers import PEERS
"""

from benchmarks.peers.interface import CannotSayError, Peer, PeerScore, Unusable
from benchmarks.peers.pdf import Pdf

PEERS: tuple[Peer, ...] = (Pdf(),)
"""Every peer, in the order of the tables."""

__all__ = ["PEERS", "CannotSayError", "Peer", "PeerScore", "Unusable"]
