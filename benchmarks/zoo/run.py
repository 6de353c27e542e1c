"""Compare every pair of the zoo with the checker, and with every peer.

Seconds are processor time, because the machine has other load. Run checker and peers one after the other if their times
are to be compared. Bytes do not depend on the load.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, Peer
from benchmarks.peers.reads import WEIGHT_SUFFIXES, Reads
from benchmarks.runner import Benchmark, Case
from benchmarks.zoo.build import FULL, Scale, built, folder_of, folder_of_model, record_of
from benchmarks.zoo.members import MEMBERS, Model, Pair, models, pairs, tokenizer_of
from mdir_hf import HomologyChecker
from mdir_hf.comparison.settings import Settings
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model as OpenModel

ALPHA = 1e-10


def judge(pair: Pair, scale: Scale, *, level: str = "auto") -> dict[str, Any]:
    """Open a pair anew and return the checker's result, a line of ``zoo-pairs.jsonl``."""
    folders = [built(model, scale) for model in (pair.a, pair.b)]
    cpu, wall = time.process_time(), time.perf_counter()
    # Like HomologyChecker.from_pretrained, with a ledger that separates weights from tokenizers and configs.
    ledger = IoLedger()
    reference = OpenModel(open_repository(folders[0], RepositoryOptions(use_caches=False), ledger=ledger))
    checker = HomologyChecker(
        reference, ledger=ledger, settings=Settings(alpha=ALPHA), reading=Reading(use_caches=False)
    )
    report = checker.compare(folders[1], level=level, progress=False)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    embedding, layers = report.embedding, report.layers
    return {
        "a": pair.a.name,
        "b": pair.b.name,
        "level": level,
        "related": pair.related,
        "relation": pair.relation,
        "why": pair.reason,
        "verdict": report.verdict.value,
        "reason": None if report.reason is None else report.reason.value,
        "log10_p": None if report.log10_p is None else round(report.log10_p, 2),
        "assumption": report.assumption,
        "settled_by": report.settled_by,
        "embedding_log10_p": None if embedding is None else round(embedding.log10_p, 2),
        "transformation": None if embedding is None else embedding.transformation,
        "common_tokens": None if embedding is None else embedding.common_tokens,
        "layers": None if layers is None else [[*match[:2]] for match in layers.matches],
        "bytes_read": report.io.bytes_read,
        "bytes_beside_weights": sum(n for label, n in ledger.files.items() if not label.endswith(WEIGHT_SUFFIXES)),
        "bytes_of_weights": report.io.bytes_of_weights,
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 3),
    }


def describe(model: Model, scale: Scale) -> dict[str, Any]:
    """Describe a model in a line of ``zoo-models.jsonl``."""
    built(model, scale)
    record, folder = record_of(model, scale), folder_of_model(model, scale)
    member = MEMBERS[model.member]
    losses = {key: round(value, 4) for key, value in record.items() if isinstance(value, float)}
    return {
        "model": model.name,
        "architecture": json.loads(_config(folder, model, scale).read_text())["model_type"],
        "tokenizer": tokenizer_of(model),
        "parents": [f"{model.family}/{parent}" for parent in member.parents],
        "done": member.done,
        "n_bytes": sum(file.stat().st_size for file in folder.iterdir() if file.suffix in WEIGHT_SUFFIXES),
        **{key: value for key, value in record.items() if key not in ("member", "family") and key not in losses},
        **losses,
    }


def _config(folder: Path, model: Model, scale: Scale) -> Path:
    config = folder / "config.json"
    return config if config.exists() else folder_of_model(Model(model.family, "base"), scale) / "config.json"


def score_all(peer: Peer, scale: Scale) -> dict[str, Any]:
    """Run one peer on every pair, and return a line of ``zoo-peers.jsonl``.

    ``scores`` has a, b, score, log10 p, seconds, reason, bytes of weights; ``fingerprint_bytes`` has bytes of weights.
    """
    everyone = models(scale.families)
    numbers = {model: number for number, model in enumerate(everyone)}
    fingerprints, seconds, weights, beside = [], [], [], []
    peer.warm_up(built(everyone[0], scale))
    for model in everyone:
        reads = Reads()
        started = seconds_of(peer)
        fingerprints.append(peer.fingerprint(built(model, scale), reads))
        seconds.append(round(seconds_of(peer) - started, 3))
        weights.append(reads.n_bytes_of_weights)
        beside.append(reads.n_bytes_beside)
    scores, reasons = [], []
    for pair in pairs(scale.families):
        a, b = numbers[pair.a], numbers[pair.b]
        started = seconds_of(peer)
        answer = peer.score(fingerprints[a], fingerprints[b])
        taken = round(seconds_of(peer) - started, 4)
        reason = None if answer.reason is None else without_paths(answer.reason, scale)
        if reason is not None and reason not in reasons:
            reasons.append(reason)
        why = None if reason is None else reasons.index(reason)
        scores.append([a, b, _rounded(answer.score), _rounded(answer.log10_p), taken, why, answer.n_bytes_of_weights])
    del fingerprints
    gc.collect()
    return {
        "peer": peer.name,
        "source": peer.source,
        "threshold": peer.threshold,
        "models": [model.name for model in everyone],
        "fingerprint_cpu_s": seconds,
        "fingerprint_bytes": weights,
        "fingerprint_bytes_beside": beside,
        "reasons": reasons,
        "scores": scores,
    }


def seconds_of(peer: Peer) -> float:
    """Return a clock of the processor time that a peer uses, here and in other processes."""
    return time.process_time() + peer.elsewhere_cpu_s


def without_paths(reason: str, scale: Scale) -> str:
    """Return a reason without the folder of the models, which differs between machines."""
    return reason.replace(f"{folder_of(scale).resolve()}/", "").replace(f"{folder_of(scale)}/", "")


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def model_cases() -> Iterator[Case]:
    """Yield every model; missing ones are trained, about half an hour on one core for all."""
    for model in models(FULL.families):
        yield Case((model.name,), partial(describe, model, FULL))


def pair_cases() -> Iterator[Case]:
    """Yield all pairs at level ``auto``, then a base and its family at level ``layers``."""
    for level in ("auto", "layers"):
        for pair in pairs(FULL.families):
            if level == "auto" or (pair.a.family == pair.b.family and pair.a.member == "base"):
                yield Case((pair.a.name, pair.b.name, level), partial(judge, pair, FULL, level=level))


ZOO_MODELS = Benchmark("zoo-models", "models of the zoo; missing ones are trained", ("model",), model_cases)
ZOO_PAIRS = Benchmark("zoo-pairs", "verdicts on every pair of the zoo", ("a", "b", "level"), pair_cases)
ZOO_PEERS = Benchmark(
    "zoo-peers",
    "scores of other methods on every pair of the zoo",
    ("peer",),
    lambda: (Case((peer.name,), partial(score_all, peer, FULL)) for peer in PEERS),
)
