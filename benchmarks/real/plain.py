"""Run MDIR as printed on models on this disk: relatives of the zoo, real relatives, and framed strangers.

    python -m benchmarks.real.plain    # resumes

The script reads the models that the other scripts build, under MDIR_HF_REAL_CACHE, MDIR_HF_FRAMING_CACHE and
MDIR_HF_TEST_CACHE. Missing models are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.interface import CannotSayError
from benchmarks.peers.plain_mdir import PlainMdir, embedding_analysis, layer_correspondence
from benchmarks.peers.reads import Reads
from benchmarks.real.framing.cases import root as framing_root
from benchmarks.real.sources import cache_root
from benchmarks.zoo.build import cache_root as zoo_root
from benchmarks.zoo.run import read_lines
from mdir_hf.errors import MdirError

RESULTS = Path(__file__).parents[1] / "results"
PLAIN = RESULTS / "plain-mdir.jsonl"
LN10 = 2.302585092994046
SMALL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Case:
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


def cases() -> Iterator[Case]:
    """Yield every pair on disk, with the checker's verdicts from the result files."""
    zoo, root = zoo_root() / "zoo-full-1", framing_root()
    for row in read_lines(RESULTS / "zoo-pairs.jsonl"):
        folders = tuple(zoo / row[side] for side in ("a", "b"))
        if row["level"] == "auto" and all(folder.is_dir() for folder in folders):
            name = f"{row['a']} | {row['b']}"
            yield Case(
                "zoo", name, row["relation"], row["related"], (folders[0], folders[1]), {"auto": _stored_result(row)}
            )
    for row in read_lines(RESULTS / "real-pairs.jsonl"):
        pair = [real_folder(row[side]) for side in ("a", "b")]
        if row["level"] == "auto" and all(folder.is_dir() for folder in pair):
            name = real_name(row)
            yield Case("real", name, row["kind"], row["related"], (pair[0], pair[1]), {"auto": _stored_result(row)})
    victims = {"llama": zoo / "llama" / "base", "gpt2": zoo / "gpt2" / "base", "qwen3": zoo / "qwen3" / "base"}
    for row in read_lines(RESULTS / "framing.jsonl"):
        victim = victims.get(row["victim"], real_folder(row["victim"]))
        victim = root / row["victim"] if not victim.is_dir() else victim
        if victim.is_dir() and (root / row["name"]).is_dir():
            most = max(row["verdicts"], key=row["verdicts"].get)  # of ten comparisons
            ours = {"auto": _stored_result({"verdict": most, "cpu_s": row["cpu_s"]})}
            yield Case("framed", row["name"], row["done"], row["related"], (victim, root / row["name"]), ours)


def real_name(row: Mapping[str, Any]) -> str:
    """Return the name of a pair of real models in the results: the second one if the first is SmolLM2."""
    return str(row["b"]) if row["a"] == SMALL else f"{row['a']} | {row['b']}"


def real_folder(name: str) -> Path:
    """Return the folder of a real model, or of one made from it; it need not exist."""
    folder = cache_root() / "models" / (name if "/" in name else f"{name}/base")
    return folder if "/" in name or folder.is_dir() else cache_root() / "unpacked" / name


def _stored_result(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("verdict", "reason", "log10_p", "bytes_read", "cpu_s")}


def judge(case: Case) -> dict[str, Any]:
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


def main() -> None:
    """Judge every case without a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=("zoo", "real", "framed"))
    arguments = parser.parse_args()
    known = {(line["group"], line["name"]) for line in read_lines(PLAIN)}
    for case in cases():
        if (case.group, case.name) in known or (arguments.group and case.group not in arguments.group):
            continue
        line = judge(case)
        with PLAIN.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        told = line.get("reason") or f"{line['trace']} {line['embedding_log10_p']} {line['layers_log10_p']}"
        print(f"{case.group} {case.name}: {told}", flush=True)


if __name__ == "__main__":
    main()
