"""Run other methods on the same pairs of real models, if they can load them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.peers import PEERS, Peer
from benchmarks.real.pairs import Pair, pairs
from benchmarks.real.workshop import Model, built
from benchmarks.runner import Benchmark, Case, Row
from benchmarks.zoo.run import seconds_of

NAMES = ("HuRef", "PDF", "Provenance Kit", "Provenance Kit, signals")
"""Peers that take seconds for a real model. Others run it on text, decompose whole matrices, or take an hour in all;
``plain-mdir`` runs MDIR as printed."""


class Scorer:
    """Score pairs by one peer. The fingerprint of a base is computed once; other models are in one or two pairs."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._of_bases: dict[Model, Any] = {}

    def score(self, pair: Pair) -> Row:
        """Return a line of ``real-peers.jsonl``."""
        started = seconds_of(self.peer)
        answer = self.peer.score(self._fingerprint(pair.a), self._fingerprint(pair.b))
        gc.collect()
        return {
            "peer": self.peer.name,
            "a": pair.a.name,
            "b": pair.b.name,
            "related": pair.is_related,
            "kind": pair.kind,
            "score": answer.score,
            "log10_p": answer.log10_p,
            "threshold": self.peer.threshold,
            "reason": answer.reason,
            "cpu_s": round(seconds_of(self.peer) - started, 2),
        }

    def _fingerprint(self, model: Model) -> Any:
        if model.member != "base":
            return self.peer.fingerprint(built(model))
        if model not in self._of_bases:
            self._of_bases[model] = self.peer.fingerprint(built(model))
        return self._of_bases[model]


def cases() -> Iterator[Case]:
    """Yield every pair for each peer, except formats, which peers cannot open."""
    by_name = {peer.name: peer for peer in PEERS}
    for name in NAMES:
        peer = by_name[name]
        scorer = Scorer(peer)
        for pair in pairs():
            if pair.kind not in ("format", "copy"):
                yield Case((peer.name, pair.a.name, pair.b.name), partial(scorer.score, pair))


REAL_PEERS = Benchmark("real-peers", "scores of other methods on pairs of real models", ("peer", "a", "b"), cases)
