"""Compare every pair of the zoo with the checker, and with every peer.

python -m benchmarks.zoo.run                 # both; resumes an earlier run
python -m benchmarks.zoo.run --part checker  # or one of them
python -m benchmarks.zoo.run --part peers --peer PDF

Results are small and stored in ``benchmarks/results``: ``zoo-models.jsonl``, ``zoo-pairs.jsonl`` (one line per pair and
level) and ``zoo-peers.jsonl`` (one line per peer). Seconds are processor time, because the machine has other load. Run
both parts one after the other if their times are to be compared. Bytes do not depend on the load.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, Peer
from benchmarks.peers.reads import WEIGHT_SUFFIXES, Reads
from benchmarks.zoo.build import FULL, SMALL, Scale, built, folder_of, folder_of_model, record_of
from benchmarks.zoo.members import MEMBERS, Model, Pair, models, pairs, tokenizer_of
from mdir_hf import HomologyChecker
from mdir_hf.comparison.settings import Settings
from mdir_hf.model.hub import IoLedger, RepositoryOptions, open_repository
from mdir_hf.model.open import Reading
from mdir_hf.model.opened import Model as OpenModel

RESULTS = Path(__file__).parents[1] / "results"
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


def checks(every: Iterable[Pair]) -> Iterator[tuple[Pair, str]]:
    """Return pairs and levels: all pairs at ``auto``, a base and its family also at ``layers``."""
    every = list(every)
    yield from ((pair, "auto") for pair in every)
    yield from ((pair, "layers") for pair in every if pair.a.family == pair.b.family and pair.a.member == "base")


def run_checker(scale: Scale, results: Path) -> None:
    """Judge the pairs without a line."""
    path = results / "zoo-pairs.jsonl"
    known = {(row["a"], row["b"], row["level"]) for row in read_lines(path)}
    left = [
        check for check in checks(pairs(scale.families)) if (check[0].a.name, check[0].b.name, check[1]) not in known
    ]
    with path.open("a", encoding="utf-8") as file:
        for number, (pair, level) in enumerate(left):
            row = judge(pair, scale, level=level)
            file.write(json.dumps(row) + "\n")
            file.flush()
            right = (row["verdict"] == "homologous") == pair.related
            if not right or number % 50 == 0:
                told = "" if right else "  <-- against the label"
                print(
                    f"{number + 1}/{len(left)} {level:9} {pair.a.name} | {pair.b.name}: {row['verdict']}"
                    f" {row['log10_p']} ({row['cpu_s']} s){told}",
                    flush=True,
                )


def run_peers(scale: Scale, results: Path, chosen: list[str] | None) -> None:
    """Score every pair by every peer without a line."""
    path = results / "zoo-peers.jsonl"
    known = {row["peer"] for row in read_lines(path)}
    for peer in PEERS:
        if peer.name in known or (chosen and peer.name not in chosen):
            continue
        row = score_all(peer, scale)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{peer.name}: {len(row['scores'])} pairs, {sum(row['fingerprint_cpu_s']):.0f} s for fingerprints, "
            f"{sum(score[4] for score in row['scores']):.0f} s for scores",
            flush=True,
        )


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file, or none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def main() -> None:
    """Run the missing parts."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("models", "checker", "peers"), action="append", help="all by default")
    parser.add_argument("--peer", action="append", help="only these peers")
    parser.add_argument("--small", action="store_true", help="the slice that the tests build")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    scale = SMALL if arguments.small else FULL
    parts = arguments.part or ("models", "checker", "peers")
    arguments.results.mkdir(parents=True, exist_ok=True)
    if "models" in parts:
        for model in models(scale.families):
            built(model, scale)
        lines = [json.dumps(describe(model, scale)) + "\n" for model in models(scale.families)]
        (arguments.results / "zoo-models.jsonl").write_text("".join(lines), encoding="utf-8")
    if "checker" in parts:
        run_checker(scale, arguments.results)
    if "peers" in parts:
        run_peers(scale, arguments.results, arguments.peer)


if __name__ == "__main__":
    main()
