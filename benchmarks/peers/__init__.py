"""Other methods on the same pairs: fingerprints that compare weights, activations, gradients or configs.

>>> from benchmarks.peers import PEERS
"""

from benchmarks.peers.awm import Awm
from benchmarks.peers.gradient import LeafBenchGradient, TensorGuard
from benchmarks.peers.huref import HuRef
from benchmarks.peers.installed import installed_peers
from benchmarks.peers.interface import CannotSayError, Peer, PeerScore, Unusable
from benchmarks.peers.model_tracing import Csu, Match
from benchmarks.peers.pdf import Pdf
from benchmarks.peers.plain_mdir import PlainMdir
from benchmarks.peers.provenance_kit import ProvenanceKit, ProvenanceKitSignals
from benchmarks.peers.reef import Reef
from benchmarks.peers.seedprints import SeedPrints

PEERS: tuple[Peer, ...] = (
    PlainMdir(),
    HuRef(),
    Reef(),
    Pdf(),
    LeafBenchGradient(),
    TensorGuard(),
    SeedPrints(),
    Awm(),
    Csu(),
    Match(),
    ProvenanceKit(),
    ProvenanceKitSignals(),
    *installed_peers(),
)
"""All peers, in table order."""

__all__ = ["PEERS", "CannotSayError", "Peer", "PeerScore", "Unusable"]
