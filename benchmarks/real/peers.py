"""Run other methods on the same pairs of real models, if they can load them.

python -m benchmarks.real.peers --peer PDF --peer AWM --base smollm2-135m-instruct    # all by default; resumes
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers import PEERS, Peer
from benchmarks.real.judging import RESULTS
from benchmarks.real.pairs import Pair, pairs
from benchmarks.real.sources import UnavailableError
from benchmarks.real.workshop import MIDDLE, SMALL, Model, built
from benchmarks.zoo.run import read_lines, seconds_of

SCORES = RESULTS.with_name("real-peers.jsonl")


def pairs_of_peers(bases: Sequence[str] = ()) -> list[Pair]:
    """Return the pairs for peers: all except formats, which peers cannot open, or only relatives of some bases."""
    return [
        pair
        for pair in pairs()
        if pair.kind not in ("format", "copy") and (not bases or {pair.a.base, pair.b.base} <= set(bases))
    ]


def score_all(peer: Peer, every: list[Pair]) -> Iterator[dict[str, Any]]:
    """Yield a line for each pair; the fingerprint of each model is computed once."""
    fingerprints: dict[Model, Any] = {}
    for pair in every:
        started = seconds_of(peer)
        for model in (pair.a, pair.b):
            if model not in fingerprints:
                fingerprints[model] = peer.fingerprint(built(model))
        answer = peer.score(fingerprints[pair.a], fingerprints[pair.b])
        if pair.b.member != "base":  # bases are needed in most pairs, other models only once or twice
            fingerprints.pop(pair.b)
            gc.collect()
        yield {
            "peer": peer.name,
            "a": pair.a.name,
            "b": pair.b.name,
            "related": pair.is_related,
            "kind": pair.kind,
            "score": answer.score,
            "log10_p": answer.log10_p,
            "threshold": peer.threshold,
            "reason": answer.reason,
            "cpu_s": round(seconds_of(peer) - started, 2),
        }


def main() -> None:
    """Score the pairs without a line."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", choices=[peer.name for peer in PEERS])
    parser.add_argument("--base", action="append", choices=(SMALL, MIDDLE), help="only pairs with this base")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    known = {(row["peer"], row["a"], row["b"]) for row in read_lines(SCORES)}
    for peer in PEERS:
        if arguments.peer and peer.name not in arguments.peer:
            continue
        left = [
            pair for pair in pairs_of_peers(arguments.base or ()) if (peer.name, pair.a.name, pair.b.name) not in known
        ]
        try:
            for row in score_all(peer, left):
                with SCORES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(peer.name, row["a"], row["b"], row["score"], row["reason"] or "", flush=True)
        except UnavailableError as exc:
            print(f"{peer.name} stops: {exc}", flush=True)


if __name__ == "__main__":
    main()
