"""Run MDIR as printed on models on this disk: relatives of the zoo, real relatives, and framed strangers.

It reads the models that the other benchmarks build, under MDIR_HF_REAL_CACHE, MDIR_HF_FRAMING_CACHE and
MDIR_HF_TEST_CACHE. Missing models are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import CannotSayError
from benchmarks.peers.plain_mdir import PlainMdir, embedding_analysis, layer_correspondence
from benchmarks.peers.reads import Reads
from benchmarks.real.framing.cases import root as framing_root
from benchmarks.real.sources import cache_root
from benchmarks.runner import RESULTS, Benchmark, Case, read_lines
from benchmarks.zoo.build import cache_root as zoo_root
from mdir_hf.errors import MdirError

LN10 = 2.302585092994046
SMALL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class PlainPair:
    """One pair of folders.

    Attributes:
        group: ``zoo``, ``real`` or ``framed``.
        name: Name of the pair.
        done: How the candidate was made.
        is_related: Whether it shares weights with the reference.
        folders: Reference and candidate.
        ours: Verdicts of the checker, by level.
    """

    group: str
    name: str
    done: str
    is_related: bool
    folders: tuple[Path, Path]
    ours: dict[str, Any]


def cases() -> Iterator[PlainPair]:
    """Yield every pair on disk, with the checker's verdicts from the result files."""
    zoo, root = zoo_root() / "zoo-full-1", framing_root()
    for row in read_lines(RESULTS / "zoo-pairs.jsonl"):
        folders = tuple(zoo / row[side] for side in ("a", "b"))
        if row["level"] == "auto" and all(folder.is_dir() for folder in folders):
            name = f"{row['a']} | {row['b']}"
            yield PlainPair(
                "zoo", name, row["relation"], row["related"], (folders[0], folders[1]), {"auto": _stored_result(row)}
            )
    for row in read_lines(RESULTS / "real-pairs.jsonl"):
        pair = [real_folder(row[side]) for side in ("a", "b")]
        if row["level"] == "auto" and all(folder.is_dir() for folder in pair):
            name = real_name(row)
            yield PlainPair(
                "real", name, row["kind"], row["related"], (pair[0], pair[1]), {"auto": _stored_result(row)}
            )
    victims = {"llama": zoo / "llama" / "base", "gpt2": zoo / "gpt2" / "base", "qwen3": zoo / "qwen3" / "base"}
    for row in read_lines(RESULTS / "framing.jsonl"):
        victim = victims.get(row["victim"], real_folder(row["victim"]))
        victim = root / row["victim"] if not victim.is_dir() else victim
        if victim.is_dir() and (root / row["name"]).is_dir():
            most = max(row["verdicts"], key=row["verdicts"].get)  # of ten comparisons
            ours = {"auto": _stored_result({"verdict": most, "cpu_s": row["cpu_s"]})}
            yield PlainPair("framed", row["name"], row["done"], row["related"], (victim, root / row["name"]), ours)


def real_name(row: Mapping[str, Any]) -> str:
    """Return the name of a pair of real models in the results: the second one if the first is SmolLM2."""
    return str(row["b"]) if row["a"] == SMALL else f"{row['a']} | {row['b']}"


def real_folder(name: str) -> Path:
    """Return the folder of a real model, or of one made from it; it need not exist."""
    folder = cache_root() / "models" / (name if "/" in name else f"{name}/base")
    return folder if "/" in name or folder.is_dir() else cache_root() / "unpacked" / name


def _stored_result(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("verdict", "reason", "log10_p", "bytes_read", "cpu_s")}


def judge(case: PlainPair) -> dict[str, Any]:
    """Return a line of the results."""
    peer, reads = PlainMdir(), Reads()
    began = time.process_time()
    line: dict[str, Any] = {
        "group": case.group,
        "name": case.name,
        "done": case.done,
        "related": case.is_related,
        "ours": case.ours,
    }
    try:
        a, b = (peer.read(folder, reads) for folder in case.folders)
        match, u = embedding_analysis(a, b)
        layers = layer_correspondence(a, b, u)
    except (CannotSayError, MdirError) as exc:
        return {**line, "reason": " ".join(str(exc).split())[:200]}
    best = min(layers, key=layers.__getitem__, default=None)
    return {
        **line,
        "rank": round(float(u.square().sum())),
        "widths": list(u.shape[::-1]),
        "trace": round(match.trace, 3),
        "embedding_log10_p": round(min(0.0, match.log_p) / LN10, 2),
        "layers_log10_p": None if best is None else round(min(0.0, layers[best]) / LN10, 2),
        "bytes_of_weights": reads.n_bytes_of_weights,
        "cpu_s": round(time.process_time() - began, 1),
    }


PLAIN_MDIR = Benchmark(
    "plain-mdir",
    "Algorithms 1 and 2 as the paper prints them, on every pair on this disk",
    ("group", "name"),
    lambda: (Case((case.group, case.name), partial(judge, case)) for case in cases()),
)
