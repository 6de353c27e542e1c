"""Measure an index of 500 synthetic bases: size, query time, hits, and false matches among unrelated models.

python -m benchmarks.index_speed [--bases 500] [--widths 1024 2048 3072 4096] [--relatives 40] [--strangers 200]

Bases are Gaussian, with a common direction and varying row lengths as in trained embeddings. Reads of the query are not
counted: it is generated on the tokens of the index.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.index.base_index import BYTES_PER_BASE, BaseIndex
from mdir_hf.lineage.index.building import QUERY_TOKENS
from mdir_hf.lineage.index.identify import judge_hits
from mdir_hf.report import ModelSummary

WORDS = tuple(f"word{at}".encode() for at in range(QUERY_TOKENS))
WIDTHS = (1024, 2048, 3072, 4096)
ALPHA = 1e-10
TOP = 5
CHANGES = ("tuned", "continued", "permuted", "flipped", "pruned")


def rows(width: int, seed: int) -> torch.Tensor:
    """Return rows of a base: a common direction, and varying lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.exp(0.4 * torch.randn(len(WORDS), 1, generator=generator))
    common = 0.5 * torch.randn(1, width, generator=generator)
    return 0.02 * lengths * (torch.randn(len(WORDS), width, generator=generator) + common)


def kept(name: str, values: torch.Tensor) -> Fingerprint:
    """Return the fingerprint of a model."""
    model = ModelSummary(name, None, "0" * 40, "llama", values.shape[1], 2, len(values))
    return Fingerprint(model, WORDS[: len(values)], values.bfloat16(), 10**9)


def relative(width: int, seed: int, change: str) -> torch.Tensor:
    """Return a descendant of a base."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    noise = 1.0 if change == "continued" else 0.2
    made = rows(width, seed) + 0.02 * noise * torch.randn(len(WORDS), width, generator=generator)
    if change in ("permuted", "flipped", "pruned"):
        made = made[:, torch.randperm(width, generator=generator)]
    if change == "flipped":
        made = made * torch.where(torch.rand(width, generator=generator) < 0.5, -1.0, 1.0)
    return made[:, : 3 * width // 4] if change == "pruned" else made


def ask(index: BaseIndex, query: Fingerprint) -> tuple[float, list[str]]:
    """Search like ``identify`` before it compares models; return processor seconds and the bases found."""
    started = time.process_time()
    hits = judge_hits(index, query, top=TOP, alpha=ALPHA)
    bases = [hit.base.repo for hit, log10_p in hits if log10_p < math.log10(ALPHA)]
    return time.process_time() - started, bases


def main() -> None:
    """Build and query the index, and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bases", type=int, default=500)
    parser.add_argument("--relatives", type=int, default=40)
    parser.add_argument("--strangers", type=int, default=200)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="narrow ones keep 50,000 in memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    width_of = [options.widths[at % len(options.widths)] for at in range(options.bases)]
    bases = [kept(f"base/{at}", rows(width, at)[: BYTES_PER_BASE // (2 * width)]) for at, width in enumerate(width_of)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bases.safetensors"
        BaseIndex(WORDS, bases).save(path)
        started = time.perf_counter()
        index = BaseIndex.load(path)
        loaded_s, n_bytes = time.perf_counter() - started, path.stat().st_size
    print(
        f"{len(index)} bases of widths {tuple(options.widths)}: {n_bytes / 1e6:.1f} MB, "
        f"{n_bytes / len(index) / 1e3:.0f} kB per base,"
    )
    print(f"  loaded in {loaded_s:.2f} s")
    right: dict[str, list[bool]] = {change: [] for change in CHANGES}
    seconds: dict[str, list[float]] = {kind: [] for kind in (*CHANGES, "strangers")}
    n_false = 0
    for number in range(options.relatives):
        at = (37 * number) % len(index)
        change = CHANGES[number % len(CHANGES)]
        spent, bases = ask(index, kept("query", relative(width_of[at], at, change)))
        seconds[change].append(spent)
        right[change].append(f"base/{at}" in bases)
        n_false += len(set(bases) - {f"base/{at}"})
    n_matches = 0
    for number in range(options.strangers):
        query = kept("query", rows(width_of[number % len(width_of)], 1_000_000 + number))
        spent, bases = ask(index, query)
        seconds["strangers"].append(spent)
        n_matches += len(bases)
    print(
        f"false matches: {n_matches} among {options.strangers} strangers, {n_false} in addition to the true base of "
        "relatives"
    )
    print("processor seconds of a query (one thread), without its reads:")
    for kind, spent_s in seconds.items():
        found_of = f", {sum(right[kind])} of {len(right[kind])} found" if kind in right else ""
        print(f"  {kind:<10}{np.median(spent_s):5.2f} (median) {max(spent_s):5.2f} (worst){found_of}")


if __name__ == "__main__":
    main()
